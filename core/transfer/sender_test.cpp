// The sender's order of agreements, groups and updates, what it refuses to emit, and the merge of
// handles.
#include "tpsync/transfer/sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>

#include "core/base/testing/fake_world.h"
#include "core/transfer/testing/recording_gates.h"
#include "tpsync/device/host_device.h"

namespace tpsync::transfer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using tpsync::fakes::failure_of;

// ---- merge_handles

wire::HandleMap handle_of(const std::string& uuid, int value) {
  wire::HandleMap handles;
  handles.entries.emplace_back(uuid, ByteBuffer(1, std::byte(value)));
  return handles;
}

const std::vector<std::string> kUuids = {"gpu-b", "gpu-a", "gpu-c"};

ErrorRecord merge_refusal(const std::vector<wire::HandleMap>& gathered) {
  const ErrorRecord record = failure_of([&] { merge_handles(kUuids, gathered); });
  EXPECT_EQ(record.kind, ErrorKind::kMismatch);
  EXPECT_EQ(record.remedy, Remedy::kFixPeer);
  return record;
}

TEST(MergeHandles, GivesOneEntryPerDeviceInOrderOfUuid) {
  const auto merged = merge_handles(
      kUuids, std::vector{handle_of("gpu-b", 0), handle_of("gpu-a", 1), handle_of("gpu-c", 2)});
  ASSERT_EQ(merged.entries.size(), 3u);
  EXPECT_EQ(merged.entries[0].first, "gpu-a");
  EXPECT_EQ(merged.entries[1].first, "gpu-b");
  EXPECT_EQ(merged.entries[2].first, "gpu-c");
  EXPECT_EQ(merged.find("gpu-b")->at(0), std::byte{0});
}

TEST(MergeHandles, AMissingDeviceNamesTheRankWhoseWorkerHasNone) {
  const ErrorRecord record = merge_refusal({handle_of("gpu-b", 0), {}, handle_of("gpu-c", 2)});
  EXPECT_EQ(record.rank, 1);
  EXPECT_EQ(record.subject, "gpu-a");
  EXPECT_THAT(record.detail, HasSubstr("no rank exported"));
}

TEST(MergeHandles, AForeignDeviceNamesItsContributor) {
  const ErrorRecord record =
      merge_refusal({handle_of("gpu-b", 0), handle_of("gpu-a", 1), handle_of("gpu-x", 2)});
  EXPECT_EQ(record.rank, 2);
  EXPECT_EQ(record.subject, "gpu-x");
  EXPECT_THAT(record.detail, HasSubstr("no worker runs"));
}

TEST(MergeHandles, ADuplicateNamesTheSecondContributor) {
  const ErrorRecord record =
      merge_refusal({handle_of("gpu-b", 0), handle_of("gpu-b", 1), handle_of("gpu-c", 2)});
  EXPECT_EQ(record.rank, 1);
  EXPECT_EQ(record.subject, "gpu-b");
  EXPECT_THAT(record.detail, HasSubstr("two ranks exported"));
}

TEST(MergeHandles, TheSameDeviceTwiceFromOneRankIsADuplicateToo) {
  wire::HandleMap twice = handle_of("gpu-b", 0);
  twice.entries.push_back(twice.entries.front());
  EXPECT_EQ(merge_refusal({twice, handle_of("gpu-a", 1), handle_of("gpu-c", 2)}).rank, 0);
}

// ---- Sender

wire::TensorRecord tensor(const std::string& name) { return {name, {4}, "torch.bfloat16", 4, 8}; }

class SenderTest : public testing::Test, public UpdateSink {
 protected:
  SenderTest() {
    memory_.add_device("gpu-0", 4096);
    device_.emplace(memory_, device::HostDeviceOptions{"gpu-0", device::Landing::kAtLaunch});
    source_.groups = 1;
  }
  void send(const wire::EncodedUpdate& update, const wire::HandleMap& handles) override {
    ByteBuffer body;
    update.encode(1, handles, body);
    const auto payload = wire::decode_payload(wire::Command::kUpdate, body);
    chunk_ = std::to_string(std::get<wire::UpdateRequest>(payload).chunk_index);
    handles_.push_back(handles);
    step("update " + chunk_);
  }
  void await() override { step("loaded " + chunk_); }
  void give_up(const ErrorRecord&) noexcept override { steps_.emplace_back("give up"); }
  void step(const std::string& name) {
    steps_.push_back(name);
    if (name == failing_) throw_violation(ErrorKind::kRemote, name, "injected by the test");
  }
  void make(bool digest = false) {
    sender_.emplace(*device_, source_, gates_, log_, this, expected_, chunks_, &updates_,
                    SenderOptions{kBucket, wire::Layout::kCompact, digest, true});
  }
  // With a slot and a chunk for each tensor.
  void make_overlapped(wire::Route route = wire::Route::kGather) {
    sender_.emplace(*device_, source_, gates_, log_, this, expected_, small_chunks_,
                    &small_updates_,
                    SenderOptions{kSmallBucket, wire::Layout::kRankMajor, false, true, route});
  }
  void open() { sender_->open(uuids_); }
  std::vector<std::string> steps() { return std::exchange(steps_, {}); }
  std::uint64_t free_bytes() { return device_->memory().free_bytes; }

  static constexpr std::uint64_t kBucket = 16;
  static constexpr std::uint64_t kSmallBucket = 8;
  const std::vector<std::string> uuids_ = {"gpu-0"};
  const std::vector<wire::TensorRecord> expected_ = {tensor("a"), tensor("b"), tensor("c")};
  const std::vector<Chunk> chunks_ = plan_chunks(expected_, kBucket);
  const UpdatePlan updates_{expected_, chunks_};
  const std::vector<Chunk> small_chunks_ = plan_chunks(expected_, kSmallBucket);
  const UpdatePlan small_updates_{expected_, small_chunks_};
  std::vector<std::string> steps_;
  std::string chunk_;
  std::vector<wire::HandleMap> handles_;  // that updates came with
  std::string failing_;                   // the sink's step of this name throws
  fakes::RecordingGates gates_{steps_};
  fakes::ScriptedSource source_{expected_, steps_};
  tpsync::fakes::RecordingLog log_;
  device::HostMemory memory_;
  std::optional<device::HostDevice> device_;
  std::optional<Sender> sender_;
};

TEST_F(SenderTest, OneAgreementStandsBeforeEachGroupAndOneAfterEachTransfer) {
  make();
  open();
  sender_->send();
  sender_->verify_source();
  EXPECT_THAT(steps(),
              ElementsAre("begin", "prepare 0.0", "exchange of native-buffer-allocation-0",
                          "agree native-buffer-allocation-0",                                //
                          "gather 0.0", "agree native-materialize-0",                        //
                          "update 0", "loaded 0", "prepare 1.0", "agree native-transfer-0",  //
                          "gather 1.0", "agree native-materialize-1",                        //
                          "update 1", "loaded 1", "agree native-transfer-1",                 //
                          "agree native-source-verify-0"));
}

TEST_F(SenderTest, EveryFurtherGroupOfAChunkHasAnAgreementBeforeIt) {
  source_.groups = 3;
  make();
  open();
  steps();
  sender_->send();
  EXPECT_THAT(steps(),
              ElementsAre("gather 0.0", "prepare 0.1", "agree native-materialize-0",         //
                          "gather 0.1", "prepare 0.2", "agree native-materialize-0",         //
                          "gather 0.2", "agree native-materialize-0",                        //
                          "update 0", "loaded 0", "prepare 1.0", "agree native-transfer-0",  //
                          "gather 1.0", "prepare 1.1", "agree native-materialize-1",         //
                          "gather 1.1", "prepare 1.2", "agree native-materialize-1",         //
                          "gather 1.2", "agree native-materialize-1", "update 1",            //
                          "loaded 1", "agree native-transfer-1"));
}

TEST_F(SenderTest, AFailedGatherIsAgreedOnBeforeAnyUpdateAndRaisesTheAlarm) {
  source_.failing_step = "gather 0.0";
  make();
  open();
  steps();
  const ErrorRecord record = failure_of([&] { sender_->send(); });
  EXPECT_EQ(record.kind, ErrorKind::kDevice);
  EXPECT_THAT(steps(), ElementsAre("gather 0.0", "give up", "agree native-materialize-0"));
  EXPECT_EQ(gates_.group().alarms, 1);
  sender_->release(Deadline::never());
}

TEST_F(SenderTest, AFailedPreparationIsReportedUnderTheChunkItBelongsTo) {
  source_.failing_step = "prepare 1.0";
  make();
  open();
  const ErrorRecord record = failure_of([&] { sender_->send(); });
  EXPECT_EQ(record.phase, "native-materialize-1");
  EXPECT_EQ(steps().back(), "agree native-transfer-0");
  sender_->release(Deadline::never());
}

TEST_F(SenderTest, AFailedUpdatePreparesNothingMore) {
  failing_ = "update 0";
  make();
  open();
  steps();
  EXPECT_EQ(failure_of([&] { sender_->send(); }).kind, ErrorKind::kRemote);
  EXPECT_THAT(steps(), ElementsAre("gather 0.0", "agree native-materialize-0", "update 0",
                                   "agree native-transfer-0"));
  sender_->release(Deadline::never());
}

TEST_F(SenderTest, ABufferThatCannotBeAllocatedIsAgreedOnUnderItsPhase) {
  const auto other = device::allocate(*device_, {.bytes = 4090, .kind = {}, .tag = {}});
  make();
  EXPECT_EQ(failure_of([&] { open(); }).kind, ErrorKind::kOutOfMemory);
  EXPECT_THAT(steps(), ElementsAre("exchange of native-buffer-allocation-0",
                                   "agree native-buffer-allocation-0"));
}

TEST_F(SenderTest, ASourceThatCannotCountItsGroupsFailsAtTheAgreementBeforeThem) {
  make();
  source_.before_call = [](std::string_view call) {
    if (call == "group_count") throw std::runtime_error("injected by the test");
  };
  const ErrorRecord record = failure_of([&] { open(); });
  EXPECT_EQ(record.kind, ErrorKind::kInternal);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  EXPECT_EQ(record.phase, "native-materialize-0");
  EXPECT_THAT(steps(), ElementsAre("begin", "exchange of native-buffer-allocation-0",
                                   "agree native-buffer-allocation-0"));
  sender_->release(Deadline::never());
}

TEST_F(SenderTest, WithOverlapAChunkIsGatheredWhileTheOneBeforeIsLoaded) {
  make_overlapped();
  open();
  EXPECT_THAT(steps(), ElementsAre("begin", "prepare 0.0", "exchange of native-buffer-allocation-0",
                                   "agree native-buffer-allocation-0"));
  EXPECT_EQ(sender_->slots(), 3u);
  EXPECT_EQ(sender_->buffer_bytes(), 3u * 256u);
  sender_->send();
  EXPECT_THAT(steps(), ElementsAre("gather 0.0", "prepare 1.0", "agree native-materialize-0",  //
                                   "update 0", "gather 1.0", "loaded 0", "prepare 2.0",
                                   "agree native-transfer-0",  //
                                   "update 1", "gather 2.0", "loaded 1",
                                   "agree native-transfer-1",  //
                                   "update 2", "loaded 2", "agree native-transfer-2"));
  sender_->verify_source();
  ASSERT_EQ(handles_.size(), 3u);
  EXPECT_EQ(handles_[0], handles_[2]);
  EXPECT_EQ(memory_.live_exports(), 1u);
  sender_->release(Deadline::never());
  EXPECT_EQ(memory_.live_exports(), 0u);
}

TEST_F(SenderTest, TheReshardRouteHasTheSameStepsInTwoSlotsOfTheLargestPart) {
  make_overlapped();
  open();
  sender_->send();
  sender_->release(Deadline::never());
  const auto gathered = steps();
  make_overlapped(wire::Route::kReshard);
  open();
  EXPECT_EQ(sender_->slots(), 2u);
  EXPECT_EQ(sender_->buffer_bytes(), 2u * 256u);
  sender_->send();
  sender_->release(Deadline::never());
  EXPECT_EQ(steps(), gathered);
}

TEST_F(SenderTest, AGatherThatFailsBesideATransferIsReportedAsTheGathersWithoutWaitingForIt) {
  source_.failing_step = "gather 1.0";
  make_overlapped();
  open();
  steps();
  const ErrorRecord record = failure_of([&] { sender_->send(); });
  EXPECT_EQ(record.phase, "native-materialize-1");
  EXPECT_EQ(record.kind, ErrorKind::kDevice);
  EXPECT_THAT(steps(), ElementsAre("gather 0.0", "prepare 1.0", "agree native-materialize-0",
                                   "update 0", "gather 1.0", "give up", "agree native-transfer-0"));
  EXPECT_EQ(gates_.group().alarms, 1);
  sender_->release(Deadline::never());
}

TEST_F(SenderTest, AnUpdateThatCannotBeSentEntersNoGatherAndRaisesTheAlarm) {
  failing_ = "update 0";
  make_overlapped();
  open();
  steps();
  const ErrorRecord record = failure_of([&] { sender_->send(); });
  EXPECT_EQ(record.phase, "native-transfer-0");
  EXPECT_EQ(record.kind, ErrorKind::kRemote);
  EXPECT_THAT(steps(), ElementsAre("gather 0.0", "prepare 1.0", "agree native-materialize-0",
                                   "update 0", "give up", "agree native-transfer-0"));
  EXPECT_EQ(gates_.group().alarms, 1);
  sender_->release(Deadline::never());
}

TEST_F(SenderTest, AnUpdateThatCannotBeSentMeetsThePeersAtTheGathersFirstGate) {
  failing_ = "update 0";
  source_.groups = 2;
  make_overlapped();
  open();
  steps();
  const ErrorRecord record = failure_of([&] { sender_->send(); });
  EXPECT_EQ(record.phase, "native-transfer-0");
  EXPECT_EQ(steps().back(), "agree native-materialize-1");
  sender_->release(Deadline::never());
}

TEST_F(SenderTest, AFailedLoadIsTheTransfersAlsoBesideAGather) {
  failing_ = "loaded 0";
  make_overlapped();
  open();
  steps();
  EXPECT_EQ(failure_of([&] { sender_->send(); }).kind, ErrorKind::kRemote);
  EXPECT_EQ(steps().back(), "agree native-transfer-0");
  EXPECT_EQ(gates_.group().alarms, 0);
  sender_->release(Deadline::never());
}

TEST_F(SenderTest, ASourceThatThrowsInsteadOfDrainingKeepsTheBuffer) {
  make();
  open();
  source_.before_call = [](std::string_view call) {
    if (call == "quiesce") throw std::runtime_error("injected by the test");
  };
  sender_->release(Deadline::never());
  EXPECT_EQ(memory_.live_exports(), 1u);
}

TEST_F(SenderTest, TheDigestsSumsAreExchangedBeforeTheAgreementOnThem) {
  source_.sums = {5, 6, 7};
  make(/*digest=*/true);
  open();
  sender_->send();
  steps();
  sender_->verify_source();
  EXPECT_THAT(steps(),
              ElementsAre("exchange of native-source-verify-0", "agree native-source-verify-0"));
  sender_->release(Deadline::never());
}

TEST_F(SenderTest, AnExportForAnotherDeviceThanTheWorkersIsRefused) {
  make();
  const std::vector<std::string> uuids = {"gpu-7"};
  const ErrorRecord record = failure_of([&] { sender_->open(uuids); });
  EXPECT_EQ(record.kind, ErrorKind::kMismatch);
  EXPECT_EQ(record.subject, "gpu-0");
  sender_->release(Deadline::never());
}

TEST_F(SenderTest, WhatIsEmittedMustBeThePlan) {
  const auto refused = [&](const std::function<void()>& edit) {
    source_.tensors = expected_;
    source_.extra = 0;
    edit();
    make();
    const ErrorRecord record = failure_of([&] {
      open();
      sender_->send();
    });
    sender_->release(Deadline::never());
    EXPECT_EQ(record.kind, ErrorKind::kMismatch);
    EXPECT_EQ(record.remedy, Remedy::kFixPeer);
    EXPECT_EQ(record.phase, "native-materialize-1");
    return record;
  };
  const ErrorRecord missing = refused([&] { source_.tensors.pop_back(); });
  EXPECT_EQ(missing.subject, "c");
  EXPECT_THAT(missing.detail, HasSubstr("the source ended"));
  const ErrorRecord other = refused([&] { source_.tensors[2].name = "x"; });
  EXPECT_EQ(other.subject, "c");
  EXPECT_EQ(other.detail, "is due, the source emitted x");
  const ErrorRecord shape = refused([&] { source_.tensors[2].shape = {2, 2}; });
  EXPECT_EQ(shape.subject, "c");
  EXPECT_THAT(shape.detail, HasSubstr("another shape"));
  const ErrorRecord more = refused([&] {
    source_.tensors.push_back(tensor("d"));
    source_.extra = 1;
  });
  EXPECT_EQ(more.subject, "d");
  EXPECT_EQ(more.detail, "was emitted beyond its chunk");
}

TEST_F(SenderTest, ASourceWithMoreToGiveOrWithOtherTensorsThanPlannedFailsTheVerification) {
  const auto refused = [&] {
    const ErrorRecord record = failure_of([&] { sender_->verify_source(); });
    EXPECT_EQ(record.kind, ErrorKind::kMismatch);
    EXPECT_EQ(record.remedy, Remedy::kFixPeer);
    return record.subject;
  };
  make();
  open();
  sender_->send();
  const auto planned = source_.tensors;
  source_.tensors.front().name += "x";
  EXPECT_EQ(refused(), "manifest");
  source_.tensors = planned;
  source_.tensors.pop_back();
  EXPECT_EQ(refused(), "manifest");
  source_.tensors = planned;
  source_.has_more = true;
  EXPECT_EQ(refused(), "source");
  sender_->release(Deadline::never());
}

TEST_F(SenderTest, TheDigestHasOneSumPerTensorOrIsRefused) {
  source_.sums = {5, 6};
  make(/*digest=*/true);
  open();
  sender_->send();
  EXPECT_EQ(failure_of([&] { sender_->verify_source(); }).subject, "digest");
  source_.sums = {5, 6, 7};
  const wire::ExpectedDigest digest = sender_->verify_source();
  ASSERT_EQ(digest.tensors.size(), 3u);
  EXPECT_EQ(digest.tensors[2].rows, 4u);
  EXPECT_EQ(digest.tensors[2].cols, 1u);
  EXPECT_EQ(digest.tensors[2].sum, 7u);
  sender_->release(Deadline::never());
}

TEST_F(SenderTest, TheBufferIsFreedByReleaseAndKeptWithoutIt) {
  const std::uint64_t before = free_bytes();
  make();
  open();
  EXPECT_EQ(memory_.live_exports(), 1u);
  sender_->release(Deadline::never());
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(memory_.live_exports(), 0u);
  sender_.reset();
  EXPECT_EQ(log_.find(LogEvent::kExportLeaked), nullptr);
  make();
  open();
  sender_.reset();  // a worker may still have it open
  EXPECT_EQ(memory_.live_exports(), 1u);
  EXPECT_EQ(free_bytes(), before - kBucket);
  ASSERT_NE(log_.find(LogEvent::kExportLeaked), nullptr);
  EXPECT_EQ(log_.find(LogEvent::kExportLeaked)->a, static_cast<std::int64_t>(kBucket));
}

TEST_F(SenderTest, WorkThatDoesNotDrainKeepsTheBuffer) {
  source_.drains = false;
  make();
  open();
  sender_->release(Deadline::never());
  EXPECT_EQ(memory_.live_exports(), 1u);
}

}  // namespace
}  // namespace tpsync::transfer
