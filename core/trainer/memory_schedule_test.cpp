// The schedule over fakes that write down every call: whole sequences of each order, each failure
// rule, the refusals, and ranks that fail together.
#include "tpsync/trainer/memory_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "core/base/testing/fake_world.h"
#include "core/transfer/testing/recording_gates.h"

namespace tpsync::trainer {
namespace {

using fakes::failure_of;
using fakes::RecordingLog;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;
using Calls = std::vector<std::string>;

static_assert(std::is_convertible_v<bool, StrictBool>);
static_assert(!std::is_constructible_v<StrictBool, int>);
static_assert(!std::is_constructible_v<StrictBool, const char*>);
static_assert(!std::is_constructible_v<StrictBool, std::vector<bool>>);
static_assert(!std::is_constructible_v<StrictBool, std::optional<bool>>);
static_assert(
    std::is_same_v<decltype(std::declval<WeightSync&>().uses_gpu_streaming()), StrictBool>);

// Every call of the fakes, and what the test lets some of them throw.
class Script {
 public:
  void call(const std::string& name) {
    calls.push_back(name);
    if (const auto found = failing.find(name); found != failing.end()) {
      throw_broken(ErrorKind::kDevice, found->second, "injected by the test");
    }
  }
  Calls take() { return std::exchange(calls, {}); }

  Calls calls;
  std::map<std::string, std::string> failing;  // to the subject of its error
};

class FakeBackend final : public TrainBackend {
 public:
  explicit FakeBackend(Script& script) : script_(script) {}
  void offload(const Offload& what) override {
    std::string name = "offload";
    if (what.clear_gradients) name += " gradients";
    if (what.model) name += " model";
    if (what.optimizer) name += " optimizer";
    script_.call(name);
  }
  void onload() override { script_.call("onload"); }

 private:
  Script& script_;
};

class FakeRollout final : public Rollout {
 public:
  FakeRollout(Script& script, RolloutAbilities abilities)
      : script_(script), abilities_(abilities) {}
  ~FakeRollout() override { script_.calls.push_back("end of rollout"); }
  RolloutAbilities abilities() const override { return abilities_; }
  void sleep() override { script_.call("sleep"); }
  void wake_up(const std::vector<std::string>& tags) override {
    std::string name = "wake";
    for (const std::string& tag : tags) name += " " + tag;
    script_.call(name);
  }
  void preserve_weights_for_next_sleep() override { script_.call("preserve"); }
  std::optional<Generated> generate(const wire::GenerateRequest& request) override {
    script_.call("generate");
    Generated generated;
    generated.rows.resize(request.payloads.size());
    generated.version = 7;
    return generated;
  }
  void shutdown() override { script_.call("shutdown"); }

 private:
  Script& script_;
  RolloutAbilities abilities_;
};

class FakeSync final : public WeightSync {
 public:
  FakeSync(Script& script, bool streams) : script_(script), streams_(streams) {}
  ~FakeSync() override { script_.calls.push_back("end of sync"); }
  StrictBool uses_gpu_streaming() override {
    script_.call("streams?");
    return streams_;
  }
  void sync() override { script_.call("sync"); }

 private:
  Script& script_;
  bool streams_;
};

void generate_once(const MemorySchedule::Generate& generate) { generate({}); }

class MemoryScheduleTest : public testing::Test {
 protected:
  enum class Sync { kNone, kPlain, kStreaming };

  Builders builders() {
    Builders made;
    made.rollout = [this] {
      script_.call("build rollout");
      return std::make_unique<FakeRollout>(script_, abilities_);
    };
    if (sync_ == Sync::kNone) return made;
    made.sync = [this](Rollout&) {
      script_.call("build sync");
      return std::make_unique<FakeSync>(script_, sync_ == Sync::kStreaming);
    };
    return made;
  }

  MemorySchedule& schedule() {
    if (!schedule_) schedule_.emplace(log_, backend_, builders(), options_, gates_);
    return *schedule_;
  }

  // What a schedule does in its next phase, without the bootstrap.
  Calls phase(const MemorySchedule::Work& work = generate_once) {
    schedule();
    script_.take();
    schedule().run_phase(work);
    return script_.take();
  }

  // Likewise for a phase that must fail, and with the error that it must end with.
  Calls failing_phase(const std::string& subject,
                      const MemorySchedule::Work& work = generate_once) {
    schedule();
    script_.take();
    const ErrorRecord record = failure_of([&] { schedule().run_phase(work); });
    EXPECT_EQ(record.subject, subject);
    EXPECT_EQ(record.kind, ErrorKind::kDevice);
    EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
    return script_.take();
  }

  // Goes on to a phase that publishes.
  void skip_first_rollout() {
    phase();
    ASSERT_TRUE(schedule().next_phase_syncs());
  }

  ErrorRecord construction_failure() {
    return failure_of([this] { schedule(); });
  }

  std::vector<std::string> logged_failures() const {
    std::vector<std::string> failures;
    for (const auto& entry : log_.entries) {
      if (entry.event == LogEvent::kPhaseFailed) failures.push_back(entry.subject);
    }
    return failures;
  }

  void expect_refused_because_stopped() {
    script_.take();
    const ErrorRecord record = failure_of([this] { schedule().run_phase(generate_once); });
    EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
    EXPECT_EQ(record.remedy, Remedy::kFixInput);
    EXPECT_EQ(record.subject, "run_phase");
    EXPECT_THAT(record.detail, HasSubstr("stopped"));
    EXPECT_THAT(script_.take(), IsEmpty());
  }

  Script script_;
  RecordingLog log_;
  FakeBackend backend_{script_};
  Sync sync_ = Sync::kStreaming;
  RolloutAbilities abilities_{.tagged_wake = true, .preserve = true};
  ScheduleOptions options_{.plan = {.rollouts = 6}, .rollout_anchor_device = {}};
  transfer::Gates* gates_ = nullptr;
  std::optional<MemorySchedule> schedule_;
};

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

// A failure at one step of the bootstrap, what is done about it, and whose error wins.
struct BootstrapFailure {
  std::string name;
  std::map<std::string, std::string> failing;
  std::string error;
  Calls calls;
  Calls logged;
};

class BootstrapFailures : public MemoryScheduleTest,
                          public testing::WithParamInterface<BootstrapFailure> {};

TEST_P(BootstrapFailures, EndAsTheRulesSayWithTheFirstError) {
  script_.failing = GetParam().failing;
  const ErrorRecord record = construction_failure();
  EXPECT_EQ(record.subject, GetParam().error);
  EXPECT_EQ(record.kind, ErrorKind::kDevice);
  EXPECT_THAT(script_.take(), ElementsAreArray(GetParam().calls));
  EXPECT_EQ(logged_failures(), GetParam().logged);
}

INSTANTIATE_TEST_SUITE_P(
    Rules, BootstrapFailures,
    testing::Values(
        BootstrapFailure{"OffloadFailsAndTheTrainStateIsLoaded",
                         {{"offload model optimizer", "first"}},
                         "first",
                         {"offload model optimizer", "onload"},
                         {}},
        BootstrapFailure{"OffloadAndItsUndoingFail",
                         {{"offload model optimizer", "first"}, {"onload", "second"}},
                         "first",
                         {"offload model optimizer", "onload"},
                         {"memory-onload"}},
        BootstrapFailure{"RolloutIsNotBuiltAndTheTrainStateStaysOffloaded",
                         {{"build rollout", "first"}},
                         "first",
                         {"offload model optimizer", "build rollout"},
                         {}},
        BootstrapFailure{"SyncIsNotBuiltAndTheRolloutSleepsBeforeTheTrainStateIsLoaded",
                         {{"build sync", "first"}},
                         "first",
                         {"offload model optimizer", "build rollout", "build sync", "sleep",
                          "onload", "end of rollout"},
                         {}},
        BootstrapFailure{
            "SyncIsNotBuiltAndTheRolloutDoesNotSleep",
            {{"build sync", "first"}, {"sleep", "second"}},
            "first",
            {"offload model optimizer", "build rollout", "build sync", "sleep", "end of rollout"},
            {"memory-sleep"}},
        BootstrapFailure{"SyncIsNotBuiltAndTheTrainStateIsNotLoaded",
                         {{"build sync", "first"}, {"onload", "second"}},
                         "first",
                         {"offload model optimizer", "build rollout", "build sync", "sleep",
                          "onload", "end of rollout"},
                         {"memory-onload"}},
        BootstrapFailure{"SyncDoesNotSayWhetherItStreams",
                         {{"streams?", "first"}},
                         "first",
                         {"offload model optimizer", "build rollout", "build sync", "streams?",
                          "sleep", "onload", "end of sync", "end of rollout"},
                         {}},
        BootstrapFailure{"SleepFailsAndTheTrainStateStaysOffloaded",
                         {{"sleep", "first"}},
                         "first",
                         {"offload model optimizer", "build rollout", "build sync", "streams?",
                          "sleep", "end of sync", "end of rollout"},
                         {}},
        BootstrapFailure{"OnloadFailsAndIsNotRepeated",
                         {{"onload", "first"}},
                         "first",
                         {"offload model optimizer", "build rollout", "build sync", "streams?",
                          "sleep", "onload", "end of sync", "end of rollout"},
                         {}}),
    [](const auto& param_info) { return param_info.param.name; });

TEST_F(MemoryScheduleTest, WithoutOffloadAFailedBootstrapOnlyDestroysWhatWasBuilt) {
  sync_ = Sync::kPlain;
  options_.enable_fsdp_offload = false;
  script_.failing = {{"build sync", "first"}};
  EXPECT_EQ(construction_failure().subject, "first");
  EXPECT_THAT(script_.take(), ElementsAre("build rollout", "build sync", "end of rollout"));
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
  const Calls unsynced_end{"wake", "generate", "sleep", "onload"};
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

// ---- Failures of a phase ----

// A failing call (and further ones while it is handled), the calls that follow, and what is left.
struct PhaseFailure {
  std::string name;
  bool streams;
  bool tagged_wake;
  bool offload;
  bool publishes;
  std::map<std::string, std::string> failing;
  Calls calls;
  Calls logged;
  ScheduleState state;
  bool offloaded;
};

class PhaseFailures : public MemoryScheduleTest,
                      public testing::WithParamInterface<PhaseFailure> {};

TEST_P(PhaseFailures, EndAsTheRulesSayWithTheFirstError) {
  const PhaseFailure& c = GetParam();
  sync_ = c.streams ? Sync::kStreaming : Sync::kPlain;
  abilities_.tagged_wake = c.tagged_wake;
  options_.enable_fsdp_offload = c.offload;
  if (c.publishes) skip_first_rollout();
  schedule();
  const std::optional<Phase> due = schedule().next_phase();
  script_.failing = c.failing;
  EXPECT_THAT(failing_phase("first"), ElementsAreArray(c.calls));
  EXPECT_EQ(logged_failures(), c.logged);
  EXPECT_EQ(schedule().state(), c.state);
  EXPECT_EQ(schedule().train_state_offloaded(), c.offloaded);
  EXPECT_EQ(schedule().next_phase(), due);
  if (c.state == ScheduleState::kStopped) expect_refused_because_stopped();
}

constexpr ScheduleState kReady = ScheduleState::kReady;
constexpr ScheduleState kStopped = ScheduleState::kStopped;

INSTANTIATE_TEST_SUITE_P(
    Streaming, PhaseFailures,
    testing::Values(PhaseFailure{"OptimizerOffloadFailsAndTheRolloutSleepsWithoutAnOnload",
                                 true,
                                 true,
                                 true,
                                 true,
                                 {{"offload gradients optimizer", "first"}},
                                 {"offload gradients optimizer", "sleep"},
                                 {},
                                 kReady,
                                 true},
                    PhaseFailure{"OptimizerOffloadAndTheSleepFail",
                                 true,
                                 true,
                                 true,
                                 true,
                                 {{"offload gradients optimizer", "first"}, {"sleep", "second"}},
                                 {"offload gradients optimizer", "sleep"},
                                 {"memory-sleep"},
                                 kStopped,
                                 true},
                    PhaseFailure{"WeightWakeFailsAndEverythingIsLeft",
                                 true,
                                 true,
                                 true,
                                 true,
                                 {{"wake weights", "first"}},
                                 {"offload gradients optimizer", "wake weights"},
                                 {},
                                 kStopped,
                                 true},
                    PhaseFailure{"SyncFailsAndEverythingIsLeft",
                                 true,
                                 true,
                                 true,
                                 true,
                                 {{"sync", "first"}},
                                 {"offload gradients optimizer", "wake weights", "sync"},
                                 {},
                                 kStopped,
                                 true},
                    PhaseFailure{
                        "ModelOffloadFailsAndEverythingIsLeft",
                        true,
                        true,
                        true,
                        true,
                        {{"offload model", "first"}},
                        {"offload gradients optimizer", "wake weights", "sync", "offload model"},
                        {},
                        kStopped,
                        true},
                    PhaseFailure{"FinalWakeFailsAndEverythingIsLeft",
                                 true,
                                 true,
                                 true,
                                 true,
                                 {{"wake", "first"}},
                                 {"offload gradients optimizer", "wake weights", "sync",
                                  "offload model", "wake"},
                                 {},
                                 kStopped,
                                 true},
                    PhaseFailure{"GenerateFailsAndMemoryIsAsBefore",
                                 true,
                                 true,
                                 true,
                                 true,
                                 {{"generate", "first"}},
                                 {"offload gradients optimizer", "wake weights", "sync",
                                  "offload model", "wake", "generate", "sleep", "onload"},
                                 {},
                                 kReady,
                                 false},
                    PhaseFailure{"SleepAfterTheWorkFailsAndTheTrainStateStaysOffloaded",
                                 true,
                                 true,
                                 true,
                                 true,
                                 {{"sleep", "first"}},
                                 {"offload gradients optimizer", "wake weights", "sync",
                                  "offload model", "wake", "generate", "sleep"},
                                 {},
                                 kStopped,
                                 true},
                    PhaseFailure{"OnloadAfterTheWorkFailsAndIsNotRepeated",
                                 true,
                                 true,
                                 true,
                                 true,
                                 {{"onload", "first"}},
                                 {"offload gradients optimizer", "wake weights", "sync",
                                  "offload model", "wake", "generate", "sleep", "onload"},
                                 {},
                                 kStopped,
                                 true}),
    [](const auto& param_info) { return param_info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Staged, PhaseFailures,
    testing::Values(
        PhaseFailure{"WeightWakeFailsAndTheRolloutSleeps",
                     false,
                     true,
                     true,
                     true,
                     {{"wake weights", "first"}},
                     {"wake weights", "sleep"},
                     {},
                     kReady,
                     false},
        PhaseFailure{"SyncFailsAndTheRolloutSleeps",
                     false,
                     true,
                     true,
                     true,
                     {{"sync", "first"}},
                     {"wake weights", "sync", "sleep"},
                     {},
                     kReady,
                     false},
        PhaseFailure{"SyncAndTheSleepFail",
                     false,
                     true,
                     true,
                     true,
                     {{"sync", "first"}, {"sleep", "second"}},
                     {"wake weights", "sync", "sleep"},
                     {"memory-sleep"},
                     kStopped,
                     false},
        PhaseFailure{"OffloadFailsAndTheTrainStateIsLoadedAfterTheSleep",
                     false,
                     true,
                     true,
                     true,
                     {{"offload model optimizer", "first"}},
                     {"wake weights", "sync", "offload model optimizer", "sleep", "onload"},
                     {},
                     kReady,
                     false},
        PhaseFailure{"OffloadAndTheSleepFailAndTheTrainStateStaysOffloaded",
                     false,
                     true,
                     true,
                     true,
                     {{"offload model optimizer", "first"}, {"sleep", "second"}},
                     {"wake weights", "sync", "offload model optimizer", "sleep"},
                     {"memory-sleep"},
                     kStopped,
                     true},
        PhaseFailure{"OffloadAndTheOnloadFail",
                     false,
                     true,
                     true,
                     true,
                     {{"offload model optimizer", "first"}, {"onload", "second"}},
                     {"wake weights", "sync", "offload model optimizer", "sleep", "onload"},
                     {"memory-onload"},
                     kStopped,
                     true},
        PhaseFailure{"FinalWakeFailsAndEverythingIsLeft",
                     false,
                     true,
                     true,
                     true,
                     {{"wake", "first"}},
                     {"wake weights", "sync", "offload model optimizer", "wake"},
                     {},
                     kStopped,
                     true}),
    [](const auto& param_info) { return param_info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    PlainAndUnsynced, PhaseFailures,
    testing::Values(PhaseFailure{"PlainWakeFailsAndTheRolloutSleeps",
                                 false,
                                 false,
                                 true,
                                 true,
                                 {{"wake", "first"}},
                                 {"wake", "sleep"},
                                 {},
                                 kReady,
                                 false},
                    PhaseFailure{"PlainSyncFailsAndTheRolloutSleeps",
                                 false,
                                 false,
                                 true,
                                 true,
                                 {{"sync", "first"}},
                                 {"wake", "sync", "sleep"},
                                 {},
                                 kReady,
                                 false},
                    PhaseFailure{"PlainOffloadFailsAndTheTrainStateIsLoadedAfterTheSleep",
                                 false,
                                 false,
                                 true,
                                 true,
                                 {{"offload model optimizer", "first"}},
                                 {"wake", "sync", "offload model optimizer", "sleep", "onload"},
                                 {},
                                 kReady,
                                 false},
                    PhaseFailure{"ResidentSyncFailsAndTheRolloutSleeps",
                                 false,
                                 true,
                                 false,
                                 true,
                                 {{"sync", "first"}},
                                 {"wake", "sync", "sleep"},
                                 {},
                                 kReady,
                                 false},
                    PhaseFailure{"ResidentGenerateFailsAndTheRolloutSleeps",
                                 false,
                                 true,
                                 false,
                                 true,
                                 {{"generate", "first"}},
                                 {"wake", "sync", "generate", "sleep"},
                                 {},
                                 kReady,
                                 false},
                    PhaseFailure{"UnsyncedOffloadFailsAndTheTrainStateIsLoadedAfterTheSleep",
                                 true,
                                 true,
                                 true,
                                 false,
                                 {{"offload model optimizer", "first"}},
                                 {"offload model optimizer", "sleep", "onload"},
                                 {},
                                 kReady,
                                 false},
                    PhaseFailure{"UnsyncedFinalWakeFailsAndEverythingIsLeft",
                                 true,
                                 true,
                                 true,
                                 false,
                                 {{"wake", "first"}},
                                 {"offload model optimizer", "wake"},
                                 {},
                                 kStopped,
                                 true},
                    PhaseFailure{"UnsyncedResidentWakeFailsAndTheRolloutSleeps",
                                 false,
                                 true,
                                 false,
                                 false,
                                 {{"wake", "first"}},
                                 {"wake", "sleep"},
                                 {},
                                 kReady,
                                 false},
                    PhaseFailure{"GenerateAndTheSleepFailAndTheTrainStateStaysOffloaded",
                                 true,
                                 true,
                                 true,
                                 false,
                                 {{"generate", "first"}, {"sleep", "second"}},
                                 {"offload model optimizer", "wake", "generate", "sleep"},
                                 {"memory-sleep"},
                                 kStopped,
                                 true},
                    PhaseFailure{"GenerateAndTheOnloadFail",
                                 true,
                                 true,
                                 true,
                                 false,
                                 {{"generate", "first"}, {"onload", "second"}},
                                 {"offload model optimizer", "wake", "generate", "sleep", "onload"},
                                 {"memory-onload"},
                                 kStopped,
                                 true}),
    [](const auto& param_info) { return param_info.param.name; });

TEST_F(MemoryScheduleTest, AFailedPreserveCallEndsAsFailedWorkDoes) {
  options_.plan.weight_sync_interval = 2;
  schedule();
  script_.failing = {{"preserve", "first"}};
  EXPECT_THAT(failing_phase("first"),
              ElementsAre("offload model optimizer", "wake", "preserve", "sleep", "onload"));
  EXPECT_EQ(schedule().state(), kReady);
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
  EXPECT_EQ(schedule().state(), kReady);
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
    EXPECT_EQ(schedule().state(), kStopped);
    EXPECT_FALSE(schedule().train_state_offloaded());
  }
}

// ---- Ranks that fail together ----

// The gates of one rank, in whose place the test speaks for the peers.
class PeerGates final : public transfer::Gates {
 public:
  explicit PeerGates(Script& script) : script_(script) {}
  void enter(std::string_view phase, std::int64_t) override { phase_ = phase; }
  void agree(const std::optional<ErrorRecord>& local) override {
    script_.calls.push_back("agree " + phase_);
    if (local) throw_record(*local);
    if (phase_ == peer_fails_at) {
      throw RuntimeBroken({.kind = ErrorKind::kRemote, .phase = phase_, .rank = 1});
    }
  }
  std::vector<ByteBuffer> exchange(ByteView, std::optional<ErrorRecord>&) override { return {}; }
  Deadline begin_wait() override { return Deadline::never(); }
  collective::ControlGroup& group() override { return group_; }

  std::string peer_fails_at;

 private:
  Script& script_;
  std::string phase_;
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
  options_.plan.weight_sync_interval = 1;
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
  EXPECT_EQ(schedule().state(), kStopped);
}

TEST_F(RanksTogether, APeerWhoseWorkFailedTakesThisRankAlongToTheSamePhase) {
  schedule();
  peers_.peer_fails_at = "memory-work";
  script_.take();
  EXPECT_EQ(failure_of([this] { schedule().run_phase(generate_once); }).rank, 1);
  EXPECT_EQ(schedule().next_phase(), (Phase{PhaseKind::kRollout, 0}));
  EXPECT_EQ(schedule().state(), kReady);
}

TEST_F(RanksTogether, APeerThatCannotSleepKeepsThisRanksTrainStateOffloaded) {
  schedule();
  script_.failing = {{"generate", "first"}};
  peers_.peer_fails_at = "memory-sleep";
  EXPECT_THAT(
      failing_phase("first"),
      ElementsAre("offload model optimizer", "agree memory-offload", "wake", "agree memory-wake",
                  "generate", "agree memory-work", "sleep", "agree memory-sleep"));
  EXPECT_EQ(schedule().state(), kStopped);
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
