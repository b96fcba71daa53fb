// Test weights in a device whose memory the processor cannot reach: made there, and copied back to
// be hashed.
#pragma once

#include <cstdint>
#include <vector>

#include "conformance/world/ports.h"
#include "conformance/world/spec.h"
#include "tpsync/base/clock.h"
#include "tpsync/device/cuda_device.h"
#include "tpsync/device/handles.h"

namespace tpsync::conformance {

// Used by one thread at a time. Destroyed before its device.
class GpuContent final : public ContentPort {
 public:
  GpuContent(device::CudaDevice& device, Clock& clock, const WorldSpec& spec);

  // Writes through the device that it was made with, which the given one decorates. Blocks until it
  // is written.
  void write(device::Device& device, device::RegionId region, std::uint64_t offset,
             const ContentRect& content) override;
  std::uint64_t hash_parameter(const runtime::ResidentModel& resident,
                               std::size_t parameter) override;

 private:
  void synchronize();

  device::CudaDevice& device_;
  Clock& clock_;
  std::uint64_t seed_;
  std::uint64_t lane_bytes_;
  device::Stream stream_;
  std::vector<std::byte> host_;
};

}  // namespace tpsync::conformance
