#include "conformance/explore/schedules.h"

#include <gtest/gtest.h>

#include <set>

#include "conformance/explore/drawn_worlds.h"
#include "conformance/scenarios/scripts.h"

namespace tpsync::conformance {
namespace {

WorldSpec tiny(int tp) {
  return small_world(model::load_model_config(std::string(TPSYNC_SOURCE_DIR) +
                                              "/conformance/models/tiny-tp4.json"),
                     tp);
}

void expect_nothing_found(const ExploreReport& report) {
  EXPECT_EQ(report.violations, 0u);
  for (const Finding& finding : report.findings) ADD_FAILURE() << finding.what;
}

TEST(PriorityPolicy, DrawsAnotherOrderBySchedule) {
  SimRunner runner;
  std::set<std::string> hashes;
  for (std::uint64_t schedule = 1; schedule <= 8; ++schedule) {
    SimOptions options;
    options.policy = sim::Policy::kPriority;
    options.schedule = schedule;
    options.priority_changes = 2;
    const auto run = runner.run(tiny(2), options, publish_and_recover());
    EXPECT_TRUE(run.passed()) << run.judgement.text();
    hashes.insert(sim::to_text(run.hash));
  }
  EXPECT_GT(hashes.size(), 5u);
}

// The highest priority runs until it falls: fewer switches than choices drawn one by one.
TEST(PriorityPolicy, ChangesAtAChoiceOnlyWhereItIsToldTo) {
  SimRunner runner;
  SimOptions options;
  options.policy = sim::Policy::kPriority;
  options.schedule = 3;
  options.priority_choices = 40;
  static_cast<void>(runner.run(tiny(2), options, publish_and_recover()));
  const auto plain = runner.trace().choices;
  options.priority_changes = 1;
  static_cast<void>(runner.run(tiny(2), options, publish_and_recover()));
  const auto changed = runner.trace().choices;
  std::size_t same = 0;
  while (same < plain.size() && plain[same] == changed[same]) ++same;
  EXPECT_LT(same, 40u) << "the change is among the first 40 choices";
}

TEST(DrawnSchedules, AreSplitByShardAndBreakNoInvariant) {
  SimRunner runner;
  for (const DrawnSchedule kind : {DrawnSchedule::kRandom, DrawnSchedule::kPriority}) {
    const ScheduleRange range{.kind = kind, .first = 3, .count = 30};
    const ExploreReport whole = explore_schedules(runner, tiny(2), range, {});
    EXPECT_EQ(whole.runs, 30u);
    expect_nothing_found(whole);
    ExploreReport sum;
    for (std::uint64_t shard = 0; shard < 3; ++shard) {
      ExploreOptions options;
      options.shard_index = shard;
      options.shard_count = 3;
      merge(sum, explore_schedules(runner, tiny(2), range, options));
    }
    EXPECT_EQ(sum.runs, whole.runs);
    EXPECT_EQ(sum.combined_hash, whole.combined_hash);
  }
}

TEST(DrawnSchedules, OfAllSingleFaultsBreakNoInvariant) {
  SimRunner runner;
  const ScheduleRange range{
      .kind = DrawnSchedule::kPriority, .depth = 2, .count = 1, .single_faults = true};
  const ExploreReport report = explore_schedules(runner, tiny(1), range, {});
  EXPECT_GT(report.runs, 900u);
  expect_nothing_found(report);
}

TEST(BoundedSchedules, AreAllThatDifferAtOneChoice) {
  SimRunner runner;
  const ExploreReport plain = explore_bounded(runner, tiny(2), 0, {});
  EXPECT_EQ(plain.runs, 1u);
  const ExploreReport report = explore_bounded(runner, tiny(2), 1, {});
  EXPECT_GT(report.runs, 30u);
  expect_nothing_found(report);
  ExploreReport sum;
  for (std::uint64_t shard = 0; shard < 4; ++shard) {
    ExploreOptions options;
    options.shard_index = shard;
    options.shard_count = 4;
    merge(sum, explore_bounded(runner, tiny(2), 1, options));
  }
  EXPECT_EQ(sum.runs, report.runs);
  EXPECT_EQ(sum.combined_hash, report.combined_hash);
}

TEST(DrawnWorlds, AreTheSameByNumberAndAllPublish) {
  SimRunner runner;
  std::set<std::string> worlds;
  std::set<int> sizes;
  for (std::uint64_t number = 0; number < 60; ++number) {
    const DrawnWorld world = drawn_world(number);
    EXPECT_EQ(to_text(world), to_text(drawn_world(number)));
    worlds.insert(to_text(world));
    sizes.insert(world.spec.tp);
    SimOptions options;
    options.pipe_capacity = world.pipe_capacity;
    options.latency_percent = world.latency_percent;
    const auto run = runner.run(world.spec, options, publish_and_recover());
    EXPECT_TRUE(run.passed()) << number << ": " << to_text(world) << "\n"
                              << run.end.detail << run.judgement.text();
  }
  EXPECT_EQ(worlds.size(), 60u);
  EXPECT_EQ(sizes, (std::set<int>{1, 2, 4}));
}

TEST(Swarm, LeavesOutWholeFamiliesOfFaults) {
  SimRunner runner;
  RandomPlans plans(runner, tiny(2), {.swarm = true});
  std::set<std::string> families;
  for (std::uint64_t number = 0; number < 300; ++number) {
    for (const faults::Fault& fault : plans.draw(number).options.plan.faults) {
      families.insert(fault.name.substr(0, fault.name.find('.')));
    }
  }
  // Plain plans hardly ever draw the small families, beside thousands of kills and stops.
  EXPECT_TRUE(families.contains("weights"));
  EXPECT_TRUE(families.contains("ipc"));
  EXPECT_TRUE(families.contains("memory"));
}

TEST(DrawnWorlds, WithSwarmsOfFaultsBreakNoInvariant) {
  SimRunner runner;
  const RandomRange range{.count = 64, .plans = {.swarm = true, .draw_worlds = true}};
  const ExploreReport report = explore_random(runner, tiny(2), range, {});
  EXPECT_EQ(report.runs, 64u);
  expect_nothing_found(report);
}

}  // namespace
}  // namespace tpsync::conformance
