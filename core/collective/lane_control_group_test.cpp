// What the shared-memory lane does beyond the contract: when it is opened and when all ranks go on
// without it, that it finds whoever dies while it waits, and that its call numbers start anew.
#include "tpsync/collective/lane_control_group.h"

#include <gtest/gtest.h>

#include <latch>

#include "tpsync/base/forwarding.h"
#include "tpsync/collective/forwarding_groups.h"
#include "tpsync/collective/os_shared_words.h"
#include "tpsync/collective/testing/gloo_ranks.h"

namespace tpsync::collective {
namespace {

constexpr std::size_t kLineWords = 8;

class OtherHost final : public ForwardingHost {
 public:
  OtherHost(Host& inner, std::string name, std::string boot)
      : ForwardingHost(inner), name_(std::move(name)), boot_(std::move(boot)) {}
  std::string host_name() override {
    if (name_.empty()) throw_broken(ErrorKind::kIo, "host", "does not tell its name");
    return name_;
  }
  std::string boot_id() override { return boot_; }

 private:
  std::string name_;
  std::string boot_;
};

// Refuses what it is told to.
class PartialFactory final : public SharedWordsFactory {
 public:
  PartialFactory(bool makes, bool opens) : makes_(makes), opens_(opens) {}
  Made make(std::size_t count) override {
    if (!makes_) throw_broken(ErrorKind::kOutOfMemory, "words", "refused");
    return inner_.make(count);
  }
  std::unique_ptr<SharedWords> open(ByteView handle) override {
    if (!opens_) throw_broken(ErrorKind::kIo, "words", "refused");
    return inner_.open(handle);
  }

 private:
  OsSharedWordsFactory inner_;
  bool makes_;
  bool opens_;
};

class NotingLog final : public Log {
 public:
  bool wants(LogLevel) const noexcept override { return true; }
  void record(const LogRecord& record) noexcept override {
    if (record.event == LogEvent::kNote && record.subject == "control group") text = record.text;
  }
  std::string text;
};

class Lane : public fakes::GlooRanks {
 protected:
  std::unique_ptr<ControlGroup> general(int rank, int size) {
    return std::make_unique<GlooControlGroup>(options(rank, size), world_.world());
  }

  // All ranks go on with the general group, each having noted `why`.
  void expect_no_lane(
      const std::function<
          void(int rank, const std::function<void(Host&, SharedWordsFactory&)>& open)>& differ,
      const std::string& why) {
    const auto outcomes = run_ranks(3, [&](int rank) {
      World base = world_.world();
      differ(rank, [&](Host& host, SharedWordsFactory& factory) {
        NotingLog log;
        const World world{base.clock,  base.channels, base.processes, host,
                          base.random, log,           base.threads};
        OpenedLane lane = open_lane(general(rank, 3), world, factory, in_an_hour());
        EXPECT_FALSE(lane.shared);
        EXPECT_EQ(log.text, why);
        ASSERT_TRUE(lane.group);
        EXPECT_EQ(dynamic_cast<LaneControlGroup*>(lane.group.get()), nullptr);
        std::vector<std::uint64_t> words(3);
        lane.group->all_gather_word(static_cast<std::uint64_t>(rank) + 5, words, in_an_hour());
        EXPECT_EQ(words, (std::vector<std::uint64_t>{5, 6, 7}));
      });
    });
    expect_all_succeed(outcomes);
  }

  OsSharedWordsFactory factory_;
};

TEST_F(Lane, RanksOfOneHostShareItAndSaySo) {
  const auto outcomes = run_ranks(4, [&](int rank) {
    World base = world_.world();
    NotingLog log;
    const World world{base.clock,  base.channels, base.processes, base.host,
                      base.random, log,           base.threads};
    const OpenedLane lane = open_lane(general(rank, 4), world, factory_, in_an_hour());
    EXPECT_TRUE(lane.shared);
    EXPECT_EQ(lane.group->rank(), rank);
    EXPECT_EQ(lane.group->size(), 4);
    EXPECT_EQ(log.text, "agreement over shared memory");
  });
  expect_all_succeed(outcomes);
}

TEST_F(Lane, RanksOfSeveralHostsKeepTheGeneralGroup) {
  const std::string name = world_.world().host.host_name();
  const std::string boot = world_.world().host.boot_id();
  const std::pair<std::string, std::string> others[] = {
      {name, "another-boot"}, {name + "x", boot}, {"", boot}};
  for (const auto& other_host : others) {
    const std::string& other_name = other_host.first;
    const std::string& other_boot = other_host.second;
    group_ = "host-" + std::to_string(other_name.size()) + other_boot.substr(0, 4);
    expect_no_lane(
        [&](int rank, const auto& open) {
          OtherHost other(world_.world().host, other_name, other_boot);
          open(rank == 1 ? other : world_.world().host, factory_);
        },
        "the ranks are not on one host");
  }
}

TEST_F(Lane, IfOneRankCantOpenItNoneDoes) {
  for (const int culprit : {0, 1, 2}) {
    group_ = "culprit-" + std::to_string(culprit);
    expect_no_lane(
        [&](int rank, const auto& open) {
          PartialFactory partial(rank != culprit, rank != culprit);
          open(world_.world().host, partial);
        },
        "a rank could not open the shared words");
  }
}

// Loses a peer when the last call of the opening is over for everybody else.
class LosesLate final : public ForwardingControlGroup {
 public:
  using ForwardingControlGroup::ForwardingControlGroup;
  void all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                       Deadline deadline) override {
    inner().all_gather_word(word, words, deadline);
    throw_broken(ErrorKind::kPeerLost, "control group", "lost late");
  }
};

TEST_F(Lane, ARankThatFailsInTheLastStepOfOpeningIsLostToThoseWhoHaveALane) {
  const auto outcomes = run_ranks(2, [&](int rank) {
    std::unique_ptr<ControlGroup> group = general(rank, 2);
    if (rank == 1) group = std::make_unique<LosesLate>(std::move(group));
    std::optional<OpenedLane> lane;
    const auto open = [&] {
      lane = open_lane(std::move(group), world_.world(), factory_, in_an_hour());
    };
    if (rank == 1) {
      EXPECT_EQ(failure_of(open).detail, "lost late");
      return;
    }
    open();
    ASSERT_TRUE(lane->shared);
    std::vector<std::uint64_t> words(2);
    expect_lost(failure_of([&] { lane->group->all_gather_word(1, words, in_an_hour()); }), 1);
  });
  expect_all_succeed(outcomes);
}

TEST_F(Lane, ARankThatIsKilledWhileItIsWaitedForIsFoundBesideOneThatWasLostBefore) {
  std::unique_ptr<Process> child = spawn_rank(TPSYNC_TEST_RANK, 2, 3, "lane:idle");
  const auto outcomes = run_ranks(2, [&](int rank) {
    OpenedLane lane = open_lane(general(rank, 3), world_.world(), factory_, in_an_hour());
    ASSERT_TRUE(lane.shared);
    ControlGroup& group = *lane.group;
    group.all_gather({}, in_an_hour());
    std::vector<std::uint64_t> words(3);
    if (rank == 1) {
      // Its word is there; then it is lost, and what the general group names from then on.
      wait_for_child();
      const Deadline now = Deadline::at(clock_.now());
      EXPECT_EQ(failure_of([&] { group.all_gather_word(1, words, now); }).kind,
                ErrorKind::kPeerLost);
      child->signal(Signal::kKill);
      return;
    }
    expect_lost(failure_of([&] { group.all_gather_word(1, words, in_an_hour()); }), 2);
  });
  expect_all_succeed(outcomes);
}

TEST_F(Lane, RanksThatMakeDifferentCallsAreToldSoWhicheverTheyAre) {
  // A root that is ahead gets no further than its next call.
  const auto calls = [&](ControlGroup& group, int kind) {
    std::vector<std::uint64_t> words(2);
    ByteBuffer bytes = fakes::patterned(0, 8);
    if (kind == 0) group.all_gather_word(1, words, in_an_hour());
    if (kind == 1) group.all_gather(fakes::patterned(1, 8), in_an_hour());
    if (kind >= 2) group.broadcast(bytes, kind - 2, in_an_hour());
    group.all_gather_word(2, words, in_an_hour());
  };
  for (int first = 0; first < 4; ++first) {
    for (int second = 0; second < 4; ++second) {
      if (first == second) continue;
      group_ = "calls-" + std::to_string(first) + std::to_string(second);
      SCOPED_TRACE(group_);
      const auto outcomes = run_ranks(2, [&](int rank) {
        OpenedLane lane = open_lane(general(rank, 2), world_.world(), factory_, in_an_hour());
        ControlGroup& group = *lane.group;
        const auto error = failure_of([&] { calls(group, rank == 0 ? first : second); });
        EXPECT_EQ(error.kind, ErrorKind::kProtocol) << to_text(error);
        EXPECT_EQ(error.remedy, Remedy::kFixPeer);
        EXPECT_EQ(error.subject, "control group");
        expect_lost(failure_of([&] { group.all_gather({}, in_an_hour()); }), 1 - rank);
      });
      expect_all_succeed(outcomes);
    }
  }
}

TEST_F(Lane, RanksThatAreEachLateInTurnLoseNoWord) {
  constexpr std::uint64_t kCalls = 20'000;
  const auto outcomes = run_ranks(3, [&](int rank) {
    OpenedLane lane = open_lane(general(rank, 3), world_.world(), factory_, in_an_hour());
    std::vector<std::uint64_t> words(3);
    const auto mine = static_cast<std::uint64_t>(rank);
    std::uint64_t wrong = 0;
    for (std::uint64_t call = 0; call < kCalls; ++call) {
      if (call % 300 == mine * 100)
        clock_.sleep_until(clock_.now() + std::chrono::microseconds(200));
      lane.group->all_gather_word(call << 2 | mine, words, in_an_hour());
      for (std::uint64_t other = 0; other < 3; ++other)
        wrong += words[other] == (call << 2 | other) ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0U);
  });
  expect_all_succeed(outcomes);
}

TEST_F(Lane, CallNumbersStartAnewAfterTheirLast) {
  constexpr std::uint64_t kBeforeTheEnd = (std::uint64_t{1} << 32) - 7;
  const auto made = factory_.make(lane_words(2));
  // Each rank's line begins with the number of its latest call.
  for (std::size_t rank = 0; rank < 2; ++rank)
    made.words->store(kLineWords * (rank + 1), kBeforeTheEnd);
  const auto outcomes = run_ranks(2, [&](int rank) {
    LaneControlGroup::Parts parts;
    parts.general = general(rank, 2);
    parts.words = factory_.open(made.handle);
    parts.processes.resize(2);
    LaneControlGroup group(std::move(parts), clock_);
    std::vector<std::uint64_t> words(2);
    const auto mine = static_cast<std::uint64_t>(rank);
    for (std::uint64_t call = 0; call < 30; ++call) {
      EXPECT_TRUE(call % 3 == 0 || !group.alarm());
      if (call % 3 == 0 && rank == 0) group.raise_alarm();
      if (call % 3 == 0 && rank == 1)
        while (group.alarm() != 0) clock_.sleep_until(clock_.now() + std::chrono::microseconds(50));
      group.all_gather_word(call << 8 | mine, words, in_an_hour());
      EXPECT_EQ(words, (std::vector<std::uint64_t>{call << 8, call << 8 | 1}));
      ByteBuffer bytes = fakes::patterned(call, 3);
      if (call % 4 == 0) group.all_gather(bytes, in_an_hour());
      if (call % 4 == 1) group.broadcast(bytes, 1, in_an_hour());
    }
    EXPECT_LT(made.words->load(kLineWords * (mine + 1)) & 0xffffffff, 100U);
  });
  expect_all_succeed(outcomes);
}

TEST_F(Lane, AnAloneRankAgreesWithItself) {
  OpenedLane lane = open_lane(general(0, 1), world_.world(), factory_, in_an_hour());
  EXPECT_TRUE(lane.shared);
  std::vector<std::uint64_t> words(1);
  lane.group->all_gather_word(3, words, in_an_hour());
  EXPECT_EQ(words[0], 3U);
  EXPECT_EQ(lane.group->all_gather(fakes::patterned(1, 2), in_an_hour())[0],
            fakes::patterned(1, 2));
}

}  // namespace
}  // namespace tpsync::collective
