// The schedule over fakes that write down every call: whole sequences of each order, when it
// publishes and preserves, and the refusals.
#include "tpsync/trainer/memory_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <type_traits>
#include <utility>

#include "core/trainer/testing/recording_trainer.h"

namespace tpsync::trainer {
namespace {

using fakes::Calls;
using fakes::failure_of;
using fakes::generate_once;
using fakes::MemoryScheduleTest;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

static_assert(std::is_convertible_v<bool, StrictBool>);
static_assert(!std::is_constructible_v<StrictBool, int>);
static_assert(!std::is_constructible_v<StrictBool, const char*>);
static_assert(!std::is_constructible_v<StrictBool, std::vector<bool>>);
static_assert(!std::is_constructible_v<StrictBool, std::optional<bool>>);
static_assert(
    std::is_same_v<decltype(std::declval<WeightSync&>().uses_gpu_streaming()), StrictBool>);

// ---- Bootstrap ----

TEST_F(MemoryScheduleTest, BootstrapOffloadsBuildsAsksOnceSleepsAndLoads) {
  schedule();
  EXPECT_THAT(script_.take(), ElementsAre("offload model optimizer", "build rollout", "build sync",
                                          "streams?", "sleep", "onload"));
  EXPECT_EQ(schedule().state(), ScheduleState::kReady);
  EXPECT_TRUE(schedule().streams());
  EXPECT_FALSE(schedule().train_state_offloaded());
  phase();
  EXPECT_THAT(phase(), testing::Not(testing::Contains("streams?")));
}

TEST_F(MemoryScheduleTest, BootstrapWithoutOffloadOnlyBuildsAndSleeps) {
  sync_ = Sync::kPlain;
  options_.enable_fsdp_offload = false;
  schedule();
  EXPECT_THAT(script_.take(), ElementsAre("build rollout", "build sync", "streams?", "sleep"));
}

TEST_F(MemoryScheduleTest, BootstrapWithoutASyncOnlyBuildsTheRollout) {
  sync_ = Sync::kNone;
  schedule();
  EXPECT_THAT(script_.take(), ElementsAre("build rollout"));
  EXPECT_FALSE(schedule().streams());
}

TEST_F(MemoryScheduleTest, ABuilderThatBuildsNothingIsRefused) {
  Builders none = builders();
  none.rollout = [] { return nullptr; };
  ErrorRecord record = failure_of([&] { MemorySchedule(log_, backend_, none, options_); });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(record.subject, "rollout");
  none = builders();
  none.sync = [](Rollout&) { return nullptr; };
  record = failure_of([&] { MemorySchedule(log_, backend_, none, options_); });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(record.subject, "sync");
}

// ---- Refusals at construction ----

TEST_F(MemoryScheduleTest, AWrongPlanIsRefusedBeforeAnythingIsCalled) {
  options_.plan.weight_sync_interval = 0;
  const ErrorRecord record = construction_failure();
  EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(record.subject, "weight_sync_interval");
  EXPECT_THAT(script_.take(), IsEmpty());
}

TEST_F(MemoryScheduleTest, AnAnchoredDeviceWithASyncIsRefusedBeforeAnythingIsCalled) {
  for (const Sync sync : {Sync::kPlain, Sync::kStreaming}) {
    sync_ = sync;
    options_.rollout_anchor_device = 0;
    ErrorRecord record = construction_failure();
    EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
    EXPECT_EQ(record.subject, "rollout_anchor_device");
    EXPECT_THAT(record.detail, HasSubstr("the device that rank 0 publishes from"));
    options_.rollout_anchor_device = 1;
    record = construction_failure();
    EXPECT_EQ(record.kind, ErrorKind::kUnsupported);
    EXPECT_EQ(record.remedy, Remedy::kFixInput);
    EXPECT_EQ(record.subject, "rollout_anchor_device");
    EXPECT_THAT(record.detail, HasSubstr("one actor per TP rank"));
    EXPECT_THAT(script_.take(), IsEmpty());
  }
}

TEST_F(MemoryScheduleTest, AnAnchoredDeviceWithoutASyncChangesNothing) {
  sync_ = Sync::kNone;
  options_.rollout_anchor_device = 0;
  EXPECT_THAT(phase(), ElementsAre("wake", "generate", "sleep"));
}

TEST_F(MemoryScheduleTest, StreamingWithoutOffloadIsRefused) {
  options_.enable_fsdp_offload = false;
  const ErrorRecord record = construction_failure();
  EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(record.remedy, Remedy::kFixInput);
  EXPECT_EQ(record.subject, "enable_fsdp_offload");
  EXPECT_THAT(record.detail, HasSubstr("must be true for a weight sync that streams"));
  EXPECT_THAT(script_.take(), ElementsAre("build rollout", "build sync", "streams?", "end of sync",
                                          "end of rollout"));
}

TEST_F(MemoryScheduleTest, StreamingWithoutTaggedWakeIsRefusedAndMemoryIsAsBefore) {
  abilities_.tagged_wake = false;
  const ErrorRecord record = construction_failure();
  EXPECT_EQ(record.kind, ErrorKind::kUnsupported);
  EXPECT_EQ(record.remedy, Remedy::kFixInput);
  EXPECT_EQ(record.subject, "wake_up");
  EXPECT_THAT(record.detail, HasSubstr("the rollout takes no tags"));
  EXPECT_THAT(script_.take(),
              ElementsAre("offload model optimizer", "build rollout", "build sync", "streams?",
                          "sleep", "onload", "end of sync", "end of rollout"));
}

TEST_F(MemoryScheduleTest, StreamingAtAnIntervalAboveOneWithoutAPreserveCallIsRefused) {
  abilities_.preserve = false;
  options_.plan.weight_sync_interval = 2;
  const ErrorRecord record = construction_failure();
  EXPECT_EQ(record.kind, ErrorKind::kUnsupported);
  EXPECT_EQ(record.remedy, Remedy::kFixInput);
  EXPECT_EQ(record.subject, "preserve_weights_for_next_sleep");
  EXPECT_THAT(record.detail, HasSubstr("weight_sync_interval above 1"));
}

TEST_F(MemoryScheduleTest, ASyncThatDoesNotStreamNeedsNoneOfThese) {
  sync_ = Sync::kPlain;
  abilities_ = {};
  options_.enable_fsdp_offload = false;
  options_.plan.weight_sync_interval = 2;
  schedule();
  EXPECT_EQ(schedule().state(), ScheduleState::kReady);
}

// ---- Orders ----

TEST_F(MemoryScheduleTest, AStreamingPhaseKeepsTheModelUntilItWasPublished) {
  skip_first_rollout();
  EXPECT_THAT(phase(), ElementsAre("offload gradients optimizer", "wake weights", "sync",
                                   "offload model", "wake", "generate", "sleep", "onload"));
  EXPECT_EQ(schedule().state(), ScheduleState::kReady);
  EXPECT_FALSE(schedule().train_state_offloaded());
}

TEST_F(MemoryScheduleTest, AStagedPhaseOffloadsAllAfterThePublication) {
  sync_ = Sync::kPlain;
  skip_first_rollout();
  EXPECT_THAT(phase(), ElementsAre("wake weights", "sync", "offload model optimizer", "wake",
                                   "generate", "sleep", "onload"));
}

TEST_F(MemoryScheduleTest, WithoutTaggedWakeTheRolloutIsWokenWholeBeforeThePublication) {
  sync_ = Sync::kPlain;
  abilities_.tagged_wake = false;
  skip_first_rollout();
  EXPECT_THAT(phase(), ElementsAre("wake", "sync", "offload model optimizer", "generate", "sleep",
                                   "onload"));
}

TEST_F(MemoryScheduleTest, WithoutOffloadThePhaseNeverTouchesTheTrainState) {
  sync_ = Sync::kPlain;
  options_.enable_fsdp_offload = false;
  EXPECT_THAT(phase(), ElementsAre("wake", "generate", "sleep"));
  EXPECT_THAT(phase(), ElementsAre("wake", "sync", "generate", "sleep"));
}

TEST_F(MemoryScheduleTest, APhaseThatDoesNotPublishOffloadsAllBeforeItWakes) {
  for (const Sync sync : {Sync::kPlain, Sync::kStreaming}) {
    sync_ = sync;
    schedule_.reset();
    EXPECT_THAT(phase(),
                ElementsAre("offload model optimizer", "wake", "generate", "sleep", "onload"));
  }
}

TEST_F(MemoryScheduleTest, WithoutASyncNothingIsPublishedOrOffloaded) {
  sync_ = Sync::kNone;
  options_.plan.eval_interval = 1;
  EXPECT_FALSE(schedule().next_phase_syncs());
  EXPECT_THAT(phase(), ElementsAre("wake", "generate", "sleep"));
  EXPECT_THAT(phase(), ElementsAre("wake", "generate", "sleep"));
}

TEST_F(MemoryScheduleTest, TheWorkMayGenerateAsOftenAsItWantsAndGetsTheRows) {
  const Calls calls = phase([](const MemorySchedule::Generate& generate) {
    wire::GenerateRequest request;
    request.payloads.resize(2);
    const std::optional<Generated> generated = generate(request);
    ASSERT_TRUE(generated.has_value());
    EXPECT_EQ(generated->rows.size(), 2U);
    EXPECT_EQ(generated->version, 7);
    generate({});
  });
  EXPECT_THAT(calls, ElementsAre("offload model optimizer", "wake", "generate", "generate", "sleep",
                                 "onload"));
}

// ---- When a sync happens, and the preserve rule ----

TEST_F(MemoryScheduleTest, AtAnIntervalThePhasesBeforeOnesThatDoNotPublishPreserve) {
  options_.plan.rollouts = 5;
  options_.plan.weight_sync_interval = 2;
  EXPECT_THAT(phase(), ElementsAre("offload model optimizer", "wake", "preserve", "generate",
                                   "sleep", "onload"));  // 0
  EXPECT_THAT(phase(), ElementsAre("offload model optimizer", "wake", "generate", "sleep",
                                   "onload"));  // 1
  EXPECT_THAT(phase(), ElementsAre("offload gradients optimizer", "wake weights", "sync",
                                   "offload model", "wake", "preserve", "generate", "sleep",
                                   "onload"));  // 2
  EXPECT_THAT(phase(), ElementsAre("offload model optimizer", "wake", "generate", "sleep",
                                   "onload"));  // 3
  EXPECT_THAT(phase(), ElementsAre("offload gradients optimizer", "wake weights", "sync",
                                   "offload model", "wake", "generate", "sleep", "onload"));  // 4
  EXPECT_EQ(schedule().next_phase(), std::nullopt);
}

TEST_F(MemoryScheduleTest, TheLastPhaseHasNothingToPreserveFor) {
  options_.plan.rollouts = 2;
  options_.plan.weight_sync_interval = 3;
  EXPECT_THAT(phase(), testing::Contains("preserve"));
  EXPECT_THAT(phase(), testing::Not(testing::Contains("preserve")));
}

TEST_F(MemoryScheduleTest, ASyncThatDoesNotStreamNeverPreserves) {
  sync_ = Sync::kPlain;
  options_.plan.weight_sync_interval = 2;
  EXPECT_THAT(phase(), testing::Not(testing::Contains("preserve")));
}

TEST_F(MemoryScheduleTest, AnEvaluationPublishesAndPreservesForTheFirstRollout) {
  options_.plan = {.rollouts = 2, .eval_interval = 2};
  ASSERT_EQ(schedule().next_phase(), (Phase{PhaseKind::kEvaluation, -1}));
  EXPECT_THAT(phase(),
              ElementsAre("offload gradients optimizer", "wake weights", "sync", "offload model",
                          "wake", "preserve", "generate", "sleep", "onload"));
  ASSERT_EQ(schedule().next_phase(), (Phase{PhaseKind::kRollout, 0}));
  EXPECT_THAT(phase(), testing::Not(testing::Contains("sync")));
}

TEST_F(MemoryScheduleTest, ARolloutBeforeAnEvaluationDoesNotPreserve) {
  options_.plan = {.rollouts = 2, .resumed_from = 0, .weight_sync_interval = 2, .eval_interval = 1};
  phase();
  ASSERT_EQ(schedule().next_phase(), (Phase{PhaseKind::kRollout, 0}));
  EXPECT_THAT(phase(), testing::Not(testing::Contains("preserve")));
  EXPECT_TRUE(schedule().next_phase_syncs());
}

TEST_F(MemoryScheduleTest, TheFirstRolloutAfterAResumePublishes) {
  options_.plan = {.rollouts = 6, .resumed_from = 3, .weight_sync_interval = 2};
  EXPECT_THAT(phase(), testing::Contains("sync"));
}

TEST_F(MemoryScheduleTest, ANeededPreserveCallThatIsMissingIsRefusedBeforeAnythingIsCalled) {
  abilities_.preserve = false;  // fine at interval 1, but for the first evaluation
  options_.plan.eval_interval = 2;
  schedule();
  script_.take();
  const ErrorRecord record = failure_of([this] { schedule().run_phase(generate_once); });
  EXPECT_EQ(record.kind, ErrorKind::kUnsupported);
  EXPECT_EQ(record.remedy, Remedy::kFixInput);
  EXPECT_EQ(record.subject, "preserve_weights_for_next_sleep");
  EXPECT_THAT(record.detail, HasSubstr("the next phase does not publish"));
  EXPECT_THAT(script_.take(), IsEmpty());
  EXPECT_EQ(schedule().state(), ScheduleState::kReady);
}

// ---- Call order, shutdown ----

TEST_F(MemoryScheduleTest, NothingIsCalledOnceAllPhasesAreDone) {
  options_.plan.rollouts = 1;
  phase();
  const ErrorRecord record = failure_of([this] { schedule().run_phase(generate_once); });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(record.subject, "run_phase");
  EXPECT_THAT(record.detail, HasSubstr("no phase is left"));
  EXPECT_THAT(script_.take(), IsEmpty());
}

TEST_F(MemoryScheduleTest, APhaseWithinAPhaseIsRefusedAndTheOuterOneGoesOn) {
  const Calls calls = phase([this](const MemorySchedule::Generate& generate) {
    const ErrorRecord record = failure_of([this] { schedule().run_phase(generate_once); });
    EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
    EXPECT_THAT(record.detail, HasSubstr("in a phase"));
    generate({});
  });
  EXPECT_THAT(calls, ElementsAre("offload model optimizer", "wake", "generate", "sleep", "onload"));
}

TEST_F(MemoryScheduleTest, ShutdownEndsTheRolloutOnceAndPhasesAreRefusedAfterwards) {
  schedule();
  script_.take();
  schedule().shutdown();
  schedule().shutdown();
  EXPECT_THAT(script_.take(), ElementsAre("shutdown"));
  expect_refused_because_stopped();
}

TEST_F(MemoryScheduleTest, AFailedShutdownIsLoggedAndNotRepeated) {
  schedule();
  script_.take();
  script_.failing = {{"shutdown", "first"}};
  schedule().shutdown();
  schedule().shutdown();
  EXPECT_THAT(script_.take(), ElementsAre("shutdown"));
  EXPECT_THAT(logged_failures(), ElementsAre("memory-shutdown"));
}

TEST_F(MemoryScheduleTest, AShutdownByTheWorkStopsTheScheduleHoweverThePhaseEnds) {
  for (const bool throws : {false, true}) {
    schedule_.reset();
    const MemorySchedule::Work work = [&](const MemorySchedule::Generate&) {
      schedule().shutdown();
      if (throws) throw_broken(ErrorKind::kDevice, "first", "injected by the test");
    };
    if (throws) {
      failing_phase("first", work);
    } else {
      phase(work);
    }
    EXPECT_EQ(schedule().state(), ScheduleState::kStopped);
    EXPECT_FALSE(schedule().train_state_offloaded());
  }
}

}  // namespace
}  // namespace tpsync::trainer
