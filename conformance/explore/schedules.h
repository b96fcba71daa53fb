// Exploration of schedules: drawn ones of a fault-free publication or of all its single faults, and
// all that differ from the plain one at a few choices.
#pragma once

#include <cstdint>

#include "conformance/explore/explorer.h"

namespace tpsync::conformance {

enum class DrawnSchedule : std::uint8_t {
  kRandom,    // every choice is drawn
  kPriority,  // probabilistic concurrency testing
};

struct ScheduleRange {
  DrawnSchedule kind = DrawnSchedule::kRandom;
  // Of kPriority: how many constraints on the order of events a bug may need to be found with the
  // probability that the method states, 1 / (threads * choices^(depth - 1)) per schedule.
  std::uint32_t depth = 3;
  std::uint64_t first = 0;  // numbers of schedules
  std::uint64_t count = 0;
  bool single_faults = false;  // each schedule with every single fault, else without any
};
ExploreReport explore_schedules(SimRunner& runner, const WorldSpec& spec,
                                const ScheduleRange& range, const ExploreOptions& options);

// Every choice of another thread than the plain policy's (a thread runs until it blocks, then the
// one that became ready last) counts as one preemption, at points where a thread could have gone on
// as well as at those where it could not: bounded by delays. Latencies are zero, so that nothing
// but the schedule orders what several threads could do. All schedules of one fault-free
// publication with at most so many between its begin and its end are run.
inline constexpr std::uint32_t kPreemptionsMax = 3;
ExploreReport explore_bounded(SimRunner& runner, const WorldSpec& spec, std::uint32_t preemptions,
                              const ExploreOptions& options);

}  // namespace tpsync::conformance
