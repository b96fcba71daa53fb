// The groups of one actor of a real world: Gloo's, where the actors meet in the world's folder, and
// a lane on those for agreement if the world has one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "conformance/process/process_world.h"
#include "tpsync/collective/control_group.h"
#include "tpsync/collective/os_shared_words.h"
#include "tpsync/collective/shard_group.h"

namespace tpsync::collective {
class GlooControlGroup;
}

namespace tpsync::conformance {

// All arguments outlive it and what it joined.
class WorldGroups {
 public:
  WorldGroups(const WorldFolder& folder, const WorldSpec& spec, int rank, const World& world,
              device::HostDevice& device)
      : folder_(folder), spec_(spec), rank_(rank), world_(world), device_(device) {}

  // Collective among the world's actors: each call meets under the next name. Throw what the
  // groups' constructors throw, and what open_lane throws.
  std::unique_ptr<collective::ControlGroup> control();
  std::unique_ptr<collective::ShardGroup> shards();

 private:
  std::unique_ptr<collective::GlooControlGroup> meet(const std::string& name, std::uint64_t number);
  Deadline deadline() { return Deadline::after(world_.clock, spec_.sync.control_timeout); }

  const WorldFolder& folder_;
  const WorldSpec& spec_;
  int rank_;
  World world_;
  device::HostDevice& device_;
  collective::OsSharedWordsFactory words_;
  std::uint64_t controls_ = 0;
  std::uint64_t shards_ = 0;
};

}  // namespace tpsync::conformance
