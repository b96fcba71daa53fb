// The groups of one actor of a real world. The actors meet over Gloo in the world's folder; they
// agree there, or on a lane if the world has one, and move weights as their hardware does.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "conformance/process/hardware.h"
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
              Hardware& hardware)
      : folder_(folder), spec_(spec), rank_(rank), world_(world), hardware_(hardware) {}

  // Collective among the world's actors: each call meets under the next name. Throw what the
  // groups' constructors throw, and what open_lane throws.
  std::unique_ptr<collective::ControlGroup> control();
  // `device` is the actor's, with whatever decorates it: copies between actors go over it.
  std::unique_ptr<collective::ShardGroup> shards(device::Device& device);

 private:
  std::unique_ptr<collective::GlooControlGroup> meet(const std::string& name, std::uint64_t number);
  Deadline deadline() { return Deadline::after(world_.clock, spec_.sync.control_timeout); }

  const WorldFolder& folder_;
  const WorldSpec& spec_;
  int rank_;
  World world_;
  Hardware& hardware_;
  collective::OsSharedWordsFactory words_;
  std::uint64_t controls_ = 0;
  std::uint64_t shards_ = 0;
};

}  // namespace tpsync::conformance
