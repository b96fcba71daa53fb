// A worker's view of its actor's packed buffers: each opened once per export, released once. The
// same handle bytes mean the same export. An actor has at most kPackedBuffersMax at a time: for one
// more, the one that was opened first is closed before.
#pragma once

#include <cstdint>
#include <vector>

#include "tpsync/device/handles.h"
#include "tpsync/wire/messages.h"

namespace tpsync::transfer {

class Importer {
 public:
  explicit Importer(device::Device& device) : device_(device) {}

  // The region behind this device's entry of `handles`. Throws PeerViolation kMismatch: no entry
  // for this device's UUID (detail lists the known ones), fewer than `bytes`, or memory of another
  // device; RuntimeBroken kIpc if it cannot be opened. After a failure nothing is open.
  device::RegionId open(const wire::HandleMap& handles, std::uint64_t bytes);

  bool is_open() const { return !opened_.empty(); }

  // Closes what is open; returns how many imports that were.
  std::uint64_t release() noexcept;

 private:
  struct Opened {
    ByteBuffer handle;
    device::Import import;
    std::uint64_t bytes = 0;
  };
  const Opened& find_or_open(const ByteBuffer& handle, const std::string& uuid);

  device::Device& device_;
  std::vector<Opened> opened_;  // in the order in which they were opened
};

}  // namespace tpsync::transfer
