// The ends of the control protocol between peers that keep to nothing. Time is virtual, and a wait
// that nothing can end is an error of the fake channel, which the code under test would have to
// explain.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "conformance/fuzz/peers.h"
#include "conformance/fuzz/targets.h"
#include "tpsync/device/host_device.h"
#include "tpsync/runtime/server.h"
#include "tpsync/runtime/worker.h"

namespace tpsync::fuzz {

namespace {

using std::chrono::seconds;
using wire::Command;

// What a process under test answered, each reply well formed for whoever asked.
std::vector<Answered> answers_in(ByteBuffer stream, wire::Peer peer) {
  std::vector<Answered> all;
  for (ByteBuffer body = fakes::take_frame(stream); !body.empty();
       body = fakes::take_frame(stream)) {
    try {
      Answered answered = envelope_of(body);
      if (wire::command_from(answered.command)) {
        wire::decode_response(body, answered.id, answered.command, peer);
      }
      if (!all.empty() && answered.id <= all.back().id) throw Finding("an id was answered twice");
      all.push_back(std::move(answered));
    } catch (const PeerViolation& error) {
      throw Finding(std::string("a reply is malformed: ") + error.what());
    }
  }
  if (!stream.empty()) throw Finding("a reply was cut");
  return all;
}

bool is_native_name(const std::string& name) {
  const auto command = wire::command_from(name);
  return command && wire::is_native(*command);
}

// A stream of requests, legal, distorted or raw, that gives the next one when all before it was
// read.
class Requests {
 public:
  Requests(Input& input, const PublicationInputs& inputs, fakes::Peer& peer,
           const wire::HandleMap& handles)
      : input_(input), inputs_(inputs), peer_(peer), handles_(handles) {}

  // False: there is none, and the peer leaves.
  bool next() {
    if (input_.done() || steps_++ == kStepsMax) {
      peer_.gone = true;
      return false;
    }
    const std::uint8_t op = input_.byte();
    switch (op % 8) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const auto command = static_cast<Command>(1 + input_.byte() % 12);
        const std::uint8_t argument = input_.byte();
        wire::Payload payload = inputs_.request(command, argument, handles_);
        if (op % 8 == 3) {
          const std::uint8_t how = input_.byte() % 16;
          PublicationInputs::distort(payload, how, input_.byte());
        }
        last_.clear();
        wire::encode_request(++id_, payload, last_);
        send_last();
        break;
      }
      case 4:
        last_.clear();
        append(last_, input_.piece());
        send_last();
        break;
      case 5:
        only_frames_ = false;
        peer_.send(input_.piece());
        break;
      case 6:
        if (!last_.empty()) send_last();
        break;
      default:
        id_ += input_.byte();
        break;
    }
    return true;
  }

  // Everything was sent in whole frames: replies can be told apart by what was asked.
  bool only_frames() const { return only_frames_; }
  const std::map<std::int64_t, ByteBuffer>& by_id() const { return by_id_; }

 private:
  static void append(ByteBuffer& out, ByteView bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
  void send_last() {
    peer_.send(fakes::framed(last_));
    try {
      by_id_.emplace(wire::decode_request_head(last_).request_id, last_);
    } catch (const PeerViolation&) {
    }
  }

  Input& input_;
  const PublicationInputs& inputs_;
  fakes::Peer& peer_;
  const wire::HandleMap& handles_;
  int steps_ = 0;
  std::int64_t id_ = 0;
  ByteBuffer last_;
  bool only_frames_ = true;
  std::map<std::int64_t, ByteBuffer> by_id_;  // the first of each id
};

// A runtime under test, between the bytes' parent and the bytes' workers.
class RuntimeWorld {
 public:
  explicit RuntimeWorld(ByteView bytes)
      : input_(bytes), requests_(input_, inputs(), *parent_, handles_) {
    world_.channels.on_pair = [this](fakes::Peer& peer, std::size_t rank) {
      fakes::on_frame(peer,
                      [this, &peer, rank](const ByteBuffer& body) { serve(peer, rank, body); });
    };
    parent_->before_read = [this] {
      while (parent_->from_it.empty() && !parent_->gone) requests_.next();
    };
    for (int i = 0; i < 2; ++i)
      handles_.entries.emplace_back("gpu-" + std::to_string(i), ByteBuffer(8));
  }

  void run() {
    runtime::RuntimeOptions options;
    options.tp_size = PublicationInputs::kWorkers;
    options.control_timeout = kPeerTimeout;
    options.worker_timeout = kPeerTimeout;
    options.worker = [](int) { return SpawnRequest{}; };
    const TimePoint begin = world_.clock.now();
    runtime::run_runtime(world_.world(), channel_, options);
    check(world_.clock.now() - begin);
  }

 private:
  void serve(fakes::Peer& peer, std::size_t rank, const ByteBuffer& body) {
    wire::RequestHead head;
    try {
      head = wire::decode_request_head(body);
    } catch (const PeerViolation&) {
      throw Finding("a worker was sent a request without an envelope");
    }
    wire::Result result;
    if (head.command == "startup") {
      wire::WorkerCapability capability;
      capability.tp_rank = static_cast<std::int64_t>(rank);
      capability.tp_world_size = PublicationInputs::kWorkers;
      capability.cuda_device_uuid = "gpu-" + std::to_string(rank);
      result = capability;
    }
    if (head.command == "health") result = wire::HealthResult{};
    if (head.command == "generate") result = wire::GenerateResult{};
    if (head.command == "finish_native_weight_update") result = receipt(rank, body);
    // Most bytes mean success, or nothing would ever get far.
    const std::uint8_t how = input_.byte();
    const auto behaviour = how < 224 ? Behaviour::kSucceed : static_cast<Behaviour>(how % 8);
    ByteView raw;
    if (behaviour == Behaviour::kRawBody || behaviour == Behaviour::kRawBytes) raw = input_.piece();
    if (how == 255) parent_->gone = true;
    if (answer(peer, head, behaviour, raw, std::move(result)))
      succeeded_[head.request_id].insert(rank);
  }

  static wire::Result receipt(std::size_t rank, const ByteBuffer& body) {
    wire::WorkerReceipt receipt;
    try {
      const auto finish =
          std::get<wire::FinishRequest>(wire::decode_payload(Command::kFinish, body));
      receipt.tp_rank = static_cast<std::int64_t>(rank);
      receipt.tp_world_size = finish.header.tp_world_size;
      receipt.device_uuid = "gpu-" + std::to_string(rank);
      receipt.publication_id = finish.header.publication_id;
      receipt.model_version = finish.header.model_version;
      receipt.expected_manifest_fingerprint = finish.header.expected_manifest.fingerprint;
      receipt.resident_parameter_count = 3;
      receipt.ready = true;
    } catch (const PeerViolation&) {
      throw Finding("a worker was sent a finish that is none");
    }
    return receipt;
  }

  void check(Duration took) {
    for (const auto& process : world_.processes.processes) {
      if (process->alive) throw Finding("a worker outlives its runtime");
    }
    const std::vector<Answered> answers = answers_in(parent_->to_it, wire::Peer::kRuntime);
    const auto replies = static_cast<std::int64_t>(answers.size());
    if (took > (replies + 2) * (kPeerTimeout + seconds(10))) {
      throw Finding("the runtime waited longer than its timeouts");
    }
    bool asleep = false;
    bool pending = false;
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const Answered& answered = answers[i];
      const std::string& name = answered.command;
      if (answered.id != static_cast<std::int64_t>(i) + 1) throw Finding("an id was skipped");
      if (!answered.ok) {
        const bool last = i + 1 == answers.size();
        if ((is_native_name(name) || i == 0) && !last) {
          throw Finding("the runtime went on after a failed " + name);
        }
        continue;
      }
      if (succeeded_[answered.id].size() != static_cast<std::size_t>(PublicationInputs::kWorkers)) {
        throw Finding(name + " succeeded without all of its workers");
      }
      if (name == "generate" && (asleep || pending)) {
        throw Finding(asleep ? "generated while asleep"
                             : "generated while a publication is pending");
      }
      if (name == "sleep") asleep = true;
      if (name == "wake_up") asleep = false;
      if (name == "init_native_weight_transfer") pending = true;
      if (name == "finish_native_weight_update") pending = false;
    }
  }

  Input input_;
  fakes::FakeWorld world_;
  std::shared_ptr<fakes::Peer> parent_ = std::make_shared<fakes::Peer>();
  fakes::FakeChannel channel_{parent_, world_.clock};
  wire::HandleMap handles_;
  Requests requests_;
  std::map<std::int64_t, std::set<std::size_t>> succeeded_;
};

class SilentEngine final : public runtime::InferenceEngine {
 public:
  explicit SilentEngine(bool resets) : resets_(resets) {}
  void load_checkpoint() override {}
  wire::GenerateResult generate(const wire::GenerateRequest&) override { return {}; }
  bool reset_prefix_cache() override { return resets_; }
  void layer_loaded(std::int64_t) override {}

 private:
  bool resets_;
};

// Of the replies of a worker that was asked in whole frames.
void check_worker(const std::vector<Answered>& answers, const Requests& requests) {
  bool broken = false;
  bool asleep = false;
  bool pending = false;
  std::optional<wire::StartRequest> started;
  std::size_t loaded = 0;
  for (const Answered& answered : answers) {
    const std::string& name = answered.command;
    if (!answered.ok) {
      broken |= is_native_name(name);
      continue;
    }
    if (broken && name != "shutdown") throw Finding(name + " succeeded on a broken worker");
    const ByteBuffer& body = requests.by_id().at(answered.id);
    const wire::Payload payload = wire::decode_payload(*wire::command_from(name), body);
    if (name == "generate" && (asleep || pending)) throw Finding("generated when it must not");
    if (name == "sleep") asleep = true;
    if (name == "wake_up") asleep = false;
    if (name == "init_native_weight_transfer") pending = true;
    if (const auto* start = std::get_if<wire::StartRequest>(&payload)) {
      started = *start;
      loaded = 0;
    }
    if (const auto* update = std::get_if<wire::UpdateRequest>(&payload)) {
      if (update->chunk_index != loaded++) throw Finding("a chunk was loaded out of order");
    }
    if (name == "finish_native_weight_update") {
      if (!started || loaded != started->chunk_tensor_counts.size()) {
        throw Finding("attested what did not come");
      }
      if (started->header.expected_manifest != inputs().manifest) {
        throw Finding("attested another manifest");
      }
      pending = false;
      started.reset();
    }
  }
}

}  // namespace

void serve_as_runtime(ByteView bytes) { RuntimeWorld(bytes).run(); }

void serve_as_worker(ByteView bytes) {
  Input input(bytes);
  device::HostMemory memory;
  memory.add_device("gpu-1", 1 << 20);
  fakes::FakeWorld world;
  const auto peer = std::make_shared<fakes::Peer>();
  fakes::FakeChannel channel(peer, world.clock);
  const bool resets = input.byte() < 240;
  device::HostDevice actor(memory, {"gpu-1", device::Landing::kAtLaunch});
  wire::HandleMap handles;
  handles.entries.emplace_back(
      "gpu-1", actor.export_region(actor.allocate({.bytes = PublicationInputs::kBufferBytes,
                                                   .kind = device::RegionKind::kExportable,
                                                   .tag = {}})));
  Requests requests(input, inputs(), *peer, handles);
  peer->before_read = [&] {
    while (peer->from_it.empty() && !peer->gone) requests.next();
  };
  runtime::WorkerOptions options;
  options.tp_rank = 1;
  options.tp_size = PublicationInputs::kWorkers;
  options.config = inputs().config;
  options.kv_cache_bytes = 64;
  options.command_timeout = kPeerTimeout;
  const TimePoint begin = world.clock.now();
  {
    device::HostDevice worker(memory, {"gpu-1", device::Landing::kAtSynchronize});
    runtime::run_worker(
        world.world(), channel, worker,
        [&](const runtime::ResidentModel&) { return std::make_unique<SilentEngine>(resets); },
        options);
    if (memory.open_imports() != 0) throw Finding("a worker left an import open");
  }
  if (world.clock.now() - begin > kPeerTimeout) throw Finding("a worker waited for what is there");
  const std::vector<Answered> answers = answers_in(peer->to_it, wire::Peer::kWorker);
  if (requests.only_frames()) check_worker(answers, requests);
}

namespace {

// A publication by commands of `Requests`, each legal.
void add_publication(Output& out, std::uint64_t version) {
  const auto add = [&](Command command, std::uint64_t argument) {
    out.byte(0).byte(static_cast<std::uint64_t>(command) - 1).byte(argument);
  };
  add(Command::kInit, 0);
  add(Command::kStart, version);
  for (std::size_t c = 0; c < inputs().chunks.size(); ++c) add(Command::kUpdate, c);
  add(Command::kFinish, version);
  add(Command::kRelease, 0);
}

// Of a peer that is asked as in Requests; every request is followed by `answers` bytes.
std::vector<ByteBuffer> request_stream_seeds() {
  std::vector<ByteBuffer> seeds;
  const auto begin = [] {
    Output out;
    out.byte(0).byte(0).byte(0);  // startup
    return out;
  };
  {
    Output out = begin();
    add_publication(out, 1);
    out.byte(0).byte(1).byte(0);
    add_publication(out, 2);
    seeds.push_back(out.buffer);
  }
  for (std::uint64_t command = 0; command < 12; ++command) {
    for (std::uint64_t argument = 0; argument < 5; ++argument) {
      Output out = begin();
      out.byte(1).byte(command).byte(argument).byte(0).byte(1).byte(0);
      seeds.push_back(out.buffer);
    }
  }
  for (std::uint64_t how = 0; how < 14; ++how) {
    Output out = begin();
    out.byte(0).byte(6).byte(0);
    out.byte(3).byte(7).byte(1).byte(how).byte(2);
    out.byte(3).byte(8).byte(0).byte(how).byte(1);
    out.byte(3).byte(9).byte(1).byte(how).byte(1);
    seeds.push_back(out.buffer);
  }
  for (const ByteBuffer& request : request_seeds()) {
    seeds.push_back(begin().byte(4).piece(request).buffer);
    seeds.push_back(begin().byte(5).piece(fakes::framed(request)).byte(6).buffer);
  }
  return seeds;
}

}  // namespace

// The workers' behaviours are drawn from the same bytes as the requests, in the order in which
// they happen, so that most seeds are read in another way than they were written.
std::vector<ByteBuffer> runtime_seeds() {
  std::vector<ByteBuffer> seeds;
  for (const ByteBuffer& stream : request_stream_seeds()) {
    ByteBuffer seed;
    for (std::size_t i = 0; i < stream.size(); ++i) {
      seed.push_back(stream[i]);
      // Behind each command of three bytes the answers of two workers.
      if (i % 3 == 2) seed.insert(seed.end(), 2, std::byte{0});
    }
    seeds.push_back(std::move(seed));
  }
  for (std::uint64_t how = 224; how < 256; ++how) {
    for (const std::uint64_t rank : {0, 1}) {
      Output out;
      out.byte(0).byte(0).byte(0).byte(0).byte(0);
      out.byte(0).byte(4).byte(0).byte(rank == 0 ? how : 0).byte(rank == 1 ? how : 0);
      out.byte(0).byte(6).byte(0).byte(rank == 0 ? how : 0).byte(rank == 1 ? how : 0);
      out.byte(0).byte(4).byte(0).byte(0).byte(0);
      seeds.push_back(out.buffer);
    }
  }
  return seeds;
}

std::vector<ByteBuffer> worker_seeds() {
  std::vector<ByteBuffer> seeds;
  for (const ByteBuffer& stream : request_stream_seeds()) {
    seeds.push_back(Output().byte(0).bytes(stream).buffer);
  }
  return seeds;
}
}  // namespace tpsync::fuzz
