// What ThreadSanitizer makes of the simulated world: processes that share memory are reported, in
// whatever order they run; what one of them hands to another through a seam is not.
#include <gtest/gtest.h>

#include <string>

#include "sim/testing.h"

namespace tpsync::sim {
namespace {

using testing::config_of;

constexpr int kReported = 66;  // the sanitizer's exit status after a report

// Ends the program, as death tests want it: with status 0 where nothing was reported.
[[noreturn]] void run_and_exit(SimWorld& world) {
  const RunResult result = world.run();
  if (result.kind != RunResult::Kind::kFinished) std::_Exit(1);
  std::exit(0);
}

// What happens between the two accesses.
enum class Between { kNothing, kMessage };

[[noreturn]] void two_processes_count(Between between) {
  Pools pools;
  SimWorld world(config_of(1), pools);
  int shared = 0;
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    auto [mine, theirs] = process.world().channels.make_pair();
    SpawnRequest request;
    request.program = "child";
    request.channel = std::move(theirs);
    const auto child = process.world().processes.spawn(std::move(request));
    const Deadline deadline = Deadline::after(process.world().clock, std::chrono::seconds(1));
    std::byte got{};
    if (between == Between::kMessage) mine->read_some({&got, 1}, deadline);
    ++shared;
    if (between == Between::kNothing) mine->read_some({&got, 1}, deadline);
    child->wait(deadline);
    return 0;
  });
  Program program;
  program.role = "child";
  program.body = [&](SimProcess& process) {
    const auto channel = process.take_channel();
    ++shared;
    const std::byte sent{1};
    channel->write_some({&sent, 1},
                        Deadline::after(process.world().clock, std::chrono::seconds(1)));
    return 0;
  };
  world.register_program("child", std::move(program));
  run_and_exit(world);
}

// The first world's processes leave stacks, records and buffers to the second one's.
[[noreturn]] void two_worlds_in_turn() {
  Pools pools;
  int shared = 0;
  for (int round = 0; round < 2; ++round) {
    SimWorld world(config_of(static_cast<std::uint64_t>(round)), pools);
    world.start_process("actor", 0, 0, [&](SimProcess& process) {
      process.world().clock.now();
      ++shared;
      return 0;
    });
    if (world.run().kind != RunResult::Kind::kFinished) std::_Exit(1);
  }
  std::exit(shared == 2 ? 0 : 1);
}

class ThreadSanitizer : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(ThreadSanitizer, ReportsTwoProcessesThatShareMemory) {
  EXPECT_EXIT(two_processes_count(Between::kNothing), ::testing::ExitedWithCode(kReported),
              "data race");
}

TEST_F(ThreadSanitizer, TakesAMessageForAnOrder) {
  EXPECT_EXIT(two_processes_count(Between::kMessage), ::testing::ExitedWithCode(0), "");
}

TEST_F(ThreadSanitizer, TakesTheEndOfAWorldForAnOrder) {
  EXPECT_EXIT(two_worlds_in_turn(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tpsync::sim
