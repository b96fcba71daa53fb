// What the judge finds in times and orders: I4, I4b and I5. For each what passes, what violates it,
// and what leaves it open.
#include "conformance/judge/testing/verdicts.h"

namespace tpsync::judge {
namespace {

using testing::begun;
using testing::error_json;
using testing::expect;
using testing::kActor0;
using testing::kActor1;
using testing::kSecond;
using testing::Story;

const std::string kTransfer = testing::transfer_error();

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
  story.log(kActor0, LogNumber::kConnectionBroken, "");
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

// What was under way when rank 0 was stopped is answered first.
Story stopped_parent_with_a_late_reply(std::int64_t replied_ns, std::int64_t lived_on_ns) {
  Story story = begun();
  story.begin_sync(1);
  story.init();
  story.add(sim::EventKind::kProcessStop, kActor0);
  story.fail(kActor1, Call::kSync, error_json("peer lost", "native-start", 0));
  story.now += replied_ns;
  story.op(story.runtime, sim::Op::kChannelWrite, "start_native_weight_update", 5, 20);
  story.now += lived_on_ns;
  for (std::uint32_t p = story.runtime; p < story.runtime + 3; ++p) story.exit(p);
  story.counters();
  return story;
}

TEST(NoHang, ARuntimeWaitsForItsStoppedParentFromItsLastReplyOn) {
  expect(stopped_parent_with_a_late_reply(61 * kSecond, 70 * kSecond), "I4", Status::kPass);
  expect(stopped_parent_with_a_late_reply(61 * kSecond, 72 * kSecond), "I4", Status::kViolation,
         "after it spoke last, with rank 0 stopped");
  expect(stopped_parent_with_a_late_reply(72 * kSecond, 1 * kSecond), "I4", Status::kViolation,
         "the runtime spoke 72.000 s after rank 0 was stopped");
}

// The simulator's end of a world in which nobody goes on.
void clear_away(Story& story) {
  story.kill(kActor0, sim::kNoProcess, 9);
  for (std::uint32_t p = story.runtime; p < story.runtime + 3; ++p) {
    story.kill(p, sim::kNoProcess, 9);
  }
  story.counters();
}

// Its bytes left rank 0, and a fault took them: nobody has told the runtime of a publication.
TEST(NoHang, ARuntimeThatInitHasNotReachedMayLiveOnUntilItsStoppedParentIsClearedAway) {
  for (const bool has_heard : {false, true}) {
    Story story = begun();
    story.begin_sync(1);
    story.log(kActor0, LogNumber::kCommandSent, "init_native_weight_transfer");
    story.op(kActor0, sim::Op::kChannelWrite, "native-init", 4, 20);
    if (has_heard) {
      story.log(story.runtime, LogNumber::kCommandReceived, "init_native_weight_transfer");
    }
    story.add(sim::EventKind::kProcessStop, kActor0);
    story.fail(kActor1, Call::kSync, error_json("peer lost", "native-init", 0));
    clear_away(story);
    if (has_heard) {
      expect(story, "I4", Status::kViolation, "would never have ended");
    } else {
      expect(story, "I4", Status::kPass);
    }
  }
}

TEST(NoHang, ARuntimeThatLivesUntilItsStoppedParentIsClearedAwayIsAViolation) {
  for (const bool stopped_itself : {false, true}) {
    Story story = begun();
    story.begin_sync(1);
    story.init();
    story.add(sim::EventKind::kProcessStop, kActor0);
    if (stopped_itself) story.add(sim::EventKind::kProcessStop, story.runtime);
    story.fail(kActor1, Call::kSync, error_json("peer lost", "native-start", 0));
    clear_away(story);
    if (stopped_itself) {
      expect(story, "I4", Status::kPass);
    } else {
      expect(story, "I4", Status::kViolation, "would never have ended");
    }
  }
}

TEST(NoHang, ARuntimeThatHasFinishedMayServeOnWhileItsParentStandsStill) {
  Story story = begun();
  story.begin_sync(1);
  story.init();
  story.add(sim::EventKind::kProcessStop, kActor0);
  story.attest(story.runtime + 1);
  story.attest(story.runtime + 2);
  story.fail(kActor1, Call::kSync, error_json("peer lost", "native-finish", 0));
  story.counters();
  expect(story, "I4", Status::kPass);
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

}  // namespace
}  // namespace tpsync::judge
