#include "tpsync/transfer/importer.h"

#include "tpsync/base/errors.h"

namespace tpsync::transfer {

std::span<const device::RegionId> Importer::open_all(const wire::HandleMap& handles,
                                                     std::span<const std::string> uuids,
                                                     std::uint64_t bytes) {
  try {
    if (!has_open(handles, uuids)) {
      release();
      for (const std::string& uuid : uuids) handle_of(handles, uuid);  // before any is opened
      for (const std::string& uuid : uuids) open_one(handle_of(handles, uuid), uuid);
    }
    for (const Opened& opened : opened_) {
      if (opened.bytes >= bytes) continue;
      throw_violation(ErrorKind::kMismatch, opened.uuid,
                      "the export has " + std::to_string(opened.bytes) +
                          " bytes, the publication needs " + std::to_string(bytes));
    }
  } catch (const std::exception&) {
    release();
    throw;
  }
  return regions_;
}

const ByteBuffer& Importer::handle_of(const wire::HandleMap& handles,
                                      const std::string& uuid) const {
  const ByteBuffer* handle = handles.find(uuid);
  if (handle != nullptr) return *handle;
  std::string known;
  for (const auto& entry : handles.entries) known += (known.empty() ? "" : ", ") + entry.first;
  const bool own = uuid == device_.uuid();
  throw_violation(ErrorKind::kMismatch, uuid,
                  std::string("no handle for ") + (own ? "this worker's" : "an actor's") +
                      " device; there are handles for: " + known);
}

bool Importer::has_open(const wire::HandleMap& handles, std::span<const std::string> uuids) const {
  if (opened_.size() != uuids.size()) return false;
  for (std::size_t i = 0; i < uuids.size(); ++i) {
    const ByteBuffer* handle = handles.find(uuids[i]);
    if (opened_[i].uuid != uuids[i] || handle == nullptr || *handle != opened_[i].handle) {
      return false;
    }
  }
  return true;
}

void Importer::open_one(const ByteBuffer& handle, const std::string& uuid) {
  const device::ImportedRegion opened = device_.import_region(handle);
  device::Import import(device_, opened.region);
  // Two imports of one export are one mapping, which is closed once.
  for (const device::RegionId region : regions_) {
    if (region != opened.region) continue;
    import.leak();
    throw_violation(ErrorKind::kMismatch, uuid, "the handle is that of another actor's device");
  }
  if (opened.device_uuid != uuid) {
    throw_violation(ErrorKind::kMismatch, uuid,
                    "the handle opened memory of device " + opened.device_uuid);
  }
  regions_.push_back(opened.region);
  opened_.push_back({uuid, handle, opened.bytes, std::move(import)});
}

bool Importer::is_open() const { return !opened_.empty(); }

std::uint64_t Importer::release() noexcept {
  const std::uint64_t open = opened_.size();
  opened_.clear();
  regions_.clear();
  return open;
}

}  // namespace tpsync::transfer
