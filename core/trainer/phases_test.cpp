// The order of a training run, spelled out whole, and every refused plan.
#include "tpsync/trainer/phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/testing/fake_world.h"

namespace tpsync::trainer {
namespace {

using fakes::failure_of;
using testing::ElementsAre;
using testing::IsEmpty;

// "rollout 1 sync", "evaluation 1 sync", ... until nothing is left.
std::vector<std::string> all_phases(const TrainingPlan& plan) {
  check_plan(plan);
  std::vector<std::string> phases;
  for (auto phase = first_phase(plan); phase; phase = phase_after(plan, *phase)) {
    const bool evaluation = phase->kind == PhaseKind::kEvaluation;
    phases.push_back((evaluation ? "evaluation " : "rollout ") + std::to_string(phase->rollout) +
                     (phase_syncs(plan, *phase) ? " sync" : ""));
  }
  return phases;
}

TEST(Phases, EveryRolloutButTheFirstPublishesAtIntervalOne) {
  EXPECT_THAT(all_phases({.rollouts = 3}),
              ElementsAre("rollout 0", "rollout 1 sync", "rollout 2 sync"));
}

TEST(Phases, MultiplesOfTheIntervalPublishAndTheOthersDoNot) {
  EXPECT_THAT(
      all_phases({.rollouts = 5, .weight_sync_interval = 2}),
      ElementsAre("rollout 0", "rollout 1", "rollout 2 sync", "rollout 3", "rollout 4 sync"));
}

TEST(Phases, TheFirstRolloutAfterAResumePublishesWhateverItsNumber) {
  EXPECT_THAT(all_phases({.rollouts = 5, .resumed_from = 3, .weight_sync_interval = 2}),
              ElementsAre("rollout 3 sync", "rollout 4 sync"));
  EXPECT_THAT(all_phases({.rollouts = 2, .resumed_from = 0, .weight_sync_interval = 2}),
              ElementsAre("rollout 0 sync", "rollout 1"));
}

TEST(Phases, EvaluationsStandFirstAndAfterEachMultipleOfTheirIntervalAndAlwaysPublish) {
  EXPECT_THAT(all_phases({.rollouts = 4, .weight_sync_interval = 3, .eval_interval = 2}),
              ElementsAre("evaluation -1 sync", "rollout 0", "rollout 1", "evaluation 1 sync",
                          "rollout 2", "rollout 3 sync", "evaluation 3 sync"));
}

TEST(Phases, ARunThatResumesWithEvaluationsEvaluatesBeforeItsFirstRollout) {
  EXPECT_THAT(all_phases({.rollouts = 4, .resumed_from = 3, .eval_interval = 3}),
              ElementsAre("evaluation 2 sync", "rollout 3 sync"));
}

TEST(Phases, NothingIsLeftOfARunThatResumesAtItsEnd) {
  EXPECT_THAT(all_phases({.rollouts = 3, .resumed_from = 3}), IsEmpty());
  EXPECT_THAT(all_phases({.rollouts = 0}), IsEmpty());
}

TEST(Phases, APlanIsRefusedByTheNameOfItsFirstWrongField) {
  const auto refused = [](const TrainingPlan& plan) {
    const ErrorRecord record = failure_of([&] { check_plan(plan); });
    EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
    EXPECT_EQ(record.remedy, Remedy::kFixInput);
    return record.subject;
  };
  EXPECT_EQ(refused({.rollouts = -1, .eval_interval = -1}), "rollouts");
  EXPECT_EQ(refused({.rollouts = 2, .resumed_from = -1}), "resumed_from");
  EXPECT_EQ(refused({.rollouts = 2, .resumed_from = 3}), "resumed_from");
  EXPECT_EQ(refused({.weight_sync_interval = 0, .eval_interval = -1}), "weight_sync_interval");
  EXPECT_EQ(refused({.eval_interval = -1}), "eval_interval");
}

}  // namespace
}  // namespace tpsync::trainer
