// What groups of both kinds and shared words have in common: what a process's end and the world's
// end mean to them.
#include "sim/groups.h"

#include "sim/shard_group.h"
#include "sim/shared_words.h"

namespace tpsync::sim {

GroupSystem::GroupSystem(SimWorld& world) : world_(world) {}
GroupSystem::~GroupSystem() = default;

void GroupSystem::process_ended(SimProcess& process) {
  for (auto& hub : control_)
    for (std::size_t rank = 0; rank < hub->members.size(); ++rank)
      if (hub->members[rank].process == &process)
        hub->rank_gone(static_cast<int>(rank), process.outcome().kind != Outcome::Kind::kExited);
  for (auto& hub : shard_) hub->process_ended(process);
  for (auto& hub : words_)
    if (hub->maker == &process) hub->maker = nullptr;
}

std::shared_ptr<WordsHub> GroupSystem::make_words(SimProcess& maker, std::size_t count) {
  auto hub = std::make_shared<WordsHub>(world_, words_.size() + 1, count);
  hub->maker = &maker;
  words_.push_back(hub);
  return hub;
}

std::shared_ptr<WordsHub> GroupSystem::find_words(std::uint64_t id) const {
  return id >= 1 && id <= words_.size() ? words_[id - 1] : nullptr;
}

void GroupSystem::closing() {
  for (auto& hub : control_) hub->world = nullptr;
  for (auto& hub : shard_) hub->world = nullptr;
  for (auto& hub : words_) hub->world = nullptr;
}

}  // namespace tpsync::sim
