// The publication's own logic over fakes: the order of commands, what each failure leaves behind,
// what the peers are told, and which versions are chosen. Whole systems are run by the scenarios.
#include "tpsync/sync/ipc_weight_sync.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <stdexcept>

#include "core/base/testing/fake_world.h"
#include "core/model/testing/models.h"
#include "core/sync/testing/thread_group.h"
#include "core/transfer/testing/recording_gates.h"
#include "tpsync/device/host_device.h"

namespace tpsync::sync {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using tpsync::fakes::failure_of;
using transfer::fakes::ScriptedSource;

constexpr std::uint64_t kDeviceBytes = 1 << 20;

class ScriptedTarget final : public PublicationTarget {
 public:
  explicit ScriptedTarget(int size) {
    given.tp_size = size;
    for (int rank = 0; rank < size; ++rank) {
      given.device_uuids.push_back("gpu-" + std::to_string(rank));
      given.worker_pids.push_back(100 + rank);
    }
    given.layouts = {wire::Layout::kCompact};
    given.weights_awake = true;
  }

  TargetTopology given;
  Duration update_timeout = seconds(300);
  std::string failing;  // the step of this name throws
  std::function<void()> at_probe = [] {};
  std::function<void(wire::CommitResult&)> edit_result = [](wire::CommitResult&) {};
  std::vector<std::string> steps;
  std::string poisoned_with;
  wire::PublicationHeader header;

  TargetTopology topology() override {
    step("topology");
    return given;
  }
  Duration weight_update_timeout() const override { return update_timeout; }
  void set_weight_sync_sleep_level(const SleepPolicy& policy) override {
    step("sleep level " + std::to_string(policy.level) +
         (policy.preserve_next ? " preserving" : ""));
  }
  void probe_ipc(const wire::ProbeIpcRequest&) override {
    at_probe();
    if (failing == "silent probe") {
      throw_broken(ErrorKind::kTimeout, "probe_ipc", "injected by the test");
    }
    if (failing == "unsent probe") {
      throw_invalid(ErrorKind::kProtocol, "probe_ipc", "injected by the test");
    }
    if (failing == "probe") {
      throw_nothing_happened(ErrorKind::kRemote, "probe_ipc", "injected by the test");
    }
    step("probe");
  }
  void init_publication() override {
    if (failing == "unsent init") {
      throw_nothing_happened(ErrorKind::kInvalidState, "init", "injected by the test");
    }
    step("init");
  }
  void start_publication(const wire::StartRequest& request) override {
    header = request.header;
    step("start");
  }
  void update_publication(const wire::EncodedUpdate& update,
                          const wire::HandleMap& handles) override {
    ByteBuffer body;
    update.encode(1, handles, body);
    const auto payload = wire::decode_payload(wire::Command::kUpdate, body);
    step("update " + std::to_string(std::get<wire::UpdateRequest>(payload).chunk_index));
  }
  wire::CommitResult finish_publication(const wire::FinishRequest&) override {
    step("finish");
    wire::CommitResult result;
    result.status = "committed";
    result.model_version = header.model_version;
    result.prefix_cache_reset = true;
    for (std::int64_t rank = 0; rank < header.tp_world_size; ++rank) {
      wire::WorkerReceipt receipt;
      receipt.tp_rank = rank;
      receipt.tp_world_size = header.tp_world_size;
      receipt.device_uuid = header.device_uuids[static_cast<std::size_t>(rank)];
      receipt.publication_id = header.publication_id;
      receipt.model_version = header.model_version;
      receipt.expected_manifest_fingerprint = header.expected_manifest.fingerprint;
      receipt.resident_parameter_count = 1;
      receipt.ready = true;
      result.worker_receipts.push_back(receipt);
    }
    edit_result(result);
    return result;
  }
  void release_publication() override { step("release"); }
  void poison(std::string_view reason) noexcept override {
    poisoned_with = reason;
    steps.emplace_back("poison");
  }

 private:
  void step(const std::string& name) {
    steps.push_back(name);
    if (name == failing) throw_broken(ErrorKind::kRemote, name, "injected by the test");
  }
};

// One actor with everything around it; its workers are processes of the fake world.
class Actor {
 public:
  Actor(device::HostMemory& memory, std::unique_ptr<collective::ControlGroup> group)
      : rank(group->rank()),
        device(memory, {"gpu-" + std::to_string(rank), device::Landing::kAtLaunch}),
        target(group->size()),
        source(model::plan_canonical(config).tensors, source_steps),
        joined_(group.get()),
        group_(std::move(group)) {
    options.bucket_bytes = 1024;
    options.gpu_memory_headroom_bytes = 0;
    for (int r = 0; r < group_->size(); ++r) world.processes.spawn({});  // pids from 100
  }
  IpcWeightSync& sync() {
    if (!sync_) {
      sync_.emplace(world.world(), std::move(group_), device, source, target, config, options);
    }
    return *sync_;
  }
  void leave_group() { joined_->leave(); }
  void end_workers() {
    for (const auto& process : world.processes.processes) process->alive = false;
  }

  int rank;
  tpsync::fakes::FakeWorld world;
  model::ModelConfig config = model::model_named("tiny-tp4");
  device::HostDevice device;
  ScriptedTarget target;
  std::vector<std::string> source_steps;
  ScriptedSource source;
  SyncOptions options;

 private:
  collective::ControlGroup* joined_;
  std::unique_ptr<collective::ControlGroup> group_;  // until the sync owns it
  std::optional<IpcWeightSync> sync_;
};

class IpcWeightSyncTest : public testing::Test {
 protected:
  IpcWeightSyncTest() {
    memory_.add_device("gpu-0", kDeviceBytes);
    memory_.add_device("gpu-1", kDeviceBytes);
    actor_.emplace(memory_, std::make_unique<fakes::ThreadGroup>(board_, 0, 1));
  }
  IpcWeightSync& sync() { return actor_->sync(); }
  ScriptedTarget& target() { return actor_->target; }
  ErrorRecord sync_failure() {
    return failure_of([&] { sync().sync(); });
  }
  // Another sync is possible, and nothing had an effect.
  void expect_untouched() {
    EXPECT_EQ(sync().state(), PublicationState::kIdle);
    EXPECT_THAT(target().steps, testing::Not(testing::Contains("init")));
    EXPECT_THAT(target().steps, testing::Not(testing::Contains("poison")));
    EXPECT_EQ(memory_.live_exports(), 0u);
  }
  void expect_poisoned() {
    EXPECT_EQ(sync().state(), PublicationState::kPoisoned);
    EXPECT_EQ(target().steps.back(), "poison");
    const std::size_t before = target().steps.size();
    const ErrorRecord record = sync_failure();
    EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
    EXPECT_EQ(record.remedy, Remedy::kFixInput);
    EXPECT_THAT(record.detail, HasSubstr("build a new runtime"));
    EXPECT_EQ(target().steps.size(), before);
  }

  device::HostMemory memory_;
  fakes::Board board_{1};
  std::optional<Actor> actor_;
};

// ---- life

TEST_F(IpcWeightSyncTest, APublicationGoesThroughItsCommandsInOrder) {
  sync().setup();
  const PublicationResult result = sync().sync();
  EXPECT_EQ(result.model_version, 1);
  EXPECT_EQ(result.publication_id, "000102030405060708090a0b0c0d0e0f");
  EXPECT_TRUE(result.prefix_cache_reset);
  EXPECT_EQ(result.receipts.size(), 1u);
  EXPECT_THAT(target().steps,
              ElementsAre("sleep level 2 preserving", "topology", "topology", "probe", "init",
                          "start", "update 0", "update 1", "update 2", "finish", "release"));
  EXPECT_EQ(sync().state(), PublicationState::kIdle);
  EXPECT_EQ(sync().next_version(), 2);
  EXPECT_EQ(memory_.live_exports(), 0u);
  EXPECT_EQ(actor_->device.memory().free_bytes, kDeviceBytes);
}

TEST_F(IpcWeightSyncTest, EveryPublicationHasItsOwnIdAndTheNextVersion) {
  sync().setup();
  const PublicationResult first = sync().sync();
  const PublicationResult second = sync().sync();
  EXPECT_EQ(second.model_version, 2);
  EXPECT_NE(first.publication_id, second.publication_id);
}

TEST_F(IpcWeightSyncTest, SyncNeedsSetupBeforeItAndNoCleanupYet) {
  EXPECT_EQ(sync_failure().kind, ErrorKind::kInvalidState);
  sync().setup();
  EXPECT_EQ(failure_of([&] { sync().setup(); }).kind, ErrorKind::kInvalidState);
  sync().sync();
  const std::size_t before = target().steps.size();
  sync().cleanup();
  sync().shutdown();
  const ErrorRecord record = sync_failure();
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(record.remedy, Remedy::kFixInput);
  EXPECT_EQ(failure_of([&] { sync().setup(); }).kind, ErrorKind::kInvalidState);
  EXPECT_EQ(target().steps.size(), before);
}

TEST_F(IpcWeightSyncTest, TheNextVersionIsAboveTheRuntimesAndTheCheckpoints) {
  target().given.committed_version = 4;
  actor_->options.last_committed_version = 7;
  sync().setup();
  EXPECT_EQ(sync().next_version(), 8);
  EXPECT_EQ(sync().sync().model_version, 8);
}

TEST_F(IpcWeightSyncTest, TheRuntimesVersionWinsWhereItIsHigher) {
  target().given.committed_version = 9;
  actor_->options.last_committed_version = 7;
  sync().setup();
  EXPECT_EQ(sync().next_version(), 10);
}

TEST_F(IpcWeightSyncTest, ARuntimeAboveWhichNoVersionIsLeftIsRefusedBySetup) {
  for (const std::int64_t committed : {std::int64_t{-1}, INT64_MAX}) {
    target().given.committed_version = committed;
    const ErrorRecord record = failure_of([&] { sync().setup(); });
    EXPECT_EQ(record.kind, ErrorKind::kMismatch);
    EXPECT_EQ(record.remedy, Remedy::kFixPeer);
    EXPECT_EQ(record.subject, "committed_version");
    EXPECT_EQ(record.phase, "setup");
  }
  target().given.committed_version = 3;
  sync().setup();
  EXPECT_EQ(sync().next_version(), 4);
}

TEST_F(IpcWeightSyncTest, AfterTheHighestVersionSyncIsRefusedAndCallsNothing) {
  actor_->options.last_committed_version = INT64_MAX - 1;
  sync().setup();
  EXPECT_EQ(sync().sync().model_version, INT64_MAX);
  EXPECT_EQ(sync().next_version(), INT64_MAX);
  const std::size_t before = target().steps.size();
  const ErrorRecord record = sync_failure();
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(record.remedy, Remedy::kFixInput);
  EXPECT_THAT(record.detail, HasSubstr("the last there is"));
  EXPECT_EQ(target().steps.size(), before);
}

TEST_F(IpcWeightSyncTest, TheControlTimeoutMustExceedTheUpdateTimeoutByMoreThanTheKill) {
  actor_->options.control_timeout = seconds(311);
  target().update_timeout = seconds(300);
  const ErrorRecord record = failure_of([&] { sync(); });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(record.remedy, Remedy::kFixInput);
  EXPECT_EQ(record.subject, "control_timeout");
}

TEST_F(IpcWeightSyncTest, OneNanosecondMoreThanThatPasses) {
  actor_->options.control_timeout = seconds(311) + Duration(1);
  sync().setup();
}

// ---- before the runtime is touched

TEST_F(IpcWeightSyncTest, ASchemaThatIsNotTheModelsIsNamedAndTouchesNothing) {
  sync().setup();
  const auto whole = actor_->source.tensors;
  const auto refused = [&](const std::string& why) {
    const ErrorRecord record = sync_failure();
    EXPECT_EQ(record.kind, ErrorKind::kMismatch);
    EXPECT_EQ(record.remedy, Remedy::kFixInput);
    EXPECT_EQ(record.phase, "expected-schema");
    EXPECT_THAT(record.detail, HasSubstr(why));
    expect_untouched();
    actor_->source.tensors = whole;
    return record.subject;
  };
  actor_->source.tensors.pop_back();
  EXPECT_EQ(refused("has no more"), whole.back().name);
  actor_->source.tensors.push_back(whole[0]);
  actor_->source.tensors.back().name = "extra";
  EXPECT_EQ(refused("is not part of this model"), "extra");
  actor_->source.tensors[2].dtype = "torch.float16";
  EXPECT_EQ(refused("another shape or dtype"), whole[2].name);
  std::swap(actor_->source.tensors[2], actor_->source.tensors[3]);
  EXPECT_EQ(refused("the trainer has " + whole[3].name), whole[2].name);
  EXPECT_EQ(sync().sync().model_version, 1);
}

TEST_F(IpcWeightSyncTest, AWeightGroupThatWasAbortedIsRefusedBeforeAnything) {
  sync().setup();
  actor_->source.is_usable = false;
  const ErrorRecord record = sync_failure();
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(record.subject, "weight group");
  expect_untouched();
}

TEST_F(IpcWeightSyncTest, UnsupportedTraitsAreRefusedInTheSchemaPhase) {
  actor_->options.lora_merged = true;
  sync().setup();
  const ErrorRecord record = sync_failure();
  EXPECT_EQ(record.kind, ErrorKind::kUnsupported);
  EXPECT_EQ(record.phase, "expected-schema");
  expect_untouched();
}

TEST_F(IpcWeightSyncTest, WhatTheRuntimeCannotTakeIsFoundWhenItIsAsked) {
  sync().setup();
  const auto refused = [&](const std::function<void(TargetTopology&)>& edit) {
    const TargetTopology whole = target().given;
    edit(target().given);
    const ErrorRecord record = sync_failure();
    EXPECT_EQ(record.phase, "topology-discovery");
    expect_untouched();
    target().given = whole;
    return record;
  };
  EXPECT_EQ(refused([](auto& t) { t.device_uuids.clear(); }).kind, ErrorKind::kMismatch);
  EXPECT_EQ(refused([](auto& t) { t.tp_size = 0; }).kind, ErrorKind::kMismatch);
  EXPECT_EQ(refused([](auto& t) { t.layouts.clear(); }).kind, ErrorKind::kMismatch);
  const ErrorRecord asleep = refused([](auto& t) { t.weights_awake = false; });
  EXPECT_EQ(asleep.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(asleep.remedy, Remedy::kTryLater);
  const ErrorRecord version = refused([](auto& t) { t.committed_version = 1; });
  EXPECT_EQ(version.subject, "model_version");
  EXPECT_EQ(version.remedy, Remedy::kFixInput);
  EXPECT_EQ(sync().sync().model_version, 1);
}

TEST_F(IpcWeightSyncTest, ALayoutThatTheRuntimeDoesNotTakeIsRefused) {
  actor_->options.layout = wire::Layout::kRankMajor;
  sync().setup();
  const ErrorRecord record = sync_failure();
  EXPECT_EQ(record.kind, ErrorKind::kUnsupported);
  EXPECT_EQ(record.subject, "layout");
  expect_untouched();
}

TEST_F(IpcWeightSyncTest, ThePreflightNeedsLivingWorkersMemoryAndAPassedProbe) {
  sync().setup();
  const auto refused = [&] {
    const ErrorRecord record = sync_failure();
    EXPECT_EQ(record.remedy, Remedy::kTryLater);
    expect_untouched();
    return record;
  };
  actor_->end_workers();
  EXPECT_EQ(refused().kind, ErrorKind::kIpc);
  actor_->world.processes.processes[0]->alive = true;

  {
    const auto taken =
        device::allocate(actor_->device, {.bytes = kDeviceBytes - 100, .kind = {}, .tag = {}});
    EXPECT_EQ(refused().kind, ErrorKind::kOutOfMemory);
  }
  target().failing = "probe";
  const ErrorRecord probe = refused();
  EXPECT_EQ(probe.kind, ErrorKind::kRemote);
  EXPECT_EQ(probe.phase, "topology-ipc-probe");
  target().failing.clear();
  EXPECT_EQ(sync().sync().model_version, 1);
}

// ---- once it is touched

class FailingStep : public IpcWeightSyncTest, public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Steps, FailingStep,
                         testing::Values("init", "start", "update 0", "update 2", "finish",
                                         "release"));

TEST_P(FailingStep, PoisonsAndKeepsTheVersion) {
  sync().setup();
  target().failing = GetParam();
  const ErrorRecord record = sync_failure();
  EXPECT_EQ(record.kind, ErrorKind::kRemote);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  EXPECT_EQ(record.subject, GetParam());
  EXPECT_EQ(record.rank, 0);
  EXPECT_EQ(target().poisoned_with, to_text(record));
  EXPECT_EQ(sync().next_version(), 1);
  expect_poisoned();
}

TEST_F(IpcWeightSyncTest, AfterAFailureTheBufferIsKeptUntilTheWorkersAreDead) {
  sync().setup();
  target().failing = "update 1";
  sync_failure();  // its worker outlives every allowance
  EXPECT_EQ(memory_.live_exports(), 1u);
  EXPECT_NE(actor_->world.log.find(LogEvent::kExportLeaked), nullptr);
}

TEST_F(IpcWeightSyncTest, AProbeThatNobodyAnsweredIsKeptWhileAWorkerLives) {
  sync().setup();
  target().failing = "silent probe";
  EXPECT_EQ(sync_failure().kind, ErrorKind::kTimeout);
  EXPECT_EQ(memory_.live_exports(), 1u);
  EXPECT_NE(actor_->world.log.find(LogEvent::kExportLeaked), nullptr);
}

TEST_F(IpcWeightSyncTest, AProbeThatNobodyAnsweredIsFreedOnceTheWorkersAreDead) {
  sync().setup();
  target().failing = "silent probe";
  target().at_probe = [&] { actor_->end_workers(); };
  EXPECT_EQ(sync_failure().kind, ErrorKind::kTimeout);
  EXPECT_EQ(memory_.live_exports(), 0u);
  EXPECT_EQ(actor_->world.log.find(LogEvent::kExportLeaked), nullptr);
}

// Nothing was sent: nobody is waited for.
TEST_F(IpcWeightSyncTest, AProbeThatWasNotSentIsFreedAtOnce) {
  sync().setup();
  target().failing = "unsent probe";
  const TimePoint begin = actor_->world.clock.now();
  EXPECT_EQ(sync_failure().remedy, Remedy::kFixInput);
  EXPECT_EQ(actor_->world.clock.now(), begin);
  EXPECT_EQ(memory_.live_exports(), 0u);
  EXPECT_EQ(actor_->world.log.find(LogEvent::kExportLeaked), nullptr);
}

TEST_F(IpcWeightSyncTest, AProbeThatAWorkerRefusedIsFreed) {
  sync().setup();
  target().failing = "probe";
  EXPECT_EQ(sync_failure().kind, ErrorKind::kRemote);
  EXPECT_EQ(memory_.live_exports(), 0u);
  EXPECT_EQ(actor_->world.log.find(LogEvent::kExportLeaked), nullptr);
}

TEST_F(IpcWeightSyncTest, ASourceThatNamesNoGroupOfCollectivesIsRefused) {
  sync().setup();
  actor_->source.groups = 0;
  const ErrorRecord record = sync_failure();
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(record.subject, "source");
  expect_poisoned();
}

// As a connection that is busy refuses it: the runtime knows of nothing and stays as it was.
TEST_F(IpcWeightSyncTest, AnInitThatWasNotSentPoisonsNothing) {
  sync().setup();
  target().failing = "unsent init";
  EXPECT_EQ(sync_failure().remedy, Remedy::kTryLater);
  EXPECT_EQ(target().poisoned_with, "");
  target().failing.clear();
  EXPECT_EQ(sync().sync().model_version, 1);
}

TEST_F(IpcWeightSyncTest, AFailureBeforeTheBufferWaitsForNobody) {
  sync().setup();
  target().failing = "init";
  const TimePoint begin = actor_->world.clock.now();
  sync_failure();
  EXPECT_EQ(actor_->world.clock.now(), begin);
  expect_poisoned();
}

TEST_F(IpcWeightSyncTest, AfterAFailureTheBufferOfDeadWorkersIsFreed) {
  sync().setup();
  target().edit_result = [&](wire::CommitResult&) {
    actor_->end_workers();
    throw_broken(ErrorKind::kEndOfFile, "finish", "injected by the test");
  };
  EXPECT_EQ(sync_failure().kind, ErrorKind::kEndOfFile);
  EXPECT_EQ(memory_.live_exports(), 0u);
  EXPECT_EQ(actor_->device.memory().free_bytes, kDeviceBytes);
  expect_poisoned();
}

TEST_F(IpcWeightSyncTest, TheActorsValidateTheResultThemselves) {
  sync().setup();
  target().edit_result = [](wire::CommitResult& result) {
    result.worker_receipts[0].publication_id = "another";
  };
  const ErrorRecord record = sync_failure();
  EXPECT_EQ(record.kind, ErrorKind::kMismatch);
  EXPECT_EQ(record.phase, "native-result");
  EXPECT_EQ(record.subject, "receipts[0].publication_id");
  expect_poisoned();
}

TEST_F(IpcWeightSyncTest, ASourceThatHasMoreFailsAfterTheLastChunkAndBeforeFinish) {
  sync().setup();
  actor_->source.has_more = true;
  const ErrorRecord record = sync_failure();
  EXPECT_EQ(record.kind, ErrorKind::kMismatch);
  EXPECT_EQ(record.phase, "native-source-verify");
  EXPECT_EQ(record.subject, "source");
  EXPECT_THAT(target().steps, testing::Not(testing::Contains("finish")));
  expect_poisoned();
}

// ---- two actors

class TwoActors : public IpcWeightSyncTest {
 protected:
  using Edit = std::function<void(Actor&)>;

  struct Outcome {
    std::optional<ErrorRecord> error;
    std::int64_t version = 0;
    PublicationState state = PublicationState::kIdle;
    std::vector<std::string> steps;
  };
  // Sets up and publishes once on both ranks.
  std::vector<Outcome> publish(const Edit& edit) {
    std::vector<Outcome> outcomes(2);
    const auto thrown = fakes::run_ranks(2, [&](std::unique_ptr<fakes::ThreadGroup> group) {
      Outcome& outcome = outcomes[static_cast<std::size_t>(group->rank())];
      Actor actor(memory_, std::move(group));
      edit(actor);
      actor.sync().setup();
      try {
        outcome.version = actor.sync().sync().model_version;
      } catch (const Error& error) {
        outcome.error = error.record();
      }
      outcome.state = actor.sync().state();
      outcome.steps = actor.target.steps;
    });
    EXPECT_THAT(thrown, testing::Each(testing::Eq(std::nullopt)));
    return outcomes;
  }
};

TEST_F(TwoActors, BothReturnTheSameVersionAndOnlyRankZeroSpeaksToTheRuntime) {
  const auto outcomes = publish([](Actor&) {});
  EXPECT_EQ(outcomes[0].version, 1);
  EXPECT_EQ(outcomes[1].version, 1);
  EXPECT_THAT(outcomes[1].steps, ElementsAre());
}

TEST_F(TwoActors, AFailureOfOneIsTheSameErrorOnBoth) {
  const auto outcomes = publish([](Actor& actor) {
    if (actor.rank == 1) actor.source.failing_step = "prepare 1.0";
  });
  ASSERT_TRUE(outcomes[0].error && outcomes[1].error);
  EXPECT_EQ(*outcomes[0].error, *outcomes[1].error);
  EXPECT_EQ(outcomes[0].error->rank, 1);
  EXPECT_EQ(outcomes[0].error->phase, "native-materialize-1");
  EXPECT_EQ(outcomes[0].steps.back(), "poison");
  EXPECT_EQ(outcomes[1].state, PublicationState::kPoisoned);
}

TEST_F(TwoActors, TheNextVersionIsAboveEveryActorsCheckpoint) {
  const auto outcomes =
      publish([](Actor& actor) { actor.options.last_committed_version = actor.rank == 1 ? 7 : 4; });
  EXPECT_EQ(outcomes[0].version, 8);
  EXPECT_EQ(outcomes[1].version, 8);
}

// A call of the source on one rank throws what is no tpsync::Error.
class FailingCall : public TwoActors,
                    public testing::WithParamInterface<std::pair<const char*, const char*>> {
 protected:
  std::vector<Outcome> publish_with_failing_call(int rank, std::string_view failing) {
    return publish([=](Actor& actor) {
      actor.target.given.layouts = {wire::Layout::kRankMajor};
      actor.options.content_digest = failing == "digest_sums";
      actor.source.sums.assign(actor.source.tensors.size(), 0);
      if (actor.rank != rank) return;
      actor.source.before_call = [failing](std::string_view call) {
        if (call == failing) throw std::runtime_error("injected by the test");
      };
    });
  }
  void expect_internal(const std::vector<Outcome>& outcomes, int rank, const std::string& phase) {
    for (const Outcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.error.has_value());
      EXPECT_EQ(outcome.error->kind, ErrorKind::kInternal);
      EXPECT_EQ(outcome.error->remedy, Remedy::kRebuildRuntime);
      EXPECT_EQ(outcome.error->rank, rank);
      EXPECT_EQ(outcome.error->phase, phase);
      EXPECT_EQ(*outcome.error, *outcomes[0].error);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(OfTheSource, FailingCall,
                         testing::Values(std::pair("metadata", "expected-schema"),
                                         std::pair("layout", "expected-schema"),
                                         std::pair("begin", "native-buffer-allocation"),
                                         std::pair("group_count", "native-buffer-allocation"),
                                         std::pair("exhausted", "native-source-verify"),
                                         std::pair("digest_sums", "native-source-verify")));

TEST_P(FailingCall, OnOneRankIsTheSameErrorOnBoth) {
  const auto [call, phase] = GetParam();
  for (const int rank : {0, 1}) {
    const bool prepares = std::string_view(call) == "group_count";
    expect_internal(publish_with_failing_call(rank, call), rank,
                    prepares ? "native-materialize-0" : phase);
  }
}

// Workers cut every rank's region by the bounds that rank 0 sends.
TEST_F(TwoActors, ShardsThatAreCutElsewhereOnOneRankAreRefusedBeforeTheRuntimeIsTouched) {
  const auto outcomes = publish([](Actor& actor) {
    if (actor.rank != 1) return;
    ASSERT_FALSE(actor.source.source_layout.row_bounds.empty());
    actor.source.source_layout.row_bounds.back() += 1;
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->kind, ErrorKind::kMismatch);
    EXPECT_EQ(outcome.error->subject, "shards");
    EXPECT_EQ(outcome.error->rank, 1);
    EXPECT_EQ(outcome.error->phase, "expected-schema");
    EXPECT_EQ(outcome.state, PublicationState::kIdle);
  }
  EXPECT_THAT(outcomes[0].steps, testing::Not(testing::Contains("init")));
}

TEST_F(FailingCall, OfTheDrainAfterTheReleaseFailsNobody) {
  const auto outcomes = publish_with_failing_call(1, "quiesce");
  EXPECT_EQ(outcomes[0].version, 1);
  EXPECT_EQ(outcomes[1].version, 1);
}

TEST_F(TwoActors, WhatOneRankCannotReportInAnExchangeFailsBothAtItsGate) {
  const auto outcomes = publish([](Actor& actor) {
    if (actor.rank == 1) actor.end_workers();
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->kind, ErrorKind::kIpc);
    EXPECT_EQ(outcome.error->rank, 1);
    EXPECT_EQ(outcome.error->phase, "topology-memory-preflight");
    EXPECT_EQ(outcome.state, PublicationState::kIdle);
  }
}

TEST_F(TwoActors, WhatRankZeroCannotFindOutIsReportedByBoth) {
  const auto outcomes = publish([](Actor& actor) { actor.target.given.weights_awake = false; });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->kind, ErrorKind::kInvalidState);
    EXPECT_EQ(outcome.error->remedy, Remedy::kTryLater);
    EXPECT_EQ(outcome.error->rank, 0);
    EXPECT_EQ(outcome.error->phase, "topology-discovery");
  }
}

TEST_F(TwoActors, AnotherModelOnOneRankIsFoundByTheSchemaConsensus) {
  const auto outcomes = publish([](Actor& actor) {
    if (actor.rank == 0) return;
    actor.config.num_experts = 8;
    actor.source.tensors = model::plan_canonical(actor.config).tensors;
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->kind, ErrorKind::kMismatch);
    EXPECT_EQ(outcome.error->rank, 1);
    EXPECT_EQ(outcome.error->subject, "manifest");
    EXPECT_EQ(outcome.error->phase, "expected-schema");
    EXPECT_EQ(outcome.state, PublicationState::kIdle);
  }
}

TEST_F(TwoActors, AnOptionThatMustBeEqualIsNamedTogetherWithTheRank) {
  const std::pair<const char*, Edit> cases[] = {
      {"bucket_bytes", [](Actor& actor) { actor.options.bucket_bytes += 64; }},
      {"content_digest", [](Actor& actor) { actor.options.content_digest = true; }},
      {"layout", [](Actor& actor) { actor.options.layout = wire::Layout::kCompact; }},
      {"flush_cache", [](Actor& actor) { actor.options.flush_cache = false; }},
      {"control_timeout", [](Actor& actor) { actor.options.control_timeout += seconds(1); }}};
  for (const auto& [name, edit] : cases) {
    const auto outcomes = publish([edit = edit](Actor& actor) {
      if (actor.rank == 1) edit(actor);
    });
    for (const Outcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.error.has_value()) << name;
      EXPECT_EQ(outcome.error->kind, ErrorKind::kMismatch);
      EXPECT_EQ(outcome.error->rank, 1);
      EXPECT_EQ(outcome.error->subject, name);
      EXPECT_EQ(outcome.error->phase, "expected-schema");
      EXPECT_EQ(outcome.state, PublicationState::kIdle);
    }
  }
}

TEST_F(TwoActors, APeerThatIsLostAfterTheRuntimeWasTouchedPoisons) {
  const auto outcomes = publish([](Actor& actor) {
    // Rank 1 leaves while its buffer is being allocated.
    if (actor.rank == 1) {
      actor.source.before_call = [&actor](std::string_view call) {
        if (call == "begin") actor.leave_group();
      };
    }
  });
  ASSERT_TRUE(outcomes[0].error.has_value());
  EXPECT_EQ(outcomes[0].error->kind, ErrorKind::kPeerLost);
  EXPECT_EQ(outcomes[0].error->remedy, Remedy::kRebuildRuntime);
  EXPECT_EQ(outcomes[0].error->rank, 1);
  EXPECT_EQ(outcomes[0].error->phase, "native-buffer-allocation");
  EXPECT_EQ(outcomes[0].steps.back(), "poison");
}

}  // namespace
}  // namespace tpsync::sync
