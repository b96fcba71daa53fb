// The publication's own logic over fakes: the order of commands, what each failure leaves behind,
// what the peers are told, and which versions are chosen. Whole systems are run by the scenarios.
#include "tpsync/sync/ipc_weight_sync.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <stdexcept>

#include "core/sync/testing/publication_actor.h"
#include "tpsync/collective/forwarding_groups.h"

namespace tpsync::sync {
namespace {

using fakes::Actor;
using fakes::Board;
using fakes::IpcWeightSyncTest;
using fakes::kDeviceBytes;
using fakes::ThreadGroup;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using tpsync::fakes::failure_of;

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
                          "start", "update 0", "loaded", "update 1", "loaded", "update 2", "loaded",
                          "finish", "release"));
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

TEST_F(IpcWeightSyncTest, ARouteThatTheRuntimeDoesNotDeclareIsRefusedAndNoOtherTaken) {
  actor_->options.route = wire::Route::kReshard;
  target().given.layouts = {wire::Layout::kRankMajor};
  sync().setup();
  const ErrorRecord record = sync_failure();
  EXPECT_EQ(record.kind, ErrorKind::kUnsupported);
  EXPECT_EQ(record.remedy, Remedy::kFixInput);
  EXPECT_EQ(record.subject, "route");
  EXPECT_EQ(record.detail, "the runtime does not take reshard");
  expect_untouched();
}

TEST_F(IpcWeightSyncTest, TheReshardRouteIsRankMajorAndIsNamedInHeaderAndProbe) {
  actor_->options.route = wire::Route::kReshard;
  target().given.routes = {wire::Route::kGather, wire::Route::kReshard};
  sync().setup();
  const ErrorRecord record = sync_failure();
  EXPECT_EQ(record.kind, ErrorKind::kUnsupported);
  EXPECT_EQ(record.subject, "layout");  // the target takes compact alone
  expect_untouched();
  target().given.layouts = {wire::Layout::kRankMajor};
  EXPECT_EQ(sync().sync().model_version, 1);
  EXPECT_EQ(target().header.transport, transport_of(wire::Route::kReshard));
  EXPECT_THAT(target().probed.sources, testing::ElementsAre("gpu-0"));
}

TEST_F(IpcWeightSyncTest, TheGatherAsksEachWorkerForItsOwnActorsProbe) {
  sync().setup();
  sync().sync();
  EXPECT_EQ(target().header.transport, wire::kTransport);
  EXPECT_THAT(target().probed.sources, testing::IsEmpty());
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
                         testing::Values("init", "start", "update 0", "update 2", "loaded",
                                         "finish", "release"));

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

// Contributes another gate's word once it is told to.
class AtAnotherGate final : public collective::ForwardingControlGroup {
 public:
  using ForwardingControlGroup::ForwardingControlGroup;
  void all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                       Deadline deadline) override {
    ForwardingControlGroup::all_gather_word(is_off ? word ^ (std::uint64_t{1} << 20) : word, words,
                                            deadline);
  }
  bool is_off = false;
};

// Contributes half of what it would say.
class SaysHalf final : public collective::ForwardingControlGroup {
 public:
  using ForwardingControlGroup::ForwardingControlGroup;
  std::vector<ByteBuffer> all_gather(ByteView bytes, Deadline deadline) override {
    return ForwardingControlGroup::all_gather(is_off ? bytes.first(bytes.size() / 2) : bytes,
                                              deadline);
  }
  bool is_off = false;
};

// What a publication fails with in which `Group` goes off while rank 0 probes. The workers
// answered, or did not, and nobody is going to end them: their death is not waited for.
template <typename Group>
ErrorRecord failure_behind_probe(device::HostMemory& memory, std::string failing) {
  Board board{1};
  auto owned = std::make_unique<Group>(std::make_unique<ThreadGroup>(board, 0, 1));
  Group& group = *owned;
  Actor actor(memory, std::move(owned));
  actor.sync().setup();
  actor.target.failing = std::move(failing);
  actor.target.at_probe = [&] { group.is_off = true; };
  const TimePoint begin = actor.world.clock.now();
  ErrorRecord record = failure_of([&] { actor.sync().sync(); });
  EXPECT_EQ(record.kind, ErrorKind::kProtocol);
  EXPECT_EQ(record.phase, "topology-ipc-probe");
  EXPECT_EQ(actor.world.clock.now(), begin);
  EXPECT_EQ(actor.sync().state(), PublicationState::kIdle);
  EXPECT_EQ(memory.live_exports(), 1u);
  return record;
}

TEST_F(IpcWeightSyncTest, AProbeBehindABrokenLockstepIsKeptAndNobodyIsWaitedFor) {
  EXPECT_EQ(failure_behind_probe<AtAnotherGate>(memory_, "").subject, kLockstep);
}

// Whether the workers answered is in the report that nobody can read.
TEST_F(IpcWeightSyncTest, AProbeWhoseFailureCannotBeReadIsKeptAndNobodyIsWaitedFor) {
  EXPECT_EQ(failure_behind_probe<SaysHalf>(memory_, "probe").subject, kReport);
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

}  // namespace
}  // namespace tpsync::sync
