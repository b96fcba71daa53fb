// The group of core that gathers weights by copies from peers, on simulated devices and words:
// under many schedules with copies that land late, with deaths at any step, and with what is freed
// afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "sim/device.h"
#include "sim/groups.h"
#include "sim/shared_words.h"
#include "sim/testing.h"
#include "tpsync/collective/peer_copy_shard_group.h"

namespace tpsync::sim {
namespace {

using collective::ControlGroup;
using collective::GatherPart;
using collective::PeerCopyShardGroup;
using std::chrono::seconds;
using testing::config_of;
using testing::kind_of;

constexpr int kRanks = 3;
constexpr int kRounds = 4;
const std::vector<GatherPart> kParts = {{0, 5}, {16, 0}, {16, 90}};

class ActorWorld {
 public:
  using Body = std::function<void(SimProcess&, ControlGroup&)>;

  ActorWorld(const SimConfig& config, Body body) : world(config, pools_), body_(std::move(body)) {
    for (int rank = 0; rank < kRanks; ++rank)
      members.push_back(&world.start_process(
          "actor", rank, static_cast<std::size_t>(rank), [this, rank](SimProcess& process) {
            const auto control = std::move(control_[static_cast<std::size_t>(rank)]);
            body_(process, *control);
            return 0;
          }));
    control_ = world.make_control_group(members);
  }

 private:
  Pools pools_;

 public:
  SimWorld world;
  std::vector<SimProcess*> members;

 private:
  Body body_;
  std::vector<std::unique_ptr<ControlGroup>> control_;
};

std::byte content(std::size_t rank, int round) {
  return static_cast<std::byte>(static_cast<int>(rank) + 1 + 16 * round);
}

// Gathers by turns in two buffers. Each rank writes its next part as soon as its wait is over.
class Gathering {
 public:
  Gathering(SimProcess& process, ControlGroup& control)
      : process_(process),
        control_(control),
        factory_(process),
        device_(process.device()),
        shards_(control, device_, factory_, process.world(), in(seconds(1))),
        stream_(device_.create_stream()) {
    for (auto& buffer : buffers_)
      buffer = device_.allocate({112, device::RegionKind::kExportable, ""});
  }

  void gather() {
    const auto mine = static_cast<std::size_t>(control_.rank());
    for (int round = 0; round < kRounds; ++round) {
      const device::RegionId buffer = buffers_[round % 2];
      device_.fill(stream_, buffer, kParts[mine].offset, kParts[mine].bytes, content(mine, round));
      shards_.all_gather(stream_, buffer, kParts);
      shards_.wait(stream_, in(seconds(1)), control_);
      for (std::size_t r = 0; r < kParts.size(); ++r) {
        ByteBuffer got(kParts[r].bytes);
        process_.sim_device().peek(buffer, kParts[r].offset, got);
        EXPECT_THAT(got, ::testing::Each(content(r, round))) << "part " << r;
      }
    }
  }

  // As an owner does whatever came of the gathers. True if all memory was freed.
  bool give_back() {
    device_.synchronize(stream_, in(seconds(1)));
    bool freed = true;
    for (const device::RegionId buffer : buffers_) {
      if (shards_.detach(buffer, in(seconds(1))))
        device_.free(buffer);
      else
        freed = false;
    }
    device_.destroy_stream(stream_);
    return freed;
  }

 private:
  Deadline in(Duration time) { return Deadline::after(process_.world().clock, time); }

  SimProcess& process_;
  ControlGroup& control_;
  SimSharedWordsFactory factory_;
  device::Device& device_;
  PeerCopyShardGroup shards_;
  device::StreamId stream_;
  device::RegionId buffers_[2] = {};
};

TEST(PeerCopies, EveryRankHasEveryPartUnderEverySchedule) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    int freed = 0;
    ActorWorld run(config_of(seed, kRanks), [&](SimProcess& process, ControlGroup& control) {
      Gathering gathering(process, control);
      gathering.gather();
      freed += gathering.give_back() ? 1 : 0;
    });
    EXPECT_EQ(run.world.run().kind, RunResult::Kind::kFinished) << "seed " << seed;
    EXPECT_EQ(freed, kRanks);
    EXPECT_THAT(run.world.violations(), ::testing::IsEmpty()) << "seed " << seed;
  }
}

TEST(PeerCopies, ADeathAtAnyTimeIsALostPeerAndNothingIsFreedUnderAReader) {
  int lost = 0;
  int completed = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    int ended = 0;
    ActorWorld run(config_of(seed, kRanks), [&](SimProcess& process, ControlGroup& control) {
      std::optional<Gathering> gathering;
      const ErrorKind error = kind_of([&] {
        gathering.emplace(process, control);
        gathering->gather();
      });
      if (process.dead()) return;  // killed in a call that does not throw
      // Words whose maker died before they were opened can't be opened.
      if (gathering || error != ErrorKind::kIo) {
        EXPECT_THAT(error, ::testing::AnyOf(ErrorKind::kPeerLost, ErrorKind::kPeerFailed,
                                            ErrorKind::kInternal))
            << "seed " << seed;
      }
      if (gathering) {
        EXPECT_TRUE(gathering->give_back()) << "seed " << seed;
      }
      if (process.dead()) return;
      ++(error == ErrorKind::kInternal ? completed : lost);
      ++ended;
    });
    SimProcess& victim = *run.members[seed % kRanks];
    run.world.start_process("killer", 0, 0, [&](SimProcess& process) {
      process.world().clock.sleep_until(TimePoint{static_cast<std::int64_t>(seed * 700)});
      run.world.kill(victim);
      return 0;
    });
    EXPECT_EQ(run.world.run().kind, RunResult::Kind::kFinished) << "seed " << seed;
    EXPECT_GE(ended, kRanks - 1) << "seed " << seed;
    EXPECT_THAT(run.world.violations(), ::testing::IsEmpty()) << "seed " << seed;
  }
  EXPECT_GT(lost, 100);
  EXPECT_GT(completed, 50);
}

TEST(PeerCopies, AStoppedRankIsFoundByTheDeadlineAndKeepsWhatItHasOpen) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    int timeouts = 0;
    ActorWorld run(config_of(seed, kRanks), [&](SimProcess& process, ControlGroup& control) {
      Gathering gathering(process, control);
      if (control.rank() == 2) process.sim().stop(process);
      const ErrorKind error = kind_of([&] { gathering.gather(); });
      // One gives up by its deadline and leaves; the other by that, or by its own.
      EXPECT_THAT(error, ::testing::AnyOf(ErrorKind::kTimeout, ErrorKind::kDevice));
      timeouts += error == ErrorKind::kTimeout ? 1 : 0;
      EXPECT_TRUE(gathering.give_back());  // the stopped rank had opened nothing yet
    });
    run.world.run();
    EXPECT_GE(timeouts, 1) << "seed " << seed;
    EXPECT_THAT(run.world.violations(), ::testing::IsEmpty()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tpsync::sim
