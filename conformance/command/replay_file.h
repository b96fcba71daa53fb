// A replay: what one simulated run depends on, as a JSON file. A scenario's world is given by the
// world that the scenario began from, its id, and which of its worlds it was, because scripts and
// decorators are code; a pair of the explorer by its world, schedule and fault plan.
#pragma once

#include <cstdint>
#include <string>

#include "conformance/world/sim_run.h"
#include "conformance/world/spec.h"

namespace tpsync::conformance {

struct Replay {
  WorldSpec spec;           // of a scenario: the one that it began from
  std::string scenario;     // its id; empty for the explorer's publish_and_recover
  std::uint64_t world = 0;  // of a scenario: the number of its world, from 1
  SimOptions options;       // of the explorer
  std::string trace_hash;   // what the run gave; empty: any
};

std::string to_json(const Replay& replay);

// Throws InvalidInput kInvalidConfig, subject the field, with what to change.
Replay replay_from_json(const std::string& text);

}  // namespace tpsync::conformance
