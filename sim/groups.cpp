// What groups of both kinds share: what a process's end and the world's end mean to them.
#include "sim/groups.h"

#include "sim/shard_group.h"

namespace tpsync::sim {

GroupSystem::GroupSystem(SimWorld& world) : world_(world) {}
GroupSystem::~GroupSystem() = default;

void GroupSystem::process_ended(SimProcess& process) {
  for (auto& hub : control_)
    for (std::size_t rank = 0; rank < hub->members.size(); ++rank)
      if (hub->members[rank].process == &process)
        hub->rank_gone(static_cast<int>(rank), process.outcome().kind != Outcome::Kind::kExited);
  for (auto& hub : shard_) hub->process_ended(process);
}

void GroupSystem::closing() {
  for (auto& hub : control_) hub->world = nullptr;
  for (auto& hub : shard_) hub->world = nullptr;
}

}  // namespace tpsync::sim
