// Random fault plans: some faults of a publication, a schedule, latencies and a pipe capacity, all
// drawn by the plan's number alone, so that a number is a plan on any machine and in any shard.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/world/sim_run.h"
#include "conformance/world/spec.h"
#include "faults/enumerate.h"

namespace tpsync::conformance {

struct RandomPlan {
  WorldSpec spec;
  SimOptions options;  // runs publish_and_recover()
  std::string world;   // what was drawn of the world, in words; empty if nothing was
  bool works = true;   // false: the drawn world fails without faults, and has none here
};

struct RandomOptions {
  // Whole families of faults are off, by each plan's own draw, so that those that are left meet
  // more often.
  bool swarm = false;
  // The world is drawn as well (drawn_worlds.h), one for so many plans.
  bool draw_worlds = false;
};
inline constexpr std::uint64_t kPlansPerWorld = 16;
inline constexpr std::uint64_t kPlanFaultsMax = 3;

class RandomPlans {
 public:
  // Draws from the single faults of the fault-free publication of this world, which is run once
  // with `runner`; where worlds are drawn, of each of theirs.
  RandomPlans(SimRunner& runner, const WorldSpec& spec, RandomOptions options = {});

  // One to three faults; another world recovers where one of them breaks this one. May use the
  // runner.
  RandomPlan draw(std::uint64_t number);

  std::uint64_t operations() const { return operations_; }
  const std::vector<faults::Pair>& pairs() const { return pairs_; }

 private:
  void enter_world(std::uint64_t number);

  SimRunner& runner_;
  const RandomOptions options_;
  WorldSpec spec_;
  std::uint64_t operations_ = 0;
  std::vector<faults::Pair> pairs_;
  // Of the world that was drawn last.
  std::uint64_t block_ = UINT64_MAX;
  bool works_ = true;
  std::string world_;
  std::uint64_t pipe_capacity_ = 0;
  std::uint32_t latency_percent_ = 100;
};

}  // namespace tpsync::conformance
