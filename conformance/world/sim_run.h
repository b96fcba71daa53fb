// Runs a script in a simulated world: one actor process per trainer rank, the test runtime and its
// workers as their children, core unchanged in all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "conformance/judge/judge.h"
#include "conformance/world/actor.h"
#include "conformance/world/spec.h"
#include "faults/catalogue.h"
#include "faults/plan.h"
#include "sim/config.h"
#include "sim/pools.h"
#include "sim/trace.h"
#include "sim/world.h"

namespace tpsync::conformance {

// Runs on every actor, in lockstep as far as the calls are collective.
using Script = std::function<void(Actor&)>;

struct FaultFacts {
  faults::Demand demand = faults::Demand::kEither;
  std::vector<ErrorKind> kinds;
};

struct SimOptions {
  sim::Policy policy = sim::Policy::kSeeded;
  std::vector<sim::Deviation> deviations;
  std::uint64_t schedule = 0;  // these three as in sim/config.h
  std::uint32_t priority_changes = 0;
  std::uint64_t priority_choices = 64;
  std::uint64_t pipe_capacity = 64 * 1024;
  std::uint32_t latency_percent = 100;  // of every latency of messages, groups, copies and deaths
  bool judge = true;
  faults::Plan plan;
  // Puts a decorator of the scenario's own around a rank's weight source; null for none.
  std::function<std::unique_ptr<transfer::WeightSource>(int rank, transfer::WeightSource&)>
      wrap_source;
  // What the plan's faults demand and admit, where the explorer knows better than the catalogue
  // does from the moment alone.
  std::vector<FaultFacts> facts;
  bool expect_failure = false;  // the scenario's publication must fail without a fault of the plan
  std::string recovery;         // "other-world": this world need not recover by itself
};

// The simulator was misused or failed, which says nothing about what ran in it.
inline bool is_harness_failure(sim::RunResult::Kind kind) {
  return kind == sim::RunResult::Kind::kHarnessError ||
         kind == sim::RunResult::Kind::kReplayMismatch;
}

struct Run {
  sim::RunResult end;
  judge::Judgement judgement;
  sim::TraceHash hash;
  std::uint64_t faults_applied = 0;
  ActorLog log;

  // The world ended by itself and every invariant held.
  bool passed() const { return end.kind == sim::RunResult::Kind::kFinished && judgement.ok(); }
};

struct WorldJob {
  std::string label;
  WorldSpec spec;
  SimOptions options;
  Script script;
};

// Makes worlds of one kind.
class WorldRunner {
 public:
  virtual ~WorldRunner() = default;
  virtual std::string_view world() const = 0;  // "sim", "process"
  virtual Run run(const WorldSpec& spec, const SimOptions& options, const Script& script) = 0;
  // Runs many worlds that have nothing to do with each other, several at once where they mostly
  // wait. `done` is called for each, in the order of the jobs; trace() is then its own.
  virtual void run_all(const std::vector<WorldJob>& jobs,
                       const std::function<void(std::size_t job, const Run& run)>& done);
  virtual const sim::Trace& trace() const = 0;  // of the last run
};

class SimRunner final : public WorldRunner {
 public:
  SimRunner();
  ~SimRunner() override;
  SimRunner(const SimRunner&) = delete;
  SimRunner& operator=(const SimRunner&) = delete;

  std::string_view world() const override { return "sim"; }
  Run run(const WorldSpec& spec, const SimOptions& options, const Script& script) override;
  const sim::Trace& trace() const override { return pools_.trace; }

 private:
  sim::Pools pools_;
  judge::Judge judge_;
};

// The parameters that a trace of this world begins with (judge/records.h).
std::string trace_parameters(const WorldSpec& spec, const SimOptions& options,
                             std::string_view world);

}  // namespace tpsync::conformance
