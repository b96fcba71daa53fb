// Scenarios: one situation each, with what must follow. A scenario runs as many worlds as its
// situation has variants; each world is judged by every invariant, and the scenario adds which
// failure, which state and which record it expects.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "conformance/world/actor.h"
#include "conformance/world/sim_run.h"
#include "conformance/world/spec.h"

namespace tpsync::conformance {

// What the actors of one world returned, by rank, in the order of their calls.
struct ActorLog {
  std::vector<std::vector<Outcome>> by_rank;
  const Outcome& last(int rank) const { return by_rank[static_cast<std::size_t>(rank)].back(); }
};

class ScenarioContext {
 public:
  ScenarioContext(SimRunner& runner, WorldSpec spec) : runner_(runner), spec_(std::move(spec)) {}

  const WorldSpec& spec() const { return spec_; }
  int last_rank() const { return spec_.actors - 1; }

  // ---- worlds ----
  // Runs one world. Unless options.judge is false, a verdict that is not a pass fails the scenario,
  // with the world's label. The script may append outcomes to log().by_rank[rank].
  Run run(const std::string& label, const WorldSpec& spec, const SimOptions& options,
          const Script& script);
  Run run(const std::string& label, const SimOptions& options, const Script& script) {
    return run(label, spec_, options, script);
  }
  ActorLog& log() { return log_; }
  const sim::Trace& trace() const { return runner_.trace(); }  // of the last world

  // Of a fault-free publication in the scenario's world; made once.
  const std::vector<faults::Operation>& operations();

  // ---- expectations ----
  void check(bool condition, const std::string& what);
  // Every actor's last outcome is this version.
  void expect_committed(std::int64_t version);
  struct Failure {
    ErrorKind kind = ErrorKind::kInternal;
    std::string phase;    // exact; empty: any
    int rank = -2;        // -2: any
    std::string subject;  // contained in the subject; empty: any
    std::string detail;   // contained in the detail; empty: any
  };
  // Every (surviving) actor's last outcome is this failure, with the same record on all of them;
  // each survivor of a lost peer says for itself where it noticed.
  void expect_failed(const Failure& failure, const std::vector<int>& except = {});

  const std::vector<std::string>& failures() const { return failures_; }
  std::uint64_t worlds() const { return worlds_; }
  // Over all worlds, in order.
  std::uint64_t combined_hash() const { return combined_hash_; }
  // The first failing world, for reports.
  struct FailedWorld {
    std::string label;
    WorldSpec spec;
    SimOptions options;
    std::string trace;  // in file form
  };
  const std::optional<FailedWorld>& failed_world() const { return failed_world_; }
  const std::string& last_trace_hash() const { return last_trace_hash_; }

 private:
  SimRunner& runner_;
  WorldSpec spec_;
  ActorLog log_;
  std::string label_;
  std::vector<std::string> failures_;
  std::optional<FailedWorld> failed_world_;
  std::optional<FailedWorld> last_world_;
  std::vector<faults::Operation> operations_;
  std::uint64_t worlds_ = 0;
  std::uint64_t combined_hash_ = 0;
  std::string last_trace_hash_;
};

struct Scenario {
  std::string id;     // "publish.bootstrap"
  std::string title;  // one sentence: the situation and what must follow
  std::vector<std::string> requirements;
  // Empty: runs with this spec; else why it does not apply.
  std::function<std::string(const WorldSpec&)> not_applicable;
  std::function<void(ScenarioContext&)> body;
};

// Conditions for not_applicable.
std::string needs_ranks(const WorldSpec& spec, int ranks);
std::string needs_bytes(const WorldSpec& spec);  // not phantom
std::string needs_equal_worlds(const WorldSpec& spec);

// All scenarios, in the order in which they are listed and run.
std::vector<Scenario> all_scenarios();

// One function per file of scenarios.
std::vector<Scenario> publication_scenarios();
std::vector<Scenario> channel_scenarios();
std::vector<Scenario> receipt_scenarios();
std::vector<Scenario> expert_scenarios();
std::vector<Scenario> rank_scenarios();
std::vector<Scenario> memory_scenarios();
std::vector<Scenario> sequence_scenarios();

}  // namespace tpsync::conformance
