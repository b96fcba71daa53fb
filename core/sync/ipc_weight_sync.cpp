#include "tpsync/sync/ipc_weight_sync.h"

#include <algorithm>

#include "tpsync/base/errors.h"
#include "tpsync/sync/preflight.h"
#include "tpsync/transfer/chunk_layout.h"

namespace tpsync::sync {

namespace {

// A kill routine's worst case, and so the time after which a worker that still lives is not going
// to die. Not kKillAllowance: a survivor has that long in all, and this wait is a part of it.
constexpr Duration kWorkerDeathAllowance = total(KillBudget{});
constexpr std::uint64_t kProbeBytes = sizeof(std::uint64_t);

// What a rank's probe begins with: no two ranks' words are equal.
std::uint64_t probe_word(int rank) {
  return 0xa7a6a5a4a3a2a1a0ULL + static_cast<std::uint64_t>(rank) * 0x0101010101010101ULL;
}

class UpdatesToTarget final : public transfer::UpdateSink {
 public:
  explicit UpdatesToTarget(PublicationTarget& target) : target_(target) {}
  void send(const wire::EncodedUpdate& update, const wire::HandleMap& handles) override {
    target_.send_update(update, handles);
  }
  void await() override { target_.await_update(); }
  void give_up(const ErrorRecord& cause) noexcept override { target_.poison(to_text(cause)); }

 private:
  PublicationTarget& target_;
};

std::string to_hex(ByteView bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 0xf];
  }
  return text;
}

// A command that failed so was not sent, or was refused by everybody before it had an effect.
bool changed_nothing(const Error& error) {
  return error.remedy() == Remedy::kFixInput || error.remedy() == Remedy::kTryLater;
}

std::int64_t visible_devices(Host& host) {
  const auto list = host.environment("CUDA_VISIBLE_DEVICES");
  if (!list) return 1;  // the one device that main handed down
  if (list->empty()) return 0;
  return 1 + static_cast<std::int64_t>(std::count(list->begin(), list->end(), ','));
}

wire::SchemaReport schema_report(const wire::Manifest& manifest, const SyncOptions& options,
                                 const wire::SourceLayout& source) {
  wire::SchemaReport report;
  report.fingerprint = manifest.fingerprint;
  report.bucket_bytes = options.bucket_bytes;
  report.content_digest = options.content_digest;
  report.overlap = options.overlap;
  if (options.layout) report.layout = name_of(*options.layout);
  report.route = name_of(options.route);
  report.flush_cache = options.flush_cache;
  report.control_timeout_ns = options.control_timeout.count();
  report.source = source;
  return report;
}

// The plan, the shards' bounds, and the options that decide which collectives are entered, what is
// sent, how the result is checked, and how long ranks wait for one another.
void require_equal(const wire::SchemaReport& report, const wire::SchemaReport& first) {
  const auto compare = [](std::string_view name, const std::string& own, const std::string& other) {
    if (own == other) return;
    throw_invalid(
        ErrorKind::kMismatch, name,
        "is " + own + " on this rank and " + other + " on rank 0; give all ranks the same");
  };
  const auto switched = [](bool on) -> std::string { return on ? "on" : "off"; };
  const auto named = [](const std::string& layout) { return layout.empty() ? "any" : layout; };
  compare("manifest", report.fingerprint, first.fingerprint);
  compare("bucket_bytes", std::to_string(report.bucket_bytes), std::to_string(first.bucket_bytes));
  compare("content_digest", switched(report.content_digest), switched(first.content_digest));
  compare("overlap", switched(report.overlap), switched(first.overlap));
  compare("layout", named(report.layout), named(first.layout));
  compare("route", report.route, first.route);
  compare("flush_cache", switched(report.flush_cache), switched(first.flush_cache));
  compare("control_timeout", std::to_string(report.control_timeout_ns) + " ns",
          std::to_string(first.control_timeout_ns) + " ns");
  if (report.source != first.source) {
    throw_invalid(ErrorKind::kMismatch, "shards",
                  "this rank cuts the tensors at other rows than rank 0 does");
  }
}

}  // namespace

struct IpcWeightSync::Plan {
  model::CanonicalPlan canonical;
  wire::Manifest manifest;
  std::vector<transfer::Chunk> chunks;            // planned after the preflight admitted the bucket
  std::unique_ptr<transfer::UpdatePlan> updates;  // rank 0 only
};

IpcWeightSync::IpcWeightSync(World world, std::unique_ptr<collective::ControlGroup> group,
                             device::Device& device, transfer::WeightSource& source,
                             PublicationTarget& target, model::ModelConfig config,
                             SyncOptions options)
    : world_(world),
      group_(std::move(group)),
      device_(device),
      source_(source),
      target_(target),
      config_(std::move(config)),
      options_(std::move(options)),
      consensus_(*group_, world_.clock, world_.log, options_.control_timeout),
      rank_(group_->rank()) {
  check_options(options_);
  if (rank_ == 0 && options_.control_timeout - kKillAllowance <= target_.weight_update_timeout()) {
    static_assert(kKillAllowance % std::chrono::seconds(1) == Duration::zero());
    throw_invalid(ErrorKind::kInvalidConfig, "control_timeout",
                  "must exceed weight_update_timeout by more than " +
                      std::to_string(kKillAllowance / std::chrono::seconds(1)) +
                      " s, or the peers give up before a hung runtime is ended");
  }
  if (rank_ == 0) updates_to_target_ = std::make_unique<UpdatesToTarget>(target_);
}

IpcWeightSync::~IpcWeightSync() { cleanup(); }

void IpcWeightSync::cleanup() noexcept {
  if (is_cleaned_up_) return;
  is_cleaned_up_ = true;
  sender_.reset();
  workers_.clear();
  group_->leave();
}

void IpcWeightSync::apply(PublicationEvent event) {
  const auto next = next_state(state_, event);
  TPSYNC_ASSERT(next.has_value());
  state_ = *next;
  world_.log.record({.level = LogLevel::kDebug,
                     .event = LogEvent::kStateChanged,
                     .subject = "publication",
                     .text = to_string(state_)});
}

void IpcWeightSync::setup() {
  if (is_set_up_ || is_cleaned_up_) {
    throw_invalid(ErrorKind::kInvalidState, "setup", "may be called once, before cleanup");
  }
  consensus_.enter("setup", 0);
  std::int64_t last = options_.last_committed_version;
  std::optional<ErrorRecord> error;
  ByteBuffer own;
  attempt(error, [&] {
    if (rank_ == 0) {
      target_.set_weight_sync_sleep_level({.level = 2, .preserve_next = true});
      const std::int64_t committed = target_.topology().committed_version;
      if (committed < 0 || committed > kCommittedVersionMax) {
        throw_violation(ErrorKind::kMismatch, "committed_version",
                        "of the runtime is " + std::to_string(committed) +
                            "; it must not be negative, and a version must be left above it");
      }
      last = std::max(last, committed);
    }
    const auto word = static_cast<std::uint64_t>(last);
    wire::encode_sums(std::span(&word, 1), own);
  });
  const auto gathered = consensus_.exchange(own, error);
  attempt(error, [&] {
    transfer::for_each_rank(gathered, [&](ByteView bytes) {
      const auto words = wire::decode_sums(bytes);
      if (words.size() != 1 || words[0] > static_cast<std::uint64_t>(kCommittedVersionMax)) {
        throw_violation(ErrorKind::kProtocol, "setup", "this rank sent no committed version");
      }
      last = std::max(last, static_cast<std::int64_t>(words[0]));
    });
  });
  consensus_.agree(error);
  next_version_ = last + 1;
  is_set_up_ = true;
}

PublicationResult IpcWeightSync::sync() {
  if (!is_set_up_ || is_cleaned_up_) {
    throw_invalid(ErrorKind::kInvalidState, "sync", "needs setup before it and no cleanup yet");
  }
  if (broken_) {
    throw_invalid(ErrorKind::kInvalidState, "sync",
                  "an earlier publication failed; build a new runtime and a new sync object");
  }
  if (!version_left_) {
    throw_invalid(ErrorKind::kInvalidState, "sync",
                  "version " + std::to_string(next_version_) + " was published, the last there is");
  }
  try {
    return publish();
  } catch (const std::exception& e) {
    fail(record_of(e));
  }
}

// Runs on rank 0 alone, then every rank agrees on it.
template <typename Call>
void IpcWeightSync::rank_zero_step(std::string_view phase, Call&& call) {
  consensus_.enter(phase, 0);
  std::optional<ErrorRecord> error;
  if (rank_ == 0) attempt(error, call);
  consensus_.agree(error);
}

const IpcWeightSync::Plan& IpcWeightSync::plan() {
  if (!plan_) {
    model::ExportTraits traits;
    traits.lora_merged = options_.lora_merged;
    traits.name_remap = !options_.name_remap.empty();
    traits.wire_dtype = options_.wire_dtype;
    auto plan = std::make_unique<Plan>();
    plan->canonical = model::plan_canonical(config_, traits);
    plan->manifest = wire::build_manifest(plan->canonical.tensors);
    plan_ = std::move(plan);
  }
  return *plan_;
}

// Throws unless the trainer holds exactly what the model's configuration says.
void IpcWeightSync::check_source() {
  const auto& expected = plan().canonical.tensors;
  if (!source_.usable(options_.route)) {
    throw_invalid(ErrorKind::kInvalidState, "weight group",
                  "is missing, or was aborted by an earlier failure; build a new one");
  }
  const auto exported = source_.metadata();
  for (std::size_t t = 0; t < std::max(expected.size(), exported.size()); ++t) {
    if (t >= exported.size()) {
      throw_invalid(ErrorKind::kMismatch, expected[t].name, "is expected, the trainer has no more");
    }
    if (t >= expected.size()) {
      throw_invalid(ErrorKind::kMismatch, exported[t].name, "is not part of this model");
    }
    if (expected[t] == exported[t]) continue;
    throw_invalid(ErrorKind::kMismatch, expected[t].name,
                  expected[t].name == exported[t].name
                      ? "the trainer holds another shape or dtype than the configuration says"
                      : "is expected, the trainer has " + exported[t].name);
  }
  const wire::SourceLayout& layout = source_.layout();
  const auto actors = static_cast<std::uint64_t>(group_->size());
  if (layout.world != actors) {
    throw_invalid(ErrorKind::kMismatch, "source_layout",
                  "the trainer's shards are cut for " + std::to_string(layout.world) +
                      " actors, there are " + std::to_string(actors));
  }
  try {
    transfer::check_source_layout(expected, layout);
  } catch (const PeerViolation& error) {
    throw_invalid(ErrorKind::kMismatch, "source_layout", error.record().detail);
  }
}

void IpcWeightSync::check_schema() {
  consensus_.enter("expected-schema", 0);
  std::optional<ErrorRecord> error;
  ByteBuffer own;
  attempt(error, [&] {
    check_source();
    wire::encode(schema_report(plan_->manifest, options_, source_.layout()), own);
  });
  const auto gathered = consensus_.exchange(own, error);
  attempt(error, [&] {
    std::optional<wire::SchemaReport> first;
    transfer::for_each_rank(gathered, [&](ByteView bytes) {
      const wire::SchemaReport report = wire::decode_schema_report(bytes);
      if (!first) first = report;
      require_equal(report, *first);
    });
  });
  consensus_.agree(error);
}

wire::TopologyReport IpcWeightSync::describe_target() {
  const TargetTopology topology = target_.topology();
  if (topology.tp_size <= 0 ||
      topology.device_uuids.size() != static_cast<std::size_t>(topology.tp_size) ||
      topology.worker_pids.size() != topology.device_uuids.size() || topology.layouts.empty()) {
    throw_violation(ErrorKind::kMismatch, "topology", "the runtime did not name all its workers");
  }
  if (!topology.weights_awake) {
    throw_nothing_happened(ErrorKind::kInvalidState, "weights",
                           "are asleep; wake them before a publication");
  }
  if (next_version_ <= topology.committed_version) {
    throw_invalid(ErrorKind::kInvalidState, "model_version",
                  std::to_string(next_version_) + " is not above the committed " +
                      std::to_string(topology.committed_version));
  }
  wire::TopologyReport report;
  const auto& layouts = topology.layouts;
  const auto takes = [&](wire::Layout layout) {
    return std::find(layouts.begin(), layouts.end(), layout) != layouts.end();
  };
  const auto& routes = topology.routes;
  if (std::find(routes.begin(), routes.end(), options_.route) == routes.end()) {
    throw_invalid(ErrorKind::kUnsupported, "route",
                  "the runtime does not take " + std::string(name_of(options_.route)));
  }
  const bool reshards = options_.route == wire::Route::kReshard;
  report.layout = options_.layout                               ? *options_.layout
                  : reshards || takes(wire::Layout::kRankMajor) ? wire::Layout::kRankMajor
                                                                : wire::Layout::kCompact;
  if (!takes(report.layout)) {
    throw_invalid(ErrorKind::kUnsupported, "layout",
                  "the runtime does not take " + std::string(name_of(report.layout)));
  }
  report.tp_world_size = topology.tp_size;
  report.device_uuids = topology.device_uuids;
  report.worker_pids = topology.worker_pids;
  return report;
}

wire::TopologyReport IpcWeightSync::discover_topology() {
  consensus_.enter("topology-discovery", 0);
  std::optional<ErrorRecord> error;
  ByteBuffer bytes;
  if (rank_ == 0) attempt(error, [&] { wire::encode(describe_target(), bytes); });
  consensus_.broadcast(bytes, error);
  wire::TopologyReport report;
  attempt(error, [&] {
    report = wire::decode_topology_report(bytes);
    if (report.device_uuids.size() != static_cast<std::uint64_t>(report.tp_world_size) ||
        report.worker_pids.size() != report.device_uuids.size()) {
      throw_violation(ErrorKind::kProtocol, "topology", "rank 0 did not name all workers");
    }
  });
  consensus_.agree(error);
  return report;
}

void IpcWeightSync::preflight(const wire::TopologyReport& topology) {
  consensus_.enter("topology-memory-preflight", 0);
  PreflightLimits limits;
  std::optional<ErrorRecord> error;
  ByteBuffer own;
  attempt(error, [&] {
    const auto& canonical = plan().canonical;
    limits.bucket_bytes = options_.bucket_bytes;
    limits.largest_tensor_bytes = canonical.largest_tensor_bytes;
    limits.required_free_bytes = required_free_bytes(
        options_.bucket_bytes, canonical.largest_layer_bytes, options_.gpu_memory_headroom_bytes);
    // Every actor watches the workers by handles of its own, so that it knows when its memory is
    // nobody else's any more.
    workers_.clear();
    for (std::size_t r = 0; r < topology.worker_pids.size(); ++r) {
      workers_.push_back(world_.processes.attach(topology.worker_pids[r]));
      if (workers_.back()) continue;
      throw_nothing_happened(
          ErrorKind::kIpc, "worker " + std::to_string(r),
          "there is no process " + std::to_string(topology.worker_pids[r]) + " on this host");
    }
    wire::PreflightReport report;
    report.host_name = world_.host.host_name();
    report.boot_id = world_.host.boot_id();
    report.device_uuid = device_.uuid();
    report.visible_devices = visible_devices(world_.host);
    report.free_bytes = device_.memory().free_bytes;
    wire::encode(report, own);
  });
  const auto gathered = consensus_.exchange(own, error);
  attempt(error, [&] {
    std::vector<wire::PreflightReport> reports;
    transfer::for_each_rank(
        gathered, [&](ByteView bytes) { reports.push_back(wire::decode_preflight_report(bytes)); });
    check_preflight(reports, topology, limits);
  });
  consensus_.agree(error);
  probe_ipc(topology);
}

void IpcWeightSync::probe_ipc(const wire::TopologyReport& topology) {
  consensus_.enter("topology-ipc-probe", 0);
  device::Region region;
  device::Export exported;
  ByteBuffer own;
  std::optional<ErrorRecord> error;
  attempt(error, [&] {
    region =
        device::allocate(device_, {.bytes = kProbeBytes, .kind = device::RegionKind::kExportable});
    ByteBuffer word(kProbeBytes);
    for (std::size_t i = 0; i < word.size(); ++i) {
      word[i] = static_cast<std::byte>(probe_word(rank_) >> (8 * i) & 0xff);
    }
    const device::Stream stream = device::create_stream(device_);
    device_.upload(stream.id(), region.id(), 0, word);
    device_.synchronize(stream.id(), consensus_.begin_own_wait());
    wire::HandleMap handle;
    handle.entries.emplace_back(device_.uuid(), device_.export_region(region.id()));
    exported = device::Export(device_, region.id());
    wire::encode(handle, own);
  });

  const auto keep = [&] {
    if (!exported) return;
    exported.leak();
    region.leak();
    world_.log.record({.level = LogLevel::kWarning,
                       .event = LogEvent::kExportLeaked,
                       .a = static_cast<std::int64_t>(kProbeBytes)});
  };
  bool may_be_open = false;
  try {
    wire::ProbeIpcRequest request;
    const auto gathered = consensus_.exchange(own, error);
    attempt(error, [&] {
      std::vector<wire::HandleMap> handles;
      transfer::for_each_rank(
          gathered, [&](ByteView bytes) { handles.push_back(wire::decode_handle_map(bytes)); });
      request.handles = transfer::merge_handles(topology.device_uuids, std::move(handles));
      for (int r = 0; r < group_->size(); ++r) request.words.push_back(probe_word(r));
      if (options_.route == wire::Route::kReshard) request.sources = topology.device_uuids;
    });
    consensus_.agree(error);
    may_be_open = true;
    rank_zero_step("topology-ipc-probe", [&] { target_.probe_ipc(request); });
  } catch (const Error& e) {
    // A command that was refused, here or by the workers, leaves no worker with the probe open.
    // After any other failure one may have it until it is dead; and if the group broke, its ranks
    // do not stand at one gate, or one of them does not say how it failed, this rank knows of
    // neither, and perhaps nobody ends the workers: the few bytes stay until the process ends.
    const bool lost = e.kind() == ErrorKind::kPeerLost || e.record().subject == kLockstep ||
                      e.record().subject == kReport;
    if (lost || (may_be_open && !changed_nothing(e) && !workers_gone(worker_deadline()))) keep();
    throw;
  }
}

// The last phase before the runtime is touched: whatever else can fail without it is done here.
wire::StartRequest IpcWeightSync::prepare_publication(const wire::TopologyReport& topology) {
  consensus_.enter("publication-id", 0);
  std::optional<ErrorRecord> error;
  ByteBuffer id;
  if (rank_ == 0) {
    attempt(error, [&] {
      id.resize(16);
      world_.random.fill(id);
    });
  }
  consensus_.broadcast(id, error);
  wire::StartRequest start;
  attempt(error, [&] {
    start.header.transport = transport_of(options_.route);
    start.header.publication_id = to_hex(id);
    start.header.model_version = next_version_;
    start.header.tp_world_size = topology.tp_world_size;
    start.header.expected_manifest = plan_->manifest;
    start.header.device_uuids = topology.device_uuids;
    wire::validate_header(start.header, group_->size(), std::span(&options_.route, 1));
    plan_chunks();
    for (const transfer::Chunk& chunk : plan_->chunks)
      start.chunk_tensor_counts.push_back(chunk.count);
    start.layout = topology.layout;
    start.content_digest = options_.content_digest;
    if (rank_ == 0 && topology.layout == wire::Layout::kRankMajor) {
      start.source_layout = source_.layout();
    }
    sender_ = std::make_unique<transfer::Sender>(
        device_, source_, consensus_, world_.log, updates_to_target_.get(),
        plan_->canonical.tensors, plan_->chunks, plan_->updates.get(),
        transfer::SenderOptions{.bucket_bytes = options_.bucket_bytes,
                                .layout = topology.layout,
                                .content_digest = options_.content_digest,
                                .overlap = options_.overlap,
                                .route = options_.route});
    start.buffer_bytes = sender_->buffer_bytes();
    start.slots = sender_->slots();
  });
  consensus_.agree(error);
  return start;
}

void IpcWeightSync::plan_chunks() {
  if (!plan_->chunks.empty()) return;
  auto chunks = transfer::plan_chunks(plan_->canonical.tensors, options_.bucket_bytes);
  if (rank_ == 0) {
    plan_->updates = std::make_unique<transfer::UpdatePlan>(plan_->canonical.tensors, chunks);
  }
  plan_->chunks = std::move(chunks);
}

PublicationResult IpcWeightSync::publish() {
  last_agreement_ = false;
  check_schema();
  const wire::TopologyReport topology = discover_topology();
  preflight(topology);
  const wire::StartRequest start = prepare_publication(topology);
  try {
    rank_zero_step("native-init", [&] { target_.init_publication(); });
  } catch (const Error& e) {
    if (!changed_nothing(e)) apply(PublicationEvent::kInit);
    throw;
  }
  apply(PublicationEvent::kInit);
  rank_zero_step("native-start", [&] { target_.start_publication(start); });
  apply(PublicationEvent::kStart);
  const wire::ExpectedDigest digest = transfer_weights(start.header);
  PublicationResult result = finish(start.header, digest);
  apply(PublicationEvent::kCommit);
  release();
  return result;
}

wire::ExpectedDigest IpcWeightSync::transfer_weights(const wire::PublicationHeader& header) {
  sender_->open(header.device_uuids);
  apply(PublicationEvent::kChunk);
  sender_->send();
  wire::ExpectedDigest digest = sender_->verify_source();
  apply(PublicationEvent::kVerified);
  return digest;
}

PublicationResult IpcWeightSync::finish(const wire::PublicationHeader& header,
                                        const wire::ExpectedDigest& digest) {
  ByteBuffer bytes;
  rank_zero_step("native-finish", [&] {
    wire::FinishRequest request;
    request.header = header;
    request.flush_cache = options_.flush_cache;
    request.weight_version = std::to_string(header.model_version);
    request.digest = digest;
    wire::encode(target_.finish_publication(request), bytes);
  });

  consensus_.enter("native-result", 0);
  std::optional<ErrorRecord> error;
  consensus_.broadcast(bytes, error);
  PublicationResult result;
  attempt(error, [&] {
    wire::CommitResult commit = wire::decode_commit_result(bytes);
    wire::validate_result(header, commit, options_.flush_cache, digest);
    result = {header.publication_id, commit.model_version, commit.prefix_cache_reset,
              std::move(commit.worker_receipts)};
  });
  consensus_.agree(error);
  return result;
}

void IpcWeightSync::release() {
  last_agreement_ = true;
  rank_zero_step("native-ipc-release", [&] { target_.release_publication(); });
  apply(PublicationEvent::kRelease);
  sender_->release(consensus_.begin_wait());
  sender_.reset();
  workers_.clear();
  version_left_ = next_version_ < INT64_MAX;
  if (version_left_) ++next_version_;
  apply(PublicationEvent::kDone);
}

Deadline IpcWeightSync::worker_deadline() {
  return Deadline::after(world_.clock, kWorkerDeathAllowance);
}

bool IpcWeightSync::workers_gone(Deadline deadline) {
  bool gone = true;
  for (const auto& worker : workers_) gone &= worker && worker->wait(deadline).has_value();
  return gone;
}

void IpcWeightSync::fail(const ErrorRecord& cause) {
  ErrorRecord record = cause;
  if (record.phase.empty()) record.phase = consensus_.phase_name();
  const bool group_broke = record.kind == ErrorKind::kPeerLost;
  broken_ = group_broke;
  if (state_ == PublicationState::kIdle) {
    sender_.reset();
    workers_.clear();
    throw_record(record);
  }
  if (group_broke && last_agreement_) record.kind = ErrorKind::kOutcomeUnknown;
  record.remedy = Remedy::kRebuildRuntime;
  broken_ = true;
  if (state_ != PublicationState::kReleased) apply(PublicationEvent::kFail);
  const Deadline gone = worker_deadline();
  if (rank_ == 0) target_.poison(to_text(record));
  // A worker may read this actor's buffer until it is dead, and only then is it given back. Without
  // a buffer nobody is waited for. This rank's own work had its control timeout already.
  if (sender_ && (!sender_->holds_buffer() || workers_gone(gone))) {
    const Deadline least = Deadline::after(world_.clock, kTimeoutGrace);
    sender_->release(Deadline::at(std::max(gone.time(), least.time())));
  }
  sender_.reset();
  workers_.clear();
  throw RuntimeBroken(record);
}

}  // namespace tpsync::sync
