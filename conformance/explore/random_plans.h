// Random fault plans: some faults of a publication, a schedule, latencies and a pipe capacity, all
// drawn by the plan's number alone, so that a number is a plan on any machine and in any shard.
#pragma once

#include <cstdint>
#include <vector>

#include "conformance/world/sim_run.h"
#include "conformance/world/spec.h"
#include "faults/enumerate.h"

namespace tpsync::conformance {

struct RandomPlan {
  WorldSpec spec;
  SimOptions options;  // runs publish_and_recover()
};

class RandomPlans {
 public:
  // Draws from the single faults of the fault-free publication of this world, which is run once
  // with `runner`.
  RandomPlans(SimRunner& runner, const WorldSpec& spec);

  // One to three faults; another world recovers where one of them breaks this one.
  RandomPlan draw(std::uint64_t number) const;

  std::uint64_t operations() const { return operations_; }
  const std::vector<faults::Pair>& pairs() const { return pairs_; }

 private:
  WorldSpec spec_;
  std::uint64_t operations_ = 0;
  std::vector<faults::Pair> pairs_;
};

}  // namespace tpsync::conformance
