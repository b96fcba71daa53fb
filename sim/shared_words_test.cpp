// Shared words between simulated processes, and the agreement lane of core on them: under many
// schedules, with deaths at any access.
#include "sim/shared_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "sim/groups.h"
#include "sim/testing.h"
#include "tpsync/collective/lane_control_group.h"

namespace tpsync::sim {
namespace {

using collective::ControlGroup;
using collective::OpenedLane;
using std::chrono::seconds;
using testing::config_of;
using testing::count;
using testing::kind_of;

constexpr int kRanks = 3;
constexpr std::uint64_t kCalls = 6;
constexpr auto kOpened = static_cast<std::uint16_t>(EventKind::kHarness);

// Ranks of one host, each running the same body with its part of the general group.
class LaneWorld {
 public:
  using Body = std::function<void(SimProcess&, std::unique_ptr<ControlGroup>)>;

  LaneWorld(const SimConfig& config, Body body) : world(config, pools_), body_(std::move(body)) {
    for (int rank = 0; rank < kRanks; ++rank)
      members.push_back(&world.start_process("actor", rank, static_cast<std::size_t>(rank),
                                             [this, rank](SimProcess& process) {
                                               const auto index = static_cast<std::size_t>(rank);
                                               body_(process, std::move(groups_[index]));
                                               return 0;
                                             }));
    groups_ = world.make_control_group(members);
  }

 private:
  Pools pools_;

 public:
  SimWorld world;
  std::vector<SimProcess*> members;

 private:
  Body body_;
  std::vector<std::unique_ptr<ControlGroup>> groups_;
};

std::unique_ptr<ControlGroup> open_lane(SimProcess& process,
                                        std::unique_ptr<ControlGroup> general) {
  SimSharedWordsFactory factory(process);
  OpenedLane lane = collective::open_lane(std::move(general), process.world(), factory,
                                          Deadline::after(process.world().clock, seconds(1)));
  // A peer may die once it has given its last word of the opening, and not be there to be watched.
  if (lane.shared) process.sim().record(kOpened);
  return std::move(lane.group);
}

// Words, and larger things over the general group, in turns; every result is checked.
void agree_on(SimProcess& process, ControlGroup& group) {
  const auto mine = static_cast<std::uint64_t>(group.rank());
  const auto in_a_second = [&] { return Deadline::after(process.world().clock, seconds(1)); };
  for (std::uint64_t call = 0; call < kCalls; ++call) {
    std::vector<std::uint64_t> words(kRanks);
    group.all_gather_word(call << 8 | mine, words, in_a_second());
    EXPECT_THAT(words, ::testing::ElementsAre(call << 8, call << 8 | 1, call << 8 | 2));
    if (call % 3 == 2) {
      ByteBuffer bytes;
      if (mine == 1) bytes.assign(call, std::byte{7});
      group.broadcast(bytes, 1, in_a_second());
      EXPECT_EQ(bytes.size(), call);
    }
  }
}

void agree(SimProcess& process, std::unique_ptr<ControlGroup> general) {
  agree_on(process, *open_lane(process, std::move(general)));
}

TEST(SharedWordsLane, EveryRankGetsEveryWordUnderEverySchedule) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    LaneWorld run(config_of(seed, kRanks), agree);
    EXPECT_EQ(run.world.run().kind, RunResult::Kind::kFinished) << "seed " << seed;
    EXPECT_EQ(count(run.world.trace(), EventKind::kHarness), std::size_t{kRanks});
    EXPECT_THAT(run.world.violations(), ::testing::IsEmpty());
  }
}

TEST(SharedWordsLane, TheSameSeedGivesTheSameTrace) {
  const auto hash = [](std::uint64_t seed) {
    LaneWorld run(config_of(seed, kRanks), agree);
    run.world.run();
    return hash_of(run.world.trace());
  };
  EXPECT_TRUE(hash(5) == hash(5));
  EXPECT_FALSE(hash(5) == hash(6));
}

TEST(SharedWordsLane, ADeathAtAnyTimeIsALostPeerToWhoeverStillNeedsTheRank) {
  int lost = 0;
  int completed = 0;
  std::size_t on_all = 0;
  std::size_t on_some = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    int ended = 0;
    LaneWorld run(
        config_of(seed, kRanks), [&](SimProcess& process, std::unique_ptr<ControlGroup> general) {
          // kInternal where nothing was thrown.
          const ErrorKind error = kind_of([&] { agree(process, std::move(general)); });
          EXPECT_THAT(error, ::testing::AnyOf(ErrorKind::kPeerLost, ErrorKind::kInternal));
          if (process.dead()) return;  // killed in a call that does not throw
          // Found in the words or through the handle, not by the deadline.
          EXPECT_LT(process.world().clock.now().ns, 500'000'000) << "seed " << seed;
          ++(error == ErrorKind::kPeerLost ? lost : completed);
          ++ended;
        });
    SimProcess& victim = *run.members[seed % kRanks];
    run.world.start_process("killer", 0, 0, [&](SimProcess& process) {
      process.world().clock.sleep_until(TimePoint{static_cast<std::int64_t>(seed * 400)});
      run.world.kill(victim);
      return 0;
    });
    EXPECT_EQ(run.world.run().kind, RunResult::Kind::kFinished) << "seed " << seed;
    EXPECT_EQ(
        ended,
        kRanks -
            (run.world.ended(victim) && victim.outcome().kind == Outcome::Kind::kKilled ? 1 : 0))
        << "seed " << seed;
    const std::size_t opened = count(run.world.trace(), EventKind::kHarness);
    ++(opened == std::size_t{kRanks} ? on_all : on_some);
    EXPECT_THAT(run.world.violations(), ::testing::IsEmpty());
  }
  EXPECT_GT(on_all, 100U);
  EXPECT_GT(on_some, 50U);
  EXPECT_GT(lost, 100);
  EXPECT_GT(completed, 100);
}

TEST(SharedWordsLane, AStoppedRankIsLostAtTheDeadline) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    int lost = 0;
    LaneWorld run(config_of(seed, kRanks),
                  [&](SimProcess& process, std::unique_ptr<ControlGroup> general) {
                    const auto group = open_lane(process, std::move(general));
                    if (group->rank() == 2) process.sim().stop(process);
                    try {
                      agree_on(process, *group);
                    } catch (const Error& error) {
                      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
                      EXPECT_EQ(error.record().rank, 2);
                      EXPECT_GE(process.world().clock.now().ns, 1'000'000'000);
                      ++lost;
                    }
                  });
    run.world.run();
    EXPECT_GE(lost, 2) << "seed " << seed;
  }
}

TEST(SharedWords, OfAMakerThatHasClosedThemOrDiedCantBeOpened) {
  Pools pools;
  SimWorld world(config_of(1), pools);
  ByteBuffer closed;
  ByteBuffer orphaned;
  SimProcess& maker = world.start_process("maker", 0, 0, [&](SimProcess& process) {
    SimSharedWordsFactory factory(process);
    closed = factory.make(3).handle;
    const auto made = factory.make(3);
    made.words->store(2, 9);
    orphaned = made.handle;
    process.world().clock.sleep_until(TimePoint{1'000'000'000});
    return 0;
  });
  world.start_process("opener", 0, 1, [&](SimProcess& process) {
    process.world().clock.sleep_until(TimePoint{1'000'000});
    SimSharedWordsFactory factory(process);
    EXPECT_EQ(kind_of([&] { factory.open(closed); }), ErrorKind::kIo);
    EXPECT_EQ(kind_of([&] { factory.open({}); }), ErrorKind::kIo);
    const auto opened = factory.open(orphaned);
    world.kill(maker);
    EXPECT_EQ(opened->load(2), 9U);
    EXPECT_EQ(kind_of([&] { factory.open(orphaned); }), ErrorKind::kIo);
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
}

}  // namespace
}  // namespace tpsync::sim
