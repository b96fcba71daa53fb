// Test weights in a simulated device: real bytes, or in phantom worlds the identity of what would
// be there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/world/ports.h"
#include "conformance/world/spec.h"
#include "sim/device.h"
#include "sim/world.h"

namespace tpsync::conformance {

class SimContent final : public ContentPort {
 public:
  SimContent(sim::SimProcess& process, const WorldSpec& spec);

  void write(device::Device& device, device::RegionId region, std::uint64_t offset,
             const ContentRect& content) override;
  // In phantom worlds the hash of the version found, if the parameter holds exactly one.
  std::uint64_t hash_parameter(const runtime::ResidentModel& resident,
                               std::size_t parameter) override;
  // In phantom worlds.
  std::vector<std::string> differences(const runtime::ResidentModel& resident,
                                       std::int64_t version) override;

 private:
  std::uint64_t hash_phantom(const runtime::ResidentModel& resident, std::size_t parameter);

  sim::SimDevice& device_;
  std::uint64_t seed_;
  std::vector<std::byte> bytes_;
};

}  // namespace tpsync::conformance
