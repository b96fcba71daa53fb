#include "tpsync/runtime/worker.h"

#include <memory>
#include <optional>

#include "tpsync/base/errors.h"
#include "tpsync/device/handles.h"
#include "tpsync/runtime/command_loop.h"
#include "tpsync/runtime/serving_state.h"
#include "tpsync/transfer/importer.h"

namespace tpsync::runtime {

namespace {

class Worker final : public CommandHandler {
 public:
  Worker(World& world, device::Device& device, const EngineFactory& factory,
         const WorkerOptions& options)
      : world_(world),
        device_(device),
        factory_(factory),
        options_(options),
        state_(options.committed_version),
        importer_(device) {}

  After handle(const Request& request, wire::Response& response) override;
  After after_failure(wire::Command command) override;
  Deadline next_request_deadline() override { return Deadline::never(); }

 private:
  wire::WorkerCapability startup();
  void sleep(const wire::SleepRequest& request);
  void wake_up(const wire::WakeUpRequest& request);
  void probe(const wire::ProbeIpcRequest& request);
  void check_words(const wire::HandleMap& handles, std::span<const std::string> uuids,
                   std::span<const std::uint64_t> words);
  void start(const wire::StartRequest& request);
  void update(wire::UpdateRequest request);
  wire::WorkerReceipt finish(const wire::FinishRequest& request);
  void release();

  Deadline deadline() { return Deadline::after(world_.clock, options_.command_timeout); }

  World& world_;
  device::Device& device_;
  const EngineFactory& factory_;
  const WorkerOptions& options_;
  ServingState state_;
  bool broken_ = false;
  model::CanonicalPlan plan_;
  model::TpLayout layout_;
  device::Region weights_;
  device::Region kv_cache_;
  std::unique_ptr<InferenceEngine> engine_;
  transfer::Importer importer_;
  std::optional<transfer::WeightLoader> loader_;  // its work may read what the importer has open
};

After Worker::after_failure(wire::Command command) {
  if (wire::is_native(command)) broken_ = true;
  return After::kContinue;
}

After Worker::handle(const Request& request, wire::Response& response) {
  if (broken_ && request.command != wire::Command::kShutdown) {
    throw_broken(ErrorKind::kInvalidState, name_of(request.command),
                 "an earlier weight update failed in this worker");
  }
  wire::Payload payload = wire::decode_payload(request.command, request.body);
  const auto* update_request = std::get_if<wire::UpdateRequest>(&payload);
  world_.log.record(
      {.level = LogLevel::kDebug,
       .event = LogEvent::kCommandReceived,
       .a = request.id,
       .b = update_request != nullptr ? static_cast<std::int64_t>(update_request->chunk_index) : 0,
       .subject = name_of(request.command)});
  switch (request.command) {
    case wire::Command::kStartup:
      response.result = startup();
      break;
    case wire::Command::kGenerate:
      state_.check_generate();
      response.result = engine_->generate(std::get<wire::GenerateRequest>(payload));
      break;
    case wire::Command::kSleep:
      sleep(std::get<wire::SleepRequest>(payload));
      break;
    case wire::Command::kWakeUp:
      wake_up(std::get<wire::WakeUpRequest>(payload));
      break;
    case wire::Command::kHealth:
      response.result = wire::HealthResult{};
      break;
    case wire::Command::kProbeIpc:
      probe(std::get<wire::ProbeIpcRequest>(payload));
      break;
    case wire::Command::kInit:
      state_.check_init();
      if (!std::get<wire::InitRequest>(payload).packed) {
        throw_invalid(ErrorKind::kUnsupported, "packed", "only packed transfers are taken");
      }
      state_.initialized();
      break;
    case wire::Command::kStart:
      start(std::get<wire::StartRequest>(payload));
      break;
    case wire::Command::kUpdate:
      update(std::move(std::get<wire::UpdateRequest>(payload)));
      break;
    case wire::Command::kFinish:
      response.result = finish(std::get<wire::FinishRequest>(payload));
      break;
    case wire::Command::kRelease:
      release();
      break;
    case wire::Command::kShutdown:
      return After::kStop;
  }
  return After::kContinue;
}

wire::WorkerCapability Worker::startup() {
  plan_ = model::plan_canonical(options_.config);
  layout_ = model::plan_tp_layout(options_.config, plan_, options_.tp_size, options_.tp_rank);
  weights_ = device::allocate(device_, {.bytes = layout_.resident_bytes,
                                        .kind = device::RegionKind::kSleepable,
                                        .tag = kWeightsTag});
  kv_cache_ = device::allocate(device_, {.bytes = options_.kv_cache_bytes,
                                         .kind = device::RegionKind::kSleepable,
                                         .tag = kKvCacheTag});
  engine_ = factory_({device_, weights_.id(), kv_cache_.id(), options_.config, plan_, layout_});
  engine_->load_checkpoint();
  loader_.emplace(device_, weights_.id(), plan_, layout_, *engine_);
  wire::WorkerCapability capability;
  capability.tp_rank = options_.tp_rank;
  capability.tp_world_size = options_.tp_size;
  capability.cuda_device_uuid = device_.uuid();
  capability.vllm_version = options_.version;
  capability.pid = world_.host.pid();
  return capability;
}

void Worker::sleep(const wire::SleepRequest& request) {
  state_.check_sleep(request);
  if (state_.kv_cache_awake()) device_.sleep(kKvCacheTag, false);
  if (state_.weights_awake()) device_.sleep(kWeightsTag, request.level == 1);
  state_.slept(request.level);
}

void Worker::wake_up(const wire::WakeUpRequest& request) {
  state_.check_wake_up(request);
  if (wakes(request, kWeightsTag) && !state_.weights_awake()) device_.wake(kWeightsTag);
  if (wakes(request, kKvCacheTag) && !state_.kv_cache_awake()) device_.wake(kKvCacheTag);
  state_.woke(request);
}

void Worker::probe(const wire::ProbeIpcRequest& request) {
  state_.check_probe();
  // A second import of one export is the same mapping: closing the probe's would take the other's.
  if (importer_.is_open()) {
    throw_nothing_happened(ErrorKind::kInvalidState, name_of(wire::Command::kProbeIpc),
                           "the buffer of a publication was not released yet");
  }
  if (request.words.size() != static_cast<std::size_t>(options_.tp_size)) {
    throw_violation(ErrorKind::kProtocol, "words", "must be one per TP rank");
  }
  const bool all = !request.sources.empty();
  if (all && request.sources.size() != request.words.size()) {
    throw_violation(ErrorKind::kProtocol, "sources", "must be one per TP rank");
  }
  const std::vector<std::string> own = {device_.uuid()};
  const std::span<const std::uint64_t> words =
      all ? std::span(request.words)
          : std::span(request.words).subspan(static_cast<std::size_t>(options_.tp_rank), 1);
  check_words(request.handles, all ? request.sources : own, words);
}

// That the export of each of `uuids` can be opened and holds its word.
void Worker::check_words(const wire::HandleMap& handles, std::span<const std::string> uuids,
                         std::span<const std::uint64_t> words) {
  transfer::Importer importer(device_);
  std::vector<std::byte> bytes(words.size() * sizeof(std::uint64_t));
  const auto regions = importer.open_all(handles, uuids, sizeof(std::uint64_t));
  {
    const device::Stream stream = device::create_stream(device_);
    for (std::size_t i = 0; i < regions.size(); ++i) {
      device_.download(stream.id(), regions[i], 0,
                       std::span(bytes).subspan(i * sizeof(std::uint64_t), sizeof(std::uint64_t)));
    }
    device_.synchronize(stream.id(), deadline());
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::uint64_t word = 0;
    for (std::size_t b = 0; b < sizeof(word); ++b) {
      word |= std::to_integer<std::uint64_t>(bytes[i * sizeof(word) + b]) << (8 * b);
    }
    if (word == words[i]) continue;
    throw_nothing_happened(ErrorKind::kIpc, uuids[i],
                           "the opened export does not hold its actor's word");
  }
}

void Worker::start(const wire::StartRequest& request) {
  const wire::PublicationHeader& header = request.header;
  wire::validate_header(header, options_.tp_size, options_.routes);
  const std::string uuid = device_.uuid();
  const auto& expected = header.device_uuids[static_cast<std::size_t>(options_.tp_rank)];
  if (expected != uuid) {
    throw_violation(ErrorKind::kMismatch, "device_uuids[" + std::to_string(options_.tp_rank) + "]",
                    "is " + expected + ", this worker runs on " + uuid);
  }
  state_.check_start(request);
  state_.started(header);  // from here on the resident weights are of no version
  loader_->abandon();
  loader_->begin(request, deadline());
}

void Worker::update(wire::UpdateRequest request) {
  state_.check_update();
  const wire::PublicationHeader& header = state_.header();
  const bool all = wire::route_of_transport(header.transport) == wire::Route::kReshard;
  const std::vector<std::string> own = {device_.uuid()};
  const auto packed = importer_.open_all(request.handles, all ? header.device_uuids : own,
                                         loader_->buffer_bytes_needed());
  loader_->load(std::move(request), packed, deadline());
}

wire::WorkerReceipt Worker::finish(const wire::FinishRequest& request) {
  state_.check_finish(request);
  transfer::Attestation attestation = loader_->finish(deadline());
  const wire::PublicationHeader& header = state_.header();
  if (attestation.received != header.expected_manifest) {
    throw_violation(ErrorKind::kMismatch, "manifest",
                    "what this worker received is not the expected manifest");
  }
  if (request.flush_cache && !engine_->reset_prefix_cache()) {
    throw_broken(ErrorKind::kInvalidState, "prefix cache", "could not be reset");
  }
  wire::WorkerReceipt receipt;
  receipt.tp_rank = options_.tp_rank;
  receipt.tp_world_size = options_.tp_size;
  receipt.device_uuid = device_.uuid();
  receipt.publication_id = header.publication_id;
  receipt.model_version = header.model_version;
  receipt.expected_manifest_fingerprint = std::move(attestation.received.fingerprint);
  receipt.resident_parameter_count =
      static_cast<std::int64_t>(attestation.resident_parameter_count);
  receipt.ready = receipt.resident_parameter_count > 0;
  receipt.digest = std::move(attestation.digest);
  state_.committed();
  return receipt;
}

void Worker::release() {
  state_.check_release();
  const std::uint64_t released = importer_.release();
  world_.log.record({.level = LogLevel::kDebug,
                     .event = LogEvent::kImportsReleased,
                     .a = static_cast<std::int64_t>(released)});
}

}  // namespace

void run_worker(World world, Channel& channel, device::Device& device, const EngineFactory& factory,
                const WorkerOptions& options) {
  Worker worker(world, device, factory, options);
  serve(world, channel, worker,
        {.name = "worker " + std::to_string(options.tp_rank),
         .reply_timeout = options.command_timeout,
         .consecutive_ids = false});
}

}  // namespace tpsync::runtime
