#include "tpsync/transfer/importer.h"

#include <string>

#include "tpsync/base/errors.h"

namespace tpsync::transfer {

device::RegionId Importer::open(const wire::HandleMap& handles, std::uint64_t bytes) {
  const std::string uuid = device_.uuid();
  const ByteBuffer* handle = handles.find(uuid);
  if (handle == nullptr) {
    std::string known;
    for (const auto& entry : handles.entries) known += (known.empty() ? "" : ", ") + entry.first;
    throw_violation(ErrorKind::kMismatch, uuid,
                    "no handle for this worker's device; there are handles for: " + known);
  }
  if (!import_ || *handle != handle_) {
    release();
    const device::ImportedRegion opened = device_.import_region(*handle);
    import_ = device::Import(device_, opened.region);
    handle_ = *handle;
    bytes_ = opened.bytes;
    if (opened.device_uuid != uuid) {
      release();
      throw_violation(ErrorKind::kMismatch, uuid,
                      "the handle opened memory of device " + opened.device_uuid);
    }
  }
  if (bytes_ < bytes) {
    const std::uint64_t found = bytes_;
    release();
    throw_violation(ErrorKind::kMismatch, uuid,
                    "the export has " + std::to_string(found) + " bytes, the publication needs " +
                        std::to_string(bytes));
  }
  return import_.id();
}

std::uint64_t Importer::release() noexcept {
  const std::uint64_t open = import_ ? 1 : 0;
  import_.reset();
  handle_.clear();
  bytes_ = 0;
  return open;
}

}  // namespace tpsync::transfer
