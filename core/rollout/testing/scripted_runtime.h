// A runtime as the parent's end of the protocol sees it: it answers every command with success
// until the test tells it otherwise, and remembers what it was sent.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/wire/testing/scripted_peer.h"

namespace tpsync::rollout::fakes {

using tpsync::fakes::failed;
using tpsync::fakes::failure_of;
using tpsync::fakes::FakeWorld;
using tpsync::fakes::Peer;
using tpsync::fakes::send_response;
using tpsync::fakes::succeeded;

class ScriptedRuntime {
 public:
  using Answer = std::function<void(Peer&, const wire::RequestHead&)>;

  // Serves the channels that are made from now on.
  explicit ScriptedRuntime(FakeWorld& world, int tp_size = 2) : world_(world) {
    startup.event = "ready";
    startup.vllm_version = "1.0";
    startup.process_group_id = 100;  // of the first process that a FakeLauncher spawns
    startup.model_type = "qwen3_moe";
    startup.layouts = {"rank_major", "compact"};
    for (int rank = 0; rank < tp_size; ++rank) {
      wire::WorkerCapability worker;
      worker.tp_rank = rank;
      worker.tp_world_size = tp_size;
      worker.cuda_device_uuid = "gpu-" + std::to_string(rank);
      worker.vllm_version = "1.0";
      worker.pid = 200 + rank;
      startup.worker_capabilities.push_back(worker);
    }
    world_.channels.on_pair = [this](Peer& peer, std::size_t) {
      tpsync::fakes::on_frame(peer, [this, &peer](const ByteBuffer& body) { serve(peer, body); });
    };
  }

  wire::StartupResult startup;
  wire::CommitResult commit;
  std::map<wire::Command, Answer> instead;  // of success
  std::vector<std::string> commands;        // by order of arrival
  std::vector<std::int64_t> ids;
  ByteBuffer last_body;

  // Answers that commands may be given.
  static Answer nothing() {
    return [](Peer&, const wire::RequestHead&) {};
  }
  static Answer end_of_file() {
    return [](Peer& peer, const wire::RequestHead&) { peer.gone = true; };
  }
  static Answer failure(const std::string& error) {
    return [error](Peer& peer, const wire::RequestHead& head) {
      send_response(peer, failed(head, error));
    };
  }
  static Answer bytes(const std::string& text) {
    return [text](Peer& peer, const wire::RequestHead&) { peer.send(as_view(text)); };
  }
  static Answer response(const std::function<wire::Response(const wire::RequestHead&)>& make) {
    return [make](Peer& peer, const wire::RequestHead& head) { send_response(peer, make(head)); };
  }

 private:
  void serve(Peer& peer, const ByteBuffer& body) {
    const wire::RequestHead head = wire::decode_request_head(body);
    commands.push_back(head.command);
    ids.push_back(head.request_id);
    last_body = body;
    const auto command = wire::command_from(head.command);
    ASSERT_TRUE(command.has_value());
    if (const auto other = instead.find(*command); other != instead.end()) {
      other->second(peer, head);
      return;
    }
    wire::Result result;
    if (*command == wire::Command::kStartup) result = startup;
    if (*command == wire::Command::kGenerate) {
      result = wire::GenerateResult{
          {{.text = "t", .token_ids = {1}, .logprobs = {0.0}, .finish_reason = "stop"}}};
    }
    if (*command == wire::Command::kHealth) result = wire::HealthResult{};
    if (*command == wire::Command::kFinish) result = commit;
    send_response(peer, succeeded(head, std::move(result)));
    if (*command == wire::Command::kShutdown) world_.processes.processes.back()->alive = false;
  }

  FakeWorld& world_;
};

}  // namespace tpsync::rollout::fakes
