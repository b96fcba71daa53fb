// Sleep and wake states of parent and runtime together, against one model of a rollout's memory:
// whatever the parent lets through its runtime lets through as well, generation happens only with
// awake memory of one published version, and both agree on who is awake.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "core/base/testing/seeded_check.h"
#include "core/wire/testing/scripted_peer.h"
#include "tpsync/rollout/engine.h"
#include "tpsync/runtime/serving_state.h"

namespace tpsync::runtime {
namespace {

using rollout::ConnectionState;
using rollout::RolloutEngine;
using rollout::SleepState;
using wire::Command;

enum class Stage : std::uint8_t { kNone, kInitialized, kStarted };

// What is where, and what may be done. The engine's own state is told by these three names.
struct Model {
  SleepState engine = SleepState::kAwake;
  bool weights = true;   // awake
  bool kv_cache = true;  // awake
  bool lost = false;     // as the parent sees it
  bool valid = true;     // as the runtime does
  bool broken = false;
  Stage stage = Stage::kNone;
  std::int64_t version = 3;
};

enum class Action : std::uint8_t {
  kSleep1,
  kSleep2,
  kSleep2Preserving,
  kWakeWeights,
  kWakeCache,
  kWakeBoth,
  kWakeUnknown,
  kWakeAll,
  kGenerate,
  kInit,
  kStart,
  kFinish,
  kCount_,
};
enum class Result : std::uint8_t { kOk, kRefused, kBroke, kBroken };

struct Expected {
  Result result = Result::kOk;
  Model next;
};

std::vector<std::string> tags_of(Action action) {
  switch (action) {
    case Action::kWakeWeights:
      return {"weights"};
    case Action::kWakeCache:
      return {"kv_cache"};
    case Action::kWakeBoth:
      return {"weights", "kv_cache"};
    case Action::kWakeUnknown:
      return {"lora"};
    default:
      return {};
  }
}

Expected expected_of(const Model& model, Action action) {
  Expected expected{Result::kOk, model};
  Model& next = expected.next;
  const auto refuse = [&] {
    expected = {Result::kRefused, model};
    return expected;
  };
  if (model.broken) return {Result::kBroken, model};
  const bool pending = model.stage != Stage::kNone;
  switch (action) {
    case Action::kSleep1:
    case Action::kSleep2:
    case Action::kSleep2Preserving:
      if (pending) return refuse();
      if (model.engine == SleepState::kAsleep) return expected;
      if (action == Action::kSleep2) {
        next.lost = true;
        if (model.weights) next.valid = false;
      }
      next.engine = SleepState::kAsleep;
      next.weights = next.kv_cache = false;
      return expected;
    case Action::kWakeAll:
      if (pending) return refuse();
      next.engine = SleepState::kAwake;
      next.weights = next.kv_cache = true;
      return expected;
    case Action::kGenerate:
      if (pending || model.engine != SleepState::kAwake || model.lost) return refuse();
      return expected;
    case Action::kInit:
      if (pending || !model.weights) return refuse();
      next.stage = Stage::kInitialized;
      return expected;
    case Action::kStart:
      if (model.stage != Stage::kInitialized) return refuse();
      next.stage = Stage::kStarted;
      next.lost = true;
      next.valid = false;
      return expected;
    case Action::kFinish:
      if (model.stage != Stage::kStarted) return refuse();
      next.stage = Stage::kNone;
      next.lost = false;
      next.valid = true;
      ++next.version;
      return expected;
    default:  // a wake-up with tags
      if (model.engine != SleepState::kAsleep) return expected;
      if (action == Action::kWakeUnknown) {
        next.broken = true;
        return {Result::kBroke, next};
      }
      next.engine = SleepState::kWeightsOnly;
      next.weights |= action != Action::kWakeCache;
      next.kv_cache |= action != Action::kWakeWeights;
      return expected;
  }
}

wire::PublicationHeader header_of(std::int64_t version) {
  wire::PublicationHeader header;
  header.publication_id = "00112233445566778899aabbccddeeff";
  header.model_version = version;
  header.tp_world_size = 1;
  header.expected_manifest = {std::string(64, 'a'), 1, 12};
  header.device_uuids = {"gpu-0"};
  return header;
}

// The parent's engine; behind its channel the state that a runtime keeps.
struct Sut {
  fakes::FakeWorld world;
  ServingState runtime{Model().version};
  std::vector<std::string> refused;  // by the runtime
  std::unique_ptr<RolloutEngine> engine;

  Sut() {
    world.channels.on_pair = [this](fakes::Peer& peer, std::size_t) {
      fakes::on_frame(peer, [this, &peer](const ByteBuffer& body) { serve(peer, body); });
    };
    rollout::EngineOptions options;
    options.runtime.program = "runtime";
    engine = std::make_unique<RolloutEngine>(world.world(), std::move(options));
  }

  void serve(fakes::Peer& peer, const ByteBuffer& body) {
    const wire::RequestHead head = wire::decode_request_head(body);
    try {
      fakes::send_response(peer, fakes::succeeded(head, execute(head, body)));
    } catch (const Error& error) {
      refused.push_back(head.command);
      fakes::send_response(peer, fakes::failed(head, error.what()));
    }
  }

  wire::Result execute(const wire::RequestHead& head, const ByteBuffer& body) {
    const Command command = *wire::command_from(head.command);
    const wire::Payload payload = wire::decode_payload(command, body);
    switch (command) {
      case Command::kStartup: {
        wire::StartupResult result;
        result.event = "ready";
        result.process_group_id = 100;
        result.model_type = "qwen3_moe";
        result.worker_capabilities = {{0, 1, "gpu-0", "", 200}};
        result.committed_version = runtime.version();
        return result;
      }
      case Command::kGenerate:
        runtime.check_generate();
        return wire::GenerateResult{};
      case Command::kSleep: {
        const auto& sleep = std::get<wire::SleepRequest>(payload);
        runtime.check_sleep(sleep);
        runtime.slept(sleep.level);
        return {};
      }
      case Command::kWakeUp: {
        const auto& wake = std::get<wire::WakeUpRequest>(payload);
        runtime.check_wake_up(wake);
        runtime.woke(wake);
        return {};
      }
      case Command::kInit:
        runtime.check_init();
        runtime.initialized();
        return {};
      case Command::kStart: {
        const auto& start = std::get<wire::StartRequest>(payload);
        runtime.check_start(start);
        runtime.started(start.header);
        return {};
      }
      case Command::kFinish: {
        const auto& finish = std::get<wire::FinishRequest>(payload);
        runtime.check_finish(finish);
        runtime.committed();
        wire::WorkerReceipt receipt;
        receipt.tp_rank = 0;
        receipt.tp_world_size = 1;
        receipt.device_uuid = "gpu-0";
        receipt.publication_id = finish.header.publication_id;
        receipt.model_version = finish.header.model_version;
        receipt.expected_manifest_fingerprint = finish.header.expected_manifest.fingerprint;
        receipt.resident_parameter_count = 1;
        receipt.ready = true;
        return wire::CommitResult{"committed", finish.header.model_version, {receipt}, true};
      }
      default:
        return {};
    }
  }

  void act(Action action) {
    switch (action) {
      case Action::kSleep1:
      case Action::kSleep2:
      case Action::kSleep2Preserving:
        engine->set_weight_sync_sleep_level({.level = action == Action::kSleep1 ? 1 : 2,
                                             .preserve_next = action == Action::kSleep2Preserving});
        engine->sleep();
        return;
      case Action::kGenerate:
        engine->generate({});
        return;
      case Action::kInit:
        engine->init_publication();
        return;
      case Action::kStart: {
        wire::StartRequest request;
        request.header = header_of(engine->version() + 1);
        request.chunk_tensor_counts = {1};
        request.buffer_bytes = 12;
        engine->start_publication(request);
        return;
      }
      case Action::kFinish: {
        wire::FinishRequest request;
        request.header = header_of(engine->version() + 1);
        request.weight_version = std::to_string(engine->version() + 1);
        engine->finish_publication(request);
        return;
      }
      default:
        engine->wake_up(tags_of(action));
    }
  }
};

class Step final : public rc::state::Command<Model, Sut> {
 public:
  Step()
      : action_(static_cast<Action>(*rc::gen::weightedOneOf<int>(
            {{30, fakes::any_of(0, static_cast<int>(Action::kWakeUnknown))},
             {1, rc::gen::just(static_cast<int>(Action::kWakeUnknown))},
             {40, fakes::any_of(static_cast<int>(Action::kWakeAll),
                                static_cast<int>(Action::kCount_))}}))) {}

  void apply(Model& model) const override { model = expected_of(model, action_).next; }

  void run(const Model& model, Sut& sut) const override {
    const Expected expected = expected_of(model, action_);
    sut.refused.clear();
    std::optional<ErrorRecord> error;
    try {
      sut.act(action_);
    } catch (const Error& thrown) {
      error = thrown.record();
    }
    const Model& next = expected.next;
    RC_ASSERT(error.has_value() == (expected.result != Result::kOk));
    // The parent refuses by itself whatever its runtime would refuse.
    RC_ASSERT(sut.refused.empty() == (expected.result != Result::kBroke));
    if (expected.result == Result::kRefused) RC_ASSERT(error->remedy == Remedy::kTryLater);
    if (next.broken) RC_ASSERT(error->remedy == Remedy::kRebuildRuntime);
    RC_ASSERT((sut.engine->connection_state() == ConnectionState::kBroken) == next.broken);
    if (next.broken) return;
    RC_ASSERT(sut.engine->sleep_state() == next.engine);
    RC_ASSERT(sut.engine->weights_lost() == next.lost);
    RC_ASSERT(sut.engine->publication_pending() == (next.stage != Stage::kNone));
    RC_ASSERT(sut.engine->version() == next.version);
    RC_ASSERT(sut.runtime.version() == next.version);
    RC_ASSERT(sut.runtime.weights_awake() == next.weights);
    RC_ASSERT(sut.runtime.kv_cache_awake() == next.kv_cache);
    RC_ASSERT(generates(sut) ==
              (next.weights && next.kv_cache && next.valid && next.stage == Stage::kNone));
  }
  void show(std::ostream& out) const override { out << "action " << static_cast<int>(action_); }

 private:
  static bool generates(const Sut& sut) {
    try {
      sut.runtime.check_generate();
      return true;
    } catch (const NothingHappened&) {
      return false;
    }
  }

  Action action_;
};

TEST(SleepModel, ParentAndRuntimeAgreeOnWhoIsAwakeAndWhoMayGenerate) {
  EXPECT_TRUE(fakes::model_holds<Step>("sleep states", [] { return std::make_unique<Sut>(); }));
}

}  // namespace
}  // namespace tpsync::runtime
