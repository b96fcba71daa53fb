// The contract of control groups, checked for each that is made of real ranks: over Gloo, and on
// the shared-memory lane. What the ranks are given, and what they are told when one of them dies,
// leaves, is late, or makes another call. Ranks are threads here, and processes where one is
// killed.
#include "tpsync/collective/control_group.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <latch>

#include "tpsync/collective/lane_control_group.h"
#include "tpsync/collective/os_shared_words.h"
#include "tpsync/collective/testing/gloo_ranks.h"

namespace tpsync::collective {
namespace {

enum class Form { kGloo, kLane };

class ControlGroupOfRanks : public fakes::GlooRanks, public testing::WithParamInterface<Form> {
 protected:
  using Body = std::function<void(ControlGroup&)>;

  // Runs `body` for the ranks [0, threads) of a group of `size`, each on a thread of its own.
  fakes::Outcomes run(int size, const Body& body, std::optional<int> threads = std::nullopt) {
    return run_ranks(threads.value_or(size), [&](int rank) {
      std::unique_ptr<ControlGroup> group =
          std::make_unique<GlooControlGroup>(options(rank, size), world_.world());
      if (GetParam() == Form::kLane) {
        OpenedLane lane = open_lane(std::move(group), world_.world(), factory_, in_an_hour());
        ASSERT_TRUE(lane.shared);
        group = std::move(lane.group);
      }
      body(*group);
    });
  }

  std::unique_ptr<Process> spawn(int rank, int size, const std::string& behaviour) {
    const std::string form = GetParam() == Form::kLane ? "lane:" : "";
    return spawn_rank(TPSYNC_TEST_RANK, rank, size, form + behaviour);
  }

  OsSharedWordsFactory factory_;
};

INSTANTIATE_TEST_SUITE_P(Forms, ControlGroupOfRanks, testing::Values(Form::kGloo, Form::kLane),
                         [](const auto& form) {
                           return form.param == Form::kLane ? "OnTheLane" : "OverGloo";
                         });

TEST_P(ControlGroupOfRanks, EveryRankGetsTheWordOfEveryRank) {
  for (const int size : {1, 2, 4}) {
    const auto outcomes = run(size, [&](ControlGroup& group) {
      EXPECT_EQ(group.size(), size);
      const auto count = static_cast<std::size_t>(size);
      for (std::uint64_t call = 0; call < 200; ++call) {
        std::vector<std::uint64_t> words(count);
        const auto mine = static_cast<std::uint64_t>(group.rank());
        group.all_gather_word(call << 8 | mine, words, in_an_hour());
        for (std::size_t rank = 0; rank < count; ++rank) EXPECT_EQ(words[rank], call << 8 | rank);
      }
    });
    expect_all_succeed(outcomes);
  }
}

TEST_P(ControlGroupOfRanks, BuffersOfAnyLengthArriveInRankOrder) {
  constexpr std::size_t kSizes[4][5] = {{0, 1, 1000, kMiB, 0},
                                        {0, 0, 17, 3 * kMiB + 1, kMiB},
                                        {0, 4096, 1, 1, 64 * kMiB},
                                        {0, 70000, 0, 1 * kMiB, 2}};
  const auto outcomes = run(4, [&](ControlGroup& group) {
    const auto mine = static_cast<std::size_t>(group.rank());
    for (std::size_t call = 0; call < 5; ++call) {
      const auto gathered =
          group.all_gather(fakes::patterned(mine, kSizes[mine][call]), in_an_hour());
      ASSERT_EQ(gathered.size(), 4U);
      for (std::size_t rank = 0; rank < 4; ++rank)
        EXPECT_TRUE(gathered[rank] == fakes::patterned(rank, kSizes[rank][call]));
    }
  });
  expect_all_succeed(outcomes);
}

TEST_P(ControlGroupOfRanks, EachRankBroadcastsInTurnAndLargeOnesToo) {
  const auto outcomes = run(3, [&](ControlGroup& group) {
    for (std::size_t call = 0; call < 60; ++call) {
      const std::size_t root = call % 3;
      const std::size_t length = call == 7 ? 16 * kMiB : call * 100;
      ByteBuffer bytes{std::byte{9}};
      if (static_cast<std::size_t>(group.rank()) == root) bytes = fakes::patterned(root, length);
      group.broadcast(bytes, static_cast<int>(root), in_an_hour());
      EXPECT_TRUE(bytes == fakes::patterned(root, length));
    }
  });
  expect_all_succeed(outcomes);
}

TEST_P(ControlGroupOfRanks, ARootThatIsFarAheadIsHeldUpAndLosesNothing) {
  constexpr std::uint64_t kCalls = 2000;
  const auto outcomes = run(2, [&](ControlGroup& group) {
    for (std::uint64_t call = 0; call < kCalls; ++call) {
      ByteBuffer bytes;
      if (group.rank() == 0) bytes = fakes::patterned(call, 40);
      group.broadcast(bytes, 0, in_an_hour());
      EXPECT_TRUE(bytes == fakes::patterned(call, 40));
    }
  });
  expect_all_succeed(outcomes);
}

TEST_P(ControlGroupOfRanks, AnAbsentRankIsNamedAtTheDeadlineAndTheGroupStaysBroken) {
  const auto outcomes = run(2, [&](ControlGroup& group) {
    std::vector<std::uint64_t> words(2);
    if (group.rank() == 1) {
      // Comes only when rank 0 has given it up, and said so. What rank 0 had sent before counts.
      while (!group.lost_peer()) clock_.sleep_until(clock_.now() + std::chrono::milliseconds(1));
      group.all_gather_word(1, words, in_an_hour());
      EXPECT_EQ(words[0], 2U);
      expect_lost(failure_of([&] { group.all_gather({}, in_an_hour()); }), 0);
      return;
    }
    const auto soon = Deadline::after(clock_, std::chrono::milliseconds(20));
    const auto error = failure_of([&] { group.all_gather_word(2, words, soon); });
    expect_lost(error, 1);
    EXPECT_EQ(error.detail, "no contribution before the deadline");
    for (int i = 0; i < 3; ++i) {
      expect_lost(failure_of([&] { group.all_gather({}, in_an_hour()); }), 1);
      EXPECT_EQ(group.lost_peer(), 1);
    }
  });
  expect_all_succeed(outcomes);
}

TEST_P(ControlGroupOfRanks, ARankThatGivesUpFreesThoseWhoWouldWaitOn) {
  const auto outcomes = run(3, [&](ControlGroup& group) {
    if (group.rank() == 2) {
      while (!group.lost_peer()) clock_.sleep_until(clock_.now() + std::chrono::milliseconds(1));
      return;
    }
    // Rank 0 may lack rank 1 too by then, and so name none.
    const auto deadline = group.rank() == 0 ? Deadline::at(clock_.now()) : in_an_hour();
    const auto error = failure_of([&] { group.all_gather({}, deadline); });
    EXPECT_EQ(error.kind, ErrorKind::kPeerLost);
    EXPECT_NE(error.rank, group.rank());
  });
  expect_all_succeed(outcomes);
}

TEST_P(ControlGroupOfRanks, AKilledRankIsLostToAllAtOnce) {
  std::unique_ptr<Process> child = spawn(2, 3, "idle");
  // What the child gives to the first call may still be on its way when its own call returned.
  std::latch heard(2);
  const auto outcomes = run(
      3,
      [&](ControlGroup& group) {
        group.all_gather({}, in_an_hour());
        heard.arrive_and_wait();
        if (group.rank() == 0) {
          wait_for_child();
          EXPECT_FALSE(group.lost_peer());
          child->signal(Signal::kKill);
        }
        std::vector<std::uint64_t> words(3);
        expect_lost(failure_of([&] { group.all_gather_word(1, words, in_an_hour()); }), 2);
        EXPECT_EQ(group.lost_peer(), 2);
        expect_lost(failure_of([&] { group.all_gather({}, in_an_hour()); }), 2);
      },
      2);
  expect_all_succeed(outcomes);
}

TEST_P(ControlGroupOfRanks, ARankThatIsKilledWhileItSendsIsHeardInFullOrLost) {
  for (int round = 0; round < 8; ++round) {
    group_ = "round-" + std::to_string(round);
    std::unique_ptr<Process> child = spawn(1, 2, "send-much");
    const auto outcomes = run(
        2,
        [&](ControlGroup& group) {
          wait_for_child();
          const std::unique_ptr<Thread> killer = threads_.spawn("killer", [&] {
            clock_.sleep_until(clock_.now() + std::chrono::milliseconds(round * 10));
            child->signal(Signal::kKill);
          });
          std::optional<ErrorRecord> error;
          attempt(error, [&] {
            const auto gathered = group.all_gather({}, in_an_hour());
            EXPECT_TRUE(gathered[1] == ByteBuffer(64 * kMiB, std::byte{0x5a}));
          });
          if (error) expect_lost(*error, 1);
          expect_lost(failure_of([&] { group.all_gather({}, in_an_hour()); }), 1);
          killer->join();
        },
        1);
    expect_all_succeed(outcomes);
  }
}

TEST_P(ControlGroupOfRanks, ADeadRankIsKnownWithoutACall) {
  std::unique_ptr<Process> child = spawn(1, 2, "exit");
  const auto outcomes = run(
      2,
      [&](ControlGroup& group) {
        EXPECT_FALSE(group.lost_peer());
        const std::byte go{1};
        channel_->write_some({&go, 1}, in_an_hour());
        while (!group.lost_peer()) clock_.sleep_until(clock_.now() + std::chrono::milliseconds(1));
        EXPECT_EQ(group.lost_peer(), 1);
      },
      1);
  expect_all_succeed(outcomes);
}

TEST_P(ControlGroupOfRanks, AStoppedRankIsLostAtTheDeadlineAndLeavingItDoesNotHang) {
  std::unique_ptr<Process> child = spawn(1, 2, "gather-till-lost");
  const auto outcomes = run(
      2,
      [&](ControlGroup& group) {
        wait_for_child();
        group.all_gather({}, in_an_hour());
        ASSERT_EQ(kill(static_cast<pid_t>(child->pid()), SIGSTOP), 0);
        const auto soon = [&] { return Deadline::after(clock_, std::chrono::milliseconds(200)); };
        const auto until_lost = [&] {
          for (;;) group.all_gather(fakes::patterned(0, kMiB), soon());
        };
        expect_lost(failure_of(until_lost), 1);
        group.leave();
        ASSERT_EQ(kill(static_cast<pid_t>(child->pid()), SIGCONT), 0);
      },
      1);
  expect_all_succeed(outcomes);
  EXPECT_EQ(child->wait(in_an_hour()), (ExitStatus{false, 0}));  // it has lost rank 0
}

TEST_P(ControlGroupOfRanks, ALargeLastPayloadIsNotLostToAPeerThatIsSlowToTakeIt) {
  std::unique_ptr<Process> child = spawn(1, 2, "say-each-gather");
  const auto outcomes = run(
      2,
      [&](ControlGroup& group) {
        wait_for_child();
        group.all_gather({}, in_an_hour());
        wait_for_child();
        // Time to enter the next call; a child that has not is waited for in the call itself.
        clock_.sleep_until(clock_.now() + std::chrono::milliseconds(100));
        ASSERT_EQ(kill(static_cast<pid_t>(child->pid()), SIGSTOP), 0);
        const auto later = clock_.now() + 3 * kGlooFarewell;
        const auto goes_on = threads_.spawn("goes-on", [&] {
          clock_.sleep_until(later);
          kill(static_cast<pid_t>(child->pid()), SIGCONT);
        });
        group.all_gather(ByteBuffer(64 * kMiB), in_an_hour());
        group.leave();
        goes_on->join();
      },
      1);
  expect_all_succeed(outcomes);
  wait_for_child();                                              // it has the payload
  EXPECT_EQ(child->wait(in_an_hour()), (ExitStatus{false, 0}));  // and lost rank 0 afterwards
}

TEST_P(ControlGroupOfRanks, ARankThatLeavesIsLostToThoseWhoStillNeedIt) {
  const auto outcomes = run(3, [&](ControlGroup& group) {
    const auto gathered = group.all_gather(
        fakes::patterned(static_cast<std::size_t>(group.rank()), 100), in_an_hour());
    EXPECT_TRUE(gathered[2] == fakes::patterned(2, 100));
    if (group.rank() == 2) {
      group.leave();
      group.leave();
      const auto error = failure_of([&] { group.all_gather({}, in_an_hour()); });
      EXPECT_EQ(error.kind, ErrorKind::kInvalidState);
      return;
    }
    const auto error = failure_of([&] { group.all_gather({}, in_an_hour()); });
    EXPECT_EQ(error.kind, ErrorKind::kPeerLost);
    // The first to know leaves too, and the other may hear of that first.
    EXPECT_NE(error.rank, group.rank());
  });
  expect_all_succeed(outcomes);
}

TEST_P(ControlGroupOfRanks, TheLastCallOfRanksThatLeaveAtOnceSucceedsEverywhere) {
  for (int round = 0; round < 30; ++round) {
    group_ = "round-" + std::to_string(round);
    const auto outcomes = run(4, [&](ControlGroup& group) {
      std::vector<std::uint64_t> words(4);
      group.all_gather_word(7, words, in_an_hour());
    });
    expect_all_succeed(outcomes);
  }
}

TEST_P(ControlGroupOfRanks, AnAlarmConcernsTheNextCallAlone) {
  const auto outcomes = run(3, [&](ControlGroup& group) {
    std::vector<std::uint64_t> words(3);
    for (int round = 0; round < 50; ++round) {
      group.all_gather_word(0, words, in_an_hour());
      EXPECT_FALSE(group.alarm());
      group.all_gather_word(0, words, in_an_hour());
      if (group.rank() == 1) {
        group.raise_alarm();
        group.raise_alarm();
        EXPECT_FALSE(group.alarm());
      } else {
        while (!group.alarm()) clock_.sleep_until(clock_.now() + std::chrono::microseconds(100));
        EXPECT_EQ(group.alarm(), 1);
      }
      group.all_gather_word(0, words, in_an_hour());
      EXPECT_FALSE(group.alarm());
    }
    EXPECT_FALSE(group.lost_peer());
    group.all_gather({}, in_an_hour());
  });
  expect_all_succeed(outcomes);
}

TEST_P(ControlGroupOfRanks, RanksThatMakeDifferentCallsAreToldSo) {
  const auto outcomes = run(2, [&](ControlGroup& group) {
    std::vector<std::uint64_t> words(2);
    const auto error = failure_of([&] {
      if (group.rank() == 0) {
        group.all_gather_word(1, words, in_an_hour());
      } else {
        group.all_gather(fakes::patterned(1, 8), in_an_hour());
      }
    });
    EXPECT_EQ(error.kind, ErrorKind::kProtocol);
    EXPECT_EQ(error.subject, "control group");
    expect_lost(failure_of([&] { group.all_gather({}, in_an_hour()); }), 1 - group.rank());
  });
  expect_all_succeed(outcomes);
}

TEST_P(ControlGroupOfRanks, ARankThatIsStoppedBetweenWordsIsLostAtTheDeadlineAndToldSoLater) {
  std::unique_ptr<Process> child = spawn(1, 2, "agree-till-lost");
  const auto outcomes = run(
      2,
      [&](ControlGroup& group) {
        wait_for_child();
        std::vector<std::uint64_t> words(2);
        for (int call = 0; call < 100; ++call) group.all_gather_word(2, words, in_an_hour());
        ASSERT_EQ(kill(static_cast<pid_t>(child->pid()), SIGSTOP), 0);
        const auto until_lost = [&] {
          for (;;)
            group.all_gather_word(2, words,
                                  Deadline::after(clock_, std::chrono::milliseconds(200)));
        };
        const auto error = failure_of(until_lost);
        expect_lost(error, 1);
        EXPECT_EQ(error.detail, "no contribution before the deadline");
        group.leave();
        ASSERT_EQ(kill(static_cast<pid_t>(child->pid()), SIGCONT), 0);
      },
      1);
  expect_all_succeed(outcomes);
  EXPECT_EQ(child->wait(in_an_hour()), (ExitStatus{false, 0}));  // it has lost rank 0
}

TEST_P(ControlGroupOfRanks, ARankThatIsKilledBetweenWordsIsLostWhereverItWas) {
  for (int round = 0; round < 8; ++round) {
    group_ = "round-" + std::to_string(round);
    std::unique_ptr<Process> child = spawn(2, 3, "agree-till-lost");
    const auto outcomes = run(
        3,
        [&](ControlGroup& group) {
          if (group.rank() == 0) wait_for_child();
          std::vector<std::uint64_t> words(3);
          const auto until_lost = [&] {
            for (int call = 0;; ++call) {
              if (group.rank() == 0 && call == 50 + round) child->signal(Signal::kKill);
              group.all_gather_word(2, words, in_an_hour());
              EXPECT_EQ(words, (std::vector<std::uint64_t>{2, 2, 1}));
            }
          };
          const auto error = failure_of(until_lost);
          EXPECT_EQ(error.kind, ErrorKind::kPeerLost);
          // Its last word may have reached one rank alone, which the other then loses.
          EXPECT_NE(error.rank, group.rank());
        },
        2);
    expect_all_succeed(outcomes);
  }
}

TEST_P(ControlGroupOfRanks, NothingIsLeftOfAHundredGroups) {
  std::size_t descriptors = 0;
  std::size_t tasks = 0;
  for (int round = 0; round < 100; ++round) {
    const auto outcomes = run(2, [&](ControlGroup& group) {
      std::vector<std::uint64_t> words(2);
      group.all_gather_word(1, words, in_an_hour());
      if (round % 3 == 0) group.all_gather(fakes::patterned(1, 100), in_an_hour());
      if (round % 3 == 1 && group.rank() == 1) group.leave();
    });
    expect_all_succeed(outcomes);
    if (round == 1) {
      descriptors = fakes::entries("/proc/self/fd");
      tasks = fakes::entries("/proc/self/task");
    }
  }
  EXPECT_EQ(fakes::entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(fakes::entries("/proc/self/task"), tasks);
  EXPECT_EQ(fakes::entries(folder_.c_str()), 0U);
}

}  // namespace
}  // namespace tpsync::collective
