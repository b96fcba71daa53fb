// Test weights in a device whose memory the processor cannot reach: made on the host, copied there
// and back.
#pragma once

#include <cstdint>
#include <vector>

#include "conformance/world/ports.h"
#include "tpsync/base/clock.h"
#include "tpsync/device/handles.h"

namespace tpsync::conformance {

// Used by one thread at a time. Takes 16 MiB of the device once it writes. Destroyed before its
// device.
class GpuContent final : public ContentPort {
 public:
  GpuContent(device::Device& device, Clock& clock, std::uint64_t seed);

  // Writes through the device that it was made with, which the given one decorates.
  void write(device::Device& device, device::RegionId region, std::uint64_t offset,
             const ContentRect& content) override;
  std::uint64_t hash_parameter(const runtime::ResidentModel& resident,
                               std::size_t parameter) override;

 private:
  void write_rows(device::RegionId region, std::uint64_t offset, const ContentRect& content,
                  std::uint64_t base, std::uint64_t first_row, std::uint64_t rows);
  void synchronize();

  device::Device& device_;
  Clock& clock_;
  std::uint64_t seed_;
  device::Stream stream_;
  device::Region staging_;
  std::vector<std::byte> host_;
};

}  // namespace tpsync::conformance
