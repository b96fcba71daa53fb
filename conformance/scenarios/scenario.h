// Scenarios: one situation each, with what must follow. A scenario runs as many worlds as its
// situation has variants; each world is judged by every invariant, and the scenario adds which
// failure, which state and which record it expects.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "conformance/judge/situation_count.h"
#include "conformance/world/actor.h"
#include "conformance/world/sim_run.h"
#include "conformance/world/spec.h"

namespace tpsync::conformance {

class ScenarioContext {
 public:
  ScenarioContext(WorldRunner& runner, WorldSpec spec) : runner_(runner), spec_(std::move(spec)) {}

  const WorldSpec& spec() const { return spec_; }
  std::string_view world() const { return runner_.world(); }  // one of kWorlds
  bool simulated() const { return world() == "sim"; }
  int last_rank() const { return spec_.actors - 1; }

  // ---- worlds ----
  // run_all() runs at most so many of its worlds from now on, the first, the last and some evenly
  // between them; 0: all. Worlds have other numbers then. Worlds whose results later ones need are
  // run by run_whole().
  void limit_batches(std::size_t worlds) { worlds_of_batch_ = worlds; }
  std::uint64_t left_out() const { return left_out_; }  // by the limit
  // Runs one world. Unless options.judge is false, a verdict that is not a pass fails the scenario,
  // with the world's label, as does a check of the script.
  Run run(const std::string& label, const WorldSpec& spec, const SimOptions& options,
          const Script& script);
  Run run(const std::string& label, const SimOptions& options, const Script& script) {
    return run(label, spec_, options, script);
  }
  // Runs many worlds, several at once where the world's kind gains by it. `after` checks each with
  // its log() and trace().
  void run_all(const std::vector<WorldJob>& jobs,
               const std::function<void(std::size_t job)>& after = {});
  void run_whole(const std::vector<WorldJob>& jobs,
                 const std::function<void(std::size_t job)>& after);
  const ActorLog& log() const { return log_; }                 // of the last world
  const sim::Trace& trace() const { return runner_.trace(); }  // of the last world

  // Of a fault-free publication in the scenario's world, but for those that another publication
  // may not come to; made once.
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
  // Of all worlds that were judged.
  const judge::SituationCount& situations() const { return situations_; }
  // The harness itself failed in one of the worlds: the scenario says nothing about core.
  bool harness_failed() const { return harness_failed_; }

  struct KeptWorld {
    std::string label;
    std::uint64_t number = 0;  // from 1, in the order of runs
    std::string hash;
    std::string trace;  // in file form
    judge::Judgement judgement;
  };
  // The first failing world, for reports.
  const std::optional<KeptWorld>& failed_world() const { return failed_world_; }
  const KeptWorld& last_world() const { return last_world_; }  // its trace is trace()
  // Asks for the world of this number, whatever becomes of it; empty if there was none.
  void keep(std::uint64_t number) { keep_number_ = number; }
  const std::optional<KeptWorld>& kept_world() const { return kept_world_; }

 private:
  void take(const std::string& label, const Run& run, bool judged);

  WorldRunner& runner_;
  WorldSpec spec_;
  ActorLog log_;
  std::string label_;
  std::vector<std::string> failures_;
  std::optional<KeptWorld> failed_world_;
  std::optional<KeptWorld> kept_world_;
  KeptWorld last_world_;  // without its trace, which the runner has
  std::vector<faults::Operation> operations_;
  std::uint64_t worlds_ = 0;
  std::size_t worlds_of_batch_ = 0;
  std::uint64_t left_out_ = 0;
  std::uint64_t keep_number_ = 0;
  std::uint64_t combined_hash_ = 0;
  judge::SituationCount situations_;
  bool harness_failed_ = false;
};

// Worlds of a scenario that have nothing to do with each other: run together, several at once where
// the world's kind gains by it, and checked in the order in which they were added.
class Batch {
 public:
  explicit Batch(ScenarioContext& context) : context_(context) {}

  // `after` checks the world with the context's log() and trace().
  void add(std::string label, const WorldSpec& spec, SimOptions options, Script script,
           std::function<void()> after);
  void add(std::string label, SimOptions options, Script script, std::function<void()> after) {
    add(std::move(label), context_.spec(), std::move(options), std::move(script), std::move(after));
  }
  void run();
  void run_whole();  // as ScenarioContext::run_whole

 private:
  ScenarioContext& context_;
  std::vector<WorldJob> jobs_;
  std::vector<std::function<void()>> after_;
};

struct Scenario {
  std::string id;     // "publish.bootstrap"
  std::string title;  // one sentence: the situation and what must follow
  std::vector<std::string> requirements;
  // Empty: runs with this spec; else why it does not apply.
  std::function<std::string(const WorldSpec&)> not_applicable;
  std::function<void(ScenarioContext&)> body;
  // Why it has no meaning in worlds that are not simulated; empty: it runs in every world.
  std::string only_simulated;
};

// The worlds that scenarios run in.
inline constexpr const char* kWorlds[] = {"sim", "process", "gpu"};
// Empty: `scenario` runs in a world of this kind and spec; else why it does not.
std::string not_applicable(const Scenario& scenario, std::string_view world, const WorldSpec& spec);

// Conditions for not_applicable.
std::string needs_ranks(const WorldSpec& spec, int ranks);
std::string needs_bytes(const WorldSpec& spec);  // not phantom
std::string needs_equal_worlds(const WorldSpec& spec);
std::string needs_two_equal_ranks(const WorldSpec& spec);
// Equal worlds, and the route that gathers.
std::string needs_a_gather(const WorldSpec& spec);

// All scenarios but publication_only(), in the order in which they are listed and run.
std::vector<Scenario> all_scenarios();
// One publication and nothing else ("publish.once"), for models whose scenarios would take too
// long.
Scenario publication_only();
// By its id, publish.once included.
std::optional<Scenario> scenario_named(const std::string& id);

// One function per file of scenarios.
std::vector<Scenario> publication_scenarios();
std::vector<Scenario> channel_scenarios();
std::vector<Scenario> process_scenarios();
std::vector<Scenario> receipt_scenarios();
std::vector<Scenario> expert_scenarios();
std::vector<Scenario> rank_scenarios();
std::vector<Scenario> memory_scenarios();
std::vector<Scenario> reshard_scenarios();
std::vector<Scenario> sequence_scenarios();
std::vector<Scenario> fault_scenarios();

}  // namespace tpsync::conformance
