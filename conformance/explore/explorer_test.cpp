#include "conformance/explore/explorer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

#include "conformance/explore/divergence.h"
#include "conformance/explore/random_plans.h"
#include "conformance/scenarios/scripts.h"
#include "conformance/scenarios/sequence_model.h"
#include "conformance/world/operations.h"
#include "faults/injector.h"

namespace tpsync::conformance {
namespace {

WorldSpec tiny(int tp) {
  return small_world(model::load_model_config(std::string(TPSYNC_SOURCE_DIR) +
                                              "/conformance/models/tiny-tp4.json"),
                     tp);
}

// A fault-free publication with its recovery script, as the explorer's twin runs it.
void run_twin(SimRunner& runner, const WorldSpec& spec, sim::Policy policy) {
  SimOptions options;
  options.policy = policy;
  ASSERT_TRUE(runner.run(spec, options, publish_and_recover()).passed());
}

// The same trace but for what a rank's tokens and residents say, which are identities in phantom
// worlds.
sim::Trace masked(sim::Trace trace) {
  for (sim::Event& event : trace.events) {
    if (event.kind == static_cast<std::uint16_t>(judge::Record::kTokens)) event.c = 0;
    if (event.kind == static_cast<std::uint16_t>(judge::Record::kResident)) event.b = 0;
  }
  return trace;
}

TEST(Phantom, GivesTheSameTraceAsBytesOnceTokenValuesAreMasked) {
  for (const int tp : {1, 2, 4}) {
    SimRunner runner;
    WorldSpec spec = tiny(tp);
    spec.sync.content_digest = false;
    run_twin(runner, spec, sim::Policy::kSeeded);
    sim::Trace bytes = masked(runner.trace());
    spec.phantom = true;
    run_twin(runner, spec, sim::Policy::kSeeded);
    sim::Trace phantom = masked(runner.trace());
    ASSERT_EQ(bytes.events.size(), phantom.events.size());
    // A message that carries tokens differs by them: its hash is masked where a rollout moves it.
    std::size_t different = 0;
    std::set<std::uint32_t> rolling_out;
    for (std::size_t i = 0; i < bytes.events.size(); ++i) {
      sim::Event a = bytes.events[i];
      const sim::Event b = phantom.events[i];
      const bool is_generate = a.a == static_cast<std::uint64_t>(judge::Call::kGenerate);
      if (a.kind == static_cast<std::uint16_t>(judge::Record::kCallBegin) && is_generate) {
        rolling_out.insert(a.process);
      }
      if (a.kind == static_cast<std::uint16_t>(judge::Record::kCallEnd) && is_generate) {
        rolling_out.erase(a.process);
      }
      const bool moves_bytes = a.kind == static_cast<std::uint16_t>(sim::EventKind::kOp) &&
                               (a.op == static_cast<std::uint16_t>(sim::Op::kChannelRead) ||
                                a.op == static_cast<std::uint16_t>(sim::Op::kChannelWrite));
      const bool in_rollout =
          bytes.texts.at(a.phase) == "generate" || rolling_out.contains(a.process);
      if (moves_bytes && in_rollout) a.c = b.c;
      if (a == b) continue;
      ++different;
      ADD_FAILURE() << "event " << i << " " << sim::to_string(static_cast<sim::EventKind>(a.kind))
                    << " " << sim::to_string(static_cast<sim::Op>(a.op)) << " in "
                    << bytes.texts.at(a.phase) << " of process " << a.process << ": " << a.a << " "
                    << a.b << " " << a.c << " against " << b.a << " " << b.b << " " << b.c;
    }
    EXPECT_EQ(different, 0u) << "at TP " << tp;
  }
}

TEST(SingleFaults, AreCountedAsTheTableAndTheFaultFreeTraceSay) {
  SimRunner runner;
  for (const int tp : {1, 2, 4}) {
    const WorldSpec spec = tiny(tp);
    run_twin(runner, spec, sim::Policy::kSeeded);
    const auto operations = publication_operations(runner.trace(), spec);
    std::uint64_t counted = 0;
    std::set<std::string_view> kinds;
    for (const faults::FaultKind& kind : faults::catalogue()) {
      for (const faults::Arguments& arguments : kind.variants()) {
        for (const faults::Operation& operation : operations) {
          if (!kind.applies(operation, arguments)) continue;
          if (kind.is_tried != nullptr && !kind.is_tried(operation)) continue;
          ++counted;
          kinds.insert(kind.name);
        }
      }
    }
    EXPECT_EQ(faults::enumerate(operations).size(), counted);
    EXPECT_GE(counted, 900u) << "at TP " << tp;
    EXPECT_EQ(kinds.contains("process.kill"), true);
  }
}

TEST(SingleFaults, OfOneRankAreExploredWithoutAViolationAndAllTakeEffect) {
  SimRunner runner;
  const WorldSpec spec = tiny(1);
  for (const sim::Policy policy :
       {sim::Policy::kFirstReady, sim::Policy::kLastReady, sim::Policy::kSeeded}) {
    ExploreOptions options;
    options.policy = policy;
    const ExploreReport report = explore_single(runner, spec, options);
    EXPECT_EQ(report.runs, report.pairs);
    EXPECT_EQ(report.violations, 0u);
    EXPECT_EQ(report.ineffective, 0u);
    for (const Finding& finding : report.findings) ADD_FAILURE() << finding.what;
  }
}

TEST(SingleFaults, GiveTheSameCombinedHashInReverseAndInTwoShards) {
  SimRunner runner;
  const WorldSpec spec = tiny(1);
  const ExploreReport whole = explore_single(runner, spec, {});
  ExploreOptions reversed;
  reversed.reverse = true;
  EXPECT_EQ(explore_single(runner, spec, reversed).combined_hash, whole.combined_hash);
  std::uint64_t sum = 0;
  for (std::uint64_t shard = 0; shard < 2; ++shard) {
    ExploreOptions options;
    options.shard_index = shard;
    options.shard_count = 2;
    sum += explore_single(runner, spec, options).combined_hash;
  }
  EXPECT_EQ(sum, whole.combined_hash);
}

TEST(Operations, OfTheSimulatorAndOfFaultPlansHaveTheSameNames) {
  std::set<std::string_view> simulated;
  for (std::size_t i = 1; i < sim::kOpCount; ++i) {
    const std::string_view name = sim::to_string(static_cast<sim::Op>(i));
    // Single accesses to shared words are no moments: faults strike at the group's calls on them.
    if (!name.starts_with("words.")) simulated.insert(name);
  }
  std::set<std::string_view> named;
  for (const std::string_view name : faults::operation_names()) {
    if (!faults::is_own_moment(name)) named.insert(name);
  }
  EXPECT_EQ(named, simulated);
}

TEST(Deviation, AtOneChoiceGivesAnotherTrace) {
  SimRunner runner;
  const WorldSpec spec = tiny(2);
  const auto plain = runner.run(spec, {}, publish_once());
  ASSERT_FALSE(runner.trace().choices.empty());
  const std::uint64_t middle = runner.trace().choices.size() / 2;
  const auto chosen = runner.trace().choices[middle].chosen;
  SimOptions options;
  options.deviations.push_back({middle, chosen == 0 ? 1U : 0U});
  const auto deviated = runner.run(spec, options, publish_once());
  EXPECT_TRUE(deviated.passed());
  EXPECT_FALSE(plain.hash == deviated.hash);
}

TEST(Sequences, TableInTheReadmeIsTheOneThatIsChecked) {
  std::ifstream stream(std::string(TPSYNC_SOURCE_DIR) + "/conformance/README.md");
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  EXPECT_NE(text.find(sequence_table()), std::string::npos)
      << "put this between the sequence-table markers:\n"
      << sequence_table();
}

TEST(RandomPlans, ANumberIsAPlan) {
  SimRunner runner;
  RandomPlans plans(runner, tiny(2));
  SimRunner other_runner;
  RandomPlans others(other_runner, tiny(2));
  std::set<std::size_t> sizes;
  for (std::uint64_t number = 0; number < 50; ++number) {
    const RandomPlan plan = plans.draw(number);
    const RandomPlan other = others.draw(number);
    EXPECT_EQ(plan.options.plan, other.options.plan) << number;
    EXPECT_EQ(plan.spec.seed, other.spec.seed) << number;
    EXPECT_EQ(plan.options.facts.size(), plan.options.plan.faults.size()) << number;
    sizes.insert(plan.options.plan.faults.size());
  }
  EXPECT_EQ(sizes, (std::set<std::size_t>{1, 2, 3}));
}

// A worker that is stuck writing does not read the next command either.
TEST(RandomPlans, ASecondReplyIsNoticedAtOnceThroughPipesOfAnySize) {
  SimRunner runner;
  for (const std::uint64_t capacity : {1, 4, 64, 65536}) {
    for (const auto policy :
         {sim::Policy::kFirstReady, sim::Policy::kLastReady, sim::Policy::kSeeded}) {
      SimOptions options;
      options.policy = policy;
      options.pipe_capacity = capacity;
      options.plan.faults.push_back({"receipt.duplicated",
                                     {.role = "worker",
                                      .rank = 0,
                                      .phase = "finish_native_weight_update",
                                      .op = "channel.write"},
                                     {{"hop", "worker"}}});
      options.facts.push_back({faults::Demand::kFail, {ErrorKind::kRemote}});
      const conformance::Run run = runner.run(tiny(2), options, publish_and_recover());
      EXPECT_EQ(run.faults_applied, 1u);
      EXPECT_TRUE(run.passed()) << capacity << ": " << run.judgement.text();
    }
  }
}

TEST(RandomPlans, ShardsAddUpToTheWholeAndBreakNoInvariant) {
  SimRunner runner;
  const RandomRange range{.first = 7, .count = 60};
  const ExploreReport whole = explore_random(runner, tiny(2), range, {});
  EXPECT_EQ(whole.runs, 60u);
  EXPECT_EQ(whole.violations, 0u) << (whole.findings.empty() ? "" : whole.findings.front().what);
  std::uint64_t runs = 0;
  std::uint64_t hash = 0;
  for (const std::uint64_t shard : {0, 1, 2}) {
    ExploreOptions options;
    options.shard_index = shard;
    options.shard_count = 3;
    options.reverse = shard == 1;
    const ExploreReport part = explore_random(runner, tiny(2), range, options);
    runs += part.runs;
    hash += part.combined_hash;
  }
  EXPECT_EQ(runs, whole.runs);
  EXPECT_EQ(hash, whole.combined_hash);
}

TEST(PairsOfFaults, OfOneRankBreakNoInvariantInOneOfManyShards) {
  SimRunner runner;
  const WorldSpec spec = tiny(1);
  ExploreOptions options;
  options.shard_count = 397;
  const ExploreReport report = explore_pairs(runner, spec, options);
  EXPECT_GT(report.runs, 100u);
  EXPECT_GT(report.pairs, 300 * report.runs);
  EXPECT_EQ(report.violations, 0u);
  for (const Finding& finding : report.findings) ADD_FAILURE() << finding.what;
}

TEST(PairsOfFaults, AddUpFromTheirShards) {
  SimRunner runner;
  const WorldSpec spec = tiny(1);
  ExploreOptions options;
  options.shard_count = 500;
  const ExploreReport whole = explore_pairs(runner, spec, options);
  ExploreOptions half = options;
  half.shard_count = 1000;
  ExploreReport sum = explore_pairs(runner, spec, half);
  half.shard_index = 500;
  merge(sum, explore_pairs(runner, spec, half));
  EXPECT_EQ(sum.runs, whole.runs);
  EXPECT_EQ(sum.equal, whole.equal);
  EXPECT_EQ(sum.pairs, whole.pairs);
  EXPECT_EQ(sum.combined_hash, whole.combined_hash);
}

TEST(Coverage, OfAllSingleFaultsHasARunOrAReasonInEveryCell) {
  SimRunner runner;
  const ExploreReport report = explore_single(runner, tiny(2), {});
  EXPECT_EQ(report.coverage.covered(), report.coverage.applicable());
  std::set<std::string> roles;
  for (const auto& [row, cells] : report.coverage.rows()) {
    roles.insert(row.first);
    for (const faults::FaultKind& kind : faults::catalogue()) {
      const std::string text = report.coverage.text(row, kind);
      EXPECT_NE(text, "0") << row.first << " " << row.second << " " << kind.name;
      EXPECT_TRUE(text.front() != 'n' || text.starts_with("not applicable: no operation of "))
          << text;
    }
  }
  EXPECT_EQ(roles, (std::set<std::string>{"rank 0", "other actor", "runtime", "worker"}));
  const auto kill = [&](const std::string& role, const std::string& phase) {
    return report.coverage.text({role, phase}, *faults::find_kind("process.kill"));
  };
  EXPECT_GT(std::stoi(kill("worker", "update_native_weights")), 10);
  EXPECT_EQ(
      report.coverage
          .text({"worker", "update_native_weights"}, *faults::find_kind("collective.rank_error"))
          .substr(0, 60),
      "not applicable: no operation of this rank role is one of its");
}

TEST(Repetition, OfEveryRunGivesTheSameTraces) {
  SimRunner runner;
  ExploreOptions options;
  options.repeat_all = true;
  const ExploreReport all = explore_random(runner, tiny(2), {.first = 0, .count = 40}, options);
  EXPECT_EQ(all.repeated, all.runs);
  EXPECT_EQ(all.diverged, 0u);
  options = {};
  options.repeat_some = true;
  const ExploreReport some = explore_random(runner, tiny(2), {.first = 0, .count = 400}, options);
  EXPECT_GT(some.repeated, 3u);
  EXPECT_LT(some.repeated, 50u);
}

TEST(Repetition, ShowsTheFirstEventThatDiffers) {
  SimRunner runner;
  int runs = 0;
  const Script script = [&](Actor& actor) {
    const bool second = ++runs == 2;
    static_cast<void>(actor.start_engine());
    if (second) actor.step();
    actor.cleanup();
    actor.shutdown();
  };
  static_cast<void>(runner.run(tiny(1), {}, script));
  const sim::Trace first = runner.trace();
  EXPECT_EQ(first_divergence(first, first), "");
  static_cast<void>(runner.run(tiny(1), {}, script));
  const std::string text = first_divergence(first, runner.trace());
  EXPECT_NE(text.find("event "), std::string::npos) << text;
  EXPECT_NE(text.find("actor 0"), std::string::npos) << text;
  EXPECT_NE(text.find("record 206"), std::string::npos) << text;
}

}  // namespace
}  // namespace tpsync::conformance
