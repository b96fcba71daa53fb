// Every scenario that has a meaning in processes, in both kinds of world: what each process did and
// what came before what must be the same.
#include "conformance/world/projection.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "conformance/process/process_run.h"
#include "conformance/scenarios/scenario.h"
#include "conformance/world/sim_run.h"
#include "tpsync/base/log.h"

namespace tpsync::conformance {
namespace {

// Where any process is killed or stopped at any phase, survivors race against the news, or against
// several deadlines: what must follow is the scenarios' own to check.
constexpr std::string_view kNotCompared[] = {"process.killed",         "process.stopped",
                                             "process.trainer-killed", "publish.steady",
                                             "fault.every-mechanism",  "fault.start"};
constexpr std::size_t kReportedMax = 40;

// Runs each world in processes and then, with the same spec, options and script, in the simulator.
// Processes first: what a script changes in the harness's memory, only the simulator sees.
class ComparingRunner final : public WorldRunner {
 public:
  ComparingRunner() : process_({TPSYNC_TEST_RUNTIME}) {}

  std::string_view world() const override { return process_.world(); }
  Run run(const WorldSpec& spec, const SimOptions& options, const Script& script) override {
    Run run = process_.run(spec, options, script);
    compare({fmt::format("world {}", ++worlds_), spec, options, script});
    return run;
  }
  void run_all(const std::vector<WorldJob>& jobs,
               const std::function<void(std::size_t job, const Run& run)>& done) override {
    process_.run_all(jobs, [&](std::size_t job, const Run& run) {
      compare(jobs[job]);
      ++worlds_;
      done(job, run);
    });
  }
  const sim::Trace& trace() const override { return process_.trace(); }

  std::uint64_t worlds() const { return worlds_; }
  const std::vector<std::string>& found() const { return found_; }

 private:
  void compare(const WorldJob& job) {
    SimOptions unjudged = job.options;
    unjudged.judge = false;
    sim_.run(job.spec, unjudged, job.script);
    const bool undisturbed = job.options.plan.faults.empty() && !gave_up(sim_.trace());
    const auto view = undisturbed ? project : project_failures;
    for (const std::string& difference : differences(view(sim_.trace()), view(process_.trace())))
      found_.push_back(job.label + ": " + difference);
  }

  // Somebody was killed, or given up on: what it still did is a race against its end.
  static bool gave_up(const sim::Trace& trace) {
    return std::any_of(trace.events.begin(), trace.events.end(), [](const sim::Event& event) {
      return event.kind == static_cast<std::uint16_t>(sim::EventKind::kProcessKill) ||
             (event.kind == static_cast<std::uint16_t>(sim::EventKind::kLog) &&
              event.c == static_cast<std::uint64_t>(LogEvent::kConnectionBroken));
    });
  }

  ProcessRunner process_;
  SimRunner sim_;
  std::uint64_t worlds_ = 0;
  std::vector<std::string> found_;
};

WorldSpec tiny(int tp) {
  WorldSpec spec = small_world(model::load_model_config(std::string(TPSYNC_SOURCE_DIR) +
                                                        "/conformance/models/tiny-tp4.json"),
                               tp);
  set_real_timeouts(spec);
  return spec;
}

class BothWorlds : public ::testing::TestWithParam<std::string> {};

TEST_P(BothWorlds, ShowTheSameStepsInTheSameOrder) {
  const Scenario scenario = *scenario_named(GetParam());
  ComparingRunner runner;
  ScenarioContext context(runner, tiny(2));
  scenario.body(context);
  EXPECT_THAT(context.failures(), ::testing::IsEmpty());
  EXPECT_GT(runner.worlds(), 0U);
  std::string report;
  for (std::size_t i = 0; i < std::min(kReportedMax, runner.found().size()); ++i)
    report += runner.found()[i] + "\n";
  EXPECT_TRUE(runner.found().empty()) << runner.found().size() << " differences:\n" << report;
}

std::vector<std::string> compared_scenarios() {
  std::vector<std::string> ids = {"publish.once"};
  for (const Scenario& scenario : all_scenarios())
    if (std::find(std::begin(kNotCompared), std::end(kNotCompared), scenario.id) ==
            std::end(kNotCompared) &&
        not_applicable(scenario, "process", tiny(2)).empty())
      ids.push_back(scenario.id);
  return ids;
}

INSTANTIATE_TEST_SUITE_P(AtTp2, BothWorlds, ::testing::ValuesIn(compared_scenarios()),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tpsync::conformance
