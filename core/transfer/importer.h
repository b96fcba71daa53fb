// A worker's view of the actors' packed buffers: of its own actor's alone, or by the reshard route
// of all. Each is opened once per export and released once. The same handle bytes mean the same
// export; other bytes close the old mappings before new ones are opened.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tpsync/device/handles.h"
#include "tpsync/wire/messages.h"

namespace tpsync::transfer {

class Importer {
 public:
  explicit Importer(device::Device& device) : device_(device) {}

  // The regions behind the entries of `uuids`, distinct, in their order; the same ones from call to
  // call, or other handles for all. Opens another device's memory where an entry is for it. Throws,
  // with the UUID of the entry as subject: PeerViolation kMismatch if there is none (detail lists
  // the known ones), it has fewer than `bytes` or opens memory of another device; RuntimeBroken
  // kIpc if it cannot be opened. After a failure nothing is open. The result is valid until the
  // next call.
  std::span<const device::RegionId> open_all(const wire::HandleMap& handles,
                                             std::span<const std::string> uuids,
                                             std::uint64_t bytes);

  bool is_open() const;

  // Closes what is open; returns how many imports that were.
  std::uint64_t release() noexcept;

 private:
  struct Opened {
    std::string uuid;
    ByteBuffer handle;
    std::uint64_t bytes = 0;
    device::Import import;
  };
  const ByteBuffer& handle_of(const wire::HandleMap& handles, const std::string& uuid) const;
  bool has_open(const wire::HandleMap& handles, std::span<const std::string> uuids) const;
  void open_one(const ByteBuffer& handle, const std::string& uuid);

  device::Device& device_;
  std::vector<Opened> opened_;
  std::vector<device::RegionId> regions_;
};

}  // namespace tpsync::transfer
