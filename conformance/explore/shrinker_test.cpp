#include "conformance/explore/shrinker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <stdexcept>

#include "conformance/explore/explanation.h"
#include "conformance/explore/explorer.h"
#include "conformance/explore/minimize.h"
#include "conformance/scenarios/scripts.h"

namespace tpsync::conformance {
namespace {

WorldSpec tiny(int tp) {
  return small_world(model::load_model_config(std::string(TPSYNC_SOURCE_DIR) +
                                              "/conformance/models/tiny-tp4.json"),
                     tp);
}

faults::Fault eof_in_transfer(std::int64_t chunk) {
  return {"channel.eof",
          {.role = "actor",
           .rank = 0,
           .phase = "native-transfer",
           .chunk = chunk,
           .op = "channel.read"},
          {}};
}

// Fails in any schedule: the fault is said to be one that a publication survives.
SimOptions wrong_demand() {
  SimOptions options;
  options.policy = sim::Policy::kSeeded;
  options.pipe_capacity = 64;
  options.plan.faults = {eof_in_transfer(2)};
  options.facts = {{faults::Demand::kSurvive, {ErrorKind::kEndOfFile}}};
  return options;
}

TEST(Minimized, LeavesExactlyTheElementsThatAreNeeded) {
  std::vector<int> items(100);
  std::iota(items.begin(), items.end(), 0);
  int asked = 0;
  const std::vector<int> needed = {3, 40, 41, 97};
  const auto holds = [&](const std::vector<int>& some) {
    ++asked;
    return std::includes(some.begin(), some.end(), needed.begin(), needed.end());
  };
  EXPECT_EQ(minimized(items, holds), needed);
  EXPECT_LT(asked, 150);
  EXPECT_EQ(minimized(items, [](const std::vector<int>&) { return true; }), std::vector<int>());
  EXPECT_EQ(minimized(std::vector<int>{1, 2},
                      [](const std::vector<int>& some) { return some.size() == 2; }),
            (std::vector<int>{1, 2}));
}

TEST(Shrinking, AFailureOfAnyWorldEndsInTheSmallestOne) {
  SimRunner runner;
  WorldSpec spec = tiny(4);
  spec.seed = 17;
  spec.uneven_shards = true;
  SimOptions options = wrong_demand();
  options.latency_percent = 300;
  const Shrunk shrunk = shrink(runner, spec, options);
  EXPECT_EQ(shrunk.id, "I10");
  EXPECT_TRUE(shrunk.finished);
  EXPECT_EQ(shrunk.spec.tp, 1);
  EXPECT_EQ(shrunk.spec.actors, 1);
  EXPECT_EQ(shrunk.spec.seed, 1u);
  EXPECT_FALSE(shrunk.spec.uneven_shards);
  EXPECT_EQ(shrunk.options.plan.faults, std::vector<faults::Fault>{eof_in_transfer(0)});
  EXPECT_EQ(shrunk.options.pipe_capacity, SimOptions{}.pipe_capacity);
  EXPECT_EQ(shrunk.options.latency_percent, 100u);
  EXPECT_EQ(shrunk.options.policy, sim::Policy::kLastReady);
  EXPECT_EQ(shrunk.options.deviations.size(), 0u);
  EXPECT_EQ(shrunk.summary(), "1 fault, 0 deviations, TP 1, 1 chunk");
  EXPECT_EQ(shrunk.hash, sim::to_text(sim::hash_of(runner.trace())));
}

TEST(Shrinking, GivesTheSameResultAgain) {
  SimRunner runner;
  const Shrunk once = shrink(runner, tiny(2), wrong_demand());
  SimRunner other;
  const Shrunk again = shrink(other, tiny(2), wrong_demand());
  EXPECT_EQ(once.hash, again.hash);
  EXPECT_EQ(once.runs, again.runs);
}

TEST(Shrinking, TakesAwayFaultsThatTheFailureDoesNotNeed) {
  SimRunner runner;
  SimOptions options = wrong_demand();
  options.plan.faults.push_back(
      {"copy.late",
       {.role = "worker", .phase = "update_native_weights", .op = "device.launch"},
       {}});
  options.facts.push_back({faults::Demand::kSurvive, {}});
  const Shrunk shrunk = shrink(runner, tiny(2), options);
  EXPECT_EQ(shrunk.id, "I10");
  EXPECT_EQ(shrunk.options.plan.faults, std::vector<faults::Fault>{eof_in_transfer(0)});
  EXPECT_EQ(shrunk.options.facts.size(), 1u);
}

TEST(Shrinking, LeavesARunThatDoesNotFailAsItIs) {
  SimRunner runner;
  SimOptions options = wrong_demand();
  options.facts.front() = {faults::Demand::kFail, {ErrorKind::kEndOfFile}};
  const Shrunk shrunk = shrink(runner, tiny(2), options);
  EXPECT_EQ(shrunk.id, "");
  EXPECT_EQ(shrunk.runs, 1u);
  EXPECT_EQ(shrunk.options.plan, options.plan);
  ShrinkOptions other;
  other.id = "I5";
  EXPECT_EQ(shrink(runner, tiny(2), wrong_demand(), other).id, "");
}

TEST(Shrinking, EndsWithinItsRuns) {
  SimRunner runner;
  ShrinkOptions few;
  few.runs_max = 5;
  const Shrunk shrunk = shrink(runner, tiny(4), wrong_demand(), few);
  EXPECT_EQ(shrunk.id, "I10");
  EXPECT_FALSE(shrunk.finished);
  EXPECT_LE(shrunk.runs, few.runs_max + 3);  // the result is run once more, to be told
}

// Actors that begin in one order crash.
class Order {
 public:
  Script forbidding(std::vector<int> order) {
    return [this, order = std::move(order)](Actor& actor) {
      if (expected_ == 0) came_.clear();
      expected_ = expected_ == 0 ? actor.spec().actors - 1 : expected_ - 1;
      came_.push_back(actor.rank());
      if (!actor.start_engine().ok() || !actor.setup().ok()) return;
      actor.step();
      static_cast<void>(actor.publish());
      if (came_ == order) throw std::runtime_error("this order");
      actor.cleanup();
      actor.shutdown();
    };
  }
  const std::vector<int>& came() const { return came_; }

 private:
  std::vector<int> came_;
  int expected_ = 0;  // of the present run
};

TEST(Shrinking, AFailureOfOneScheduleEndsInFewDeviationsFromAPlainOne) {
  SimRunner runner;
  Order order;
  const auto order_under = [&](sim::Policy policy, std::uint64_t schedule) {
    SimOptions options;
    options.policy = policy;
    options.schedule = schedule;
    EXPECT_TRUE(runner.run(tiny(4), options, order.forbidding({})).passed());
    return order.came();
  };
  const auto first = order_under(sim::Policy::kFirstReady, 0);
  const auto last = order_under(sim::Policy::kLastReady, 0);
  std::uint64_t schedule = 1;
  while (order_under(sim::Policy::kSeeded, schedule) == first || order.came() == last) ++schedule;
  SimOptions options;
  options.policy = sim::Policy::kSeeded;
  options.schedule = schedule;
  ShrinkOptions shrink_options;
  shrink_options.script = order.forbidding(order.came());
  const Shrunk shrunk = shrink(runner, tiny(4), options, shrink_options);
  EXPECT_EQ(shrunk.id, kCrashSymptom);
  EXPECT_EQ(shrunk.spec.tp, 4);
  EXPECT_EQ(shrunk.options.schedule, 0u);
  EXPECT_GE(shrunk.options.deviations.size(), 1u);
  EXPECT_LE(shrunk.options.deviations.size(), 5u);
  for (std::size_t i = 0; i < shrunk.options.deviations.size(); ++i) {
    SimOptions less = shrunk.options;
    less.deviations.erase(less.deviations.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_TRUE(runner.run(tiny(4), less, shrink_options.script).passed()) << "without " << i;
  }
}

TEST(Shrinking, ACrashOfTheProcessIsKeptAsOne) {
  SimRunner runner;
  ShrinkOptions options;
  options.isolated = true;
  options.script = [](Actor& actor) {
    if (actor.start_engine().ok() && actor.setup().ok() && actor.rank() == 0) {
      actor.step();
      if (!actor.publish().ok()) std::raise(SIGKILL);
    }
    actor.cleanup();
    actor.shutdown();
  };
  WorldSpec spec = tiny(1);
  spec.sync.bucket_bytes = 512;
  SimOptions failing = wrong_demand();
  const Shrunk shrunk = shrink(runner, spec, failing, options);
  EXPECT_EQ(shrunk.id, kCrashSymptom);
  EXPECT_NE(shrunk.text.find("signal 9"), std::string::npos) << shrunk.text;
  EXPECT_EQ(shrunk.options.plan.faults, std::vector<faults::Fault>{eof_in_transfer(0)});
}

// Without a digest nobody but the judge sees that a worker copied too little.
TEST(Explanation, OfWrongBytesNamesTheTensorItsRangesAndTheFault) {
  SimRunner runner;
  WorldSpec spec = tiny(2);
  spec.sync.content_digest = false;
  const auto chunk =
      static_cast<std::int64_t>(chunk_of(spec, "model.layers.0.mlp.experts.0.gate_proj.weight"));
  SimOptions options;
  options.plan.faults = {{"weights.missing_expert",
                          {.role = "worker",
                           .rank = 1,
                           .phase = "update_native_weights",
                           .chunk = chunk,
                           .op = "device.launch"},
                          {{"where", "loader"}}}};
  options.facts = {{faults::Demand::kEither, {ErrorKind::kRemote}}};
  const auto run = runner.run(spec, options, publish_and_recover());
  ASSERT_TRUE(has_symptom(symptoms_of(run), "I2")) << run.judgement.text();
  const std::string text = explain_run(runner, spec, options, run, publish_and_recover());
  EXPECT_NE(text.find("the fault weights.missing_expert is applied"), std::string::npos) << text;
  EXPECT_NE(text.find("worker 1 in update_native_weights/" + std::to_string(chunk)),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("worker 1 holds "), std::string::npos) << text;
  EXPECT_NE(text.find("model.layers.0.mlp.experts"), std::string::npos) << text;
}

}  // namespace
}  // namespace tpsync::conformance
