// Explorations in child processes: what is handed over, and what becomes of a child that ends.
#include "conformance/command/jobs.h"

#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "conformance/command/result_file.h"
#include "conformance/command/run_slot.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {
namespace {

WorldSpec tiny(int tp) {
  return small_world(model::load_model_config(std::string(TPSYNC_SOURCE_DIR) +
                                              "/conformance/models/tiny-tp4.json"),
                     tp);
}

constexpr std::uint64_t kPlanned = 30;

// Thirty random plans; `struck` is called before each run.
Exploring thirty_plans(const WorldSpec& spec, std::function<void(std::uint64_t number)> struck) {
  return [=](SimRunner& runner, const ExploreOptions& options) {
    ExploreOptions own = options;
    own.before = [&](std::uint64_t number, const WorldSpec& world, const SimOptions& run) {
      options.before(number, world, run);
      struck(number);
    };
    return explore_random(runner, spec, {.count = kPlanned}, own);
  };
}

JobsResult run_thirty(std::uint64_t jobs, std::function<void(std::uint64_t number)> struck) {
  const WorldSpec spec = tiny(1);
  JobOptions options;
  options.jobs = jobs;
  options.spec = &spec;
  options.world = [&spec](std::uint64_t, std::uint64_t number) {
    SimRunner runner;
    return RandomPlans(runner, spec).draw(number).spec;
  };
  return run_jobs({thirty_plans(spec, std::move(struck))}, options);
}

TEST(Jobs, AddUpToTheSameReport) {
  const auto nothing = [](std::uint64_t) {};
  const JobsResult one = run_thirty(1, nothing);
  const JobsResult four = run_thirty(4, nothing);
  EXPECT_FALSE(one.failed);
  EXPECT_EQ(one.reports.front().runs, kPlanned);
  EXPECT_EQ(four.reports.front().runs, kPlanned);
  EXPECT_EQ(four.reports.front().combined_hash, one.reports.front().combined_hash);
}

TEST(Jobs, ACrashIsAFindingWithItsPlanAndTheOtherRunsAreMade) {
  const JobsResult result = run_thirty(2, [](std::uint64_t number) {
    if (number == 7 || number == 12) std::raise(SIGKILL);
  });
  EXPECT_FALSE(result.failed);
  const ExploreReport& report = result.reports.front();
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(report.runs, kPlanned);
  EXPECT_EQ(report.violations, 2u);
  ASSERT_EQ(report.findings.size(), 2u);
  const WorldSpec spec = tiny(1);
  SimRunner runner;
  RandomPlans plans(runner, spec);
  for (const std::uint64_t number : {7, 12}) {
    const Finding& finding = report.findings[number == 7 ? 0 : 1];
    const RandomPlan plan = plans.draw(number);
    EXPECT_EQ(finding.id, "crash");
    EXPECT_EQ(finding.number, number);
    EXPECT_EQ(finding.options.plan, plan.options.plan);
    EXPECT_EQ(finding.options.pipe_capacity, plan.options.pipe_capacity);
    EXPECT_EQ(finding.options.policy, plan.options.policy);
    EXPECT_EQ(finding.spec.seed, plan.spec.seed);
    EXPECT_NE(finding.what.find("signal 9"), std::string::npos) << finding.what;
  }
}

TEST(Jobs, ACrashOfTheFaultFreeWorldEndsTheJob) {
  const JobsResult result = run_thirty(1, [](std::uint64_t number) {
    if (number == kTwinNumber) std::raise(SIGKILL);
  });
  const ExploreReport& report = result.reports.front();
  EXPECT_FALSE(report.complete);
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings.front().id, "crash");
}

TEST(Jobs, AFailureOfTheHarnessIsNoFinding) {
  const JobsResult result =
      run_thirty(1, [](std::uint64_t) { throw_broken(ErrorKind::kIo, "disk", "full"); });
  EXPECT_TRUE(result.failed);
  EXPECT_EQ(result.reports.front().violations, 0u);
}

TEST(RunSlot, KeepsAllOptionsOfARun) {
  const auto slot = std::make_unique<RunSlot>();
  SimOptions options;
  options.policy = sim::Policy::kPriority;
  options.schedule = 5;
  options.priority_changes = 2;
  options.priority_choices = 77;
  options.pipe_capacity = 3;
  options.latency_percent = 10;
  options.recovery = "other-world";
  options.deviations = {{4, 1}, {900, 2}};
  options.plan.seed = 8;
  options.plan.faults = {{"receipt.missing",
                          {"worker", 1, "finish_native_weight_update", 2, "channel.write", 3},
                          {{"hop", "worker"}, {"receipt", "1"}}}};
  options.facts = {{faults::Demand::kSurvive, {ErrorKind::kEndOfFile, ErrorKind::kRemote}}};
  slot->write(options);
  const SimOptions read = slot->read();
  EXPECT_EQ(read.policy, options.policy);
  EXPECT_EQ(read.schedule, options.schedule);
  EXPECT_EQ(read.priority_changes, options.priority_changes);
  EXPECT_EQ(read.priority_choices, options.priority_choices);
  EXPECT_EQ(read.pipe_capacity, options.pipe_capacity);
  EXPECT_EQ(read.latency_percent, options.latency_percent);
  EXPECT_EQ(read.recovery, options.recovery);
  EXPECT_EQ(read.plan, options.plan);
  ASSERT_EQ(read.deviations.size(), 2u);
  EXPECT_EQ(read.deviations[1].choice, 900u);
  EXPECT_EQ(read.deviations[1].candidate, 2u);
  ASSERT_EQ(read.facts.size(), 1u);
  EXPECT_EQ(read.facts[0].demand, faults::Demand::kSurvive);
  EXPECT_EQ(read.facts[0].kinds, options.facts[0].kinds);
}

TEST(ResultFile, AShardThatIsNoneIsRefusedAsAnyOtherField) {
  ExploreResult result;
  result.tp = 1;
  nlohmann::ordered_json json = to_json(result);
  json["shard"] = "3/2";
  try {
    result_from_json(json.dump());
    FAIL() << "it was read";
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidConfig);
    EXPECT_EQ(error.record().subject, "shard");
  }
}

}  // namespace
}  // namespace tpsync::conformance
