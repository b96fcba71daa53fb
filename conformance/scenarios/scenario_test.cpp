// How a scenario runs its worlds: which are chosen where not all are wanted.
#include "conformance/scenarios/scenario.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tpsync::conformance {
namespace {

// Runs nothing; says which jobs it was given.
class NamingRunner final : public WorldRunner {
 public:
  std::string_view world() const override { return "process"; }
  Run run(const WorldSpec&, const SimOptions&, const Script&) override {
    Run run;
    run.end.kind = sim::RunResult::Kind::kFinished;
    return run;
  }
  void run_all(const std::vector<WorldJob>& jobs,
               const std::function<void(std::size_t job, const Run& run)>& done) override {
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      labels.push_back(jobs[i].label);
      done(i, run(jobs[i].spec, jobs[i].options, jobs[i].script));
    }
  }
  const sim::Trace& trace() const override { return trace_; }

  std::vector<std::string> labels;

 private:
  sim::Trace trace_;
};

struct Chosen {
  std::vector<std::string> run;
  std::vector<std::size_t> checked;
  std::uint64_t worlds = 0;
  std::uint64_t left_out = 0;
};

Chosen choose(std::size_t jobs, std::size_t limit) {
  NamingRunner runner;
  ScenarioContext context(runner, {});
  context.limit_batches(limit);
  std::vector<WorldJob> all;
  for (std::size_t i = 0; i < jobs; ++i) all.push_back({fmt::format("{}", i), {}, {}, {}});
  Chosen chosen;
  context.run_all(all, [&](std::size_t job) { chosen.checked.push_back(job); });
  chosen.run = runner.labels;
  chosen.worlds = context.worlds();
  chosen.left_out = context.left_out();
  return chosen;
}

TEST(LimitedBatch, RunsTheFirstTheLastAndSomeBetweenAndChecksEachAsItself) {
  const Chosen some = choose(10, 4);
  EXPECT_EQ(some.run, (std::vector<std::string>{"0", "3", "6", "9"}));
  EXPECT_EQ(some.checked, (std::vector<std::size_t>{0, 3, 6, 9}));
  EXPECT_EQ(some.worlds, 4u);
  EXPECT_EQ(some.left_out, 6u);
  EXPECT_EQ(choose(10, 1).checked, (std::vector<std::size_t>{0}));
}

TEST(LimitedBatch, RunsAllOfWhatLaterWorldsNeed) {
  NamingRunner runner;
  ScenarioContext context(runner, {});
  context.limit_batches(1);
  std::vector<int> measured(3, 0);
  Batch batch(context);
  for (int& one : measured) batch.add("measures", {}, {}, {}, [&one] { one = 1; });
  batch.run_whole();
  EXPECT_EQ(measured, (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(context.left_out(), 0u);
}

TEST(LimitedBatch, RunsAllWhereTheLimitIsNoneOrNotReached) {
  for (const std::size_t limit : {0u, 3u, 4u}) {
    const Chosen all = choose(3, limit);
    EXPECT_EQ(all.checked, (std::vector<std::size_t>{0, 1, 2})) << limit;
    EXPECT_EQ(all.left_out, 0u) << limit;
  }
}

}  // namespace
}  // namespace tpsync::conformance
