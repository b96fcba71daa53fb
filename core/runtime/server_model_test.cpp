// The command server against a model of the control protocol, between a parent and workers that
// send what is legal, illegal, torn, repeated or late. What is answered with success did happen on
// every worker, what breaks the protocol is never answered, whoever may be out of step ends the
// runtime, and all workers end with it.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "core/base/testing/seeded_check.h"
#include "core/wire/testing/scripted_peer.h"
#include "tpsync/runtime/server.h"

namespace tpsync::runtime {
namespace {

using fakes::Peer;
using std::chrono::seconds;
using wire::Command;

constexpr std::size_t kWorkers = 2;
constexpr Duration kTimeout = seconds(60);

// What the parent does.
enum class Ask : std::uint8_t {
  kStartup,
  kGenerate,
  kSleep,
  kSleepLevel3,
  kWakeAll,
  kWakeUnknownTag,
  kHealth,
  kInit,
  kStart,
  kStartStale,         // a version that does not rise
  kStartForeignWorld,  // of another size
  kUpdate,
  kFinish,
  kFinishOther,  // of another publication
  kRelease,
  kShutdown,
  kUnknownCommand,
  kMalformedPayload,
  kMalformedEnvelope,
  kSkippedId,
  kRepeatedId,
  kTorn,
  kPause,  // says nothing for as long as it is let
  kCount_,
};
// What a worker does with what it is forwarded.
enum class Reply : std::uint8_t {
  kGood,
  kTwice,  // the second is there before the next command
  kFailed,
  kSilent,
  kEndOfFile,
  kOtherId,
  kNoise,
  kCount_,
};
using Replies = std::array<Reply, kWorkers>;

bool is_lost(Reply reply) {
  return reply == Reply::kSilent || reply == Reply::kEndOfFile || reply == Reply::kOtherId ||
         reply == Reply::kNoise;
}

struct Model {
  bool ended = false;
  bool started = false;
  bool asleep = false;
  bool valid = true;
  int stage = 0;             // 1: init, 2: start
  bool out_of_step = false;  // a worker has said more than it was asked
  std::int64_t id = 0;
  std::int64_t version = 4;
};

struct Expected {
  std::optional<bool> answer;  // none: the peer sees end of file
  Model next;
};

class Predict {
 public:
  Predict(const Model& model, Ask ask, const Replies& replies)
      : model_(model), ask_(ask), replies_(replies) {}

  Expected operator()() {
    if (model_.ended) return {std::nullopt, model_};
    switch (ask_) {
      case Ask::kMalformedEnvelope:
      case Ask::kSkippedId:
      case Ask::kRepeatedId:
      case Ask::kTorn:
      case Ask::kPause:
        return silence();
      default:
        break;
    }
    ++model_.id;
    if (!model_.started && ask_ != Ask::kStartup) return failure(true);
    switch (ask_) {
      case Ask::kStartup:
        if (model_.started) return failure(false);
        model_.started = true;
        return forwarded(true, [] {});
      case Ask::kGenerate:
        if (model_.stage != 0 || model_.asleep || !model_.valid) return failure(false);
        return forwarded(false, [] {});
      case Ask::kSleep:
        if (model_.stage != 0) return failure(false);
        return forwarded(false, [this] { model_.asleep = true; });
      case Ask::kWakeAll:
        if (model_.stage != 0) return failure(false);
        return forwarded(false, [this] { model_.asleep = false; });
      case Ask::kHealth:
        return forwarded(false, [] {});
      case Ask::kInit:
        if (model_.stage != 0 || model_.asleep) return failure(true);
        return forwarded(true, [this] { model_.stage = 1; });
      case Ask::kStart:
        if (model_.stage != 1) return failure(true);
        return forwarded(true, [this] {
          model_.stage = 2;
          model_.valid = false;
        });
      case Ask::kUpdate:
        if (model_.stage != 2) return failure(true);
        return forwarded(true, [] {});
      case Ask::kFinish:
        if (model_.stage != 2) return failure(true);
        return forwarded(true, [this] {
          model_.stage = 0;
          model_.valid = true;
          ++model_.version;
        });
      case Ask::kRelease:
        if (model_.stage != 0) return failure(true);
        return forwarded(true, [] {});
      case Ask::kShutdown:
        return forwarded(false, [this] { model_.ended = true; });
      case Ask::kStartStale:
      case Ask::kStartForeignWorld:
      case Ask::kFinishOther:
        return failure(true);
      default:  // refused, and nothing comes of it
        return failure(false);
    }
  }

 private:
  Expected silence() {
    model_.ended = true;
    return {std::nullopt, model_};
  }
  Expected failure(bool ends) {
    model_.ended = model_.ended || ends;
    return {false, model_};
  }
  template <typename Success>
  Expected forwarded(bool failure_ends, Success success) {
    if (model_.out_of_step) return failure(true);
    bool failed = false;
    bool lost = false;
    for (const Reply reply : replies_) {
      failed |= reply == Reply::kFailed;
      lost |= is_lost(reply);
      model_.out_of_step |= reply == Reply::kTwice;
    }
    if (failed || lost) return failure(failure_ends || lost);
    success();
    return {true, model_};
  }

  Model model_;
  Ask ask_;
  Replies replies_;
};

wire::PublicationHeader header_of(std::int64_t version) {
  wire::PublicationHeader header;
  header.publication_id = "00112233445566778899aabbccddeeff";
  header.model_version = version;
  header.tp_world_size = kWorkers;
  header.expected_manifest = {std::string(64, 'a'), 1, 12};
  header.device_uuids = {"gpu-0", "gpu-1"};
  return header;
}

wire::Payload payload_of(Ask ask, std::int64_t version) {
  switch (ask) {
    case Ask::kStartup:
      return wire::StartupRequest{};
    case Ask::kGenerate:
      return wire::GenerateRequest{};
    case Ask::kSleep:
      return wire::SleepRequest{1};
    case Ask::kSleepLevel3:
      return wire::SleepRequest{3};
    case Ask::kWakeAll:
      return wire::WakeUpRequest{};
    case Ask::kWakeUnknownTag:
      return wire::WakeUpRequest{{"lora"}};
    case Ask::kInit:
      return wire::InitRequest{};
    case Ask::kStart:
    case Ask::kStartStale:
    case Ask::kStartForeignWorld: {
      wire::StartRequest request;
      request.header = header_of(ask == Ask::kStartStale ? version : version + 1);
      if (ask == Ask::kStartForeignWorld) request.header.tp_world_size = kWorkers + 1;
      request.chunk_tensor_counts = {1};
      request.buffer_bytes = 12;
      return request;
    }
    case Ask::kUpdate: {
      wire::UpdateRequest request;
      request.names = {"a.weight"};
      request.dtype_names = {"bfloat16"};
      request.shapes = {{2, 3}};
      request.tensor_sizes = {12};
      return request;
    }
    case Ask::kFinish:
    case Ask::kFinishOther: {
      wire::FinishRequest request;
      request.header = header_of(version + 1);
      if (ask == Ask::kFinishOther) request.header.publication_id = std::string(32, 'f');
      request.weight_version = std::to_string(version + 1);
      return request;
    }
    case Ask::kRelease:
      return wire::ReleaseRequest{};
    case Ask::kShutdown:
      return wire::ShutdownRequest{};
    default:
      return wire::HealthRequest{};
  }
}

// What is sent for `ask` by a parent whose next id is `id`.
ByteBuffer bytes_of(Ask ask, std::int64_t id, std::int64_t version) {
  ByteBuffer body;
  if (ask == Ask::kPause) return body;
  if (ask == Ask::kSkippedId) ++id;
  if (ask == Ask::kRepeatedId) --id;
  if (ask == Ask::kMalformedEnvelope) {
    for (const char c : std::string("\x81\xa1x\x01")) body.push_back(static_cast<std::byte>(c));
    return fakes::framed(body);
  }
  wire::encode_request(id, payload_of(ask, version), body);
  const auto rename = [&body](std::string_view from, std::string_view to) {
    const std::string_view text = as_text(body);
    const std::size_t at = text.find(from);
    for (std::size_t i = 0; i < to.size(); ++i) body[at + i] = static_cast<std::byte>(to[i]);
  };
  if (ask == Ask::kUnknownCommand) rename("health", "heaven");
  if (ask == Ask::kMalformedPayload) {
    body.clear();
    wire::encode_request(id, wire::SleepRequest{1}, body);
    rename("level", "lever");  // absent then, and there is a field nobody knows
    rename("sleep", "sleet");
  }
  ByteBuffer frame = fakes::framed(body);
  if (ask == Ask::kTorn) frame.resize(frame.size() - 1);
  return frame;
}

// One world; the steps are collected first, because the server runs until its parent is done.
struct Script {
  struct Step {
    ByteBuffer bytes;
    Replies replies;
    std::optional<bool> answer;
    bool last = false;  // nothing follows: the rest of a frame, or a word after a pause
    bool pause = false;
  };
  std::vector<Step> steps;
  Model end;

  void run() {
    fakes::FakeWorld world;
    const auto parent = std::make_shared<Peer>();
    fakes::FakeChannel channel(parent, world.clock);
    std::size_t fed = 0;
    std::vector<std::optional<bool>> answers(steps.size());
    world.channels.on_pair = [&](Peer& peer, std::size_t rank) {
      fakes::on_frame(peer, [&, rank](const ByteBuffer& body) {
        answer(peer, rank, body, steps[fed - 1].replies[rank]);
      });
    };
    parent->before_read = [&] {
      if (!parent->from_it.empty()) return;
      const bool over = fed == steps.size() || (fed > 0 && steps[fed - 1].last);
      if (over) {
        parent->gone = !(fed > 0 && steps[fed - 1].pause);
        return;
      }
      parent->send(steps[fed++].bytes);
    };
    fakes::on_frame(*parent, [&](const ByteBuffer& body) {
      const std::string_view text = as_text(body);
      // The value of "ok" stands right behind its name.
      const std::size_t at = text.find("\xa2ok");
      RC_ASSERT(at != std::string_view::npos && fed > 0);
      RC_ASSERT(!answers[fed - 1].has_value());
      answers[fed - 1] = text[at + 3] == '\xc3';
    });
    RuntimeOptions options;
    options.tp_size = kWorkers;
    options.version = "1.0";
    options.committed_version = Model().version;
    options.control_timeout = options.worker_timeout = kTimeout;
    options.worker = [](int) { return SpawnRequest{}; };
    const TimePoint begin = world.clock.now();
    run_runtime(world.world(), channel, options);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (answers[i] != steps[i].answer) {
        RC_FAIL("step " + std::to_string(i) + " was answered otherwise");
      }
    }
    for (const auto& process : world.processes.processes) RC_ASSERT(!process->alive);
    // One wait for a worker at most, one for the parent, and the pool's end.
    RC_ASSERT(world.clock.now() - begin <= 2 * kTimeout + seconds(10));
  }

  static void answer(Peer& peer, std::size_t rank, const ByteBuffer& body, Reply reply) {
    wire::RequestHead head = wire::decode_request_head(body);
    wire::Result result;
    if (head.command == "startup") {
      wire::WorkerCapability capability;
      capability.tp_rank = static_cast<std::int64_t>(rank);
      capability.tp_world_size = kWorkers;
      capability.cuda_device_uuid = "gpu-" + std::to_string(rank);
      result = capability;
    }
    if (head.command == "health") result = wire::HealthResult{};
    if (head.command == "generate") result = wire::GenerateResult{};
    if (head.command == "finish_native_weight_update") {
      const auto finish =
          std::get<wire::FinishRequest>(wire::decode_payload(Command::kFinish, body));
      wire::WorkerReceipt receipt;
      receipt.tp_rank = static_cast<std::int64_t>(rank);
      receipt.tp_world_size = kWorkers;
      receipt.device_uuid = "gpu-" + std::to_string(rank);
      receipt.publication_id = finish.header.publication_id;
      receipt.model_version = finish.header.model_version;
      receipt.expected_manifest_fingerprint = finish.header.expected_manifest.fingerprint;
      receipt.resident_parameter_count = 3;
      receipt.ready = true;
      result = receipt;
    }
    switch (reply) {
      case Reply::kTwice:
        fakes::send_response(peer, fakes::succeeded(head, result));
        [[fallthrough]];
      case Reply::kGood:
        fakes::send_response(peer, fakes::succeeded(head, result));
        return;
      case Reply::kFailed:
        fakes::send_response(peer, fakes::failed(head, "InvalidInput: no"));
        return;
      case Reply::kEndOfFile:
        peer.gone = true;
        return;
      case Reply::kOtherId:
        head.request_id += 1;
        fakes::send_response(peer, fakes::succeeded(head, result));
        return;
      case Reply::kNoise:
        peer.send(as_view("Segmentation fault\n"));
        return;
      default:
        return;
    }
  }
};

class Step final : public rc::state::Command<Model, Script> {
 public:
  // Half of the steps are the next one of a publication, or few would come to an end.
  explicit Step(const Model& model)
      : ask_(*rc::gen::weightedOneOf<Ask>(
            {{8, rc::gen::just(next_of(model))},
             {4, rc::gen::element(Ask::kStartup, Ask::kGenerate, Ask::kSleep, Ask::kWakeAll,
                                  Ask::kHealth, Ask::kRelease)},
             {1, rc::gen::map(fakes::any_of(0, static_cast<int>(Ask::kCount_)),
                              [](int value) { return static_cast<Ask>(value); })}})) {
    for (Reply& reply : replies_) {
      reply = *rc::gen::weightedOneOf<Reply>(
          {{30, rc::gen::just(Reply::kGood)},
           {1, rc::gen::map(fakes::any_of(0, static_cast<int>(Reply::kCount_)),
                            [](int value) { return static_cast<Reply>(value); })}});
    }
  }

  void checkPreconditions(const Model& model) const override {
    RC_PRE(model.started || ask_ == Ask::kStartup || ask_ == Ask::kHealth);
    RC_PRE(ask_ != Ask::kPause || (model.stage != 0 && !model.ended));  // else it may wait for ever
    RC_PRE(ask_ != Ask::kRepeatedId || model.id > 0);
  }
  void apply(Model& model) const override { model = Predict(model, ask_, replies_)().next; }

  void run(const Model& model, Script& script) const override {
    const Expected expected = Predict(model, ask_, replies_)();
    script.steps.push_back({bytes_of(ask_, model.id + 1, model.version), replies_, expected.answer,
                            ask_ == Ask::kPause || ask_ == Ask::kTorn, ask_ == Ask::kPause});
    script.end = expected.next;
  }
  void show(std::ostream& out) const override {
    out << "ask " << static_cast<int>(ask_) << ", replies " << static_cast<int>(replies_[0]) << " "
        << static_cast<int>(replies_[1]);
  }

 private:
  static Ask next_of(const Model& model) {
    if (!model.started) return Ask::kStartup;
    if (model.stage == 0) return model.asleep ? Ask::kWakeAll : Ask::kInit;
    if (model.stage == 1) return Ask::kStart;
    return model.id % 2 == 0 ? Ask::kUpdate : Ask::kFinish;
  }

  Ask ask_;
  Replies replies_{};
};

TEST(ServerModel, AnswersWhatTheProtocolSaysWhoeverItsPeersAre) {
  EXPECT_TRUE(fakes::holds_from_fixed_seed("command server", [] {
    const auto commands = *rc::state::gen::commands(Model(), [](const Model& model) {
      return rc::gen::exec([model]() -> std::shared_ptr<const Step::CommandType> {
        return std::make_shared<const Step>(model);
      });
    });
    Script script;
    rc::state::runAll(commands, Model(), script);
    RC_CLASSIFY(script.end.version > Model().version, "published");
    RC_CLASSIFY(script.end.ended, "ended early");
    script.run();
  }));
}

}  // namespace
}  // namespace tpsync::runtime
