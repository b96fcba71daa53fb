// How a run failed, as ids by which failures are told apart: how its world ended, and each
// invariant that it broke.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "conformance/world/sim_run.h"

namespace tpsync::conformance {

// Ids of worlds that did not end by themselves; an invariant's id is its own.
inline constexpr std::string_view kCrashSymptom = "crash";      // core ended a process by an error
inline constexpr std::string_view kHangSymptom = "hang";        // nobody could go on
inline constexpr std::string_view kHarnessSymptom = "harness";  // the simulator's own failure
inline constexpr std::string_view kReplaySymptom = "replay";    // a recorded choice did not fit

struct Symptom {
  std::string id;
  std::string text;
};

// Everything that is wrong with a run, the world's end before the invariants; empty for a run that
// is merely inconclusive.
std::vector<Symptom> symptoms_of(const Run& run);

bool has_symptom(const std::vector<Symptom>& symptoms, std::string_view id);

}  // namespace tpsync::conformance
