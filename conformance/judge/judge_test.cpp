// The judge as a whole, and what it finds in single processes and versions: I1, I2, I6, I7, I8 and
// the world's own violations. For each what passes, what violates it, and what leaves it open.
#include "conformance/judge/judge.h"

#include <algorithm>

#include "conformance/judge/testing/verdicts.h"

namespace tpsync::judge {
namespace {

using testing::begun;
using testing::error_json;
using testing::expect;
using ::testing::HasSubstr;
using testing::kActor0;
using testing::kActor1;
using testing::Story;
using testing::verdict_of;

const std::string kTransfer = testing::transfer_error();

// ---- whole runs ----

TEST(Judge, ACleanRunPassesEveryInvariantThatApplies) {
  Judge judge;
  const Judgement judgement = judge.judge(Story::clean().trace);
  EXPECT_TRUE(judgement.ok()) << judgement.text();
  std::vector<std::string> ids;
  for (const Verdict& verdict : judgement.verdicts) ids.push_back(verdict.id);
  EXPECT_EQ(ids, (std::vector<std::string>{"I1", "I2", "I3", "I4", "I4b", "I5", "I6", "I7", "I8",
                                           "I9", "I10", "I11", "world", "evidence"}));
  for (const char* id :
       {"I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I10", "world", "evidence"}) {
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

// ---- evidence ----

TEST(Evidence, AnAnnouncedActorThatWasNeverStartedIsMissing) {
  Story story = Story::clean();
  const std::string announced = "actors=2";
  story.trace.parameters.replace(story.trace.parameters.find(announced), announced.size(),
                                 "actors=3");
  expect(story, "evidence", Status::kInconclusive, "3 actors are announced, 2 were started");
}

TEST(Evidence, AnActorWithoutRecordsOfItsCallsIsMissing) {
  Story story = Story::clean();
  story.exit(kActor1);
  expect(story, "evidence", Status::kPass);
  std::erase_if(story.trace.events, [](const sim::Event& event) {
    return event.process == kActor1 && event.kind >= static_cast<std::uint16_t>(Record::kCallBegin);
  });
  expect(story, "evidence", Status::kInconclusive, "actor 1 recorded no call");
}

TEST(Evidence, ACommittedVersionThatNobodyLooksAtIsMissing) {
  Story story = begun();
  story.publish(1);
  expect(story, "evidence", Status::kInconclusive, "version 1 was committed");
  story.observe(1);
  expect(story, "evidence", Status::kPass);
}

TEST(Evidence, ACommittedVersionOfWhichOneRankWasNotLookedAtIsMissing) {
  Story story = begun();
  story.publish(1);
  story.add(Record::kResident, kActor0, 0, story.lane(0, 1), 1);
  expect(story, "evidence", Status::kInconclusive, "nobody looked at rank 1");
}

TEST(Evidence, TokensOfAPhantomWorldAreNoLook) {
  Story story = begun();
  story.publish(1);
  story.generate(1);
  expect(story, "evidence", Status::kPass);
  story.trace.parameters += "phantom=1\n";
  expect(story, "evidence", Status::kInconclusive, "nobody looked at rank 0");
}

TEST(Evidence, ARecoveredVersionThatNobodyLooksAtIsMissingToo) {
  Story story = begun();
  story.begin_sync(1);
  story.fault(kActor1, "device.sync", true);
  story.fail(kActor0, Call::kSync, kTransfer);
  story.fail(kActor1, Call::kSync, kTransfer);
  story.start_engine();
  story.setup();
  story.publish(1);
  expect(story, "evidence", Status::kInconclusive, "version 1 was committed");
  story.observe(1);
  expect(story, "evidence", Status::kPass);
}

TEST(Parameters, BeyondAnyRealWorldCountAsAbsent) {
  for (const char* parameter :
       {"vocab=9223372036854775808", "head_dim=4611686018427387904", "layers=1000000000000000",
        "hidden=1099511627776", "experts=1000000000", "tp=1000000", "vocab=0"}) {
    Story story = begun();
    story.trace.parameters += std::string(parameter) + "\n";
    EXPECT_FALSE(parse_facts(story.trace.parameters).shape.has_value()) << parameter;
  }
  Story story = begun();
  story.trace.parameters += "control_timeout_ns=9223372036854775807\n";
  EXPECT_FALSE(parse_facts(story.trace.parameters).control_timeout_ns.has_value());
  story.trace.parameters += "control_timeout_ns=-1\n";
  EXPECT_FALSE(parse_facts(story.trace.parameters).control_timeout_ns.has_value());
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

// A death is on record when it was seen, which may be during the next call.
TEST(FailStop, ARuntimeThatWasPoisonedBetweenCallsMayGoUntilTheNextReturns) {
  Story story = begun();
  story.log(kActor0, LogNumber::kConnectionBroken, "poisoned");
  story.begin_sync(1);
  for (std::uint32_t p = story.runtime; p < story.runtime + 3; ++p) story.kill(p, kActor0);
  story.fail(kActor0, Call::kSync, error_json("invalid state", "expected-schema", 0));
  expect(story, "I1", Status::kPass);
}

TEST(FailStop, APoisonedRuntimeThatLivesOrWorksIsAViolation) {
  Story living = begun();
  living.log(kActor0, LogNumber::kConnectionBroken, "poisoned");
  living.begin_sync(1);
  living.fail(kActor0, Call::kSync, error_json("invalid state", "expected-schema", 0));
  expect(living, "I1", Status::kViolation, "the runtime still lives");

  Story working = begun();
  working.log(kActor0, LogNumber::kConnectionBroken, "poisoned");
  working.begin_sync(1);
  working.succeed(kActor0, Call::kSync);
  expect(working, "I1", Status::kViolation, "an earlier failure (poison) broke");
}

TEST(FailStop, AProbeWhoseReplyNeverCameEndsTheRuntime) {
  Story story = begun();
  story.begin_sync(1);
  story.log(kActor0, LogNumber::kCommandSent, "probe_ipc");
  story.fail(kActor0, Call::kSync, error_json("timeout", "topology-ipc-probe", 0));
  expect(story, "I1", Status::kViolation, "the runtime still lives");
}

// The error is about what a rank said at the gate, and tells nothing of the runtime's channel.
TEST(FailStop, AProbeBehindWhichTheAgreementFailedMayLeaveTheRuntimeAlive) {
  for (const std::string subject : {"lockstep", "report", "probe_ipc (request 2): channel"}) {
    Story story = begun();
    story.begin_sync(1);
    story.log(kActor0, LogNumber::kCommandSent, "probe_ipc");
    std::string error = error_json("protocol", "topology-ipc-probe", 0, "fix the peer");
    error.replace(error.find("a command"), std::string("a command").size(), subject);
    story.fail(kActor0, Call::kSync, error);
    if (subject.starts_with("probe_ipc")) {
      expect(story, "I1", Status::kViolation, "the runtime still lives");
    } else {
      expect(story, "I1", Status::kPass);
    }
  }
}

// Whatever the actors agreed on, rank 0's log says that the channel broke.
TEST(FailStop, AProbeThatBrokeTheChannelEndsTheRuntimeAlsoWhereTheAgreementFailed) {
  Story story = begun();
  story.begin_sync(1);
  story.log(kActor0, LogNumber::kCommandSent, "probe_ipc");
  story.log(kActor0, LogNumber::kConnectionBroken, "");
  std::string error = error_json("protocol", "topology-ipc-probe", 0, "fix the peer");
  error.replace(error.find("a command"), std::string("a command").size(), "report");
  story.fail(kActor0, Call::kSync, error);
  expect(story, "I1", Status::kViolation, "the runtime still lives");
}

TEST(FailStop, AnInitWithoutAByteOnTheChannelHasTouchedNothing) {
  Story story = begun();
  story.begin_sync(1);
  story.log(kActor0, LogNumber::kCommandSent, "init_native_weight_transfer");
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

TEST(Release, AnExitWithRegionsIsAViolationUnlessAFailedCallAnnouncedIt) {
  for (const bool announced : {false, true}) {
    for (const bool failed : {false, true}) {
      Story story = begun();
      story.begin(kActor1, Call::kCleanup);
      if (announced) story.log(kActor1, LogNumber::kExportLeaked, "");
      if (failed) {
        story.fail(kActor1, Call::kCleanup, error_json("device", "cleanup", 1));
      } else {
        story.end(kActor1, Call::kCleanup, 0);
      }
      story.exit(kActor1);
      story.add(sim::EventKind::kProcessLeft, kActor1, 1, 0, 1);
      story.counters();
      if (announced && failed) {
        expect(story, "I6", Status::kPass);
      } else {
        expect(story, "I6", Status::kViolation, "actor 1 exited with 1 exports");
      }
    }
  }
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
