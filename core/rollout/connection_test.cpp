// The connection's states: what each failure leaves behind, that the runtime is gone before the
// call returns, and what another thread may do in the middle of a request.
#include "tpsync/rollout/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "core/rollout/testing/scripted_runtime.h"
#include "tpsync/base/os_channel.h"

namespace tpsync::rollout {
namespace {

using fakes::failure_of;
using fakes::Peer;
using fakes::ScriptedRuntime;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Duration kTimeout = seconds(10);

wire::Payload request_for(wire::Command command) {
  switch (command) {
    case wire::Command::kGenerate:
      return wire::GenerateRequest{};
    case wire::Command::kSleep:
      return wire::SleepRequest{};
    case wire::Command::kWakeUp:
      return wire::WakeUpRequest{};
    case wire::Command::kHealth:
      return wire::HealthRequest{};
    case wire::Command::kProbeIpc:
      return wire::ProbeIpcRequest{};
    case wire::Command::kInit:
      return wire::InitRequest{};
    case wire::Command::kRelease:
      return wire::ReleaseRequest{};
    case wire::Command::kShutdown:
      return wire::ShutdownRequest{};
    default:
      return wire::StartupRequest{};
  }
}

class ConnectionTest : public testing::Test {
 protected:
  ConnectionTest() {
    auto [ours, theirs] = world_.channels.make_pair();
    SpawnRequest request;
    request.channel = std::move(theirs);
    auto process = world_.processes.spawn(std::move(request));
    connection_.emplace(world_.world(), std::move(ours), std::move(process));
  }

  wire::Result request(wire::Command command) {
    return connection_->request(request_for(command), kTimeout);
  }
  ErrorRecord failure(wire::Command command) {
    return failure_of([&] { request(command); });
  }
  bool runtime_alive() const { return world_.processes.processes[0]->alive; }
  Peer& peer() { return *world_.channels.peers[0]; }

  void expect_broken() {
    EXPECT_EQ(connection_->state(), ConnectionState::kBroken);
    EXPECT_FALSE(runtime_alive());
    EXPECT_TRUE(peer().closed);
    const std::size_t sent = runtime_.commands.size();
    const ErrorRecord record = failure(wire::Command::kHealth);
    EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
    EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
    EXPECT_THAT(record.detail, HasSubstr("the runtime is broken and cannot be reused"));
    EXPECT_EQ(runtime_.commands.size(), sent);
  }

  fakes::FakeWorld world_;
  ScriptedRuntime runtime_{world_};
  std::optional<Connection> connection_;
};

TEST_F(ConnectionTest, IdsRiseByOneAndAFailedRequestUsesItsOwn) {
  request(wire::Command::kHealth);
  runtime_.instead[wire::Command::kGenerate] = ScriptedRuntime::failure("InvalidInput: no");
  failure(wire::Command::kGenerate);
  request(wire::Command::kHealth);
  EXPECT_THAT(runtime_.ids, ElementsAre(1, 2, 3));
}

TEST_F(ConnectionTest, AFailedGenerateHealthOrProbeLeavesItIdle) {
  for (const auto command :
       {wire::Command::kGenerate, wire::Command::kHealth, wire::Command::kProbeIpc}) {
    runtime_.instead[command] = ScriptedRuntime::failure("InvalidInput: bad prompt");
    const ErrorRecord record = failure(command);
    EXPECT_EQ(record.kind, ErrorKind::kRemote) << name_of(command);
    EXPECT_EQ(record.remedy, Remedy::kTryLater);
    EXPECT_THAT(record.subject, HasSubstr(std::string(name_of(command)) + " (request "));
    EXPECT_EQ(record.detail, "InvalidInput: bad prompt (there)");
    EXPECT_EQ(connection_->state(), ConnectionState::kIdle);
    runtime_.instead.clear();
    request(command == wire::Command::kProbeIpc ? wire::Command::kHealth : command);
  }
  EXPECT_TRUE(runtime_alive());
}

TEST_F(ConnectionTest, ARequestThatCannotBeEncodedIsNotSentAndBreaksNothing) {
  request(wire::Command::kHealth);
  const ErrorRecord record = failure_of([&] {
    connection_->request(wire::Command::kGenerate, std::chrono::seconds(1),
                         [](std::int64_t, ByteBuffer&) {
                           throw_invalid(ErrorKind::kProtocol, "message", "is too large");
                         });
  });
  EXPECT_EQ(record.remedy, Remedy::kFixInput);
  EXPECT_EQ(record.subject, "generate (request 2): message");
  EXPECT_EQ(connection_->state(), ConnectionState::kIdle);
  request(wire::Command::kHealth);
  EXPECT_THAT(runtime_.ids, ElementsAre(1, 2));
  EXPECT_TRUE(runtime_alive());
}

TEST_F(ConnectionTest, ARequestThatCannotBeEncodedIsPoisonedAllTheSame) {
  const ErrorRecord record = failure_of([&] {
    connection_->request(wire::Command::kGenerate, std::chrono::seconds(1),
                         [&](std::int64_t, ByteBuffer&) {
                           connection_->poison("the test wants it gone");
                           throw_invalid(ErrorKind::kProtocol, "message", "is too large");
                         });
  });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  EXPECT_THAT(record.detail, HasSubstr("the test wants it gone"));
  expect_broken();
}

class ConnectionBreakTest : public ConnectionTest,
                            public testing::WithParamInterface<wire::Command> {};

INSTANTIATE_TEST_SUITE_P(Commands, ConnectionBreakTest,
                         testing::Values(wire::Command::kStartup, wire::Command::kSleep,
                                         wire::Command::kWakeUp, wire::Command::kInit,
                                         wire::Command::kRelease),
                         [](const auto& given) { return std::string(name_of(given.param)); });

TEST_P(ConnectionBreakTest, AFailedReplyEndsTheRuntimeBeforeTheCallReturns) {
  runtime_.instead[GetParam()] = ScriptedRuntime::failure("RuntimeBroken: lost");
  const ErrorRecord record = failure(GetParam());
  EXPECT_EQ(record.kind, ErrorKind::kRemote);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  expect_broken();
}

TEST_F(ConnectionTest, ATimeoutBreaksAtTheDeadlineAndNamesTheRequest) {
  runtime_.instead[wire::Command::kHealth] = ScriptedRuntime::nothing();
  const TimePoint begin = world_.clock.now();
  const ErrorRecord record = failure(wire::Command::kHealth);
  EXPECT_EQ(record.kind, ErrorKind::kTimeout);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  EXPECT_THAT(record.subject, HasSubstr("health (request 1)"));
  EXPECT_EQ(world_.clock.now() - begin, kTimeout);
  expect_broken();
}

TEST_F(ConnectionTest, HalfAReplyIsATimeoutOfTheWholeOperation) {
  runtime_.instead[wire::Command::kHealth] = ScriptedRuntime::bytes("TPS1\x10");
  const TimePoint begin = world_.clock.now();
  EXPECT_EQ(failure(wire::Command::kHealth).kind, ErrorKind::kTimeout);
  EXPECT_EQ(world_.clock.now() - begin, kTimeout);
  expect_broken();
}

TEST_F(ConnectionTest, EndOfFileBreaks) {
  runtime_.instead[wire::Command::kGenerate] = ScriptedRuntime::end_of_file();
  const ErrorRecord record = failure(wire::Command::kGenerate);
  EXPECT_EQ(record.kind, ErrorKind::kEndOfFile);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  expect_broken();
}

TEST_F(ConnectionTest, EndOfFileWhileSendingBreaks) {
  peer().gone = true;
  EXPECT_EQ(failure(wire::Command::kHealth).kind, ErrorKind::kEndOfFile);
  expect_broken();
}

TEST_F(ConnectionTest, BytesThatAreNoFrameBreak) {
  runtime_.instead[wire::Command::kHealth] = ScriptedRuntime::bytes("HTTP/1.1 200 OK");
  const ErrorRecord record = failure(wire::Command::kHealth);
  EXPECT_EQ(record.kind, ErrorKind::kProtocol);
  EXPECT_EQ(record.remedy, Remedy::kFixPeer);
  expect_broken();
}

TEST_F(ConnectionTest, AReplyToAnotherRequestBreaks) {
  runtime_.instead[wire::Command::kHealth] =
      ScriptedRuntime::response([](const wire::RequestHead& head) {
        wire::Response response = fakes::succeeded(head, wire::HealthResult{});
        ++response.request_id;
        return response;
      });
  const ErrorRecord record = failure(wire::Command::kHealth);
  EXPECT_EQ(record.kind, ErrorKind::kProtocol);
  EXPECT_THAT(record.subject, HasSubstr("request_id"));
  expect_broken();
}

TEST_F(ConnectionTest, AResultOfAnotherTypeBreaksEvenForGenerate) {
  runtime_.instead[wire::Command::kGenerate] = ScriptedRuntime::response(
      [](const wire::RequestHead& head) { return fakes::succeeded(head, wire::HealthResult{}); });
  EXPECT_EQ(failure(wire::Command::kGenerate).kind, ErrorKind::kProtocol);
  expect_broken();
}

TEST_F(ConnectionTest, AStubbornRuntimeIsKilledBeforeTheCallReturns) {
  world_.processes.processes[0]->ignores_terminate = true;
  runtime_.instead[wire::Command::kSleep] = ScriptedRuntime::failure("RuntimeBroken: no memory");
  failure(wire::Command::kSleep);
  EXPECT_THAT(world_.processes.processes[0]->signals,
              ElementsAre(Signal::kTerminate, Signal::kKill));
  expect_broken();
}

TEST_F(ConnectionTest, ASecondRequestIsRefusedAtOnceAndNamesTheOneInFlight) {
  std::optional<ErrorRecord> second;
  peer().before_read = [&] {
    if (second) return;
    EXPECT_EQ(connection_->state(), ConnectionState::kInflight);
    second.emplace(failure(wire::Command::kHealth));
  };
  request(wire::Command::kGenerate);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->kind, ErrorKind::kInvalidState);
  EXPECT_EQ(second->remedy, Remedy::kTryLater);
  EXPECT_EQ(second->subject, "health");
  EXPECT_EQ(second->detail, "the connection is INFLIGHT with generate");
  EXPECT_THAT(runtime_.commands, ElementsAre("generate"));
  request(wire::Command::kHealth);
  EXPECT_THAT(runtime_.ids, ElementsAre(1, 2));
}

TEST_F(ConnectionTest, PoisonDuringARequestEndsThatRequest) {
  runtime_.instead[wire::Command::kGenerate] = ScriptedRuntime::nothing();
  peer().before_read = [&] { connection_->poison("the trainer gave up"); };
  const ErrorRecord record = failure(wire::Command::kGenerate);
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  EXPECT_THAT(record.detail, HasSubstr("the trainer gave up"));
  expect_broken();
}

TEST_F(ConnectionTest, AReplyThatArrivesAfterPoisonIsAnError) {
  // The reply was read in full when poison came: the last read is the one that completes it.
  runtime_.instead[wire::Command::kHealth] = [&](Peer& peer, const wire::RequestHead& head) {
    fakes::send_response(peer, fakes::succeeded(head, wire::HealthResult{}));
  };
  peer().before_read = [&] {
    if (peer().from_it.size() > 3) return;
    connection_->poison("too late");
    peer().closed = false;  // as if the read had begun before the channel was closed
  };
  const ErrorRecord record = failure(wire::Command::kHealth);
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  EXPECT_THAT(record.detail, HasSubstr("too late"));
  EXPECT_TRUE(peer().from_it.empty());
  EXPECT_EQ(connection_->state(), ConnectionState::kBroken);
  EXPECT_FALSE(runtime_alive());
}

TEST_F(ConnectionTest, PoisonIsIdempotentAndKeepsTheFirstReason) {
  connection_->poison("first");
  connection_->poison("second");
  EXPECT_EQ(world_.processes.processes[0]->signals.size(), 1u);
  EXPECT_THAT(failure(wire::Command::kHealth).detail, HasSubstr("first"));
  expect_broken();
}

TEST_F(ConnectionTest, ShutdownAsksWaitsAndIsNoBreak) {
  connection_->shutdown(kTimeout);
  EXPECT_THAT(runtime_.commands, ElementsAre("shutdown"));
  EXPECT_THAT(world_.processes.processes[0]->signals, ElementsAre());
  EXPECT_FALSE(runtime_alive());
  EXPECT_EQ(connection_->state(), ConnectionState::kIdle);
  connection_->shutdown(kTimeout);
  EXPECT_EQ(runtime_.commands.size(), 1u);
  const ErrorRecord record = failure(wire::Command::kHealth);
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  EXPECT_THAT(record.detail, HasSubstr("shut down"));
}

TEST_F(ConnectionTest, ShutdownEndsARuntimeThatDoesNotAnswer) {
  runtime_.instead[wire::Command::kShutdown] = ScriptedRuntime::nothing();
  connection_->shutdown(kTimeout);
  EXPECT_FALSE(runtime_alive());
}

TEST_F(ConnectionTest, ShutdownEndsARuntimeThatAnswersAndStays) {
  runtime_.instead[wire::Command::kShutdown] = ScriptedRuntime::response(
      [](const wire::RequestHead& head) { return fakes::succeeded(head); });
  const TimePoint begin = world_.clock.now();
  connection_->shutdown(kTimeout);
  EXPECT_EQ(world_.clock.now() - begin, kTimeout);
  EXPECT_FALSE(runtime_alive());
}

TEST_F(ConnectionTest, TheDestructorEndsTheRuntime) {
  connection_.reset();
  EXPECT_FALSE(runtime_alive());
}

// The same with two real threads and a real channel: poison comes while the other thread waits.
TEST(ConnectionThreads, PoisonFromAnotherThreadEndsAWaitingRequest) {
  fakes::FakeWorld fake;
  OsChannelFactory channels;
  auto [ours, theirs] = channels.make_pair();
  SpawnRequest spawn;
  const World world{fake.clock,  channels, fake.processes, fake.host,
                    fake.random, fake.log, fake.threads};
  Connection connection(world, std::move(ours), fake.processes.spawn(std::move(spawn)));
  ByteBuffer request;
  auto other = fake.threads.spawn("poison", [&, channel = theirs.get()] {
    wire::receive_frame(*channel, request, Deadline::never());  // the request is on its way
    connection.poison("from another thread");
  });
  // Longer than any clock of the system runs: only poison can end it.
  const ErrorRecord record = failure_of(
      [&] { connection.request(wire::HealthRequest{}, std::chrono::hours(24 * 365 * 200)); });
  other->join();
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_THAT(record.detail, HasSubstr("from another thread"));
  EXPECT_EQ(connection.state(), ConnectionState::kBroken);
  EXPECT_FALSE(fake.processes.processes[0]->alive);
}

}  // namespace
}  // namespace tpsync::rollout
