// Every failure of the bootstrap and of a phase: what is called afterwards, whose error it ends
// with, what is logged and what is left. The last part is about ranks that fail together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "core/trainer/testing/recording_trainer.h"
#include "core/transfer/testing/recording_gates.h"
#include "tpsync/trainer/memory_schedule.h"

namespace tpsync::trainer {
namespace {

using fakes::Calls;
using fakes::failure_of;
using fakes::generate_once;
using fakes::MemoryScheduleTest;
using fakes::Script;
using testing::ElementsAre;

// "sleep, onload" as a list.
Calls listed(const std::string& text) {
  Calls calls;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(", ", begin), text.size());
    calls.push_back(text.substr(begin, end - begin));
    begin = end + 2;
  }
  return calls;
}

// The calls that fail, the first with the error that must win.
std::map<std::string, std::string> failing(const std::string& text) {
  std::map<std::string, std::string> errors;
  for (const std::string& call : listed(text)) {
    const std::string subject = errors.empty() ? "first" : "second";
    errors.emplace(call, subject);
  }
  return errors;
}

template <typename Case>
std::string name_of(const testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

// ---- Bootstrap ----

// Calls that fail, all calls that are made, and the phases whose failure is only logged.
struct BootstrapFailure {
  std::string name;
  std::string failing;
  std::string calls;
  std::string logged;
};

class BootstrapFailures : public MemoryScheduleTest,
                          public testing::WithParamInterface<BootstrapFailure> {};

TEST_P(BootstrapFailures, EndAsTheRulesSayWithTheFirstError) {
  script_.failing = failing(GetParam().failing);
  const ErrorRecord record = construction_failure();
  EXPECT_EQ(record.subject, "first");
  EXPECT_EQ(record.kind, ErrorKind::kDevice);
  EXPECT_EQ(script_.take(), listed(GetParam().calls));
  EXPECT_EQ(logged_failures(), listed(GetParam().logged));
}

INSTANTIATE_TEST_SUITE_P(
    Rules, BootstrapFailures,
    testing::Values(
        BootstrapFailure{"OffloadFailsAndTheTrainStateIsLoaded", "offload model optimizer",
                         "offload model optimizer, onload", ""},
        BootstrapFailure{"OffloadAndItsUndoingFail", "offload model optimizer, onload",
                         "offload model optimizer, onload", "memory-onload"},
        BootstrapFailure{"RolloutIsNotBuiltAndTheTrainStateStaysOffloaded", "build rollout",
                         "offload model optimizer, build rollout", ""},
        BootstrapFailure{
            "SyncIsNotBuiltAndTheRolloutSleepsBeforeTheTrainStateIsLoaded", "build sync",
            "offload model optimizer, build rollout, build sync, sleep, onload, end of rollout",
            ""},
        BootstrapFailure{
            "SyncIsNotBuiltAndTheRolloutDoesNotSleep", "build sync, sleep",
            "offload model optimizer, build rollout, build sync, sleep, end of rollout",
            "memory-sleep"},
        BootstrapFailure{
            "SyncIsNotBuiltAndTheTrainStateIsNotLoaded", "build sync, onload",
            "offload model optimizer, build rollout, build sync, sleep, onload, end of rollout",
            "memory-onload"},
        BootstrapFailure{"SyncDoesNotSayWhetherItStreams", "streams?",
                         "offload model optimizer, build rollout, build sync, streams?, sleep, "
                         "onload, end of sync, end of rollout",
                         ""},
        BootstrapFailure{"SleepFailsAndTheTrainStateStaysOffloaded", "sleep",
                         "offload model optimizer, build rollout, build sync, streams?, sleep, end "
                         "of sync, end of rollout",
                         ""},
        BootstrapFailure{"OnloadFailsAndIsNotRepeated", "onload",
                         "offload model optimizer, build rollout, build sync, streams?, sleep, "
                         "onload, end of sync, end of rollout",
                         ""}),
    name_of<BootstrapFailure>);

TEST_F(MemoryScheduleTest, WithoutOffloadAFailedBootstrapOnlyDestroysWhatWasBuilt) {
  sync_ = Sync::kPlain;
  options_.enable_fsdp_offload = false;
  script_.failing = {{"build sync", "first"}};
  EXPECT_EQ(construction_failure().subject, "first");
  EXPECT_THAT(script_.take(), ElementsAre("build rollout", "build sync", "end of rollout"));
}

// ---- A phase ----

// A column of the table of orders.
struct Column {
  bool streams;
  bool tagged_wake;
  bool offload;
  bool publishes;
};
constexpr Column kStreaming{
    .streams = true, .tagged_wake = true, .offload = true, .publishes = true};
constexpr Column kStaged{.streams = false, .tagged_wake = true, .offload = true, .publishes = true};
constexpr Column kPlain{.streams = false, .tagged_wake = false, .offload = true, .publishes = true};
constexpr Column kResident{
    .streams = false, .tagged_wake = true, .offload = false, .publishes = true};
constexpr Column kUnsynced{
    .streams = true, .tagged_wake = true, .offload = true, .publishes = false};
constexpr Column kUnsyncedResident{
    .streams = false, .tagged_wake = true, .offload = false, .publishes = false};

enum class Left { kAsBefore, kReadyOffloaded, kStoppedLoaded, kStoppedOffloaded };

struct PhaseFailure {
  std::string name;
  Column column;
  std::string failing;
  std::string calls;
  std::string logged;
  Left left;
};

class PhaseFailures : public MemoryScheduleTest,
                      public testing::WithParamInterface<PhaseFailure> {};

TEST_P(PhaseFailures, EndAsTheRulesSayWithTheFirstError) {
  const Column& column = GetParam().column;
  sync_ = column.streams ? Sync::kStreaming : Sync::kPlain;
  abilities_.tagged_wake = column.tagged_wake;
  options_.enable_fsdp_offload = column.offload;
  if (column.publishes) skip_first_rollout();
  const std::optional<Phase> due = schedule().next_phase();
  script_.failing = failing(GetParam().failing);
  EXPECT_EQ(failing_phase("first"), listed(GetParam().calls));
  EXPECT_EQ(logged_failures(), listed(GetParam().logged));
  EXPECT_EQ(schedule().next_phase(), due);
  const Left left = GetParam().left;
  const bool stopped = left == Left::kStoppedLoaded || left == Left::kStoppedOffloaded;
  const bool offloaded = left == Left::kReadyOffloaded || left == Left::kStoppedOffloaded;
  EXPECT_EQ(schedule().state(), stopped ? ScheduleState::kStopped : ScheduleState::kReady);
  EXPECT_EQ(schedule().train_state_offloaded(), offloaded);
  if (stopped) expect_refused_because_stopped();
}

INSTANTIATE_TEST_SUITE_P(
    Streaming, PhaseFailures,
    testing::Values(
        PhaseFailure{"OptimizerOffloadFailsAndTheRolloutSleepsWithoutAnOnload", kStreaming,
                     "offload gradients optimizer", "offload gradients optimizer, sleep", "",
                     Left::kReadyOffloaded},
        PhaseFailure{"OptimizerOffloadAndTheSleepFail", kStreaming,
                     "offload gradients optimizer, sleep", "offload gradients optimizer, sleep",
                     "memory-sleep", Left::kStoppedOffloaded},
        PhaseFailure{"WeightWakeFailsAndEverythingIsLeft", kStreaming, "wake weights",
                     "offload gradients optimizer, wake weights", "", Left::kStoppedOffloaded},
        PhaseFailure{"SyncFailsAndEverythingIsLeft", kStreaming, "sync",
                     "offload gradients optimizer, wake weights, sync", "",
                     Left::kStoppedOffloaded},
        PhaseFailure{"ModelOffloadFailsAndEverythingIsLeft", kStreaming, "offload model",
                     "offload gradients optimizer, wake weights, sync, offload model", "",
                     Left::kStoppedOffloaded},
        PhaseFailure{"FinalWakeFailsAndEverythingIsLeft", kStreaming, "wake",
                     "offload gradients optimizer, wake weights, sync, offload model, wake", "",
                     Left::kStoppedOffloaded},
        PhaseFailure{"GenerateFailsAndMemoryIsAsBefore", kStreaming, "generate",
                     "offload gradients optimizer, wake weights, sync, offload model, wake, "
                     "generate, sleep, onload",
                     "", Left::kAsBefore},
        PhaseFailure{
            "SleepAfterTheWorkFailsAndTheTrainStateStaysOffloaded", kStreaming, "sleep",
            "offload gradients optimizer, wake weights, sync, offload model, wake, generate, sleep",
            "", Left::kStoppedOffloaded},
        PhaseFailure{"OnloadAfterTheWorkFailsAndIsNotRepeated", kStreaming, "onload",
                     "offload gradients optimizer, wake weights, sync, offload model, wake, "
                     "generate, sleep, onload",
                     "", Left::kStoppedOffloaded}),
    name_of<PhaseFailure>);

INSTANTIATE_TEST_SUITE_P(
    Staged, PhaseFailures,
    testing::Values(PhaseFailure{"WeightWakeFailsAndTheRolloutSleeps", kStaged, "wake weights",
                                 "wake weights, sleep", "", Left::kAsBefore},
                    PhaseFailure{"SyncFailsAndTheRolloutSleeps", kStaged, "sync",
                                 "wake weights, sync, sleep", "", Left::kAsBefore},
                    PhaseFailure{"SyncAndTheSleepFail", kStaged, "sync, sleep",
                                 "wake weights, sync, sleep", "memory-sleep", Left::kStoppedLoaded},
                    PhaseFailure{"OffloadFailsAndTheTrainStateIsLoadedAfterTheSleep", kStaged,
                                 "offload model optimizer",
                                 "wake weights, sync, offload model optimizer, sleep, onload", "",
                                 Left::kAsBefore},
                    PhaseFailure{"OffloadAndTheSleepFailAndTheTrainStateStaysOffloaded", kStaged,
                                 "offload model optimizer, sleep",
                                 "wake weights, sync, offload model optimizer, sleep",
                                 "memory-sleep", Left::kStoppedOffloaded},
                    PhaseFailure{"OffloadAndTheOnloadFail", kStaged,
                                 "offload model optimizer, onload",
                                 "wake weights, sync, offload model optimizer, sleep, onload",
                                 "memory-onload", Left::kStoppedOffloaded},
                    PhaseFailure{"FinalWakeFailsAndEverythingIsLeft", kStaged, "wake",
                                 "wake weights, sync, offload model optimizer, wake", "",
                                 Left::kStoppedOffloaded}),
    name_of<PhaseFailure>);

INSTANTIATE_TEST_SUITE_P(
    PlainAndUnsynced, PhaseFailures,
    testing::Values(PhaseFailure{"PlainWakeFailsAndTheRolloutSleeps", kPlain, "wake", "wake, sleep",
                                 "", Left::kAsBefore},
                    PhaseFailure{"PlainSyncFailsAndTheRolloutSleeps", kPlain, "sync",
                                 "wake, sync, sleep", "", Left::kAsBefore},
                    PhaseFailure{"PlainOffloadFailsAndTheTrainStateIsLoadedAfterTheSleep", kPlain,
                                 "offload model optimizer",
                                 "wake, sync, offload model optimizer, sleep, onload", "",
                                 Left::kAsBefore},
                    PhaseFailure{"ResidentSyncFailsAndTheRolloutSleeps", kResident, "sync",
                                 "wake, sync, sleep", "", Left::kAsBefore},
                    PhaseFailure{"ResidentGenerateFailsAndTheRolloutSleeps", kResident, "generate",
                                 "wake, sync, generate, sleep", "", Left::kAsBefore},
                    PhaseFailure{"UnsyncedOffloadFailsAndTheTrainStateIsLoadedAfterTheSleep",
                                 kUnsynced, "offload model optimizer",
                                 "offload model optimizer, sleep, onload", "", Left::kAsBefore},
                    PhaseFailure{"UnsyncedFinalWakeFailsAndEverythingIsLeft", kUnsynced, "wake",
                                 "offload model optimizer, wake", "", Left::kStoppedOffloaded},
                    PhaseFailure{"UnsyncedResidentWakeFailsAndTheRolloutSleeps", kUnsyncedResident,
                                 "wake", "wake, sleep", "", Left::kAsBefore},
                    PhaseFailure{"GenerateAndTheSleepFailAndTheTrainStateStaysOffloaded", kUnsynced,
                                 "generate, sleep",
                                 "offload model optimizer, wake, generate, sleep", "memory-sleep",
                                 Left::kStoppedOffloaded},
                    PhaseFailure{"GenerateAndTheOnloadFail", kUnsynced, "generate, onload",
                                 "offload model optimizer, wake, generate, sleep, onload",
                                 "memory-onload", Left::kStoppedOffloaded}),
    name_of<PhaseFailure>);

TEST_F(MemoryScheduleTest, AFailedPreserveCallEndsAsFailedWorkDoes) {
  options_.plan.weight_sync_interval = 2;
  schedule();
  script_.failing = {{"preserve", "first"}};
  EXPECT_THAT(failing_phase("first"),
              ElementsAre("offload model optimizer", "wake", "preserve", "sleep", "onload"));
  EXPECT_EQ(schedule().state(), ScheduleState::kReady);
}

TEST_F(MemoryScheduleTest, AStepsErrorNamesThePhaseThatItCameFrom) {
  skip_first_rollout();
  script_.failing = {{"wake weights", "first"}};
  EXPECT_EQ(failure_of([this] { schedule().run_phase(generate_once); }).phase,
            "memory-wake-weights");
}

TEST_F(MemoryScheduleTest, WhatTheWorkThrowsComesBackAsItIs) {
  EXPECT_THROW(schedule().run_phase([](const MemorySchedule::Generate&) {
    throw std::out_of_range("the caller's own");
  }),
               std::out_of_range);
  EXPECT_EQ(schedule().state(), ScheduleState::kReady);
}

TEST_F(MemoryScheduleTest, AStreamingPhaseThatFailedPublishesWhenItIsRunAgain) {
  options_.plan.weight_sync_interval = 2;
  phase();
  script_.failing = {{"generate", "first"}};
  failing_phase("first");  // rollout 1: does not publish, and its sleep discards the weights
  script_.failing.clear();
  EXPECT_TRUE(schedule().next_phase_syncs());
  EXPECT_THAT(phase(), ElementsAre("offload gradients optimizer", "wake weights", "sync",
                                   "offload model", "wake", "generate", "sleep", "onload"));
  EXPECT_EQ(schedule().next_phase(), (Phase{PhaseKind::kRollout, 2}));
}

TEST_F(MemoryScheduleTest, AFailureThatNoSleepDiscardedWeightsInChangesNoSync) {
  sync_ = Sync::kPlain;
  script_.failing = {{"generate", "first"}};
  failing_phase("first");
  EXPECT_FALSE(schedule().next_phase_syncs());
}

// ---- Ranks that fail together ----

// The gates of one rank, in whose place the test speaks for the peers.
class PeerGates final : public transfer::Gates {
 public:
  explicit PeerGates(Script& script) : script_(script) {}
  void enter(std::string_view phase, std::int64_t) override {
    phase_ = phase;
    waits_ = false;
  }
  void agree(const std::optional<ErrorRecord>& local) override {
    script_.calls.push_back("agree " + phase_);
    EXPECT_TRUE(waits_) << "a rank whose step timed out would leave its peers behind";
    if (local) throw_record(*local);
    if (phase_ == peer_fails_at) {
      throw RuntimeBroken({.kind = ErrorKind::kRemote, .phase = phase_, .rank = 1});
    }
  }
  std::vector<ByteBuffer> exchange(ByteView, std::optional<ErrorRecord>&) override { return {}; }
  Deadline begin_wait() override {
    waits_ = true;
    return Deadline::never();
  }
  collective::ControlGroup& group() override { return group_; }

  std::string peer_fails_at;

 private:
  Script& script_;
  std::string phase_;
  bool waits_ = false;
  transfer::fakes::GroupOfOne group_;
};

class RanksTogether : public MemoryScheduleTest {
 protected:
  RanksTogether() { gates_ = &peers_; }
  PeerGates peers_{script_};
};

TEST_F(RanksTogether, EachStepButSyncEndsWithAnAgreement) {
  schedule();
  EXPECT_THAT(
      script_.take(),
      ElementsAre("offload model optimizer", "agree memory-offload", "build rollout",
                  "agree memory-build-rollout", "build sync", "streams?", "agree memory-build-sync",
                  "sleep", "agree memory-sleep", "onload", "agree memory-onload"));
  skip_first_rollout();
  EXPECT_THAT(phase(), ElementsAre("offload gradients optimizer", "agree memory-offload-optimizer",
                                   "wake weights", "agree memory-wake-weights", "sync",
                                   "offload model", "agree memory-offload-model", "wake",
                                   "agree memory-wake", "generate", "agree memory-work", "sleep",
                                   "agree memory-sleep", "onload", "agree memory-onload"));
}

TEST_F(RanksTogether, APeerWhoseRuntimeDoesNotWakeKeepsThisRankOutOfThePublication) {
  skip_first_rollout();
  peers_.peer_fails_at = "memory-wake-weights";
  script_.take();
  const ErrorRecord record = failure_of([this] { schedule().run_phase(generate_once); });
  EXPECT_EQ(record.kind, ErrorKind::kRemote);
  EXPECT_EQ(record.rank, 1);
  EXPECT_THAT(script_.take(),
              ElementsAre("offload gradients optimizer", "agree memory-offload-optimizer",
                          "wake weights", "agree memory-wake-weights"));
  EXPECT_EQ(schedule().state(), ScheduleState::kStopped);
}

TEST_F(RanksTogether, APeerWhoseWorkFailedTakesThisRankAlongToTheSamePhase) {
  schedule();
  peers_.peer_fails_at = "memory-work";
  script_.take();
  EXPECT_EQ(failure_of([this] { schedule().run_phase(generate_once); }).rank, 1);
  EXPECT_EQ(schedule().next_phase(), (Phase{PhaseKind::kRollout, 0}));
  EXPECT_EQ(schedule().state(), ScheduleState::kReady);
}

TEST_F(RanksTogether, APeerThatCannotSleepKeepsThisRanksTrainStateOffloaded) {
  schedule();
  script_.failing = {{"generate", "first"}};
  peers_.peer_fails_at = "memory-sleep";
  EXPECT_THAT(
      failing_phase("first"),
      ElementsAre("offload model optimizer", "agree memory-offload", "wake", "agree memory-wake",
                  "generate", "agree memory-work", "sleep", "agree memory-sleep"));
  EXPECT_EQ(schedule().state(), ScheduleState::kStopped);
  EXPECT_TRUE(schedule().train_state_offloaded());
}

TEST_F(RanksTogether, APeersFailedRolloutLeavesThisRankOffloadedAsWell) {
  peers_.peer_fails_at = "memory-build-rollout";
  EXPECT_EQ(construction_failure().rank, 1);
  EXPECT_THAT(script_.take(),
              ElementsAre("offload model optimizer", "agree memory-offload", "build rollout",
                          "agree memory-build-rollout", "end of rollout"));
}

}  // namespace
}  // namespace tpsync::trainer
