// The parent's engine over a foreign runtime. Time is virtual, and a wait that nothing can end is
// an error of the fake channel.
#include <memory>
#include <string>
#include <utility>

#include "conformance/fuzz/peers.h"
#include "conformance/fuzz/targets.h"
#include "tpsync/base/process.h"
#include "tpsync/rollout/engine.h"

namespace tpsync::fuzz {

namespace {

using wire::Command;

// The parent's engine over a runtime that the bytes play.
class EngineWorld {
 public:
  explicit EngineWorld(ByteView bytes) : input_(bytes) {
    world_.channels.on_pair = [this](fakes::Peer& peer, std::size_t) {
      fakes::on_frame(peer, [this, &peer](const ByteBuffer& body) { serve(peer, body); });
    };
    options_.tp_size = PublicationInputs::kWorkers;
    for (Duration rollout::CommandTimeouts::*timeout :
         {&rollout::CommandTimeouts::startup, &rollout::CommandTimeouts::generate,
          &rollout::CommandTimeouts::weight_update, &rollout::CommandTimeouts::health,
          &rollout::CommandTimeouts::sleep, &rollout::CommandTimeouts::wake_up,
          &rollout::CommandTimeouts::shutdown}) {
      options_.timeouts.*timeout = kPeerTimeout;
    }
    for (int i = 0; i < 2; ++i)
      handles_.entries.emplace_back("gpu-" + std::to_string(i), ByteBuffer(8));
  }

  void run() {
    try {
      check_call("startup", [&] {
        engine_ = std::make_unique<rollout::RolloutEngine>(world_.world(), std::move(options_));
      });
    } catch (const std::bad_alloc&) {
      throw Finding("bytes decide how much is allocated");
    }
    for (int step = 0; engine_ && step < kStepsMax && !input_.done(); ++step) do_next();
    engine_.reset();
    check_gone("after the engine's end");
  }

 private:
  void do_next() {
    const std::uint8_t op = input_.byte() % 16;
    const std::uint8_t argument = input_.byte();
    switch (op) {
      case 0:
        return check_call("generate", [&] { engine_->generate({}); });
      case 1:
        return check_call("health", [&] { engine_->health_check(); });
      case 2:
        engine_->set_weight_sync_sleep_level({.level = 1 + argument % 2});
        return check_call("sleep", [&] { engine_->sleep(); });
      case 3:
        return check_call("wake_up", [&] { engine_->wake_up({"weights"}); });
      case 4:
        return check_call("wake_up", [&] { engine_->wake_up({}); });
      case 5:
        return check_call("probe_ipc", [&] {
          engine_->probe_ipc(
              std::get<wire::ProbeIpcRequest>(inputs().request(Command::kProbeIpc, 2, handles_)));
        });
      case 6:
        return check_call("init_native_weight_transfer", [&] { engine_->init_publication(); });
      case 7:
        return check_call("start_native_weight_update", [&] {
          engine_->start_publication(
              std::get<wire::StartRequest>(inputs().request(Command::kStart, argument, handles_)));
        });
      case 8:
        return check_call("update_native_weights", [&] {
          const wire::EncodedUpdate update(std::get<wire::UpdateRequest>(
              inputs().request(Command::kUpdate, argument, handles_)));
          engine_->send_update(update, handles_);
          engine_->await_update();
        });
      case 9:
        return check_call("finish_native_weight_update", [&] {
          const std::int64_t before = engine_->version();
          const auto result = engine_->finish_publication(std::get<wire::FinishRequest>(
              inputs().request(Command::kFinish, argument, handles_)));
          if (engine_->version() != argument || argument <= before ||
              result.worker_receipts.size() != 2) {
            throw Finding("a version was committed that was not attested");
          }
        });
      case 10:
        return check_call("release_native_ipc", [&] { engine_->release_publication(); });
      case 11:
        if (argument >= 128) engine_->poison("the bytes say so");
        return;
      case 12:
        if (argument >= 128) check_call("shutdown", [&] { engine_->shutdown(); });
        return;
      case 13:
        // Something comes that nobody asked for.
        if (argument >= 128) peer().send(input_.piece());
        return;
      case 14:
        if (argument >= 128) peer().gone = true;
        return;
      default:
        try {
          engine_->set_version(argument);
        } catch (const NothingHappened&) {
        } catch (const InvalidInput&) {
        }
        return;
    }
  }

  fakes::Peer& peer() { return *world_.channels.peers.back(); }
  bool alive() const { return world_.processes.processes.back()->alive; }

  void serve(fakes::Peer& peer, const ByteBuffer& body) {
    const wire::RequestHead head = wire::decode_request_head(body);
    sent_ = true;
    wire::Result result;
    if (head.command == "startup") result = startup();
    if (head.command == "health") result = wire::HealthResult{};
    if (head.command == "generate") result = wire::GenerateResult{};
    if (head.command == "finish_native_weight_update") result = commit(body);
    const std::uint8_t how = input_.byte();
    const auto behaviour = how < 208 ? Behaviour::kSucceed : static_cast<Behaviour>(how % 8);
    ByteView raw;
    if (behaviour == Behaviour::kRawBody || behaviour == Behaviour::kRawBytes) raw = input_.piece();
    answered_ = answer(peer, head, behaviour, raw, std::move(result));
    if (head.command == "shutdown") world_.processes.processes.back()->alive = false;
  }

  static wire::StartupResult startup() {
    wire::StartupResult result;
    result.event = "ready";
    result.process_group_id = 100;
    result.model_type = "qwen3_moe";
    result.layouts = {"compact"};
    for (std::int64_t rank = 0; rank < PublicationInputs::kWorkers; ++rank) {
      wire::WorkerCapability worker;
      worker.tp_rank = rank;
      worker.tp_world_size = PublicationInputs::kWorkers;
      worker.cuda_device_uuid = "gpu-" + std::to_string(rank);
      worker.pid = 200 + rank;
      result.worker_capabilities.push_back(worker);
    }
    return result;
  }

  wire::CommitResult commit(const ByteBuffer& body) {
    const auto finish = std::get<wire::FinishRequest>(wire::decode_payload(Command::kFinish, body));
    const std::uint8_t how = input_.byte();
    wire::CommitResult result;
    result.status = how == 250 ? "done" : "committed";
    result.model_version = finish.header.model_version + (how == 251 ? 1 : 0);
    result.prefix_cache_reset = how != 252;
    for (std::int64_t rank = 0; rank < PublicationInputs::kWorkers; ++rank) {
      wire::WorkerReceipt receipt;
      receipt.tp_rank = how == 253 ? 0 : rank;
      receipt.tp_world_size = PublicationInputs::kWorkers;
      receipt.device_uuid = finish.header.device_uuids[static_cast<std::size_t>(rank)];
      receipt.publication_id = finish.header.publication_id;
      receipt.model_version = finish.header.model_version - (how == 254 ? 1 : 0);
      receipt.expected_manifest_fingerprint = finish.header.expected_manifest.fingerprint;
      receipt.resident_parameter_count = 3;
      receipt.ready = how != 255;
      result.worker_receipts.push_back(receipt);
    }
    // A result that the parent must refuse is no success.
    refused_ = how >= 250;
    return result;
  }

  void check_gone(const std::string& when) const {
    if (alive()) throw Finding("the runtime lives " + when);
  }

  template <typename Call>
  void check_call(const std::string& name, Call call) {
    sent_ = answered_ = refused_ = false;
    const TimePoint begin = world_.clock.now();
    const bool was_broken = broken();
    try {
      call();
      // A runtime that does not answer shutdown is ended anyway.
      if (sent_ && !answered_ && name != "shutdown")
        throw Finding(name + " succeeded without an answer");
      if (sent_ && refused_) throw Finding(name + " took a result that is none");
      if (was_broken && name != "shutdown") throw Finding(name + " succeeded on a broken runtime");
    } catch (const Error& error) {
      const bool breaks =
          error.remedy() == Remedy::kRebuildRuntime || error.remedy() == Remedy::kFixPeer;
      if (breaks) check_gone("after " + name + " failed: " + error.what());
      if (!breaks && engine_ &&
          engine_->connection_state() == rollout::ConnectionState::kInflight) {
        throw Finding("the connection is in flight after " + name);
      }
      if (breaks && engine_ && alive()) throw Finding("broken, and not said so");
    }
    if (world_.clock.now() - begin > 2 * kPeerTimeout + kKillAllowance) {
      throw Finding(name + " took longer than it may");
    }
    if (name != "startup" && broken()) check_gone("while the connection is broken, after " + name);
  }
  bool broken() const {
    return engine_ && engine_->connection_state() == rollout::ConnectionState::kBroken;
  }

  Input input_;
  fakes::FakeWorld world_;
  rollout::EngineOptions options_;
  wire::HandleMap handles_;
  std::unique_ptr<rollout::RolloutEngine> engine_;
  bool sent_ = false;      // the call under way wrote a whole request
  bool answered_ = false;  // it was answered with success, or by bytes that may be that
  bool refused_ = false;
};

}  // namespace

void drive_engine(ByteView bytes) { EngineWorld(bytes).run(); }
std::vector<ByteBuffer> engine_seeds() {
  std::vector<ByteBuffer> seeds;
  const auto publication = [](Output& out, std::uint64_t version, std::uint64_t commit) {
    out.byte(6).byte(0).byte(0);
    out.byte(7).byte(version).byte(0);
    out.byte(8).byte(0).byte(0);
    out.byte(9).byte(version).byte(commit).byte(0);
    out.byte(10).byte(0).byte(0);
  };
  for (std::uint64_t commit = 244; commit < 256; ++commit) {
    Output out;
    out.byte(0);
    publication(out, 1, commit);
    publication(out, 2, 0);
    out.byte(0).byte(0).byte(0);
    seeds.push_back(out.buffer);
  }
  for (std::uint64_t op = 0; op < 16; ++op) {
    for (std::uint64_t how = 207; how < 217; ++how) {
      Output out;
      out.byte(0).byte(op).byte(200).byte(how).byte(0).byte(0);
      out.byte(1).byte(0).byte(0);
      seeds.push_back(out.buffer);
    }
  }
  for (const ByteBuffer& response : response_seeds()) {
    const ByteView body = ByteView(response).subspan(1);
    seeds.push_back(Output().byte(0).byte(1).byte(0).byte(212).piece(body).buffer);
    seeds.push_back(Output().byte(0).byte(1).byte(0).byte(213).piece(fakes::framed(body)).buffer);
  }
  return seeds;
}

}  // namespace tpsync::fuzz
