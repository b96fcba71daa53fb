// Where decorators come in, and process groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "sim/device.h"
#include "sim/sanitizers.h"
#include "sim/testing.h"
#include "sim/world.h"
#include "tpsync/base/forwarding.h"
#include "tpsync/collective/forwarding_groups.h"

namespace tpsync::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::config_of;
using testing::kind_of;

class SlowClock final : public ForwardingClock {
 public:
  using ForwardingClock::ForwardingClock;
  TimePoint now() noexcept override { return inner().now() + seconds(100); }
};

// Cuts off after some bytes: the process that reads sees end of file.
class CutChannel final : public ForwardingChannel, public ReadinessOverride {
 public:
  CutChannel(std::unique_ptr<Channel> inner, std::size_t left)
      : ForwardingChannel(std::move(inner)), left_(left) {}
  std::size_t read_some(MutableByteView into, Deadline deadline) override {
    if (left_ == 0) return 0;
    const std::size_t got =
        ForwardingChannel::read_some(into.first(std::min(into.size(), left_)), deadline);
    left_ -= got;
    return got;
  }
  Readiness readiness() override { return left_ == 0 ? Readiness::kReadable : Readiness::kAsInner; }

 private:
  std::size_t left_;
};

Program waiting_program(std::string role) {
  Program program;
  program.role = std::move(role);
  program.body = [](SimProcess& process) {
    process.world().clock.sleep_until(TimePoint{3'600'000'000'000});
    return 0;
  };
  return program;
}

TEST(Hooks, ReplaceASeamOfOneProcess) {
  Hooks hooks;
  hooks.process_created = [](SimProcess& process, SeamSet& seams) {
    if (process.rank() != 1) return;
    auto clock = std::make_shared<SlowClock>(*seams.clock);
    seams.clock = clock.get();
    process.keep(clock);
  };
  Pools pools;
  SimWorld world(config_of(1), pools, hooks);
  std::array<std::int64_t, 2> times{};
  for (int rank = 0; rank < 2; ++rank)
    world.start_process("actor", rank, 0, [&](SimProcess& process) {
      times[static_cast<std::size_t>(process.rank())] = process.world().clock.now().ns;
      return 0;
    });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_LT(times[0], 1'000'000);
  EXPECT_GT(times[1], 100'000'000'000);
}

TEST(Hooks, WrapBothEndsOfAChannelWhenItsChildIsSpawned) {
  std::vector<std::string> wrapped;
  Hooks hooks;
  hooks.wrap_channel = [&](SimProcess& process, PeerName peer, std::unique_ptr<Channel> inner) {
    wrapped.push_back(std::string(process.role()) + " with " + std::string(peer.role));
    if (process.role() == "actor")
      return std::unique_ptr<Channel>(std::make_unique<CutChannel>(std::move(inner), 3));
    return inner;
  };
  Pools pools;
  SimWorld world(config_of(2), pools, hooks);
  Program program;
  program.role = "runtime";
  program.body = [](SimProcess& process) {
    auto channel = process.take_channel();
    ByteView left = as_view("abcdef");
    while (!left.empty()) left = left.subspan(channel->write_some(left, Deadline::never()));
    return 0;
  };
  world.register_program("runtime", program);
  std::string text;
  std::size_t readable = 9;
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    auto [mine, theirs] = process.world().channels.make_pair();
    SpawnRequest request;
    request.program = "runtime";
    request.channel = std::move(theirs);
    const auto child = process.world().processes.spawn(std::move(request));
    std::array<std::byte, 8> piece;
    for (;;) {
      const std::size_t got =
          mine->read_some(piece, Deadline::after(process.world().clock, seconds(1)));
      if (got == 0) break;
      text += as_text(ByteView(piece.data(), got));
    }
    const std::array<Channel*, 1> one = {mine.get()};
    readable = process.world().channels.wait_readable(
        one, Deadline::after(process.world().clock, seconds(1)));
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_EQ(text, "abc");
  EXPECT_EQ(readable, 0u);
  EXPECT_THAT(wrapped, ::testing::ElementsAre("runtime with actor", "actor with runtime"));
}

TEST(Hooks, WrapEveryMembersGroups) {
  std::vector<int> ranks;
  Hooks hooks;
  hooks.wrap_control_group = [&](SimProcess& process,
                                 std::unique_ptr<collective::ControlGroup> inner) {
    ranks.push_back(process.rank());
    return inner;
  };
  hooks.wrap_shard_group = [&](SimProcess& process, std::unique_ptr<collective::ShardGroup> inner) {
    ranks.push_back(10 + process.rank());
    return inner;
  };
  Pools pools;
  SimWorld world(config_of(3), pools, hooks);
  std::vector<SimProcess*> members;
  for (int rank = 0; rank < 2; ++rank)
    members.push_back(&world.start_process("actor", rank, 0, [](SimProcess&) { return 0; }));
  const auto control = world.make_control_group(members);
  const auto shard = world.make_shard_group(members);
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_THAT(ranks, ::testing::ElementsAre(0, 1, 10, 11));
}

TEST(Groups, ASignalReachesEveryMemberOfAChildsGroup) {
  Pools pools;
  SimWorld world(config_of(4), pools);
  world.register_program("worker", waiting_program("worker"));
  Program runtime;
  runtime.role = "runtime";
  runtime.body = [](SimProcess& process) {
    std::vector<std::unique_ptr<Process>> workers;
    for (int rank = 0; rank < 2; ++rank) {
      SpawnRequest request;
      request.program = "worker";
      request.arguments = {"--rank", std::to_string(rank)};
      request.own_group = false;
      workers.push_back(process.world().processes.spawn(std::move(request)));
    }
    process.world().clock.sleep_until(TimePoint{3'600'000'000'000});
    return 0;
  };
  world.register_program("runtime", runtime);
  bool gone = false;
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    SpawnRequest request;
    request.program = "runtime";
    const auto child = process.world().processes.spawn(std::move(request));
    Clock& clock = process.world().clock;
    clock.sleep_until(TimePoint{1'000'000});
    EXPECT_TRUE(child->group_alive());
    gone = kill_tree(*child, clock);
    EXPECT_FALSE(child->group_alive());
    EXPECT_LT(clock.now().ns, 1'000'000'000);
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_TRUE(gone);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(world.find("worker", rank)->outcome().kind, Outcome::Kind::kKilled);
    EXPECT_EQ(world.find("worker", rank)->outcome().code, 15);
  }
}

TEST(Groups, AKillRoutineThatIsItselfKilledEnds) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Pools pools;
    SimWorld world(config_of(seed), pools);
    world.register_program("worker", waiting_program("worker"));
    SimProcess& actor = world.start_process("actor", 0, 0, [&](SimProcess& process) {
      SpawnRequest request;
      request.program = "worker";
      const auto child = process.world().processes.spawn(std::move(request));
      world.stop(*world.find("worker", 0));
      kill_tree(*child, process.world().clock);
      process.world().channels.make_pair();
      ADD_FAILURE() << "survived";
      return 0;
    });
    world.start_process("killer", 0, 0, [&](SimProcess& process) {
      process.world().clock.sleep_until(TimePoint{1'000'000'000});
      world.kill(actor);
      return 0;
    });
    EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
    EXPECT_EQ(actor.outcome().kind, Outcome::Kind::kKilled);
  }
}

TEST(Groups, AThreadThatKillsItsProcessIsUnwoundBeforeItsStarter) {
  Pools pools;
  SimWorld world(config_of(5), pools);
  std::vector<std::string> order;
  struct Note {
    std::vector<std::string>& order;
    std::string name;
    ~Note() {
      const HarnessAccess harness;
      order.push_back(name);
    }
  };
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    const Note mine{order, "main"};
    const auto thread = process.world().threads.spawn("killer", [&] {
      const Note its{order, "thread"};
      world.kill(process);
      process.world().channels.make_pair();
      ADD_FAILURE() << "survived";
    });
    thread->join();
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_THAT(order, ::testing::ElementsAre("thread", "main"));
}

TEST(Groups, AThreadThatWaitsIsUnwoundWithItsProcess) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Pools pools;
    SimWorld world(config_of(seed), pools);
    int unwound = 0;
    struct Count {
      int& number;
      ~Count() { ++number; }
    };
    SimProcess& actor = world.start_process("actor", 0, 0, [&](SimProcess& process) {
      const Count mine{unwound};
      Threads& threads = process.world().threads;
      const auto mutex = threads.make_mutex();
      const auto condition = threads.make_condition();
      const auto thread = threads.spawn("waiter", [&] {
        const Count its{unwound};
        const MutexLock lock(*mutex);
        while (condition->wait(*mutex, Deadline::never())) {
        }
      });
      thread->join();
      return 0;
    });
    world.start_process("killer", 0, 0, [&](SimProcess& process) {
      process.world().clock.sleep_until(TimePoint{1'000'000});
      world.kill(actor);
      return 0;
    });
    EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
    EXPECT_EQ(unwound, 2);
  }
}

}  // namespace
}  // namespace tpsync::sim
