// Every rank leaves a gate the same way: the first cause in rank order, a broken lockstep, or a
// lost peer.
#include "tpsync/sync/consensus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/testing/fake_world.h"
#include "core/sync/testing/thread_group.h"
#include "tpsync/collective/forwarding_groups.h"

namespace tpsync::sync {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Each;
using testing::Eq;
using testing::Optional;

constexpr Duration kControlTimeout = seconds(60);

ErrorRecord error_of(ErrorKind kind, const std::string& subject,
                     Remedy remedy = Remedy::kRebuildRuntime) {
  ErrorRecord record;
  record.kind = kind;
  record.remedy = remedy;
  record.subject = subject;
  record.detail = "injected by the test";
  return record;
}

using Reports = std::vector<std::optional<ErrorRecord>>;

// One gate at which rank r reports reports[r].
Reports agree(const Reports& reports, std::string_view phase = "native-transfer",
              std::int64_t index = 3) {
  return fakes::run_ranks(static_cast<int>(reports.size()),
                          [&](std::unique_ptr<fakes::ThreadGroup> group) {
                            tpsync::fakes::VirtualClock clock;
                            tpsync::fakes::RecordingLog log;
                            Consensus consensus(*group, clock, log, kControlTimeout);
                            consensus.enter(phase, index);
                            consensus.agree(reports[static_cast<std::size_t>(group->rank())]);
                          });
}

TEST(Consensus, AGateWithoutFailuresLetsEveryRankThrough) {
  EXPECT_THAT(agree(Reports(4)), Each(Eq(std::nullopt)));
}

TEST(Consensus, EveryRankThrowsTheFirstFailureInRankOrder) {
  Reports reports(4);
  reports[1] = error_of(ErrorKind::kDevice, "copy");
  reports[3] = error_of(ErrorKind::kOutOfMemory, "buffer");
  ErrorRecord expected = *reports[1];
  expected.phase = "native-transfer-3";
  expected.rank = 1;
  EXPECT_THAT(agree(reports), Each(Optional(expected)));
}

TEST(Consensus, TheClassOfTheErrorIsKept) {
  for (const Remedy remedy :
       {Remedy::kFixInput, Remedy::kTryLater, Remedy::kRebuildRuntime, Remedy::kFixPeer}) {
    Reports reports(2);
    reports[1] = error_of(ErrorKind::kMismatch, "x", remedy);
    for (const auto& outcome : agree(reports)) EXPECT_EQ(outcome->remedy, remedy);
  }
}

TEST(Consensus, ARankThatGaveUpBecauseOfAPeerIsNeverTheCause) {
  Reports reports(3);
  reports[0] = error_of(ErrorKind::kPeerFailed, "gather");
  reports[2] = error_of(ErrorKind::kTimeout, "gather");
  for (const auto& outcome : agree(reports)) {
    ASSERT_TRUE(outcome.has_value());
    EXPECT_EQ(outcome->kind, ErrorKind::kTimeout);
    EXPECT_EQ(outcome->rank, 2);
  }
}

TEST(Consensus, WhereAllGaveUpTheFirstOfThemIsReported) {
  Reports reports(3);
  reports[1] = error_of(ErrorKind::kPeerFailed, "gather");
  reports[2] = error_of(ErrorKind::kPeerFailed, "gather");
  for (const auto& outcome : agree(reports)) {
    ASSERT_TRUE(outcome.has_value());
    EXPECT_EQ(outcome->kind, ErrorKind::kPeerFailed);
    EXPECT_EQ(outcome->rank, 1);
  }
}

TEST(Consensus, PhaseAndRankThatAnErrorBringsAreKept) {
  Reports reports(2);
  reports[0] = error_of(ErrorKind::kMismatch, "tensor");
  reports[0]->phase = "native-materialize-4";
  reports[0]->rank = 1;
  EXPECT_THAT(agree(reports), Each(Optional(*reports[0])));
}

TEST(Consensus, OnlyChunkPhasesCarryTheirIndex) {
  Reports reports(1);
  reports[0] = error_of(ErrorKind::kDevice, "x");
  EXPECT_EQ(agree(reports, "native-init", 0)[0]->phase, "native-init");
  EXPECT_EQ(agree(reports, "native-materialize", 7)[0]->phase, "native-materialize-7");
}

// ---- a report that is none

class ReportsBytes final : public collective::ForwardingControlGroup {
 public:
  ReportsBytes(collective::ControlGroup& inner, ByteBuffer report)
      : ForwardingControlGroup(inner), report_(std::move(report)) {}
  std::vector<ByteBuffer> all_gather(ByteView, Deadline deadline) override {
    return ForwardingControlGroup::all_gather(report_, deadline);
  }

 private:
  ByteBuffer report_;
};

TEST(Consensus, ARankThatSaysItFailedAndNotHowIsTheCause) {
  ByteBuffer no_error;
  wire::encode_error(std::nullopt, no_error);
  for (const ByteBuffer& report : {no_error, ByteBuffer(1, std::byte{0xc1}), ByteBuffer()}) {
    const auto outcomes = fakes::run_ranks(3, [&](std::unique_ptr<fakes::ThreadGroup> group) {
      tpsync::fakes::VirtualClock clock;
      tpsync::fakes::RecordingLog log;
      ReportsBytes lying(*group, report);
      collective::ControlGroup& used =
          group->rank() == 1 ? static_cast<collective::ControlGroup&>(lying) : *group;
      Consensus consensus(used, clock, log, kControlTimeout);
      consensus.enter("native-finish", 0);
      std::optional<ErrorRecord> error;
      if (group->rank() == 1) error = error_of(ErrorKind::kRemote, "finish");
      consensus.agree(error);
    });
    for (const auto& outcome : outcomes) {
      ASSERT_TRUE(outcome.has_value());
      EXPECT_EQ(outcome->kind, ErrorKind::kProtocol);
      EXPECT_EQ(outcome->remedy, Remedy::kFixPeer);
      EXPECT_EQ(outcome->rank, 1);
      EXPECT_EQ(outcome->subject, kReport);
      EXPECT_EQ(outcome->phase, "native-finish");
      EXPECT_EQ(outcome, outcomes[0]);
    }
  }
}

// ---- exchanges

// An exchange, or a broadcast by rank 0, and the gate after it; rank r has errors[r] before both.
Reports agree_after_exchange(const Reports& errors, bool broadcast,
                             std::optional<int> gives_nothing = {}) {
  return fakes::run_ranks(
      static_cast<int>(errors.size()), [&](std::unique_ptr<fakes::ThreadGroup> group) {
        tpsync::fakes::VirtualClock clock;
        tpsync::fakes::RecordingLog log;
        Consensus consensus(*group, clock, log, kControlTimeout);
        consensus.enter("topology-discovery", 0);
        std::optional<ErrorRecord> error = errors[static_cast<std::size_t>(group->rank())];
        ByteBuffer own(group->rank() == gives_nothing ? 0 : 1);
        if (broadcast) consensus.broadcast(own, error);
        if (!broadcast) consensus.exchange(own, error);
        consensus.agree(error);
      });
}

TEST(Consensus, AFailureBeforeAnExchangeIsReportedAtItsGate) {
  Reports errors(3);
  errors[2] = error_of(ErrorKind::kOutOfMemory, "report");
  ErrorRecord expected = *errors[2];
  expected.phase = "topology-discovery";
  expected.rank = 2;
  EXPECT_THAT(agree_after_exchange(errors, /*broadcast=*/false), Each(Optional(expected)));
  std::swap(errors[0], errors[2]);
  expected.rank = 0;
  EXPECT_THAT(agree_after_exchange(errors, /*broadcast=*/true), Each(Optional(expected)));
}

TEST(Consensus, ARankThatGivesNothingAndReportsNothingIsNamed) {
  for (const bool broadcast : {false, true}) {
    for (const auto& outcome : agree_after_exchange(Reports(2), broadcast, /*gives_nothing=*/0)) {
      ASSERT_TRUE(outcome.has_value());
      EXPECT_EQ(outcome->kind, ErrorKind::kPeerFailed);
      EXPECT_EQ(outcome->remedy, Remedy::kFixPeer);
      EXPECT_EQ(outcome->subject, "rank 0");
    }
  }
}

// ---- lockstep

Reports stand_at(const std::vector<std::pair<std::string_view, std::int64_t>>& gates) {
  return fakes::run_ranks(static_cast<int>(gates.size()),
                          [&](std::unique_ptr<fakes::ThreadGroup> group) {
                            tpsync::fakes::VirtualClock clock;
                            tpsync::fakes::RecordingLog log;
                            Consensus consensus(*group, clock, log, kControlTimeout);
                            const auto& gate = gates[static_cast<std::size_t>(group->rank())];
                            consensus.enter(gate.first, gate.second);
                            consensus.agree(std::nullopt);
                          });
}

TEST(Consensus, RanksAtDifferentGatesBreakEverywhere) {
  for (const auto& other : std::vector<std::pair<std::string_view, std::int64_t>>{
           {"native-finish", 3}, {"native-transfer", 2}}) {
    const Reports outcomes = stand_at({{"native-transfer", 3}, {"native-transfer", 3}, other});
    for (std::size_t r = 0; r < outcomes.size(); ++r) {
      ASSERT_TRUE(outcomes[r].has_value()) << r;
      EXPECT_EQ(outcomes[r]->kind, ErrorKind::kProtocol);
      EXPECT_EQ(outcomes[r]->remedy, Remedy::kFixPeer);
      EXPECT_EQ(outcomes[r]->subject, "lockstep");
      EXPECT_EQ(outcomes[r]->rank, r == 2 ? 0 : 2);
    }
    EXPECT_EQ(outcomes[0]->phase, "native-transfer-3");
  }
}

// ---- a lost peer

TEST(Consensus, ALostPeerIsReportedWithTheGatesPhase) {
  const auto outcomes = fakes::run_ranks(3, [](std::unique_ptr<fakes::ThreadGroup> group) {
    if (group->rank() == 1) return;  // leaves
    tpsync::fakes::VirtualClock clock;
    tpsync::fakes::RecordingLog log;
    Consensus consensus(*group, clock, log, kControlTimeout);
    consensus.enter("native-transfer", 3);
    consensus.agree(std::nullopt);
  });
  EXPECT_EQ(outcomes[1], std::nullopt);
  for (const int rank : {0, 2}) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(outcome.has_value());
    EXPECT_EQ(outcome->kind, ErrorKind::kPeerLost);
    EXPECT_EQ(outcome->remedy, Remedy::kRebuildRuntime);
    EXPECT_EQ(outcome->phase, "native-transfer-3");
    EXPECT_EQ(outcome->rank, 1);
  }
}

class LeavesBeforeTheReports final : public collective::ForwardingControlGroup {
 public:
  using ForwardingControlGroup::ForwardingControlGroup;
  std::vector<ByteBuffer> all_gather(ByteView, Deadline) override {
    leave();
    throw_broken(ErrorKind::kIo, "", "ended by the test");
  }
};

TEST(Consensus, APeerThatIsLostBetweenWordAndReportIsALostPeer) {
  const auto outcomes = fakes::run_ranks(2, [](std::unique_ptr<fakes::ThreadGroup> group) {
    tpsync::fakes::VirtualClock clock;
    tpsync::fakes::RecordingLog log;
    LeavesBeforeTheReports leaving(*group);
    collective::ControlGroup& used =
        group->rank() == 1 ? static_cast<collective::ControlGroup&>(leaving) : *group;
    Consensus consensus(used, clock, log, kControlTimeout);
    consensus.enter("native-finish", 0);
    consensus.agree(error_of(ErrorKind::kRemote, "finish"));
  });
  ASSERT_TRUE(outcomes[0].has_value());
  EXPECT_EQ(outcomes[0]->kind, ErrorKind::kPeerLost);
  EXPECT_EQ(outcomes[0]->rank, 1);
  EXPECT_EQ(outcomes[0]->phase, "native-finish");
}

TEST(Consensus, ALostPeerInAGatherOrBroadcastCarriesThePhaseToo) {
  for (const bool broadcast : {false, true}) {
    const auto outcomes = fakes::run_ranks(2, [&](std::unique_ptr<fakes::ThreadGroup> group) {
      if (group->rank() == 0) return;
      tpsync::fakes::VirtualClock clock;
      tpsync::fakes::RecordingLog log;
      Consensus consensus(*group, clock, log, kControlTimeout);
      consensus.enter("native-result", 0);
      ByteBuffer bytes;
      std::optional<ErrorRecord> error;
      if (broadcast) consensus.broadcast(bytes, error);
      if (!broadcast) consensus.exchange(ByteBuffer(1), error);
    });
    ASSERT_TRUE(outcomes[1].has_value());
    EXPECT_EQ(outcomes[1]->kind, ErrorKind::kPeerLost);
    EXPECT_EQ(outcomes[1]->phase, "native-result");
  }
}

// ---- waits

std::vector<Duration> waits_of(const std::optional<ErrorRecord>& local, Duration timeout) {
  fakes::Board board(1);
  fakes::ThreadGroup group(board, 0, 1);
  tpsync::fakes::VirtualClock clock;
  tpsync::fakes::RecordingLog log;
  Consensus consensus(group, clock, log, timeout);
  consensus.enter("native-init", 0);
  try {
    consensus.agree(local);
  } catch (const Error&) {
    EXPECT_TRUE(local.has_value());
  }
  std::vector<Duration> waits;
  for (const Deadline deadline : group.deadlines) waits.push_back(deadline.time() - clock.now());
  return waits;
}

// ---- what is on record ----

class BrokenGather final : public collective::ForwardingControlGroup {
 public:
  using ForwardingControlGroup::ForwardingControlGroup;
  std::vector<ByteBuffer> all_gather(ByteView, Deadline) override {
    throw_broken(ErrorKind::kPeerLost, "group", "injected by the test");
  }
};

TEST(Consensus, AFailureIsOnRecordBeforeAnExchangeInWhichTheGroupBreaks) {
  fakes::run_ranks(1, [&](std::unique_ptr<fakes::ThreadGroup> inner) {
    tpsync::fakes::VirtualClock clock;
    tpsync::fakes::RecordingLog log;
    BrokenGather group(*inner);
    Consensus consensus(group, clock, log, kControlTimeout);
    consensus.enter("native-finish", 0);
    std::optional<ErrorRecord> error = error_of(ErrorKind::kDevice, "copy");
    EXPECT_THROW(consensus.exchange({}, error), RuntimeBroken);
    const auto* logged = log.find(LogEvent::kPhaseFailed);
    ASSERT_NE(logged, nullptr);
    EXPECT_EQ(logged->subject, "native-finish");
    EXPECT_THAT(logged->text, testing::HasSubstr("copy"));
  });
}

TEST(Consensus, AFailureIsLoggedOncePerPhase) {
  fakes::run_ranks(1, [&](std::unique_ptr<fakes::ThreadGroup> group) {
    tpsync::fakes::VirtualClock clock;
    tpsync::fakes::RecordingLog log;
    Consensus consensus(*group, clock, log, kControlTimeout);
    for (std::size_t phase = 1; phase <= 2; ++phase) {
      consensus.enter("native-finish", 0);
      std::optional<ErrorRecord> error = error_of(ErrorKind::kDevice, "copy");
      consensus.exchange({}, error);
      EXPECT_THROW(consensus.agree(error), RuntimeBroken);
      const auto logged =
          std::count_if(log.entries.begin(), log.entries.end(),
                        [](const auto& entry) { return entry.event == LogEvent::kPhaseFailed; });
      EXPECT_EQ(static_cast<std::size_t>(logged), phase);
    }
  });
}

TEST(Consensus, AWaitOfItsOwnLeavesHalfTheControlTimeoutToMeetThePeers) {
  fakes::run_ranks(1, [&](std::unique_ptr<fakes::ThreadGroup> group) {
    tpsync::fakes::VirtualClock clock;
    tpsync::fakes::RecordingLog log;
    Consensus consensus(*group, clock, log, kControlTimeout);
    const TimePoint begin = clock.now();
    EXPECT_EQ(consensus.begin_own_wait().time(), begin + kControlTimeout / 2);
  });
}

TEST(Consensus, AGateWaitsForTheControlTimeout) {
  EXPECT_THAT(waits_of(std::nullopt, kControlTimeout), testing::ElementsAre(kControlTimeout));
  EXPECT_THAT(waits_of(error_of(ErrorKind::kDevice, "x"), kControlTimeout),
              testing::ElementsAre(kControlTimeout, kControlTimeout));
}

TEST(Consensus, AfterALocalTimeoutTheWaitIsAShortGrace) {
  const auto timeout = error_of(ErrorKind::kTimeout, "update");
  EXPECT_THAT(waits_of(timeout, kControlTimeout),
              testing::ElementsAre(milliseconds(250), milliseconds(250)));
  EXPECT_THAT(waits_of(timeout, milliseconds(20)),
              testing::ElementsAre(milliseconds(20), milliseconds(20)));
}

TEST(Consensus, TheGateAfterAnExchangeThatAPeerFailedWaitsAsLongAsTheExchange) {
  fakes::Board board(1);
  fakes::ThreadGroup group(board, 0, 1);
  tpsync::fakes::VirtualClock clock;
  tpsync::fakes::RecordingLog log;
  Consensus consensus(group, clock, log, kControlTimeout);
  consensus.enter("native-init", 0);
  std::optional<ErrorRecord> error;
  consensus.exchange({}, error);
  EXPECT_EQ(tpsync::fakes::failure_of([&] { consensus.agree(error); }).kind,
            ErrorKind::kPeerFailed);
  ASSERT_EQ(group.deadlines.size(), 3u);
  for (const Deadline deadline : group.deadlines) {
    EXPECT_EQ(deadline.time(), clock.now() + kControlTimeout);
  }
}

TEST(Consensus, BroadcastAndGatherGiveEveryRankTheSame) {
  const auto outcomes = fakes::run_ranks(3, [](std::unique_ptr<fakes::ThreadGroup> group) {
    tpsync::fakes::VirtualClock clock;
    tpsync::fakes::RecordingLog log;
    Consensus consensus(*group, clock, log, kControlTimeout);
    consensus.enter("publication-id", 0);
    const auto own = static_cast<std::byte>(group->rank());
    ByteBuffer bytes(2, own);
    std::optional<ErrorRecord> error;
    consensus.broadcast(bytes, error);
    EXPECT_EQ(bytes, ByteBuffer(2, std::byte{0}));
    const auto gathered = consensus.exchange(std::span(&own, 1), error);
    EXPECT_EQ(error, std::nullopt);
    ASSERT_EQ(gathered.size(), 3u);
    for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(gathered[r], ByteBuffer(1, std::byte(r)));
  });
  EXPECT_THAT(outcomes, Each(Eq(std::nullopt)));
}

}  // namespace
}  // namespace tpsync::sync
