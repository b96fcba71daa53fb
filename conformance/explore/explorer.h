// Exploration of faults: every operation of a publication with every fault that applies to it, or
// random plans of several; each in a fresh world that then has to recover, each judged by all
// invariants and held against what the faults demand.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "conformance/world/sim_run.h"
#include "conformance/world/spec.h"
#include "faults/enumerate.h"

namespace tpsync::conformance {

struct Finding {
  std::string what;  // the pair and the first broken invariant or expectation
  WorldSpec spec;
  SimOptions options;
  std::string trace;  // in file form
  std::string hash;
};

struct ExploreReport {
  std::string schedule;  // "first-ready", "last-ready", "seeded"; "random" of random plans
  std::uint64_t operations = 0;
  std::uint64_t kinds = 0;  // of the catalogue that apply somewhere
  std::uint64_t pairs = 0;  // applicable
  std::uint64_t runs = 0;
  std::uint64_t violations = 0;
  std::uint64_t harness_errors = 0;  // of the violations: the simulator's own
  // Runs in which no fault took effect. Of random plans all that an invariant could say nothing of:
  // whose faults struck nowhere, or before there was anything to recover. They are no finding.
  std::uint64_t ineffective = 0;
  double seconds = 0;
  std::uint64_t combined_hash = 0;
  std::vector<Finding> findings;  // the first few violations and ineffective pairs
  Finding fault_free;             // the run that every pair is held against
};

struct ExploreOptions {
  sim::Policy policy = sim::Policy::kSeeded;
  std::uint64_t shard_index = 0;  // runs pairs whose number modulo shard_count is this
  std::uint64_t shard_count = 1;
  bool reverse = false;
  // Called with each run's name and hash.
  std::function<void(const std::string&, const sim::TraceHash&)> each;
};

ExploreReport explore_single(SimRunner& runner, const WorldSpec& spec,
                             const ExploreOptions& options);

// The plans [first, first + count) of random_plans.h, which draw their schedules themselves:
// options.policy counts for nothing. Ends early once `budget` has passed, where there is one.
struct RandomRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::chrono::seconds budget{0};
};
ExploreReport explore_random(SimRunner& runner, const WorldSpec& spec, const RandomRange& range,
                             const ExploreOptions& options);

std::string_view name_of(sim::Policy policy);

// True if the control group is broken after this fault, or an actor gone: another world has to
// recover.
bool breaks_world(const faults::Fault& fault);

// True if no event of `run` differs from `twin`'s, the harness's own fault marks left out.
bool same_events(const sim::Trace& run, const sim::Trace& twin);

}  // namespace tpsync::conformance
