#include "tpsync/rollout/engine.h"

#include <algorithm>

#include "tpsync/base/errors.h"

namespace tpsync::rollout {

std::string_view to_string(SleepState state) {
  switch (state) {
    case SleepState::kAwake:
      return "AWAKE";
    case SleepState::kAsleep:
      return "ASLEEP";
    case SleepState::kWeightsOnly:
      return "WEIGHTS_ONLY";
  }
  return "unknown";
}

Duration longest(const CommandTimeouts& t) {
  return std::max(
      {t.startup, t.generate, t.weight_update, t.health, t.sleep, t.wake_up, t.shutdown});
}

RolloutEngine::RolloutEngine(World world, EngineOptions options)
    : world_(world), options_(std::move(options)) {
  if (options_.tp_size < 1) {
    throw_invalid(ErrorKind::kInvalidConfig, "tp_size", "must be at least 1");
  }
  if (options_.tp_rank < 0 || options_.tp_rank >= options_.tp_size) {
    throw_invalid(ErrorKind::kInvalidConfig, "tp_rank", "must be between 0 and tp_size - 1");
  }
  const CommandTimeouts& t = options_.timeouts;
  for (const Duration timeout :
       {t.startup, t.generate, t.weight_update, t.health, t.sleep, t.wake_up, t.shutdown}) {
    if (timeout <= Duration::zero()) {
      throw_invalid(ErrorKind::kInvalidConfig, "timeouts", "must all be greater than 0");
    }
  }
  if (options_.tp_rank == 0) start_runtime();
}

void RolloutEngine::start_runtime() {
  auto [ours, theirs] = world_.channels.make_pair();
  options_.runtime.channel = std::move(theirs);
  options_.runtime.own_group = true;
  auto process = world_.processes.spawn(std::move(options_.runtime));
  connection_ = std::make_unique<Connection>(world_, std::move(ours), std::move(process));
  world_.log.record({.level = LogLevel::kInfo,
                     .event = LogEvent::kRuntimeSpawned,
                     .a = connection_->runtime_pid()});
  try {
    const wire::Result result =
        connection_->request(wire::StartupRequest{}, options_.timeouts.startup);
    check_startup(std::get<wire::StartupResult>(result));
  } catch (const std::exception& e) {
    connection_->poison(to_text(record_of(e)));
    throw;
  }
}

void RolloutEngine::check_startup(const wire::StartupResult& result) {
  const auto refuse_with = [](const std::string& subject, const std::string& detail) {
    throw_violation(ErrorKind::kMismatch, "startup." + subject, detail);
  };
  if (result.event != "ready") refuse_with("event", "is not \"ready\"");
  const std::string& pin = options_.runtime_version;
  if (!pin.empty() && result.vllm_version != pin) {
    refuse_with("vllm_version", "is " + result.vllm_version + ", required is " + pin);
  }
  if (result.model_type != options_.model_type) {
    refuse_with("model_type", "is " + result.model_type + ", required is " + options_.model_type);
  }
  if (result.process_group_id != connection_->runtime_pid()) {
    refuse_with("process_group_id", "is not the runtime's own process id");
  }
  const auto& workers = result.worker_capabilities;
  const auto count = static_cast<std::int64_t>(workers.size());
  if (count != options_.tp_size) {
    refuse_with("worker_capabilities", "has " + std::to_string(count) + " entries, tp_size is " +
                                           std::to_string(options_.tp_size));
  }
  std::vector<const wire::WorkerCapability*> by_rank(workers.size(), nullptr);
  for (const wire::WorkerCapability& worker : workers) {
    const bool valid = worker.tp_rank >= 0 && worker.tp_rank < count &&
                       by_rank[static_cast<std::size_t>(worker.tp_rank)] == nullptr;
    if (!valid) refuse_with("tp_rank", "the workers' ranks are not exactly 0 to tp_size - 1");
    by_rank[static_cast<std::size_t>(worker.tp_rank)] = &worker;
  }
  for (const auto* worker : by_rank) {
    if (worker->tp_world_size != options_.tp_size) {
      refuse_with("tp_world_size", "of worker " + std::to_string(worker->tp_rank) + " is " +
                                       std::to_string(worker->tp_world_size));
    }
  }
  for (const auto* worker : by_rank) {
    const std::string& uuid = worker->cuda_device_uuid;
    if (uuid.empty() ||
        std::find(device_uuids_.begin(), device_uuids_.end(), uuid) != device_uuids_.end()) {
      refuse_with("cuda_device_uuid",
                  "of worker " + std::to_string(worker->tp_rank) + " is empty or not its own");
    }
    device_uuids_.push_back(uuid);
    worker_pids_.push_back(worker->pid);
  }
  for (const auto* worker : by_rank) {
    if (!pin.empty() && worker->vllm_version != pin) {
      refuse_with("vllm_version",
                  "of worker " + std::to_string(worker->tp_rank) + " is " + worker->vllm_version);
    }
  }
  if (result.committed_version < 0) {
    refuse_with("committed_version", "must not be negative");
  }
  if (result.committed_version > sync::kCommittedVersionMax) {
    refuse_with("committed_version", "leaves no version above it");
  }
  version_ = result.committed_version;
  for (const std::string& name : result.layouts) {
    if (const auto layout = wire::layout_from(name)) layouts_.push_back(*layout);
  }
  if (layouts_.empty()) layouts_.push_back(wire::Layout::kCompact);
  for (const std::string& transport : result.transports) {
    if (const auto route = wire::route_of_transport(transport)) routes_.push_back(*route);
  }
  if (result.transports.empty()) routes_.push_back(wire::Route::kGather);
}

Connection& RolloutEngine::connection(std::string_view command) {
  if (!connection_) {
    throw_broken(ErrorKind::kInvalidState, command, "there is no runtime on this rank");
  }
  return *connection_;
}

void RolloutEngine::refuse(std::string_view command, const std::string& why) const {
  throw_nothing_happened(ErrorKind::kInvalidState, command, why);
}

void RolloutEngine::refuse_if_pending(std::string_view command) const {
  if (stage_ != Stage::kNone) refuse(command, "a publication is pending");
}

std::optional<ConnectionState> RolloutEngine::connection_state() const {
  if (!connection_) return std::nullopt;
  return connection_->state();
}

std::optional<Generation> RolloutEngine::generate(const wire::GenerateRequest& request) {
  if (options_.tp_rank != 0) return std::nullopt;
  Connection& runtime = connection("generate");
  if (runtime.state() != ConnectionState::kBroken) {
    refuse_if_pending("generate");
    if (sleep_ != SleepState::kAwake) {
      refuse("generate", "the engine is " + std::string(to_string(sleep_)) + "; wake it first");
    }
    if (weights_lost_) {
      refuse("generate", "the weights were discarded by a level-2 sleep; publish first");
    }
  }
  Generation generation;
  generation.version = version_;
  wire::Result result = runtime.request(request, options_.timeouts.generate);
  generation.rows = std::move(std::get<wire::GenerateResult>(result).rows);
  return generation;
}

void RolloutEngine::health_check() {
  if (options_.tp_rank != 0) return;
  connection("health").request(wire::HealthRequest{}, options_.timeouts.health);
}

void RolloutEngine::set_weight_sync_sleep_level(const sync::SleepPolicy& policy) {
  if (policy.level != 1 && policy.level != 2) {
    throw_invalid(ErrorKind::kInvalidConfig, "sleep level", "must be 1 or 2");
  }
  sleep_level_ = policy.level;
  preserve_next_sleep_ = policy.preserve_next;
}

void RolloutEngine::sleep() {
  if (options_.tp_rank != 0) return;
  Connection& runtime = connection("sleep");
  if (runtime.state() != ConnectionState::kBroken) {
    refuse_if_pending("sleep");
    if (sleep_ == SleepState::kAsleep) return;
  }
  const int level = preserve_next_sleep_ ? 1 : sleep_level_;
  runtime.request(wire::SleepRequest{level}, options_.timeouts.sleep);
  preserve_next_sleep_ = false;
  sleep_ = SleepState::kAsleep;
  weights_awake_ = false;
  if (level == 2) weights_lost_ = true;
}

void RolloutEngine::wake_up(const std::vector<std::string>& tags) {
  if (options_.tp_rank != 0) return;
  Connection& runtime = connection("wake_up");
  wire::WakeUpRequest request{tags};
  if (runtime.state() != ConnectionState::kBroken) {
    if (tags.empty()) refuse_if_pending("wake_up");
    if (sleep_ == SleepState::kAwake) return;
    if (sleep_ == SleepState::kWeightsOnly) {
      if (!tags.empty()) return;
      if (weights_awake_) request.tags = {"kv_cache"};
    }
  }
  runtime.request(request, options_.timeouts.wake_up);
  weights_awake_ = weights_awake_ || tags.empty() ||
                   std::find(tags.begin(), tags.end(), "weights") != tags.end();
  sleep_ = tags.empty() ? SleepState::kAwake : SleepState::kWeightsOnly;
}

void RolloutEngine::set_version(std::int64_t version) {
  refuse_if_pending("set_version");
  if (published_) refuse("set_version", "only before the first publication");
  if (version < version_) {
    throw_invalid(ErrorKind::kInvalidConfig, "version",
                  std::to_string(version) + " is below the present " + std::to_string(version_));
  }
  if (version > sync::kCommittedVersionMax) {
    throw_invalid(ErrorKind::kInvalidConfig, "version", "leaves no version above it");
  }
  version_ = version;
}

sync::TargetTopology RolloutEngine::topology() {
  if (!connection("topology").usable()) {
    throw_broken(ErrorKind::kInvalidState, "topology", "the runtime is broken or was shut down");
  }
  sync::TargetTopology topology;
  topology.tp_size = options_.tp_size;
  topology.device_uuids = device_uuids_;
  topology.worker_pids = worker_pids_;
  topology.committed_version = version_;
  topology.layouts = layouts_;
  topology.routes = routes_;
  topology.weights_awake = weights_awake_;
  return topology;
}

void RolloutEngine::probe_ipc(const wire::ProbeIpcRequest& request) {
  connection("probe_ipc").request(request, options_.timeouts.weight_update);
}

void RolloutEngine::init_publication() {
  Connection& runtime = connection("init_native_weight_transfer");
  if (runtime.state() != ConnectionState::kBroken) {
    refuse_if_pending("init_native_weight_transfer");
    if (!weights_awake_) {
      refuse("init_native_weight_transfer", "the weights are asleep; wake them first");
    }
  }
  runtime.request(wire::InitRequest{}, options_.timeouts.weight_update);
  stage_ = Stage::kInitialized;
}

void RolloutEngine::start_publication(const wire::StartRequest& request) {
  constexpr std::string_view kCommand = "start_native_weight_update";
  Connection& runtime = connection(kCommand);
  if (runtime.state() != ConnectionState::kBroken) {
    if (stage_ == Stage::kStarted) refuse(kCommand, "a publication is pending");
    if (stage_ == Stage::kNone) refuse(kCommand, "there was no init_native_weight_transfer");
    if (request.header.model_version <= version_) {
      refuse(kCommand, "version " + std::to_string(request.header.model_version) +
                           " is not above the committed " + std::to_string(version_));
    }
  }
  weights_lost_ = true;  // until finish is validated
  runtime.request(request, options_.timeouts.weight_update);
  stage_ = Stage::kStarted;
  header_ = request.header;
}

void RolloutEngine::send_update(const wire::EncodedUpdate& update, const wire::HandleMap& handles) {
  constexpr std::string_view kCommand = "update_native_weights";
  Connection& runtime = connection(kCommand);
  if (runtime.state() != ConnectionState::kBroken && stage_ != Stage::kStarted) {
    refuse(kCommand, "no publication was started");
  }
  runtime.send(wire::Command::kUpdate, options_.timeouts.weight_update,
               [&](std::int64_t id, ByteBuffer& out) { update.encode(id, handles, out); });
}

void RolloutEngine::await_update() { connection("update_native_weights").await(); }

wire::CommitResult RolloutEngine::finish_publication(const wire::FinishRequest& request) {
  constexpr std::string_view kCommand = "finish_native_weight_update";
  Connection& runtime = connection(kCommand);
  if (runtime.state() != ConnectionState::kBroken) {
    if (stage_ != Stage::kStarted) refuse(kCommand, "no publication was started");
    if (!(request.header == header_)) refuse(kCommand, "another publication is pending");
  }
  wire::Result reply = runtime.request(request, options_.timeouts.weight_update);
  wire::CommitResult result = std::move(std::get<wire::CommitResult>(reply));
  try {
    wire::validate_result(header_, result, request.flush_cache, request.digest);
  } catch (const Error& error) {
    poison(to_text(error.record()));
    throw;
  }
  version_ = header_.model_version;
  published_ = true;
  weights_lost_ = false;
  stage_ = Stage::kNone;
  world_.log.record(
      {.level = LogLevel::kInfo, .event = LogEvent::kVersionCommitted, .a = version_});
  return result;
}

void RolloutEngine::release_publication() {
  connection("release_native_ipc").request(wire::ReleaseRequest{}, options_.timeouts.weight_update);
}

void RolloutEngine::poison(std::string_view reason) noexcept {
  if (connection_) connection_->poison(reason);
}

void RolloutEngine::shutdown() {
  if (connection_) connection_->shutdown(options_.timeouts.shutdown);
}

}  // namespace tpsync::rollout
