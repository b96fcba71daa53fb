// Processes, fibers, kills, channels and signals of the simulated world.
#include "sim/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>

#include "sim/testing.h"

namespace tpsync::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::config_of;
using testing::count;
using testing::kind_of;

void write_all(Channel& channel, std::string_view text, Deadline deadline) {
  ByteView left = as_view(text);
  while (!left.empty()) left = left.subspan(channel.write_some(left, deadline));
}

std::string read_to_end(Channel& channel, Deadline deadline) {
  std::string text;
  std::array<std::byte, 7> piece;
  for (;;) {
    const std::size_t got = channel.read_some(piece, deadline);
    if (got == 0) return text;
    text += as_text(ByteView(piece.data(), got));
  }
}

// Two exceptions are being handled by two fibers, each switches away inside its handler and
// rethrows: each must get its own back.
TEST(Fibers, EachRethrowsItsOwnExceptionAfterSwitchingInsideTwoHandlers) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Pools pools;
    SimWorld world(config_of(seed), pools);
    std::array<std::string, 2> caught;
    std::array<int, 2> numbers{};
    for (int rank = 0; rank < 2; ++rank) {
      world.start_process("actor", rank, 0, [&, rank](SimProcess& process) {
        try {
          try {
            throw std::runtime_error("of rank " + std::to_string(rank));
          } catch (const std::exception&) {
            errno = 100 + rank;
            for (int i = 0; i < 5; ++i) process.world().clock.now();
            numbers[static_cast<std::size_t>(rank)] = errno;
            throw;
          }
        } catch (const std::exception& error) {
          caught[static_cast<std::size_t>(rank)] = error.what();
        }
        return 0;
      });
    }
    EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
    EXPECT_EQ(caught[0], "of rank 0");
    EXPECT_EQ(caught[1], "of rank 1");
    EXPECT_EQ(numbers[0], 100);
    EXPECT_EQ(numbers[1], 101);
  }
}

TEST(Kill, UnwindsTheStackBeforeAnybodyElseRuns) {
  Pools pools;
  SimWorld world(config_of(1), pools);
  bool unwound = false;
  struct Guard {
    bool& flag;
    ~Guard() { flag = true; }
  };
  SimProcess& victim = world.start_process("actor", 0, 0, [&](SimProcess& process) {
    const Guard guard{unwound};
    try {
      process.world().clock.sleep_until(TimePoint{1'000'000'000});
      auto [left, right] = process.world().channels.make_pair();
      ADD_FAILURE() << "survived its kill";
    } catch (const std::exception&) {
      ADD_FAILURE() << "a kill is no error";
    }
    return 0;
  });
  world.start_process("actor", 1, 0, [&](SimProcess& process) {
    process.world().clock.now();
    world.kill(victim);
    EXPECT_TRUE(unwound);
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_EQ(victim.outcome().kind, Outcome::Kind::kKilled);
  EXPECT_EQ(victim.outcome().code, 9);
}

TEST(Kill, ThatIsSwallowedForeverIsAHarnessError) {
  Pools pools;
  SimWorld world(config_of(1), pools);
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    world.kill(process);
    for (;;) {
      try {
        process.world().channels.make_pair();
      } catch (...) {
      }
    }
    return 0;
  });
  const RunResult result = world.run();
  EXPECT_EQ(result.kind, RunResult::Kind::kHarnessError);
  EXPECT_THAT(result.detail, ::testing::StartsWith("kill swallowed at actor 0"));
}

TEST(Kill, OfOnesOwnProcessUnwindsAtTheNextOperation) {
  Pools pools;
  SimWorld world(config_of(1), pools);
  bool returned = false;
  SimProcess& actor = world.start_process("actor", 0, 0, [&](SimProcess& process) {
    world.kill(process);
    returned = true;
    process.world().channels.make_pair();
    ADD_FAILURE() << "went on";
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_TRUE(returned);
  EXPECT_EQ(actor.outcome().kind, Outcome::Kind::kKilled);
}

TEST(World, AProcessThatWaitsForeverIsAHang) {
  Pools pools;
  SimWorld world(config_of(1), pools);
  world.start_process("actor", 0, 0, [](SimProcess& process) {
    auto [left, right] = process.world().channels.make_pair();
    std::array<std::byte, 1> byte;
    left->read_some(byte, Deadline::never());
    return 0;
  });
  const RunResult result = world.run();
  EXPECT_EQ(result.kind, RunResult::Kind::kHang);
  EXPECT_EQ(result.detail, "nobody can go on: actor 0");
}

TEST(World, AProcessThatSpinsIsAHang) {
  Pools pools;
  SimConfig config = config_of(1);
  config.step_limit = 1000;
  SimWorld world(config, pools);
  world.start_process("actor", 0, 0, [](SimProcess& process) {
    for (;;) process.world().clock.now();
    return 0;
  });
  const RunResult result = world.run();
  EXPECT_EQ(result.kind, RunResult::Kind::kHang);
  EXPECT_EQ(result.detail, "the step limit was reached");
}

TEST(World, AnExceptionThatLeavesABodyIsACrash) {
  Pools pools;
  SimWorld world(config_of(1), pools);
  world.start_process("actor", 0, 0, [](SimProcess&) -> int {
    throw_broken(ErrorKind::kIo, "somewhere", "something");
  });
  const RunResult result = world.run();
  EXPECT_EQ(result.kind, RunResult::Kind::kCrash);
  EXPECT_THAT(result.detail, ::testing::HasSubstr("somewhere: something"));
}

Program echo_program() {
  Program program;
  program.role = "runtime";
  program.body = [](SimProcess& process) {
    auto channel = process.take_channel();
    write_all(*channel, "hello ", Deadline::never());
    write_all(*channel, "parent", Deadline::never());
    return 7;
  };
  return program;
}

std::unique_ptr<Process> spawn(SimProcess& process, std::string program,
                               std::unique_ptr<Channel>* channel = nullptr,
                               std::vector<std::string> arguments = {}) {
  SpawnRequest request;
  request.program = std::move(program);
  request.arguments = std::move(arguments);
  if (channel != nullptr) {
    auto [mine, theirs] = process.world().channels.make_pair();
    *channel = std::move(mine);
    request.channel = std::move(theirs);
  }
  return process.world().processes.spawn(std::move(request));
}

TEST(Hosts, AChildListsByNameWhatItWasSpawnedWithAndAStartedProcessHasNothing) {
  Pools pools;
  SimWorld world(config_of(1), pools);
  Environment of_parent{{"SET", "wrongly"}};
  Environment of_child;
  std::optional<std::string> twice;
  Program program;
  program.role = "lister";
  program.body = [&](SimProcess& process) {
    of_child = process.world().host.environment();
    twice = process.world().host.environment("TWICE");
    return 0;
  };
  world.register_program("lister", std::move(program));
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    of_parent = process.world().host.environment();
    SpawnRequest request;
    request.program = "lister";
    request.environment = {{"TWICE", "first"}, {"B", "2"}, {"TWICE", "again"}, {"A", ""}};
    const auto child = process.world().processes.spawn(std::move(request));
    child->wait(Deadline::after(process.world().clock, seconds(1)));
    return 0;
  });
  world.run();
  EXPECT_EQ(of_parent, Environment{});
  EXPECT_EQ(of_child, (Environment{{"A", ""}, {"B", "2"}, {"TWICE", "first"}}));
  EXPECT_EQ(twice, "first");
}

TEST(Channels, DeliverWhatWasAcceptedBeforeTheEndOfFileOfADeadProcess) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (const std::uint64_t capacity :
         {std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{65536}}) {
      Pools pools;
      SimConfig config = config_of(seed);
      config.pipe_capacity = capacity;
      SimWorld world(config, pools);
      world.register_program("echo", echo_program());
      std::string text;
      std::optional<ExitStatus> status;
      world.start_process("actor", 0, 0, [&](SimProcess& process) {
        std::unique_ptr<Channel> channel;
        auto child = spawn(process, "echo", &channel);
        text = read_to_end(*channel, Deadline::after(process.world().clock, seconds(1)));
        status = child->wait(Deadline::after(process.world().clock, seconds(1)));
        return 0;
      });
      EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
      EXPECT_EQ(text, "hello parent");
      EXPECT_EQ(status, (ExitStatus{false, 7}));
    }
  }
}

TEST(Channels, TimeOutOnReadAndOnAFullPipe) {
  Pools pools;
  SimConfig config = config_of(3);
  config.pipe_capacity = 4;
  SimWorld world(config, pools);
  std::vector<ErrorKind> kinds;
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    auto [left, right] = process.world().channels.make_pair();
    Channel& end = *left;
    std::array<std::byte, 1> byte;
    Clock& clock = process.world().clock;
    kinds.push_back(kind_of([&] { end.read_some(byte, Deadline::after(clock, milliseconds(5))); }));
    kinds.push_back(
        kind_of([&] { write_all(end, "too long", Deadline::after(clock, milliseconds(5))); }));
    right.reset();
    kinds.push_back(kind_of([&] { write_all(end, "x", Deadline::after(clock, milliseconds(5))); }));
    end.close();
    kinds.push_back(kind_of([&] { end.read_some(byte, Deadline::after(clock, milliseconds(5))); }));
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_THAT(kinds, ::testing::ElementsAre(ErrorKind::kTimeout, ErrorKind::kTimeout,
                                            ErrorKind::kEndOfFile, ErrorKind::kIo));
}

TEST(Channels, PassDescriptorsInOrderBesideBytes) {
  Pools pools;
  SimWorld world(config_of(4), pools);
  std::vector<std::uint64_t> objects;
  ErrorKind kind{};
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    auto [left, right] = process.world().channels.make_pair();
    const Deadline deadline = Deadline::after(process.world().clock, seconds(1));
    const std::array<int, 2> sent = {process.open_descriptor(71), process.open_descriptor(72)};
    left->send_descriptors(sent, deadline);
    write_all(*left, "x", deadline);
    for (const int got : right->receive_descriptors(2, deadline))
      objects.push_back(*process.descriptor_object(got));
    kind = kind_of([&, end = right.get()] { end->receive_descriptors(1, deadline); });
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_THAT(objects, ::testing::ElementsAre(71u, 72u));
  EXPECT_EQ(kind, ErrorKind::kProtocol);
}

TEST(Channels, DescriptorsWhereBytesAreDueAreThePeersViolationAndStayNext) {
  Pools pools;
  SimWorld world(config_of(4), pools);
  std::optional<ErrorRecord> violation;
  std::vector<std::uint64_t> objects;
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    auto [left, right] = process.world().channels.make_pair();
    const Deadline deadline = Deadline::after(process.world().clock, seconds(1));
    const int sent = process.open_descriptor(71);
    left->send_descriptors({&sent, 1}, deadline);
    std::array<std::byte, 1> into{};
    try {
      right->read_some(into, deadline);
    } catch (const PeerViolation& error) {
      violation = error.record();
    }
    for (const int got : right->receive_descriptors(1, deadline))
      objects.push_back(*process.descriptor_object(got));
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  ASSERT_TRUE(violation.has_value());
  EXPECT_EQ(violation->kind, ErrorKind::kProtocol);
  EXPECT_EQ(violation->subject, "channel");
  EXPECT_THAT(objects, ::testing::ElementsAre(71u));
}

TEST(Channels, WaitReadableReturnsTheLowestReadableOrTheCountAtTheDeadline) {
  Pools pools;
  SimWorld world(config_of(5), pools);
  std::vector<std::size_t> found;
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    auto first = process.world().channels.make_pair();
    auto second = process.world().channels.make_pair();
    const std::array<Channel*, 2> both = {first.first.get(), second.first.get()};
    Clock& clock = process.world().clock;
    const auto wait = [&] {
      found.push_back(
          process.world().channels.wait_readable(both, Deadline::after(clock, milliseconds(1))));
    };
    wait();
    write_all(*second.second, "x", Deadline::never());
    wait();
    first.second.reset();
    clock.sleep_until(clock.now() + milliseconds(1));
    wait();
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_THAT(found, ::testing::ElementsAre(2u, 1u, 0u));
}

Program sleeper_program() {
  Program program;
  program.role = "worker";
  program.body = [](SimProcess& process) {
    process.world().clock.sleep_until(TimePoint{3'600'000'000'000});
    return 0;
  };
  return program;
}

TEST(Signals, AStoppedProcessDiesByKillOnly) {
  Pools pools;
  SimWorld world(config_of(6), pools);
  world.register_program("sleeper", sleeper_program());
  std::vector<std::optional<ExitStatus>> seen;
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    Clock& clock = process.world().clock;
    auto child = spawn(process, "sleeper");
    world.stop(*world.find("worker", 0));
    EXPECT_TRUE(child->signal_group(Signal::kTerminate));
    seen.push_back(child->wait(Deadline::after(clock, seconds(5))));
    EXPECT_TRUE(child->group_alive());
    EXPECT_TRUE(child->signal_group(Signal::kKill));
    seen.push_back(child->wait(Deadline::after(clock, seconds(5))));
    EXPECT_FALSE(child->group_alive());
    EXPECT_FALSE(child->signal_group(Signal::kKill));
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_THAT(seen, ::testing::ElementsAre(std::nullopt, ExitStatus{true, 9}));
}

TEST(Signals, ChildrenDieWithTheirParentAndAttachedProcessesAreWaitedFor) {
  Pools pools;
  SimWorld world(config_of(7), pools);
  world.register_program("sleeper", sleeper_program());
  SimProcess& parent = world.start_process("actor", 0, 0, [&](SimProcess& process) {
    auto child = spawn(process, "sleeper");
    process.world().clock.sleep_until(TimePoint{3'600'000'000'000});
    return 0;
  });
  std::optional<ExitStatus> status;
  world.start_process("actor", 1, 0, [&](SimProcess& process) {
    Clock& clock = process.world().clock;
    clock.sleep_until(clock.now() + milliseconds(1));
    auto handle = process.world().processes.attach(world.find("worker", 0)->pid());
    world.kill(parent);
    status = handle->wait(Deadline::after(clock, seconds(1)));
    EXPECT_EQ(process.world().processes.attach(99), nullptr);
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_EQ(status, (ExitStatus{false, 0}));
  EXPECT_EQ(count(world.trace(), EventKind::kProcessOrphaned), 1u);
}

TEST(Processes, AnUnknownProgramIsAnIoErrorAndClosesTheChannel) {
  Pools pools;
  SimWorld world(config_of(8), pools);
  ErrorKind kind{};
  std::size_t got = 99;
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    std::unique_ptr<Channel> channel;
    kind = kind_of([&] { spawn(process, "nothing", &channel); });
    std::array<std::byte, 1> byte;
    got = channel->read_some(byte, Deadline::after(process.world().clock, seconds(1)));
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_EQ(kind, ErrorKind::kIo);
  EXPECT_EQ(got, 0u);
}

TEST(Threads, ShareAMutexAndWakeOneAnotherThroughACondition) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Pools pools;
    SimWorld world(config_of(seed), pools);
    int value = 0;
    bool timed_out = false;
    world.start_process("actor", 0, 0, [&](SimProcess& process) {
      Threads& threads = process.world().threads;
      auto mutex = threads.make_mutex();
      auto condition = threads.make_condition();
      auto thread = threads.spawn("helper", [&] {
        for (int i = 0; i < 3; ++i) {
          const MutexLock lock(*mutex);
          const int seen = value;
          process.world().clock.now();
          value = seen + 1;
          condition->notify_all();
        }
      });
      {
        const MutexLock lock(*mutex);
        while (value < 3)
          condition->wait(*mutex, Deadline::after(process.world().clock, seconds(1)));
        timed_out =
            !condition->wait(*mutex, Deadline::after(process.world().clock, milliseconds(1)));
      }
      thread->join();
      return 0;
    });
    EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
    EXPECT_EQ(value, 3);
    EXPECT_TRUE(timed_out);
  }
}

// A small world with everything in it that has an identity.
TraceHash hash_of_run(SimConfig config, std::string_view message = "hello",
                      std::vector<Choice>* choices = nullptr, RunResult* result = nullptr) {
  Pools pools;
  SimWorld world(std::move(config), pools);
  Program program;
  program.role = "runtime";
  program.body = [&](SimProcess& process) {
    auto channel = process.take_channel();
    read_to_end(*channel, Deadline::never());
    return 0;
  };
  world.register_program("reader", program);
  for (int rank = 0; rank < 3; ++rank) {
    world.start_process("actor", rank, 0, [&](SimProcess& process) {
      std::unique_ptr<Channel> channel;
      auto child = spawn(process, "reader", &channel, {"--rank", std::to_string(process.rank())});
      write_all(*channel, message, Deadline::never());
      channel.reset();
      child->wait(Deadline::after(process.world().clock, seconds(1)));
      return 0;
    });
  }
  const RunResult ran = world.run();
  if (result != nullptr) *result = ran;
  if (choices != nullptr) *choices = world.trace().choices;
  return hash_of(world.trace());
}

TEST(Traces, AreEqualForEqualSeedsAndDifferForOneByteOrOneChoice) {
  for (const Policy policy : {Policy::kFirstReady, Policy::kLastReady, Policy::kSeeded}) {
    SimConfig config = config_of(11, 3);
    config.policy = policy;
    std::vector<Choice> choices;
    const TraceHash first = hash_of_run(config, "hello", &choices);
    EXPECT_EQ(hash_of_run(config), first);
    EXPECT_NE(hash_of_run(config, "hellp"), first);
    ASSERT_GT(choices.size(), 10u);
    SimConfig deviating = config;
    deviating.deviations.push_back({10, (choices[10].chosen + 1u) % choices[10].count});
    EXPECT_NE(hash_of_run(deviating), first);
    SimConfig other = config;
    other.seed = 12;
    EXPECT_NE(hash_of_run(other), first);
  }
}

TEST(Traces, AreReplayedByTheirChoicesAndAMismatchIsSaid) {
  SimConfig config = config_of(13, 3);
  std::vector<Choice> choices;
  const TraceHash first = hash_of_run(config, "hello", &choices);
  SimConfig replaying = config;
  replaying.policy = Policy::kFirstReady;
  replaying.replay = choices;
  RunResult result;
  EXPECT_EQ(hash_of_run(replaying, "hello", nullptr, &result), first);
  EXPECT_EQ(result.kind, RunResult::Kind::kFinished);
  replaying.replay[5].candidates ^= 1;
  hash_of_run(replaying, "hello", nullptr, &result);
  EXPECT_EQ(result.kind, RunResult::Kind::kReplayMismatch);
  EXPECT_EQ(result.choice, 5u);
}

TEST(Time, PassesWithEveryOperationAndSkipsIdleness) {
  Pools pools;
  SimWorld world(config_of(14), pools);
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    Clock& clock = process.world().clock;
    const TimePoint first = clock.now();
    const TimePoint second = clock.now();
    EXPECT_GE((second - first).count(), 50);
    EXPECT_LE((second - first).count(), 100);
    clock.sleep_until(second + seconds(1000));
    EXPECT_GE((clock.now() - second).count(), 1'000'000'000'000);
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
}

}  // namespace
}  // namespace tpsync::sim
