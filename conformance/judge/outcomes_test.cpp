// What the judge finds in outcomes: I3, I9, I10 and I11. For each what passes, what violates it,
// and what leaves it open.
#include "conformance/judge/testing/verdicts.h"

namespace tpsync::judge {
namespace {

using testing::begun;
using testing::error_json;
using testing::expect;
using testing::kActor0;
using testing::kActor1;
using testing::Story;

const std::string kTransfer = testing::transfer_error();

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

TEST(Agreement, WhatAKilledActorRecordsWhileItUnwindsDidNotHappen) {
  Story story = begun();
  story.begin_sync(1);
  story.fault(kActor0, "process.kill", true);
  story.kill(kActor0, kActor0, 9);
  story.end(kActor0, Call::kSync, 1);
  story.fail(kActor1, Call::kSync, error_json("peer lost", "native-finish", 0));
  expect(story, "I3", Status::kPass);
}

TEST(Agreement, DoesNotApplyWithoutASync) {
  expect(begun(), "I3", Status::kNotApplicable, "no sync");
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

TEST(Diagnosable, AnEndOfFileIsAdmittedWhereAnotherFaultSilencedTheRuntime) {
  constexpr std::string_view kKill =
      "process.kill|visible|fail|remote failure|worker|0|update_native_weights|0";
  const auto together = [&](std::string_view other) {
    Story story = begun();
    story.plan(kKill);
    story.plan(other, 1);
    story.begin_sync(1);
    story.init();
    story.fault(3, "process.kill", true);
    story.fault(2, other.substr(0, other.find('|')), other.find("|visible|") != other.npos, 1);
    story.kill_tree();
    const std::string error = error_json("end of file", "native-transfer-0", 0);
    story.fail(kActor0, Call::kSync, error);
    story.fail(kActor1, Call::kSync, error);
    return story;
  };
  for (const std::string_view silent :
       {"channel.timeout|silent|fail|timeout|runtime|0|update_native_weights|0",
        "channel.timeout|silent|fail|timeout|actor|0|native-transfer|0"}) {
    expect(together(silent), "I9", Status::kPass);
  }
  for (const std::string_view other :
       {"channel.timeout|silent|fail|timeout|worker|0|update_native_weights|0",
        "process.stop|silent|fail|timeout|runtime|0|update_native_weights|0"}) {
    expect(together(other), "I9", Status::kViolation, "no admissible diagnosis");
  }
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

TEST(Diagnosable, AnActorThatIsAheadOfTheFailureChangesNothing) {
  Story story = begun();
  story.plan("process.kill|visible|either|remote failure|worker|0|release_native_ipc|0");
  story.publish(1);
  story.begin(kActor1, Call::kSync);
  story.fault(3, "process.kill", true);
  story.begin(kActor0, Call::kSleep);
  story.kill_tree();
  story.fail(kActor0, Call::kSleep, error_json("remote failure", "", -1));
  story.begin(kActor0, Call::kSync);
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

TEST(Progress, ASetUpThatFailsWithoutAFaultIsAViolation) {
  Story story;
  story.start_engine();
  story.begin(kActor0, Call::kSetup);
  story.fail(kActor0, Call::kSetup, error_json("invalid config", "setup", 0));
  expect(story, "I10", Status::kViolation, "setup on rank 0 failed with invalid_config");
}

TEST(Progress, ASecondSetUpThatIsRefusedIsNone) {
  Story story = begun();
  story.begin(kActor0, Call::kSetup);
  story.fail(kActor0, Call::kSetup, error_json("invalid state", "setup", 0, "fix the input"));
  expect(story, "I10", Status::kNotApplicable);
}

TEST(Progress, ARefusalThatNoStateExplainsIsAViolation) {
  const std::string refusal = error_json("invalid state", "", -1, "nothing happened, try later");
  for (const Call call : {Call::kGenerate, Call::kSleep, Call::kWakeAll, Call::kHealth}) {
    Story story = begun();
    story.publish(1);
    story.observe(1);
    story.begin(kActor0, call);
    story.fail(kActor0, call, refusal);
    expect(story, "I10", Status::kViolation, "on rank 0 failed with invalid_state");
  }
  Story asleep = begun();
  asleep.publish(1);
  asleep.observe(1);
  asleep.succeed(kActor0, Call::kSleep);
  asleep.begin(kActor0, Call::kGenerate);
  asleep.fail(kActor0, Call::kGenerate, refusal);
  expect(asleep, "I10", Status::kPass);
}

// Starting an engine is no collective call: a refusal there is no misuse that others agreed on.
TEST(Progress, AStartThatIsRefusedIsAViolation) {
  Story story = begun();
  story.begin(kActor0, Call::kStartEngine);
  story.fail(kActor0, Call::kStartEngine, error_json("invalid state", "start", 0));
  expect(story, "I10", Status::kViolation, "start-engine on rank 0 failed");
}

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

}  // namespace
}  // namespace tpsync::judge
