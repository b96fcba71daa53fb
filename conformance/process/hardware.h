// What the devices of a real world are made of: host shared memory, or the GPUs of this host.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "conformance/process/process_world.h"
#include "conformance/world/ports.h"
#include "tpsync/base/world.h"
#include "tpsync/collective/gloo_control_group.h"
#include "tpsync/collective/shard_group.h"
#include "tpsync/device/device.h"

namespace tpsync::conformance {

// One device as one process of the world has it. Lives in that process's main function, longer than
// everything that uses the device.
class Hardware {
 public:
  virtual ~Hardware() = default;

  virtual device::Device& device() = 0;
  // Test weights in that device.
  virtual ContentPort& content() = 0;
  // The group that moves weights between the actors; collective over `meeting`, which is not kept.
  // Throws what the group's constructor throws.
  virtual std::unique_ptr<collective::ShardGroup> join_shards(collective::ControlGroup& meeting,
                                                              const World& world,
                                                              Deadline deadline) = 0;
  // Of a worker: from now on actors can see what its weights hold.
  virtual void publish_resident(const WorldFolder& folder, int tp_rank,
                                const runtime::ResidentModel& resident) = 0;
  // Of an actor: the lane that the worker would generate, as seen from outside; nullopt if that
  // worker is no more.
  virtual std::optional<std::int64_t> observed_lane(const WorldFolder& folder, int tp_rank) = 0;
};

// The device with this index. Throws InvalidInput or RuntimeBroken as the device's constructor
// does. `world` outlives the result.
std::unique_ptr<Hardware> open_hardware(const WrittenWorld& world, int index);

// One function per kind of hardware.
std::unique_ptr<Hardware> open_host_hardware(const WrittenWorld& world, int index);
std::unique_ptr<Hardware> open_gpu_hardware(const WrittenWorld& world, int index);

// Of a world of host memory, what Hardware::observed_lane gives, for whoever has no device in it.
std::optional<std::int64_t> host_lane(const WorldFolder& folder, const WorldSpec& spec,
                                      int tp_rank);

}  // namespace tpsync::conformance
