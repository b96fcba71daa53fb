#include "tpsync/transfer/importer.h"

#include <algorithm>
#include <string>

#include "tpsync/base/errors.h"
#include "tpsync/transfer/chunk_layout.h"

namespace tpsync::transfer {

device::RegionId Importer::open(const wire::HandleMap& handles, std::uint64_t bytes) {
  try {
    const std::string uuid = device_.uuid();
    const ByteBuffer* handle = handles.find(uuid);
    if (handle == nullptr) {
      std::string known;
      for (const auto& entry : handles.entries) known += (known.empty() ? "" : ", ") + entry.first;
      throw_violation(ErrorKind::kMismatch, uuid,
                      "no handle for this worker's device; there are handles for: " + known);
    }
    const Opened& opened = find_or_open(*handle, uuid);
    if (opened.bytes < bytes) {
      throw_violation(ErrorKind::kMismatch, uuid,
                      "the export has " + std::to_string(opened.bytes) +
                          " bytes, the publication needs " + std::to_string(bytes));
    }
    return opened.import.id();
  } catch (const std::exception&) {
    release();
    throw;
  }
}

const Importer::Opened& Importer::find_or_open(const ByteBuffer& handle, const std::string& uuid) {
  for (const Opened& opened : opened_) {
    if (opened.handle == handle) return opened;
  }
  if (opened_.size() == kPackedBuffersMax) opened_.erase(opened_.begin());
  const device::ImportedRegion region = device_.import_region(handle);
  const bool known = std::any_of(opened_.begin(), opened_.end(), [&](const Opened& opened) {
    return opened.import.id() == region.region;
  });
  if (known) throw_violation(ErrorKind::kMismatch, uuid, "two handles name one export");
  opened_.push_back({handle, device::Import(device_, region.region), region.bytes});
  if (region.device_uuid != uuid) {
    throw_violation(ErrorKind::kMismatch, uuid,
                    "the handle opened memory of device " + region.device_uuid);
  }
  return opened_.back();
}

std::uint64_t Importer::release() noexcept {
  const std::uint64_t open = opened_.size();
  opened_.clear();
  return open;
}

}  // namespace tpsync::transfer
