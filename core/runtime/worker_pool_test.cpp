// The pool against scripted workers: replies by rank, the first failure at once, the parent watched
// meanwhile, and nothing left at the end.
#include "tpsync/runtime/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "core/wire/testing/scripted_peer.h"

namespace tpsync::runtime {
namespace {

using fakes::failure_of;
using fakes::Peer;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

using Answer = std::function<void(Peer&, const wire::RequestHead&)>;

void answer_ok(Peer& peer, const wire::RequestHead& head) {
  wire::Result result;
  if (head.command == "health") result = wire::HealthResult{};
  fakes::send_response(peer, fakes::succeeded(head, std::move(result)));
}

class WorkerPoolTest : public testing::Test {
 protected:
  static constexpr int kWorkers = 3;

  WorkerPoolTest() : parent_(parent_peer_, world_.clock) {
    world_.channels.on_pair = [this](Peer& peer, std::size_t rank) {
      fakes::on_frame(peer, [this, &peer, rank](const ByteBuffer& body) {
        bodies_[rank] = body;
        answers_[rank](peer, wire::decode_request_head(body));
      });
    };
    pool_.emplace(view_, parent_, kWorkers);
    pool_->spawn([](int rank) {
      SpawnRequest request;
      request.program = "worker";
      request.arguments = {std::to_string(rank)};
      return request;
    });
    for (std::size_t r = 0; r < kWorkers; ++r) {
      process(r).leaves_when_closed = world_.channels.peers[r];
    }
  }

  std::vector<WorkerPool::Reply> call(wire::Command command = wire::Command::kHealth,
                                      Collect collect = Collect::kEveryReply) {
    body_.clear();
    const wire::Payload payload = command == wire::Command::kHealth
                                      ? wire::Payload(wire::HealthRequest{})
                                      : wire::Payload(wire::InitRequest{});
    wire::encode_request(++id_, payload, body_);
    return pool_->call(command, id_, body_, seconds(10), collect);
  }
  fakes::ProcessState& process(std::size_t rank) { return *world_.processes.processes[rank]; }
  Peer& worker(std::size_t rank) { return *world_.channels.peers[rank]; }

  fakes::FakeWorld world_;
  World view_ = world_.world();
  std::shared_ptr<Peer> parent_peer_ = std::make_shared<Peer>();
  fakes::FakeChannel parent_;
  std::vector<Answer> answers_ = std::vector<Answer>(kWorkers, answer_ok);
  std::vector<ByteBuffer> bodies_ = std::vector<ByteBuffer>(kWorkers);
  ByteBuffer body_;
  std::int64_t id_ = 0;
  std::optional<WorkerPool> pool_;
};

TEST_F(WorkerPoolTest, WorkersAreMembersOfTheRuntimesGroup) {
  for (std::size_t r = 0; r < kWorkers; ++r) {
    EXPECT_FALSE(process(r).own_group);
    EXPECT_THAT(process(r).arguments, ElementsAre(std::to_string(r)));
  }
}

TEST_F(WorkerPoolTest, EveryWorkerGetsTheSameBytesAndRepliesComeByRank) {
  const auto replies = call();
  ASSERT_EQ(replies.size(), 3u);
  for (std::size_t r = 0; r < kWorkers; ++r) {
    EXPECT_EQ(bodies_[r], body_);
    EXPECT_EQ(replies[r].error, std::nullopt);
    EXPECT_TRUE(replies[r].response.ok);
  }
  EXPECT_EQ(first_error(replies), std::nullopt);
}

TEST_F(WorkerPoolTest, AFailedReplyCarriesTheWorkersErrorAndRank) {
  answers_[1] = [](Peer& peer, const wire::RequestHead& head) {
    fakes::send_response(peer, fakes::failed(head, "RuntimeBroken: no memory"));
  };
  const auto error = first_error(call());
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind, ErrorKind::kRemote);
  EXPECT_EQ(error->remedy, Remedy::kRebuildRuntime);
  EXPECT_EQ(error->rank, 1);
  EXPECT_EQ(error->subject, "worker 1");
  EXPECT_EQ(error->detail, "RuntimeBroken: no memory");
}

TEST_F(WorkerPoolTest, TheFirstFailureIsReportedWithoutWaitingForTheOthers) {
  answers_[0] = answers_[1] = [](Peer&, const wire::RequestHead&) {};
  answers_[2] = [](Peer& peer, const wire::RequestHead& head) {
    fakes::send_response(peer, fakes::failed(head, "PeerViolation: wrong"));
  };
  const TimePoint begin = world_.clock.now();
  const auto replies = call(wire::Command::kInit, Collect::kUntilFailure);
  EXPECT_EQ(world_.clock.now(), begin);
  EXPECT_EQ(replies[0].error->kind, ErrorKind::kPeerFailed);
  EXPECT_EQ(replies[1].error->kind, ErrorKind::kPeerFailed);
  EXPECT_EQ(first_error(replies)->rank, 2);
  EXPECT_EQ(first_error(replies)->kind, ErrorKind::kRemote);
}

TEST_F(WorkerPoolTest, WithoutThatEveryReplyIsTakenSoThatTheNextCallIsClean) {
  answers_[0] = [](Peer& peer, const wire::RequestHead& head) {
    fakes::send_response(peer, fakes::failed(head, "InvalidInput: no"));
  };
  const auto replies = call();
  EXPECT_TRUE(replies[0].error.has_value());
  EXPECT_FALSE(replies[2].error.has_value());
  answers_[0] = answer_ok;
  EXPECT_EQ(first_error(call()), std::nullopt);
}

TEST_F(WorkerPoolTest, AWorkerThatEndedIsNamedWithTheLastLinesOfItsLog) {
  answers_[1] = [this](Peer& peer, const wire::RequestHead&) {
    process(1).alive = false;
    process(1).status = {true, 11};
    process(1).log = std::string(500, 'x') + "\nloading\nillegal \x01 access\n\n";
    peer.gone = true;
  };
  EXPECT_EQ(call()[1].error->detail,
            "it was killed by signal 11; the end of its log: loading | illegal ? access");
}

TEST_F(WorkerPoolTest, AWorkerThatEndedIsNamedWithItsExitStatus) {
  answers_[0] = [this](Peer& peer, const wire::RequestHead&) {
    process(0).alive = false;
    process(0).status = {false, 3};
    peer.gone = true;
  };
  answers_[2] = [this](Peer& peer, const wire::RequestHead&) {
    process(2).alive = false;
    process(2).status = {true, 9};
    peer.gone = true;
  };
  const auto replies = call();
  EXPECT_EQ(replies[0].error->kind, ErrorKind::kEndOfFile);
  EXPECT_EQ(replies[0].error->rank, 0);
  EXPECT_EQ(replies[0].error->detail, "it exited with status 3");
  EXPECT_EQ(replies[1].error, std::nullopt);
  EXPECT_EQ(replies[2].error->kind, ErrorKind::kEndOfFile);
  EXPECT_EQ(replies[2].error->detail, "it was killed by signal 9");
}

TEST_F(WorkerPoolTest, AWorkerThatIsGoneBeforeTheRequestIsNamedToo) {
  worker(1).gone = true;
  const auto replies = call(wire::Command::kInit, Collect::kUntilFailure);
  EXPECT_EQ(first_error(replies)->rank, 1);
  EXPECT_EQ(first_error(replies)->kind, ErrorKind::kEndOfFile);
  EXPECT_EQ(first_error(replies)->detail, "it closed its channel but did not exit");
}

TEST_F(WorkerPoolTest, AReplyToAnotherCommandIsAViolationOfThatWorker) {
  answers_[1] = [](Peer& peer, const wire::RequestHead& head) {
    wire::RequestHead other = head;
    other.command = "sleep";
    fakes::send_response(peer, fakes::succeeded(other));
  };
  const auto error = first_error(call());
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind, ErrorKind::kProtocol);
  EXPECT_EQ(error->rank, 1);
  EXPECT_THAT(error->subject, HasSubstr("worker 1"));
}

TEST_F(WorkerPoolTest, WorkersThatDoNotReplyTimeOutTogetherAtTheDeadline) {
  answers_[1] = answers_[2] = [](Peer&, const wire::RequestHead&) {};
  const TimePoint begin = world_.clock.now();
  const auto replies = call();
  EXPECT_EQ(world_.clock.now() - begin, seconds(10));
  EXPECT_EQ(replies[0].error, std::nullopt);
  for (const std::size_t r : {1, 2}) {
    EXPECT_EQ(replies[r].error->kind, ErrorKind::kTimeout);
    EXPECT_EQ(replies[r].error->rank, static_cast<int>(r));
  }
}

TEST_F(WorkerPoolTest, AParentThatClosesEndsTheWaitAtOnce) {
  answers_[1] = [this](Peer&, const wire::RequestHead&) { parent_peer_->gone = true; };
  const TimePoint begin = world_.clock.now();
  const ErrorRecord record = failure_of([&] { call(); });
  EXPECT_EQ(record.kind, ErrorKind::kEndOfFile);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  EXPECT_EQ(record.subject, "health");
  EXPECT_EQ(world_.clock.now(), begin);
}

TEST_F(WorkerPoolTest, AParentThatSendsMoreBreaksTheRuntimeWhateverTheCommand) {
  answers_[2] = [this](Peer&, const wire::RequestHead&) { parent_peer_->send(as_view("x")); };
  const ErrorRecord record = failure_of([&] { call(); });
  EXPECT_EQ(record.kind, ErrorKind::kProtocol);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
}

TEST_F(WorkerPoolTest, WorkersThatLeaveWhenTheirChannelsCloseAreNotKilled) {
  const TimePoint begin = world_.clock.now();
  pool_.reset();
  for (std::size_t r = 0; r < kWorkers; ++r) {
    EXPECT_FALSE(process(r).alive);
    EXPECT_TRUE(process(r).signals.empty());
  }
  EXPECT_EQ(world_.clock.now(), begin);
}

TEST_F(WorkerPoolTest, AWorkerThatStaysIsKilledAfterAWhile) {
  process(1).leaves_when_closed.reset();
  pool_.reset();
  EXPECT_FALSE(process(1).alive);
  EXPECT_THAT(process(1).signals, ElementsAre(Signal::kKill));
}

TEST(WorkerPool, AWorkerThatCannotBeStartedLeavesNoOtherBehind) {
  fakes::FakeWorld world;
  world.processes.refused_spawn = 1;
  World view = world.world();
  fakes::FakeChannel parent(std::make_shared<Peer>(), world.clock);
  {
    WorkerPool pool(view, parent, 2);
    const ErrorRecord record = failure_of([&] { pool.spawn([](int) { return SpawnRequest{}; }); });
    EXPECT_EQ(record.kind, ErrorKind::kIo);
    EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  }
  ASSERT_EQ(world.processes.processes.size(), 1u);
  EXPECT_FALSE(world.processes.processes[0]->alive);
}

TEST_F(WorkerPoolTest, AWorkerThatSpokeUnaskedFailsTheNextCommandBeforeAnythingIsSent) {
  for (const Collect collect : {Collect::kEveryReply, Collect::kUntilFailure}) {
    SCOPED_TRACE(static_cast<int>(collect));
    bodies_.assign(kWorkers, {});
    const std::byte word{1};
    worker(1).send({&word, 1});
    const auto replies = call(wire::Command::kHealth, collect);
    ASSERT_TRUE(replies[1].error);
    EXPECT_EQ(replies[1].error->kind, ErrorKind::kProtocol);
    EXPECT_EQ(replies[1].error->rank, 1);
    EXPECT_THAT(replies[1].error->detail, HasSubstr("was not asked for"));
    for (const std::size_t other : {0, 2}) {
      ASSERT_TRUE(replies[other].error);
      EXPECT_EQ(replies[other].error->kind, ErrorKind::kPeerFailed);
    }
    for (const ByteBuffer& body : bodies_) EXPECT_TRUE(body.empty());
  }
}

}  // namespace
}  // namespace tpsync::runtime
