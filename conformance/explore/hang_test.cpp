// Hangs of simulated worlds, as the judge explains them.
#include "conformance/judge/hang.h"

#include <gtest/gtest.h>

#include <array>

#include "sim/testing.h"

namespace tpsync::conformance {
namespace {

using sim::RunResult;
using sim::SimProcess;
using sim::SimWorld;
using sim::testing::config_of;

void read_for_ever(Channel& channel) {
  std::array<std::byte, 1> byte;
  channel.read_some(byte, Deadline::never());
}

// An actor starts a runtime with a channel; then each does what it is told.
class Pair {
 public:
  using Body = std::function<void(SimProcess&, Channel&)>;
  Pair(const sim::SimConfig& config, Body actor, Body runtime) : world_(config, pools_) {
    sim::Program program;
    program.role = "runtime";
    program.body = [runtime = std::move(runtime)](SimProcess& process) {
      const auto channel = process.take_channel();
      process.set_phase("update_native_weights", 2);
      runtime(process, *channel);
      return 0;
    };
    world_.register_program("runtime", std::move(program));
    world_.start_process("actor", 0, 0, [actor = std::move(actor)](SimProcess& process) {
      auto [mine, theirs] = process.world().channels.make_pair();
      SpawnRequest request;
      request.program = "runtime";
      request.channel = std::move(theirs);
      const auto child = process.world().processes.spawn(std::move(request));
      process.set_phase("native-transfer", 2);
      actor(process, *mine);
      return 0;
    });
  }

  std::string explained() {
    EXPECT_EQ(world_.run().kind, RunResult::Kind::kHang);
    return judge::explain_hang(world_.trace());
  }

 private:
  sim::Pools pools_;
  SimWorld world_;
};

TEST(Hang, OfTwoThatReadFromEachOtherIsADeadlockWithItsRing) {
  Pair pair(
      config_of(1), [](SimProcess&, Channel& channel) { read_for_ever(channel); },
      [](SimProcess&, Channel& channel) { read_for_ever(channel); });
  const std::string text = pair.explained();
  EXPECT_NE(text.find("actor 0 waits in channel.read for the runtime, since 0.0000"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("the runtime waits in channel.read for actor 0"), std::string::npos) << text;
  EXPECT_NE(text.find("in update_native_weights/2"), std::string::npos) << text;
  EXPECT_NE(text.find("deadlock: actor 0 -> the runtime -> actor 0"), std::string::npos) << text;
  EXPECT_EQ(text.find("livelock"), std::string::npos) << text;
}

TEST(Hang, OfOneThatGoesRoundWhileAnotherWaitsIsALivelock) {
  sim::SimConfig config = config_of(1);
  config.step_limit = 5000;
  Pair pair(
      config, [](SimProcess&, Channel& channel) { read_for_ever(channel); },
      [](SimProcess& process, Channel&) {
        for (;;) process.world().clock.now();
      });
  const std::string text = pair.explained();
  EXPECT_NE(text.find("actor 0 waits in channel.read for the runtime"), std::string::npos) << text;
  EXPECT_NE(text.find("livelock: the runtime goes round"), std::string::npos) << text;
  EXPECT_NE(text.find("in clock.now"), std::string::npos) << text;
  EXPECT_EQ(text.find("deadlock"), std::string::npos) << text;
}

TEST(Hang, OfACollectiveNamesWhoIsAbsent) {
  sim::Pools pools;
  SimWorld world(config_of(1), pools);
  std::vector<std::unique_ptr<collective::ControlGroup>> group;
  std::vector<SimProcess*> members;
  for (int rank = 0; rank < 2; ++rank) {
    members.push_back(&world.start_process(
        "actor", rank, static_cast<std::size_t>(rank), [&group, rank](SimProcess& process) {
          process.set_phase("native-materialize", 1);
          if (rank == 1) {
            auto [left, right] = process.world().channels.make_pair();
            read_for_ever(*left);
          }
          std::vector<std::uint64_t> words(2);
          group[0]->all_gather_word(1, words, Deadline::never());
          return 0;
        }));
  }
  group = world.make_control_group(members);
  EXPECT_EQ(world.run().kind, RunResult::Kind::kHang);
  const std::string text = judge::explain_hang(world.trace());
  EXPECT_NE(text.find("actor 0 waits in control.word for actor 1"), std::string::npos) << text;
  EXPECT_NE(text.find("deadlock: actor 1 -> actor 1"), std::string::npos) << text;
}

}  // namespace
}  // namespace tpsync::conformance
