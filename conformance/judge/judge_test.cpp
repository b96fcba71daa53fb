// The judge on hand-made traces: for each invariant what passes, what violates it, and what leaves
// it open.
#include "conformance/judge/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conformance/judge/testing/story.h"

namespace tpsync::judge {
namespace {

using testing::error_json;
using ::testing::HasSubstr;
using testing::kActor0;
using testing::kActor1;
using testing::kSecond;
using testing::Story;

Verdict verdict_of(const Story& story, std::string_view id) {
  Judge judge;
  const Judgement judgement = judge.judge(story.trace);
  const Verdict* verdict = judgement.find(id);
  return verdict != nullptr ? *verdict : Verdict{"none", Status::kInconclusive, "none", kNoEvent};
}

void expect(const Story& story, std::string_view id, Status status, std::string_view text = "") {
  const Verdict verdict = verdict_of(story, id);
  EXPECT_EQ(verdict.status, status)
      << id << ": " << to_string(verdict.status) << ": " << verdict.text;
  EXPECT_THAT(verdict.text, HasSubstr(std::string(text))) << id;
  if (status == Status::kViolation) {
    EXPECT_LT(verdict.event, story.trace.events.size()) << id;
  }
}

// Stories that end after what they are about: counters follow, so that the trace has an end.
Story begun() {
  Story story;
  story.start_engine();
  story.observe(0);
  story.setup();
  return story;
}

const std::string kTransfer = error_json("end of file", "native-transfer-0", 0);

// ---- whole runs ----

TEST(Judge, ACleanRunPassesEveryInvariantThatApplies) {
  Judge judge;
  const Judgement judgement = judge.judge(Story::clean().trace);
  EXPECT_TRUE(judgement.ok()) << judgement.text();
  std::vector<std::string> ids;
  for (const Verdict& verdict : judgement.verdicts) ids.push_back(verdict.id);
  EXPECT_EQ(ids, (std::vector<std::string>{"I1", "I2", "I3", "I4", "I4b", "I5", "I6", "I7", "I8",
                                           "I9", "I10", "I11", "world"}));
  for (const char* id : {"I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I10", "world"}) {
    EXPECT_EQ(judgement.find(id)->status, Status::kPass) << id;
  }
  for (const char* id : {"I4b", "I9", "I11"}) {
    EXPECT_EQ(judgement.find(id)->status, Status::kNotApplicable) << id;
  }
}

TEST(Judge, AFaultedRunThatRecoversPassesAllOfThem) {
  Judge judge;
  const Judgement judgement = judge.judge(Story::faulted().trace);
  EXPECT_TRUE(judgement.ok()) << judgement.text();
  for (const Verdict& verdict : judgement.verdicts) {
    EXPECT_EQ(verdict.status, Status::kPass) << verdict.id << ": " << verdict.text;
  }
}

TEST(Judge, AnEmptyTraceIsNoPass) {
  Judge judge;
  const Judgement judgement = judge.judge({});
  EXPECT_EQ(judgement.worst(), Status::kInconclusive);
  EXPECT_FALSE(judgement.ok());
}

TEST(Judge, OneJudgeForgetsTheTraceBefore) {
  Judge judge;
  EXPECT_TRUE(judge.judge(Story::faulted().trace).ok());
  EXPECT_TRUE(judge.judge(Story::clean().trace).ok());
  Story other = Story::clean();
  other.trace.parameters += "content_seed=8\n";
  EXPECT_EQ(judge.judge(other.trace).find("I2")->status, Status::kViolation);
  EXPECT_TRUE(judge.judge(Story::clean().trace).ok());
}

TEST(Judge, ToleratesEventsOfProcessesThatNeverStarted) {
  Story story = Story::clean();
  for (std::uint16_t kind = 0; kind < 220; ++kind) story.add(kind, 77, 3, 77, 1);
  Judge judge;
  EXPECT_FALSE(judge.judge(story.trace).verdicts.empty());
}

// ---- I1 ----

TEST(FailStop, AWorkerThatOutlivesTheFailedSyncIsAViolation) {
  Story story = begun();
  story.begin_sync(1);
  story.init();
  story.kill(story.runtime, kActor0);
  story.kill(story.runtime + 1, kActor0);
  story.fail(kActor0, Call::kSync, kTransfer);
  story.fail(kActor1, Call::kSync, kTransfer);
  expect(story, "I1", Status::kViolation, "worker 1 still lives when sync on rank 0");
}

TEST(FailStop, ACallThatSucceedsOnABrokenRuntimeIsAViolation) {
  Story story = begun();
  story.failed_publication(1, kTransfer);
  story.succeed(kActor0, Call::kHealth);
  expect(story, "I1", Status::kViolation, "health on rank 0 succeeded");
}

TEST(FailStop, ABrokenRuntimeMustBeCalledBroken) {
  Story story = begun();
  story.failed_publication(1, kTransfer);
  story.begin(kActor0, Call::kSleep);
  story.fail(kActor0, Call::kSleep,
             error_json("invalid state", "", -1, "nothing happened, try later"));
  expect(story, "I1", Status::kViolation, "does not ask for a new one");
}

TEST(FailStop, PoisonAndShutdownOfABrokenRuntimeMaySucceed) {
  Story story = begun();
  story.failed_publication(1, kTransfer);
  story.succeed(kActor0, Call::kPoison);
  story.succeed(kActor0, Call::kShutdown);
  expect(story, "I1", Status::kPass);
}

TEST(FailStop, AFailedSleepEndsTheRuntime) {
  Story story = begun();
  story.begin(kActor0, Call::kSleep);
  story.fail(kActor0, Call::kSleep, error_json("remote failure", "", -1));
  expect(story, "I1", Status::kViolation, "the runtime still lives when sleep on rank 0");
}

TEST(FailStop, AGenerationThatTheRuntimeRefusedLeavesItUsable) {
  Story story = begun();
  story.begin(kActor0, Call::kGenerate);
  story.fail(kActor0, Call::kGenerate,
             error_json("remote failure", "", -1, "nothing happened, try later"));
  story.generate(0);
  expect(story, "I1", Status::kPass);
}

TEST(FailStop, AGenerationThatTimedOutEndsTheRuntime) {
  Story story = begun();
  story.begin(kActor0, Call::kGenerate);
  story.fail(kActor0, Call::kGenerate, error_json("timeout", "", -1));
  expect(story, "I1", Status::kViolation, "the runtime still lives when generate on rank 0");
}

TEST(FailStop, ASyncRefusedBeforeInitLeavesTheRuntimeAlive) {
  Story story = begun();
  story.begin_sync(1);
  const std::string error = error_json("mismatch", "expected-schema", 0, "fix the input");
  story.fail(kActor0, Call::kSync, error);
  story.fail(kActor1, Call::kSync, error);
  expect(story, "I1", Status::kPass);
}

TEST(FailStop, EndingARuntimeThatWasNotTouchedIsAViolation) {
  Story story = begun();
  story.begin_sync(1);
  for (std::uint32_t p = story.runtime; p < story.runtime + 3; ++p) story.kill(p, kActor0);
  story.fail(kActor0, Call::kSync, error_json("mismatch", "expected-schema", 0, "fix the input"));
  expect(story, "I1", Status::kViolation, "before the runtime was touched");
}

TEST(FailStop, AnUntouchedRuntimeThatItsFaultKilledIsNoViolation) {
  Story story = begun();
  story.begin_sync(1);
  story.fault(story.runtime + 1, "process.kill", true);
  story.kill(story.runtime + 1, story.runtime + 1, 9);
  story.fail(kActor0, Call::kSync,
             error_json("remote failure", "topology-ipc-probe", 0, "nothing happened, try later"));
  expect(story, "I1", Status::kPass);
}

TEST(FailStop, AProbeWhoseReplyNeverCameEndsTheRuntime) {
  Story story = begun();
  story.begin_sync(1);
  story.log(kActor0, 3, "probe_ipc");
  story.fail(kActor0, Call::kSync, error_json("timeout", "topology-ipc-probe", 0));
  expect(story, "I1", Status::kViolation, "the runtime still lives");
}

TEST(FailStop, AnInitWithoutAByteOnTheChannelHasTouchedNothing) {
  Story story = begun();
  story.begin_sync(1);
  story.log(kActor0, 3, "init_native_weight_transfer");
  story.op(kActor0, sim::Op::kChannelWrite, "native-init", 4, 0);
  const std::string error = error_json("peer lost", "native-init", 1);
  story.fail(kActor0, Call::kSync, error);
  expect(story, "I1", Status::kPass);
}

TEST(FailStop, IsOpenWithoutAProcessTable) {
  Story story;
  story.succeed(kActor0, Call::kStartEngine);
  story.setup();
  story.begin_sync(1);
  story.init();
  story.fail(kActor0, Call::kSync, kTransfer);
  expect(story, "I1", Status::kInconclusive, "no process table");
}

// ---- I2 ----

TEST(TornVersion, ALaneOfAnotherVersionIsNamed) {
  Story story = begun();
  story.publish(1);
  story.add(Record::kTokens, kActor0, 1, 1, story.lane(1, 0));
  expect(story, "I2", Status::kViolation,
         "rank 1 is stamped with version 1 but generated from version 0");
}

TEST(TornVersion, ResidentBytesOfNoVersionAreTorn) {
  Story story = begun();
  story.publish(1);
  story.add(Record::kResident, kActor0, 0, 12345, 1);
  expect(story, "I2", Status::kViolation, "rank 0 is stamped with version 1 but holds no version");
}

TEST(TornVersion, AnotherRanksSlicesAreNamed) {
  Story story = begun();
  story.add(Record::kResident, kActor0, 0, story.lane(1, 0), 0);
  expect(story, "I2", Status::kViolation, "holds rank 1's slices of version 0");
}

TEST(TornVersion, AVersionThatWasNotCommittedMustNotBeStamped) {
  Story story = begun();
  story.begin_sync(1);
  story.add(Record::kTokens, kActor0, 1, 0, story.lane(0, 1));
  expect(story, "I2", Status::kViolation, "not committed by then");
}

TEST(TornVersion, AVersionThatNobodyTrainedMustNotBeStamped) {
  Story story = begun();
  story.publish(1);
  story.add(Record::kTokens, kActor0, 5, 0, story.lane(0, 5));
  expect(story, "I2", Status::kViolation, "version 5, which was not committed");
}

TEST(TornVersion, AGenerationWithoutARanksLaneIsAViolation) {
  Story story = begun();
  story.begin(kActor0, Call::kGenerate);
  story.add(Record::kTokens, kActor0, 0, 0, story.lane(0, 0));
  story.end(kActor0, Call::kGenerate, 0);
  expect(story, "I2", Status::kViolation, "no lane of rank 1");
}

TEST(TornVersion, IsOpenIfNobodyLooked) {
  Story story;
  story.start_engine();
  story.setup();
  story.publish(1);
  expect(story, "I2", Status::kInconclusive, "nobody looked");
}

TEST(TornVersion, IsOpenWithoutTheModelsShape) {
  Story story = Story::clean();
  story.trace.parameters = "tp=2\nactors=2\ncontrol_timeout_ns=60000000000\n";
  expect(story, "I2", Status::kInconclusive, "shape");
}

TEST(TornVersion, APhantomWorldIsJudgedByWhatWasFound) {
  Story story;
  story.trace.parameters += "phantom=1\n";
  story.start_engine();
  story.observe(0);
  story.add(Record::kTokens, kActor0, 0, 0, 0);  // masked
  expect(story, "I2", Status::kPass);
  story.add(Record::kFound, kActor0, 1, 0, 0, "model.norm.weight of version 0");
  expect(story, "I2", Status::kViolation, "worker 1 holds model.norm.weight of version 0");
}

TEST(TornVersion, APhantomWorldThatNobodyLookedAtIsOpen) {
  Story story;
  story.trace.parameters += "phantom=1\n";
  story.start_engine();
  story.add(Record::kTokens, kActor0, 0, 0, 0);
  expect(story, "I2", Status::kInconclusive, "nobody looked");
}

// ---- I3 ----

TEST(Agreement, TwoVersionsInOneRoundAreAViolation) {
  Story story = begun();
  story.begin_sync(1);
  story.end(kActor0, Call::kSync, 1);
  story.end(kActor1, Call::kSync, 2);
  expect(story, "I3", Status::kViolation, "rank 0 returned version 1, sync on rank 1 version 2");
}

TEST(Agreement, TwoRecordsInOneRoundAreAViolation) {
  Story story = begun();
  story.begin_sync(1);
  story.fail(kActor0, Call::kSync, kTransfer);
  story.fail(kActor1, Call::kSync, error_json("end of file", "native-transfer-0", 1));
  expect(story, "I3", Status::kViolation, "rank 1");
}

TEST(Agreement, ASuccessBesideAFailureIsAViolation) {
  Story story = begun();
  story.begin_sync(1);
  story.end(kActor0, Call::kSync, 1);
  story.fail(kActor1, Call::kSync, kTransfer);
  expect(story, "I3", Status::kViolation, "returned version 1");
}

TEST(Agreement, AnUnknownOutcomeInTheLastAgreementMayStandBesideASuccess) {
  Story story = begun();
  story.begin_sync(1);
  story.fault(kActor0, "collective.rank_error", true);
  story.end(kActor0, Call::kSync, 1);
  story.fail(kActor1, Call::kSync, error_json("outcome unknown", "native-ipc-release", 0));
  expect(story, "I3", Status::kPass);
  story.setup();
  story.publish(2);
  expect(story, "I3", Status::kViolation, "published again");
}

TEST(Agreement, AnUnknownOutcomeInAnEarlierPhaseIsAViolation) {
  Story story = begun();
  story.begin_sync(1);
  story.fault(kActor0, "collective.rank_error", true);
  story.end(kActor0, Call::kSync, 1);
  story.fail(kActor1, Call::kSync, error_json("outcome unknown", "native-finish", 0));
  expect(story, "I3", Status::kViolation, "only outcome unknown in the last agreement");
}

TEST(Agreement, SurvivorsOfAKilledActorReportItAsLost) {
  Story story = begun();
  story.begin_sync(1);
  story.fault(kActor1, "process.kill", true);
  story.kill(kActor1, kActor1, 9);
  story.fail(kActor0, Call::kSync, error_json("peer lost", "expected-schema", 1));
  expect(story, "I3", Status::kPass);
}

TEST(Agreement, ALostPeerInAWorldWhereNobodyWasLostIsAViolation) {
  Story story = begun();
  story.begin_sync(1);
  story.fail(kActor0, Call::kSync, error_json("peer lost", "expected-schema", 1));
  expect(story, "I3", Status::kViolation, "no actor was lost");
}

TEST(Agreement, DoesNotApplyWithoutASync) {
  expect(begun(), "I3", Status::kNotApplicable, "no sync");
}

// ---- I4 ----

TEST(NoHang, ACallThatNeverReturnsIsAViolation) {
  Story story = begun();
  story.begin(kActor0, Call::kSleep);
  story.counters();
  expect(story, "I4", Status::kViolation, "sleep on rank 0 never returned");
}

TEST(NoHang, IsOpenIfTheTraceEndsInTheMiddle) {
  Story story = begun();
  story.begin(kActor0, Call::kSleep);
  expect(story, "I4", Status::kInconclusive, "no end");
}

TEST(NoHang, ACallOfAKilledActorNeedNotReturn) {
  Story story = begun();
  story.begin(kActor1, Call::kSleep);
  story.kill(kActor1, kActor1, 9);
  story.counters();
  expect(story, "I4", Status::kPass);
}

TEST(NoHang, ASyncBeyondItsBudgetIsAViolation) {
  Story story = begun();
  story.begin_sync(1);
  story.now += 71 * kSecond;
  story.fail(kActor0, Call::kSync, error_json("timeout", "expected-schema", 0));
  expect(story, "I4", Status::kViolation, "at most 71.000 s are allowed");
}

TEST(NoHang, ASyncWithinItsBudgetPasses) {
  Story story = begun();
  story.begin_sync(1);
  story.now += 70 * kSecond;
  story.fail(kActor0, Call::kSync, error_json("timeout", "expected-schema", 0));
  story.fail(kActor1, Call::kSync, error_json("timeout", "expected-schema", 0));
  expect(story, "I4", Status::kPass);
}

TEST(NoHang, AKilledWorkerThatIsNoticedLateIsAViolation) {
  Story story = begun();
  story.begin_sync(1);
  story.init();
  story.kill(story.runtime + 1, story.runtime + 1, 9);
  story.now += 2 * kSecond;
  story.kill(story.runtime, kActor0);
  story.kill(story.runtime + 2, kActor0);
  story.fail(kActor0, Call::kSync, error_json("timeout", "native-start", 0));
  expect(story, "I4", Status::kViolation, "the kill of worker 0 was noticed after 2.000 s");
}

TEST(NoHang, ATreeThatOutlivesTheDetectionIsAViolation) {
  Story story = begun();
  story.begin_sync(1);
  story.init();
  story.log(kActor0, 6, "");
  story.now += 12 * kSecond;
  for (std::uint32_t p = story.runtime; p < story.runtime + 3; ++p) story.kill(p, kActor0);
  story.fail(kActor0, Call::kSync, kTransfer);
  expect(story, "I4", Status::kViolation, "after the failure was detected");
}

TEST(NoHang, ARuntimeThatOutlivesItsParentIsAViolation) {
  Story story = begun();
  story.kill(kActor0, kActor0, 9);
  story.now += 12 * kSecond;
  for (std::uint32_t p = story.runtime; p < story.runtime + 3; ++p) story.exit(p);
  story.counters();
  expect(story, "I4", Status::kViolation, "after rank 0 died");
}

Story stopped_parent(std::int64_t runtime_lived_ns) {
  Story story = begun();
  story.begin_sync(1);
  story.init();
  story.add(sim::EventKind::kProcessStop, kActor0);
  story.fail(kActor1, Call::kSync, error_json("peer lost", "native-start", 0));
  story.now += runtime_lived_ns;
  for (std::uint32_t p = story.runtime; p < story.runtime + 3; ++p) story.exit(p);
  story.counters();
  return story;
}

TEST(NoHang, ARuntimeWithAPendingPublicationEndsAfterItsStoppedParentsTimeout) {
  expect(stopped_parent(70 * kSecond), "I4", Status::kPass);
  expect(stopped_parent(72 * kSecond), "I4", Status::kViolation, "after rank 0 was stopped");
}

TEST(NoHang, IsOpenWithoutTheControlTimeout) {
  Story story = Story::clean();
  story.trace.parameters = "tp=2\nactors=2\n";
  expect(story, "I4", Status::kInconclusive, "control timeout");
}

// ---- I4b ----

Story failing_after(std::int64_t ns, bool visible, bool hard) {
  Story story = begun();
  story.begin_sync(1);
  story.init();
  story.fault(story.runtime, "channel.eof", visible);
  story.now += ns;
  story.kill(story.runtime, kActor0, hard ? 9 : 15);
  story.kill(story.runtime + 1, kActor0);
  story.kill(story.runtime + 2, kActor0);
  story.fail(kActor0, Call::kSync, kTransfer);
  story.fail(kActor1, Call::kSync, kTransfer);
  return story;
}

TEST(Prompt, AVisibleFaultIsReturnedWithinASecond) {
  expect(failing_after(kSecond / 2, true, false), "I4b", Status::kPass);
  expect(failing_after(2 * kSecond, true, false), "I4b", Status::kViolation,
         "sync on rank 0 returned 2.000 s after channel.eof, at most 1.000 s");
}

TEST(Prompt, AHardKillAddsItsRoutine) {
  expect(failing_after(11 * kSecond, true, true), "I4b", Status::kPass);
  expect(failing_after(12 * kSecond, true, true), "I4b", Status::kViolation, "11.500 s");
}

TEST(Prompt, ASilentFaultMayTakeUntilADeadline) {
  expect(failing_after(40 * kSecond, false, false), "I4b", Status::kNotApplicable);
}

// ---- I5 ----

TEST(Lockstep, AnotherOrderOnOneRankIsAViolation) {
  Story story = begun();
  story.enter(kActor0, 1);
  story.complete(kActor0, 1);
  story.enter_shard(kActor0);
  story.complete_shard(kActor0);
  story.enter_shard(kActor1);
  story.complete_shard(kActor1);
  story.enter(kActor1, 1);
  story.complete(kActor1, 1);
  expect(story, "I5", Status::kViolation, "enters call");
}

TEST(Lockstep, ARankThatIsLeftInsideIsAViolation) {
  Story story = begun();
  story.enter(kActor0, 1);
  story.counters();
  expect(story, "I5", Status::kViolation, "actor 0 is still inside collective 1");
}

TEST(Lockstep, ARankThatLostItsPeerIsNotInside) {
  Story story = begun();
  story.enter(kActor0, 1);
  story.kill(kActor1, kActor1, 9);
  story.lose(kActor0, 1, 1);
  expect(story, "I5", Status::kPass);
}

TEST(Lockstep, AKilledRankMayBeInside) {
  Story story = begun();
  story.enter(kActor1, 1);
  story.kill(kActor1, kActor1, 9);
  expect(story, "I5", Status::kPass);
}

TEST(Lockstep, AGatherThatAFailedRankCouldNotEnterIsOverForAll) {
  Story story = begun();
  story.enter_shard(kActor0);
  story.add(sim::EventKind::kGroupAlarm, kActor1, story.group, 1);
  story.add(sim::EventKind::kGroupLeave, kActor0, story.group - 1, 0);
  story.agree();
  expect(story, "I5", Status::kPass);
}

TEST(Lockstep, AGatherThatOneRankSkipsWithoutAFailureIsAViolation) {
  Story story = begun();
  story.enter_shard(kActor0);
  story.add(sim::EventKind::kGroupLeave, kActor0, story.group - 1, 0);
  story.agree();
  expect(story, "I5", Status::kViolation, "enters call");
}

TEST(Lockstep, IsOpenIfASyncCommitsWithoutAnyCollective) {
  Story story;
  story.start_engine();
  story.succeed(kActor0, Call::kSync, 1);
  expect(story, "I5", Status::kInconclusive, "no collective");
}

// ---- I6 ----

TEST(Release, AnExportThatIsLeftIsAViolation) {
  Story story = Story::clean();
  story.add(sim::EventKind::kKernelCounter, sim::kNoProcess, 1, 0, 0, "device.exports");
  expect(story, "I6", Status::kViolation, "device.exports is 1");
}

TEST(Release, MemoryAboveItsBaselineIsAViolation) {
  Story story = Story::clean();
  story.add(sim::EventKind::kDevicePeak, sim::kNoProcess, 1, 4096, 512);
  expect(story, "I6", Status::kViolation, "device 1 has 512 bytes");
}

TEST(Release, AnExitWithRegionsIsAViolationUnlessTheLeakWasAnnounced) {
  Story story = Story::clean();
  story.add(sim::EventKind::kProcessLeft, kActor1, 1, 0, 1);
  expect(story, "I6", Status::kViolation, "actor 1 exited with 1 exports");
  story.log(kActor1, 12, "");
  expect(story, "I6", Status::kPass);
}

TEST(Release, AKilledProcessMayLeaveWhatTheDriverCleansUp) {
  Story story = begun();
  story.kill(story.runtime + 1, kActor0);
  story.add(sim::EventKind::kProcessLeft, story.runtime + 1, 0, 1, 2);
  story.counters();
  expect(story, "I6", Status::kPass);
}

TEST(Release, IsOpenWithoutCounters) {
  expect(begun(), "I6", Status::kInconclusive, "no counters");
}

// ---- I7 ----

TEST(Monotonic, AVersionThatDoesNotRiseIsAViolation) {
  Story story = begun();
  story.publish(2);
  story.publish(2);
  expect(story, "I7", Status::kViolation, "returned version 2 after 2");
}

TEST(Monotonic, ACommitThatAWorkerHasNotAttestedIsAViolation) {
  Story story = begun();
  story.begin_sync(1);
  story.init();
  story.attest(story.runtime + 2);
  story.end(kActor0, Call::kSync, 1);
  story.end(kActor1, Call::kSync, 1);
  expect(story, "I7", Status::kViolation, "worker 0 has not attested it");
}

TEST(Monotonic, AnAttestationOfTheVersionBeforeDoesNotCount) {
  Story story = begun();
  story.publish(1);
  story.begin_sync(2);
  story.init();
  story.end(kActor0, Call::kSync, 2);
  expect(story, "I7", Status::kViolation, "returned version 2");
}

TEST(Monotonic, AnAcceptedStartAtTheCommittedVersionIsAViolation) {
  Story story = begun();
  story.publish(1);
  story.succeed(kActor0, Call::kStart, 1);
  expect(story, "I7", Status::kViolation, "a start of version 1 was accepted");
}

TEST(Monotonic, AStampBelowTheCommittedVersionIsAViolation) {
  Story story = begun();
  story.publish(1);
  story.generate(0);
  expect(story, "I7", Status::kViolation, "stamped with version 0");
}

TEST(Monotonic, IsOpenIfNoWorkersAnswerIsSeen) {
  Story story = begun();
  story.begin_sync(1);
  story.init();
  story.end(kActor0, Call::kSync, 1);
  expect(story, "I7", Status::kInconclusive, "no worker's answer");
}

// ---- I8 ----

TEST(NoFallback, ASecondInitInOneSyncIsAViolation) {
  Story story = begun();
  story.begin_sync(1);
  story.init();
  story.init();
  story.end(kActor0, Call::kSync, 1);
  expect(story, "I8", Status::kViolation, "sent 2 init commands");
}

TEST(NoFallback, APublicationIdThatComesTwiceIsAViolation) {
  Story story = begun();
  story.publish(1);
  story.publications = 0;
  story.publish(2);
  expect(story, "I8", Status::kViolation, "publication id of an earlier one");
}

TEST(NoFallback, ARuntimeStartedInsideASyncIsAViolation) {
  Story story = begun();
  story.begin_sync(1);
  story.start_process(20, "runtime", 0, kActor0);
  expect(story, "I8", Status::kViolation, "started another runtime");
}

TEST(NoFallback, IsOpenIfNoInitIsSeen) {
  Story story = begun();
  story.begin_sync(1);
  story.end(kActor0, Call::kSync, 1);
  expect(story, "I8", Status::kInconclusive, "no init is seen");
}

// ---- I9 ----

Story diagnosed(std::string_view fault, std::uint32_t process, const std::string& error) {
  Story story = begun();
  story.plan(fault);
  story.begin_sync(1);
  story.init();
  story.fault(process, fault.substr(0, fault.find('|')), fault.find("|visible|") != fault.npos);
  story.kill_tree();
  story.fail(kActor0, Call::kSync, error);
  story.fail(kActor1, Call::kSync, error);
  return story;
}

constexpr std::string_view kRankError =
    "collective.rank_error|visible|fail|device|actor|1|native-transfer|1";

TEST(Diagnosable, TheInjectedCauseAtItsRankAndPhasePasses) {
  expect(diagnosed(kRankError, kActor1, error_json("device", "native-transfer-1", 1)), "I9",
         Status::kPass);
}

TEST(Diagnosable, AKindThatTheFaultDoesNotAdmitIsAViolation) {
  expect(diagnosed(kRankError, kActor1, error_json("timeout", "native-transfer-1", 1)), "I9",
         Status::kViolation, "no admissible diagnosis of collective.rank_error");
}

TEST(Diagnosable, AnotherRankThanTheStruckOneIsAViolation) {
  expect(diagnosed(kRankError, kActor1, error_json("device", "native-transfer-1", 0)), "I9",
         Status::kViolation, "struck actor 1");
}

TEST(Diagnosable, APhaseBeforeOrFarAfterTheStruckOneIsAViolation) {
  expect(diagnosed(kRankError, kActor1, error_json("device", "native-materialize-1", 1)), "I9",
         Status::kViolation, "struck in native-transfer/1");
  expect(diagnosed(kRankError, kActor1, error_json("device", "native-ipc-release", 1)), "I9",
         Status::kViolation, "struck in native-transfer/1");
}

TEST(Diagnosable, AnErrorThatNamesNoPhaseIsAViolation) {
  expect(diagnosed(kRankError, kActor1, error_json("device", "", 1)), "I9", Status::kViolation,
         "the phase is not named");
}

TEST(Diagnosable, ARecordWithMissingFieldsIsAViolation) {
  expect(diagnosed(kRankError, kActor1, R"({"kind":"device"})"), "I9", Status::kViolation,
         "not complete");
}

TEST(Diagnosable, AFaultOfAWorkerIsReportedByRankZeroInTheCommandsPhase) {
  constexpr std::string_view kFault =
      "process.kill|visible|fail|remote failure,ipc|worker|1|update_native_weights|0";
  expect(diagnosed(kFault, 4, error_json("remote failure", "native-transfer-0", 0)), "I9",
         Status::kPass);
  expect(diagnosed(kFault, 4, error_json("remote failure", "native-transfer-1", 0)), "I9",
         Status::kPass);
  expect(diagnosed(kFault, 4, error_json("remote failure", "native-transfer-0", 1)), "I9",
         Status::kViolation, "struck worker 1");
}

TEST(Diagnosable, ASilentFaultIsHeldToItsKindsAlone) {
  constexpr std::string_view kFault =
      "channel.timeout|silent|fail|timeout|runtime|0|update_native_weights|0";
  expect(diagnosed(kFault, 2, error_json("timeout", "native-finish", 0)), "I9", Status::kPass);
}

TEST(Diagnosable, AFailureAfterTheFirstOneIsAboutWhatThatBroke) {
  Story story = diagnosed(kRankError, kActor1, error_json("device", "native-transfer-1", 1));
  story.setup();
  story.begin_sync(1);
  const std::string error = error_json("invalid state", "topology-discovery", 0);
  story.fail(kActor0, Call::kSync, error);
  story.fail(kActor1, Call::kSync, error);
  expect(story, "I9", Status::kPass);
}

TEST(Diagnosable, IsOpenForAFaultThatTheParametersDoNotList) {
  Story story = begun();
  story.begin_sync(1);
  story.fault(kActor1, "channel.eof", true);
  story.fail(kActor0, Call::kSync, error_json("end of file", "expected-schema", 0));
  expect(story, "I9", Status::kInconclusive, "do not list");
}

// ---- I10 ----

TEST(Progress, AFailureWithoutAFaultIsAViolation) {
  Story story = begun();
  story.failed_publication(1, kTransfer);
  expect(story, "I10", Status::kViolation, "no fault that may stop a publication");
}

TEST(Progress, AFailureThatTheScenarioExpectsIsNone) {
  Story story = begun();
  story.trace.parameters += "expect=failure\n";
  story.failed_publication(1, kTransfer);
  expect(story, "I10", Status::kNotApplicable);
}

TEST(Progress, AFailureThatTheScenarioInjectedIsNone) {
  Story story = begun();
  story.failed_publication(1, error_json("device", "native-transfer-0", 0, "build a new runtime",
                                         "injected: the device failed"));
  expect(story, "I10", Status::kNotApplicable, "injected");
}

TEST(Progress, AWrongCallOrderIsNoFailedPublication) {
  Story story = begun();
  story.publish(1);
  for (const std::uint32_t actor : {kActor0, kActor1}) {
    story.begin(actor, Call::kSync);
    story.fail(actor, Call::kSync, error_json("invalid state", "", -1, "fix the input"));
  }
  expect(story, "I10", Status::kPass);
}

TEST(Progress, AVersionThatIsSkippedIsAViolation) {
  Story story = begun();
  story.publish(2);
  expect(story, "I10", Status::kViolation, "version 2 follows 0");
}

TEST(Progress, ASurvivableFaultMustBeSurvived) {
  Story story = begun();
  story.plan("copy.late|silent|survive||worker|0|update_native_weights|0");
  story.begin_sync(1);
  story.fault(3, "copy.late", false);
  story.fail(kActor0, Call::kSync, kTransfer);
  story.fail(kActor1, Call::kSync, kTransfer);
  expect(story, "I10", Status::kViolation, "sync on rank 0 failed with end_of_file");
}

TEST(Progress, AFaultThatDemandsAFailureMustNotBePassedOver) {
  Story story = begun();
  story.plan("receipt.ready|visible|fail|mismatch|runtime|0|finish_native_weight_update|0");
  story.begin_sync(1);
  story.init();
  story.fault(2, "receipt.ready", true);
  story.end(kActor0, Call::kSync, 1);
  story.end(kActor1, Call::kSync, 1);
  expect(story, "I10", Status::kViolation, "although receipt.ready demands a failure");
}

TEST(Progress, IsOpenIfNoPlannedFaultTookEffect) {
  Story story = Story::clean();
  story.plan("copy.late|silent|survive||worker|0|update_native_weights|0");
  expect(story, "I10", Status::kInconclusive, "none took effect");
}

// ---- I11 ----

Story unrecovered() {
  Story story = begun();
  story.plan("channel.eof|visible|fail|end of file|runtime|0|update_native_weights|0");
  story.begin_sync(1);
  story.init();
  story.fault(2, "channel.eof", true);
  story.kill_tree();
  story.agree();
  story.fail(kActor0, Call::kSync, kTransfer);
  story.fail(kActor1, Call::kSync, kTransfer);
  return story;
}

TEST(Recovery, IsOpenIfNoneWasTried) {
  expect(unrecovered(), "I11", Status::kInconclusive, "neither this world nor another");
}

TEST(Recovery, MayBeLeftToAnotherWorld) {
  Story story = unrecovered();
  story.trace.parameters += "recovery=other-world\n";
  expect(story, "I11", Status::kNotApplicable, "another world");
}

TEST(Recovery, OneThatFailsAgainIsAViolation) {
  Story story = unrecovered();
  story.start_engine(5);
  story.setup();
  story.failed_publication(1, kTransfer);
  story.exit(kActor0);
  story.exit(kActor1);
  expect(story, "I11", Status::kInconclusive);
  Story again = unrecovered();
  again.start_engine(5);
  again.setup();
  again.begin_sync(1);
  again.end(kActor0, Call::kSync, 1);
  again.exit(kActor0);
  again.exit(kActor1);
  expect(again, "I11", Status::kViolation, "the recovery did not commit");
}

TEST(Recovery, AVersionThatAnActorReturnedBeforeIsAViolation) {
  Story story = begun();
  story.publish(1);
  story.begin_sync(2);
  story.init();
  story.fault(2, "channel.eof", true);
  story.kill_tree();
  story.fail(kActor0, Call::kSync, kTransfer);
  story.fail(kActor1, Call::kSync, kTransfer);
  story.recover(1);
  story.close();
  expect(story, "I11", Status::kViolation, "published version 1, an actor returned 1");
}

TEST(Recovery, ASurvivedFaultNeedsNone) {
  Story story = begun();
  story.fault(3, "copy.late", false);
  story.publish(1);
  story.close();
  expect(story, "I11", Status::kPass);
}

TEST(Recovery, AKilledActorNeedsAnotherWorld) {
  Story story = begun();
  story.fault(kActor1, "process.kill", true);
  story.kill(kActor1, kActor1, 9);
  story.exit(kActor0);
  expect(story, "I11", Status::kInconclusive);
}

// ---- world ----

TEST(World, ItsOwnViolationsAreTheJudges) {
  Story story = Story::clean();
  story.add(sim::EventKind::kViolation, 3, 5, 6, 7, "race.copy");
  expect(story, "world", Status::kViolation, "race.copy by worker 0 (5, 6, 7)");
}

TEST(World, ACrashIsAViolation) {
  Story story = begun();
  story.add(sim::EventKind::kProcessCrash, kActor1, 0, 0, 0, "assertion");
  expect(story, "world", Status::kViolation, "actor 1 crashed: assertion");
}

// ---- texts ----

TEST(Judgement, ItsTextNamesWhatIsNotAPass) {
  Story story = Story::clean();
  story.add(sim::EventKind::kViolation, 3, 5, 6, 7, "race.copy");
  Judge judge;
  EXPECT_EQ(judge.judge(story.trace).text(), "world violation: race.copy by worker 0 (5, 6, 7)\n");
}

TEST(Explain, TellsTheCausalPastInAtMostTwentyLines) {
  Story story = begun();
  for (int i = 0; i < 30; ++i) story.succeed(kActor0, Call::kHealth);
  story.failed_publication(1, kTransfer);
  story.succeed(kActor0, Call::kHealth);
  const Verdict verdict = verdict_of(story, "I1");
  const std::string text = explain(story.trace, verdict);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 20);
  EXPECT_THAT(text, HasSubstr("sync fails"));
  EXPECT_THAT(text, HasSubstr("health returns"));
}

TEST(Explain, IsEmptyWithoutAnEvent) { EXPECT_EQ(explain(Story::clean().trace, Verdict{}), ""); }

}  // namespace
}  // namespace tpsync::judge
