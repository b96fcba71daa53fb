// Reduces a failing run to a minimal one: fewest faults, earliest moments, smallest world, simplest
// schedule with fewest deviations, still failing by the same id (symptoms.h).
//
// Every step runs a simpler candidate and keeps it if it still fails. What a fault demands depends
// on its moment and world, so it is derived anew for each candidate; one whose faults do not apply
// in its world is none. The same input gives the same result.
#pragma once

#include <cstdint>
#include <string>

#include "conformance/explore/symptoms.h"
#include "conformance/world/sim_run.h"
#include "conformance/world/spec.h"

namespace tpsync::conformance {

struct ShrinkOptions {
  std::uint64_t runs_max = 3000;
  std::string id;  // the failure to keep; empty: the run's first symptom
  Script script;   // empty: publish_and_recover()
  // Makes each run in a process of its own: for failures that end the process. Deviations cannot be
  // read from such runs, so only the plain schedules are tried.
  bool isolated = false;
};

struct Shrunk {
  // What is left of the run; the input where it did not fail.
  WorldSpec spec;
  SimOptions options;
  std::string id;    // empty: the input does not fail so
  std::string text;  // of the symptom
  std::string hash;  // of the trace; empty where runs are isolated
  std::uint64_t runs = 0;
  bool finished = true;  // false: runs_max came first

  std::string summary() const;  // "1 fault, 0 deviations, TP 1, 1 chunk"
};

// The runner's trace is then that of the result, unless runs are isolated.
Shrunk shrink(SimRunner& runner, const WorldSpec& spec, const SimOptions& options,
              const ShrinkOptions& shrink_options = {});

// One run in a process of its own, with its first symptoms; one that ends that process is kCrash.
std::vector<Symptom> isolated_symptoms(const WorldSpec& spec, const SimOptions& options,
                                       const Script& script);

}  // namespace tpsync::conformance
