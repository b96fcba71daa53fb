// What groups of both kinds share: their makers and what a process's end means to them.
#include "sim/groups.h"

namespace tpsync::sim {

void GroupSystem::process_ended(SimProcess& process) {
  for (auto& hub : control_)
    for (std::size_t rank = 0; rank < hub->members.size(); ++rank)
      if (hub->members[rank].process == &process)
        hub->rank_gone(static_cast<int>(rank), process.outcome().kind != Outcome::Kind::kExited);
}

void GroupSystem::closing() {
  for (auto& hub : control_) hub->world = nullptr;
}

}  // namespace tpsync::sim
