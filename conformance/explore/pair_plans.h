// Pairs of faults: of a run with one fault, every fault that its own trace offers after the first
// effect, and by which two such pairs are known to be the same run.
#pragma once

#include <cstdint>
#include <vector>

#include "conformance/world/spec.h"
#include "faults/enumerate.h"
#include "sim/trace.h"

namespace tpsync::conformance {

struct SecondFault {
  faults::Pair pair;
  // Equal where all that happened before the second fault is equal, what the first one holds back
  // included, and the second fault is the same.
  std::uint64_t key = 0;
};

// `run` is the run with `first` alone, `twin` the one without it. Empty if the first had no effect.
std::vector<SecondFault> second_faults(const sim::Trace& run, const sim::Trace& twin,
                                       const WorldSpec& spec, const faults::Fault& first);

}  // namespace tpsync::conformance
