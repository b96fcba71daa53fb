// The command server between a scripted parent and scripted workers: what it answers, and when it
// goes on or ends.
#include "tpsync/runtime/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/wire/testing/scripted_peer.h"

namespace tpsync::runtime {
namespace {

using fakes::Peer;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

using Answer = std::function<void(Peer&, const wire::RequestHead&)>;

class ServerTest : public testing::Test {
 protected:
  static constexpr int kWorkers = 2;

  ServerTest() : channel_(parent_, world_.clock) {
    world_.channels.on_pair = [this](Peer& peer, std::size_t rank) {
      fakes::on_frame(peer, [this, &peer, rank](const ByteBuffer& body) {
        const wire::RequestHead head = wire::decode_request_head(body);
        if (head.command == "startup") {
          wire::WorkerCapability capability;
          capability.tp_rank = static_cast<std::int64_t>(rank);
          capability.tp_world_size = kWorkers;
          capability.cuda_device_uuid = "gpu-" + std::to_string(rank);
          fakes::send_response(peer, fakes::succeeded(head, capability));
        } else if (answers_[rank]) {
          answers_[rank](peer, head);
        } else {
          answer(peer, head);
        }
      });
    };
    options_.tp_size = kWorkers;
    options_.version = "1.0";
    options_.control_timeout = seconds(60);
    options_.worker_timeout = seconds(100);
    options_.worker = [](int rank) {
      SpawnRequest request;
      request.program = "worker";
      request.arguments = {std::to_string(rank)};
      return request;
    };
  }

  static void answer(Peer& peer, const wire::RequestHead& head) {
    wire::Result result;
    if (head.command == "health") result = wire::HealthResult{};
    if (head.command == "generate") result = wire::GenerateResult{};
    fakes::send_response(peer, fakes::succeeded(head, std::move(result)));
  }

  // Gives these requests one after the other, each when the reply before it came, and then leaves.
  // Returns a line per reply: "health ok", "health failed".
  std::vector<std::string> serve(const std::vector<wire::Payload>& requests) {
    std::size_t next = 0;
    const auto send_next = [&] {
      if (next == requests.size()) {
        parent_->gone = true;
        return;
      }
      ByteBuffer body;
      wire::encode_request(static_cast<std::int64_t>(next + 1), requests[next], body);
      parent_->send(fakes::framed(body));
      ++next;
    };
    std::vector<std::string> lines;
    fakes::on_frame(*parent_, [&](const ByteBuffer& body) {
      const std::string command(wire::name_of(wire::command_of(requests[next - 1])));
      const wire::Response response = wire::decode_response(body, static_cast<std::int64_t>(next),
                                                            command, wire::Peer::kRuntime);
      lines.push_back(command + (response.ok ? " ok" : " failed"));
      last_error_ = response.error;
      send_next();
    });
    send_next();
    run_runtime(world_.world(), channel_, options_);
    asked_ = next;
    return lines;
  }

  fakes::FakeWorld world_;
  std::shared_ptr<Peer> parent_ = std::make_shared<Peer>();
  fakes::FakeChannel channel_;
  RuntimeOptions options_;
  std::vector<Answer> answers_ = std::vector<Answer>(kWorkers);
  std::string last_error_;
  std::size_t asked_ = 0;
};

TEST_F(ServerTest, GoesOnAfterACommandThatAWorkerRefused) {
  answers_[1] = [](Peer& peer, const wire::RequestHead& head) {
    if (head.command == "generate") {
      fakes::send_response(peer, fakes::failed(head, "RuntimeBroken: no"));
    } else {
      answer(peer, head);
    }
  };
  EXPECT_THAT(serve({wire::StartupRequest{}, wire::GenerateRequest{}, wire::HealthRequest{}}),
              ElementsAre("startup ok", "generate failed", "health ok"));
  EXPECT_EQ(world_.processes.processes.size(), 2u);
  for (const auto& worker : world_.processes.processes) EXPECT_FALSE(worker->alive);
}

TEST_F(ServerTest, SaysThatTheRuntimeCanGoOn) {
  answers_[0] = [](Peer& peer, const wire::RequestHead& head) {
    fakes::send_response(peer, fakes::failed(head, "RuntimeBroken: no memory"));
  };
  EXPECT_THAT(serve({wire::StartupRequest{}, wire::HealthRequest{}}),
              ElementsAre("startup ok", "health failed"));
  EXPECT_THAT(last_error_, StartsWith("NothingHappened: "));
  EXPECT_THAT(last_error_, HasSubstr("worker 0"));
}

class ServerTimeoutTest : public ServerTest, public testing::WithParamInterface<wire::Payload> {};

INSTANTIATE_TEST_SUITE_P(
    Commands, ServerTimeoutTest,
    testing::Values(wire::Payload(wire::GenerateRequest{}), wire::Payload(wire::HealthRequest{}),
                    wire::Payload(wire::ProbeIpcRequest{}), wire::Payload(wire::SleepRequest{})),
    [](const auto& given) { return std::string(name_of(command_of(given.param))); });

// The worker's reply may come later, and would be taken for the next command's.
TEST_P(ServerTimeoutTest, EndsAfterAWorkerThatDidNotReplyInTime) {
  answers_[1] = [](Peer&, const wire::RequestHead&) {};
  const TimePoint begin = world_.clock.now();
  EXPECT_THAT(serve({wire::StartupRequest{}, GetParam(), wire::HealthRequest{}}),
              ElementsAre("startup ok", std::string(name_of(command_of(GetParam()))) + " failed"));
  EXPECT_EQ(asked_, 3u) << "the third request is never answered";
  EXPECT_THAT(last_error_, StartsWith("RuntimeBroken: "));
  EXPECT_THAT(last_error_, HasSubstr("worker 1: did not reply in time"));
  EXPECT_GE(world_.clock.now() - begin, options_.worker_timeout);
}

TEST_F(ServerTest, EndsAfterAWorkerDied) {
  answers_[0] = [this](Peer& peer, const wire::RequestHead&) {
    auto& worker = *world_.processes.processes[0];
    worker.alive = false;
    worker.status = {true, 9};
    peer.gone = true;
  };
  EXPECT_THAT(serve({wire::StartupRequest{}, wire::HealthRequest{}, wire::HealthRequest{}}),
              ElementsAre("startup ok", "health failed"));
  EXPECT_THAT(last_error_, StartsWith("RuntimeBroken: "));
  EXPECT_THAT(last_error_, HasSubstr("it was killed by signal 9"));
}

TEST_F(ServerTest, EndsAfterAWorkerBrokeTheProtocol) {
  answers_[0] = [](Peer& peer, const wire::RequestHead& head) {
    wire::RequestHead other = head;
    other.request_id = head.request_id - 1;
    answer(peer, other);
  };
  EXPECT_THAT(serve({wire::StartupRequest{}, wire::HealthRequest{}, wire::HealthRequest{}}),
              ElementsAre("startup ok", "health failed"));
  EXPECT_THAT(last_error_, StartsWith("RuntimeBroken: "));
}

TEST_F(ServerTest, GrantsANativeCommandTheControlTimeoutOnly) {
  answers_[1] = [](Peer&, const wire::RequestHead&) {};
  const TimePoint begin = world_.clock.now();
  EXPECT_THAT(serve({wire::StartupRequest{}, wire::InitRequest{}}),
              ElementsAre("startup ok", "init_native_weight_transfer failed"));
  EXPECT_GE(world_.clock.now() - begin, options_.control_timeout);
  EXPECT_LT(world_.clock.now() - begin, options_.worker_timeout);
}

}  // namespace
}  // namespace tpsync::runtime
