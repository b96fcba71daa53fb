#include "conformance/world/actor.h"

#include "tpsync/transfer/chunk_layout.h"
#include "tpsync/transfer/content_digest.h"
#include "tpsync/transfer/sender.h"

namespace tpsync::conformance {

using judge::Call;
using judge::Record;

// The actor's part of a publication that a script drives command by command, at one actor.
struct Actor::Manual {
  wire::StartRequest start;
  std::vector<transfer::Chunk> chunks;
  std::unique_ptr<transfer::UpdatePlan> updates;
  device::Region buffer;
  device::Export exported;
  wire::HandleMap handles;
  std::unique_ptr<transfer::WeightPass> pass;
  std::unique_ptr<collective::ControlGroup> group;
};

Actor::Actor(const WorldSpec& spec, ActorPorts ports)
    : spec_(spec),
      ports_(std::move(ports)),
      trainer_(spec_, ports_.device, ports_.content, ports_.rank),
      version_returned_(spec.base_version) {}

Actor::~Actor() = default;

template <typename Body>
Outcome Actor::call(Call call, std::uint64_t argument, Body&& body) {
  const auto number = static_cast<std::uint64_t>(call);
  ports_.recorder.record(Record::kCallBegin, number, argument);
  Outcome outcome;
  try {
    const bool starts = call == Call::kStartEngine || call == Call::kSetup;
    if (!starts && !engine_) {
      throw_invalid(ErrorKind::kInvalidState, "engine", "was not started on this rank");
    }
    if (call == Call::kSync && !sync_) {
      throw_invalid(ErrorKind::kInvalidState, "sync", "was not set up on this rank");
    }
    body(outcome);
    ports_.recorder.record(Record::kCallEnd, number, 1,
                           static_cast<std::uint64_t>(outcome.version));
  } catch (const std::exception& e) {
    outcome.error = record_of(e);
    ports_.recorder.record(Record::kCallEnd, number, 0, 0, to_json(*outcome.error));
  }
  return outcome;
}

// Wherever generate would be accepted, what is resident must be a version, byte for byte.
void Actor::observe() {
  if (!engine_ || ports_.rank != 0 || !ports_.observe) return;
  const bool accepted = engine_->connection_state() == rollout::ConnectionState::kIdle &&
                        engine_->sleep_state() == rollout::SleepState::kAwake &&
                        !engine_->publication_pending() && !engine_->weights_lost();
  if (accepted) ports_.observe(engine_->version());
}

Outcome Actor::start_engine() {
  Outcome outcome = call(Call::kStartEngine, 0, [&](Outcome&) {
    rollout::EngineOptions options;
    options.tp_size = spec_.tp;
    options.tp_rank = ports_.rank;
    options.timeouts = spec_.timeouts;
    options.runtime_version = kTestVersion;
    if (ports_.rank == 0) options.runtime = ports_.runtime(spec_.base_version);
    engine_ = std::make_unique<rollout::RolloutEngine>(ports_.world, std::move(options));
  });
  observe();
  return outcome;
}

Outcome Actor::setup() {
  return call(Call::kSetup, 0, [&](Outcome&) {
    if (!engine_) {
      throw_invalid(ErrorKind::kInvalidState, "engine", "was not started on this rank");
    }
    const trainer::ExporterOptions export_options{
        .wire_dtype = spec_.config.dtype,
        .tie_word_embeddings = spec_.config.tie_word_embeddings,
        .moe_intermediate_size = spec_.config.moe_intermediate_size};
    // Single commands, which are driven at one actor, are those of the gather.
    if (spec_.sync.route == wire::Route::kGather || spec_.actors == 1) {
      shards_ = ports_.join_shards();
      exporter_ = std::make_unique<trainer::Exporter>(ports_.device, *shards_,
                                                      trainer_.parameters(), export_options);
    } else {
      exporter_ = std::make_unique<trainer::Exporter>(
          ports_.device, trainer::ActorPlace{ports_.rank, spec_.actors}, trainer_.parameters(),
          export_options);
    }
    transfer::WeightSource* source = exporter_.get();
    if (ports_.wrap_source) {
      decorated_ = ports_.wrap_source(*exporter_);
      if (decorated_) source = decorated_.get();
    }
    sync::SyncOptions options = spec_.sync;
    options.last_committed_version = version_returned_;
    sync_ =
        std::make_unique<sync::IpcWeightSync>(ports_.world, ports_.join_control(), ports_.device,
                                              *source, *engine_, spec_.config, std::move(options));
    sync_->setup();
  });
}

void Actor::train(Duration duration) {
  if (duration > Duration::zero()) ports_.world.clock.sleep_until(now() + duration);
}

void Actor::step() {
  const std::int64_t version = sync_ ? sync_->next_version() : version_returned_ + 1;
  trainer_.step(static_cast<std::uint64_t>(version));
  ports_.recorder.record(Record::kPublished, static_cast<std::uint64_t>(version));
}

Outcome Actor::publish() {
  Outcome outcome = call(Call::kSync, 0, [&](Outcome& out) {
    out.version = sync_->sync().model_version;
    version_returned_ = out.version;
  });
  observe();
  return outcome;
}

Outcome Actor::sleep() {
  return call(Call::kSleep, 0, [&](Outcome&) { engine_->sleep(); });
}

Outcome Actor::wake_weights() {
  return call(Call::kWakeWeights, 0, [&](Outcome&) { engine_->wake_up({"weights"}); });
}

Outcome Actor::wake_all() {
  Outcome outcome = call(Call::kWakeAll, 0, [&](Outcome&) { engine_->wake_up(); });
  observe();
  return outcome;
}

Outcome Actor::generate() {
  return call(Call::kGenerate, 0, [&](Outcome& out) {
    wire::GenerateRequest request;
    wire::GeneratePayload payload;
    payload.input_ids = {1, 2, 3};
    request.payloads.push_back(std::move(payload));
    auto generation = engine_->generate(request);
    if (!generation) return;
    out.version = generation->version;
    out.rows = std::move(generation->rows);
    for (const wire::GeneratedRow& row : out.rows) {
      for (std::size_t lane = 0; lane < row.token_ids.size(); ++lane) {
        ports_.recorder.record(Record::kTokens, static_cast<std::uint64_t>(out.version), lane,
                               static_cast<std::uint64_t>(row.token_ids[lane]));
      }
    }
  });
}

Outcome Actor::health() {
  return call(Call::kHealth, 0, [&](Outcome&) { engine_->health_check(); });
}

Outcome Actor::init_and_start() {
  Outcome outcome = call(Call::kInit, 0, [&](Outcome&) { engine_->init_publication(); });
  if (!outcome.ok()) return outcome;
  return call(Call::kStart, 0, [&](Outcome& out) {
    auto manual = std::make_unique<Manual>();
    const model::CanonicalPlan plan = model::plan_canonical(spec_.config);
    manual->chunks = transfer::plan_chunks(plan.tensors, spec_.sync.bucket_bytes);
    manual->updates = std::make_unique<transfer::UpdatePlan>(plan.tensors, manual->chunks);
    wire::StartRequest& start = manual->start;
    const std::int64_t version = engine_->version() + 1;
    start.header.publication_id = "00000000000000000000000000000" + std::to_string(100 + version);
    start.header.model_version = version;
    start.header.tp_world_size = spec_.tp;
    start.header.expected_manifest = wire::build_manifest(plan.tensors);
    start.header.device_uuids = engine_->topology().device_uuids;
    for (const transfer::Chunk& chunk : manual->chunks) {
      start.chunk_tensor_counts.push_back(chunk.count);
    }
    start.layout = wire::Layout::kRankMajor;
    start.buffer_bytes = transfer::slot_bytes(start.layout, spec_.sync.bucket_bytes,
                                              static_cast<std::uint64_t>(spec_.actors));
    start.source_layout = exporter_->layout();
    trainer_.step(static_cast<std::uint64_t>(version));
    ports_.recorder.record(Record::kPublished, static_cast<std::uint64_t>(version));
    engine_->start_publication(start);
    out.version = version;

    manual->group = ports_.join_control();
    manual->buffer = device::allocate(
        ports_.device, {.bytes = start.buffer_bytes, .kind = device::RegionKind::kExportable});
    ByteBuffer handle = ports_.device.export_region(manual->buffer.id());
    manual->handles.entries.emplace_back(ports_.device.uuid(), handle);
    manual->exported = device::Export(ports_.device, manual->buffer.id());
    manual->pass = exporter_->begin({.buffer = manual->buffer.id(),
                                     .handle = std::move(handle),
                                     .buffer_bytes = start.buffer_bytes,
                                     .layout = start.layout,
                                     .bucket_bytes = spec_.sync.bucket_bytes,
                                     .chunks = manual->chunks});
    manual_ = std::move(manual);
  });
}

Outcome Actor::update() {
  return call(Call::kUpdate, 0, [&](Outcome&) {
    if (!manual_) {
      const wire::EncodedUpdate nothing{wire::UpdateRequest{}};
      engine_->update_publication(nothing, {});
      return;
    }
    // All chunks, so that one update leaves a publication that can be finished.
    for (std::uint64_t chunk = 0; chunk < manual_->chunks.size(); ++chunk) {
      const Deadline deadline = Deadline::after(ports_.world.clock, spec_.timeouts.weight_update);
      if (manual_->pass->emitted().size() < manual_->chunks[chunk].first + 1) {
        manual_->pass->prepare(chunk, 0);
        manual_->pass->gather(chunk, 0, deadline, *manual_->group);
      }
      engine_->update_publication(manual_->updates->update(chunk), manual_->handles);
    }
  });
}

Outcome Actor::finish() {
  Outcome outcome = call(Call::kFinish, 0, [&](Outcome& out) {
    wire::FinishRequest request;
    if (manual_) request.header = manual_->start.header;
    request.weight_version = std::to_string(request.header.model_version);
    out.version = engine_->finish_publication(request).model_version;
    version_returned_ = out.version;
    engine_->release_publication();
    manual_.reset();
  });
  observe();
  return outcome;
}

Outcome Actor::keep(Outcome outcome) {
  ports_.recorder.record(Record::kKept, 0, outcome.ok() ? 1 : 0,
                         static_cast<std::uint64_t>(outcome.version),
                         outcome.ok() ? std::string() : to_json(*outcome.error));
  return outcome;
}

void Actor::check(bool condition, std::string_view what) {
  if (!condition) ports_.recorder.record(Record::kCheckFailed, 0, 0, 0, what);
}

void Actor::poke_broken() {
  if (!engine_ || ports_.rank != 0) return;
  generate();
  health();
  sleep();
  wake_weights();
  wake_all();
  call(Call::kInit, 0, [&](Outcome&) { engine_->init_publication(); });
  call(Call::kStart, 0, [&](Outcome&) { engine_->start_publication({}); });
  call(Call::kFinish, 0, [&](Outcome&) { engine_->finish_publication({}); });
  call(Call::kRelease, 0, [&](Outcome&) { engine_->release_publication(); });
  call(Call::kPoison, 0, [&](Outcome&) { engine_->poison("again"); });
}

Outcome Actor::rebuild() {
  if (ports_.heal) ports_.heal();
  cleanup();
  sync_.reset();
  decorated_.reset();
  exporter_.reset();
  shards_.reset();
  engine_.reset();
  spec_.base_version = version_returned_;
  Outcome outcome = start_engine();
  if (!outcome.ok()) return outcome;
  return setup();
}

void Actor::cleanup() {
  if (!sync_) return;
  call(Call::kCleanup, 0, [&](Outcome&) { sync_->cleanup(); });
}

void Actor::shutdown() {
  if (!engine_) return;
  call(Call::kShutdown, 0, [&](Outcome&) { engine_->shutdown(); });
  manual_.reset();
}

}  // namespace tpsync::conformance
