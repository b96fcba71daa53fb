// Exploration of faults: every operation of a publication with every fault that applies to it, all
// pairs of faults, or random plans; each in a fresh world that then has to recover, each judged by
// all invariants and held against what the faults demand.
//
// An exploration can be split into shards: each makes the runs whose number, or key, is its own,
// and the reports of all shards add up to that of the whole (merge).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/explore/coverage.h"
#include "conformance/explore/random_plans.h"
#include "conformance/judge/situation_count.h"
#include "conformance/world/sim_run.h"
#include "conformance/world/spec.h"
#include "faults/enumerate.h"

namespace tpsync::conformance {

inline constexpr std::uint64_t kTwinNumber = UINT64_MAX;  // of the fault-free run

struct Finding {
  std::uint64_t number = 0;  // of its run; the first are kept
  // Of a symptom (symptoms.h); "inconclusive", "demand" (the publication did not come to what its
  // fault demands), "no effect", "recovery" (the next world did not publish), "determinism".
  std::string id;
  std::string what;  // the faults, and the first broken invariant or expectation
  WorldSpec spec;
  SimOptions options;
  std::string hash;  // of the trace
};

struct ExploreReport {
  std::string schedule;  // "first-ready", "last-ready", "seeded"; "random" of random plans
  std::uint64_t operations = 0;
  std::uint64_t kinds = 0;  // of the catalogue that apply somewhere
  std::uint64_t pairs = 0;  // of an operation and a fault that applies to it
  std::uint64_t runs = 0;
  std::uint64_t equal = 0;  // runs that another one stands for
  std::uint64_t violations = 0;
  std::uint64_t harness_errors = 0;  // of the violations: the simulator's own
  // Runs in which no fault took effect. Of random plans and pairs all that an invariant could say
  // nothing of: whose faults struck nowhere, or before there was anything to recover. They are no
  // finding.
  std::uint64_t ineffective = 0;
  std::uint64_t unreached = 0;  // faults whose moment did not come
  std::uint64_t repeated = 0;   // runs that were made twice and compared
  std::uint64_t diverged = 0;   // of these
  bool complete = true;         // false: a budget of time came first
  double seconds = 0;
  std::uint64_t combined_hash = 0;
  Coverage coverage;
  judge::SituationCount situations;  // over the counted runs
  std::vector<Finding> findings;     // the first of each id
  std::map<std::string, std::uint64_t> findings_by_id;
  Finding fault_free;  // the run that single faults are held against
};

struct ExploreOptions {
  sim::Policy policy = sim::Policy::kSeeded;
  std::uint64_t schedule = 0;  // these three as in sim/config.h
  std::uint32_t priority_changes = 0;
  std::uint64_t priority_choices = 64;
  std::uint64_t shard_index = 0;
  std::uint64_t shard_count = 1;
  bool reverse = false;
  bool repeat_some = false;  // one run in 20 is made twice
  bool repeat_all = false;
  std::vector<std::uint64_t> left_out;  // numbers of runs that are not made
  // Called with each run's name and hash.
  std::function<void(const std::string&, const sim::TraceHash&)> each;
  // Called before every run, those included that are not counted, and after every counted one.
  std::function<void(std::uint64_t number, const WorldSpec&, const SimOptions&)> before;
  std::function<void(const ExploreReport&)> after;
};

ExploreReport explore_single(SimRunner& runner, const WorldSpec& spec,
                             const ExploreOptions& options);

// For every single fault, every operation after its first effect in its own run with every fault
// that applies there. A pair whose run is equal to another pair's up to the second fault, which is
// the same, is not made but counted (ExploreReport::equal).
ExploreReport explore_pairs(SimRunner& runner, const WorldSpec& spec,
                            const ExploreOptions& options);

// The plans [first, first + count) of random_plans.h, which draw their schedules themselves:
// options.policy counts for nothing. Ends early once `budget` has passed, where there is one.
struct RandomRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::chrono::seconds budget{0};
  RandomOptions plans;
};
ExploreReport explore_random(SimRunner& runner, const WorldSpec& spec, const RandomRange& range,
                             const ExploreOptions& options);

// Reports of shards, or of one exploration under several schedules, as one: counts and hashes add
// up, of findings the first are kept. The name of the schedule and the fault-free run are `into`'s.
void merge(ExploreReport& into, const ExploreReport& from);
// Sorts by number and keeps the first few of each id.
void keep_first_findings(std::vector<Finding>& findings);

std::string_view name_of(sim::Policy policy);

// True if the control group is broken after this fault, or an actor gone: another world has to
// recover.
bool breaks_world(const faults::Fault& fault);

}  // namespace tpsync::conformance
