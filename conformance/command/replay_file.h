// A replay: everything that one simulated run depends on, as a JSON file: the world, the script,
// the fault plan and the schedule.
#pragma once

#include <string>

#include "conformance/world/sim_run.h"
#include "conformance/world/spec.h"

namespace tpsync::conformance {

struct Replay {
  WorldSpec spec;
  SimOptions options;
  std::string script;      // "publish" (publish_once) or "recover" (publish_and_recover)
  std::string trace_hash;  // what the run gave; empty: any
};

std::string to_json(const Replay& replay);

// Throws InvalidInput kInvalidConfig, subject the field, with what to change.
Replay replay_from_json(const std::string& text);

}  // namespace tpsync::conformance
