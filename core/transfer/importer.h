// A worker's view of its actor's packed buffer: opened once per export, released once. The same
// handle bytes mean the same export; other bytes close the old mapping before the new one is
// opened.
#pragma once

#include <cstdint>

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

  bool is_open() const { return static_cast<bool>(import_); }

  // Closes what is open; returns how many imports that were (0 or 1).
  std::uint64_t release() noexcept;

 private:
  device::Device& device_;
  device::Import import_;
  ByteBuffer handle_;
  std::uint64_t bytes_ = 0;
};

}  // namespace tpsync::transfer
