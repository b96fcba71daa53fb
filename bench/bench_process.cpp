// What a command and a publication cost among real processes of this host: an actor per rank, the
// runtime and its workers, started as programs, over socket pairs, host memory, Gloo, and the
// shared-memory lane for agreement. Each is compared, in turns within one run, with the least that
// could do: frames of the same size over the same hops, and a plain memcpy of the same bytes.
//
// After every publication the version is checked, and every byte that the workers hold, from
// outside. What is wrong ends the benchmark as an error, and the program with status 1.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bench/process_roles.h"
#include "bench/support.h"
#include "tpsync/base/errors.h"
#include "tpsync/model/config.h"
#include "tpsync/model/plan.h"
#include "tpsync/rollout/engine.h"
#include "tpsync/transfer/chunk_layout.h"
#include "tpsync/transfer/sender.h"

namespace tpsync::bench {
namespace {

constexpr int kTp = 2;
constexpr std::int64_t kPublications = 15;   // of the large model
constexpr std::int64_t kCommandRounds = 60;  // publications of the small one
constexpr const char* kLargeModel = TPSYNC_SOURCE_DIR "/conformance/models/moe-64mib.json";
constexpr std::uint64_t kLargeBucketBytes = 16 * kMiB;

double microseconds(Duration duration) { return static_cast<double>(duration.count()) / 1e3; }
double milliseconds(Duration duration) { return static_cast<double>(duration.count()) / 1e6; }

// How long this process was in each phase of what is measured; says nothing.
class PhaseLog final : public Log {
 public:
  explicit PhaseLog(Clock& clock) : clock_(clock) {}
  bool wants(LogLevel level) const noexcept override { return level != LogLevel::kDebug; }
  void record(const LogRecord& record) noexcept override {
    if (record.event == LogEvent::kPhaseEntered) enter(record.subject);
  }
  // Until end(), phases count. The first entry is what comes before any.
  void begin() {
    counts_ = true;
    enter("before");
  }
  void end() {
    enter("");
    counts_ = false;
  }
  // Milliseconds, in the order in which the phases were first entered.
  const std::vector<std::pair<std::string, double>>& phases() const { return phases_; }

 private:
  void enter(std::string_view phase) {
    if (!counts_) return;
    const TimePoint now = clock_.now();
    if (open_ < phases_.size()) phases_[open_].second += milliseconds(now - since_);
    since_ = now;
    open_ = 0;
    while (open_ < phases_.size() && phases_[open_].first != phase) ++open_;
    if (open_ == phases_.size() && !phase.empty()) phases_.emplace_back(phase, 0);
  }

  Clock& clock_;
  bool counts_ = false;
  std::size_t open_ = SIZE_MAX;
  TimePoint since_;
  std::vector<std::pair<std::string, double>> phases_;
};

conformance::WorldSpec world_of(model::ModelConfig config, std::uint64_t bucket_bytes) {
  conformance::WorldSpec spec = conformance::small_world(std::move(config), kTp);
  conformance::set_real_timeouts(spec);
  spec.sync.bucket_bytes = bucket_bytes;
  spec.sync.content_digest = false;
  return spec;
}

// ---- an update command --------------------------------------------------------------------------

// Many small tensors, so that what a command costs is not what its copies cost.
model::ModelConfig small_tensors() {
  model::ModelConfig config = conformance::tiny_tp4();
  config.num_experts = 32;
  return config;
}

// The parent of a runtime, which publishes command by command. It has the devices of all ranks to
// itself, so that nobody else is at work while a command is under way.
class Parent {
 public:
  Parent(BenchWorld& owner, const World& world)
      : owner_(owner),
        plan_(model::plan_canonical(owner.spec().config)),
        chunks_(transfer::plan_chunks(plan_.tensors, owner.spec().sync.bucket_bytes)),
        updates_(plan_.tensors, chunks_),
        engine_(world, engine_options(owner)) {
    start_.header.tp_world_size = kTp;
    start_.header.expected_manifest = wire::build_manifest(plan_.tensors);
    start_.header.device_uuids = engine_.topology().device_uuids;
    for (const transfer::Chunk& chunk : chunks_) start_.chunk_tensor_counts.push_back(chunk.count);
    start_.buffer_bytes = transfer::slot_bytes(start_.layout, owner.spec().sync.bucket_bytes, 1);
    for (int rank = 0; rank < kTp; ++rank) {
      devices_.push_back(std::make_unique<Device>(owner, rank, start_.buffer_bytes));
      handles_.entries.emplace_back(devices_.back()->device.uuid(), devices_.back()->handle);
    }
  }
  ~Parent() { engine_.shutdown(); }
  Parent(const Parent&) = delete;
  Parent& operator=(const Parent&) = delete;

  // One publication; `update(send, frame bytes)` sends each chunk's command.
  template <typename Update>
  void publish(Update&& update) {
    const std::int64_t version = engine_.version() + 1;
    start_.header.model_version = version;
    start_.header.publication_id = fmt::format("{:032x}", version);
    engine_.init_publication();
    engine_.start_publication(start_);
    for (std::uint64_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      for (const auto& device : devices_) fill(*device, chunk, version);
      frame_.clear();
      updates_.update(chunk).encode(1, handles_, frame_);
      update([&] { engine_.update_publication(updates_.update(chunk), handles_); }, frame_);
    }
    wire::FinishRequest finish;
    finish.header = start_.header;
    finish.weight_version = std::to_string(version);
    if (engine_.finish_publication(finish).model_version != version)
      throw_violation(ErrorKind::kMismatch, "publication", "another version was committed");
    engine_.release_publication();
    owner_.check_resident(version);
  }

  double tensors_per_chunk() const {
    return static_cast<double>(plan_.tensors.size()) / static_cast<double>(chunks_.size());
  }

 private:
  struct Device {
    Device(BenchWorld& owner, int rank, std::uint64_t bytes)
        : hardware(conformance::open_hardware(owner.written(), rank)),
          device(hardware->device()),
          buffer(
              device::allocate(device, {.bytes = bytes, .kind = device::RegionKind::kExportable})),
          handle(device.export_region(buffer.id())),
          exported(device, buffer.id()) {}
    std::unique_ptr<conformance::Hardware> hardware;
    device::Device& device;
    device::Region buffer;
    ByteBuffer handle;
    device::Export exported;
  };

  static rollout::EngineOptions engine_options(const BenchWorld& owner) {
    rollout::EngineOptions options;
    options.tp_size = kTp;
    options.timeouts = owner.spec().timeouts;
    options.runtime_version = conformance::kTestVersion;
    options.runtime = runtime_request(owner.folder(), owner.spec().base_version);
    return options;
  }

  void fill(Device& device, std::uint64_t chunk, std::int64_t version) {
    for (const transfer::Piece& piece : transfer::compact_pieces(plan_.tensors, chunks_[chunk])) {
      const DType dtype = owner_.spec().config.dtype;
      device.hardware->content().write(device.device, device.buffer.id(), piece.offset,
                                       {.tensor = plan_.tensors[piece.tensor].name,
                                        .version = static_cast<std::uint64_t>(version),
                                        .dtype = dtype,
                                        .count = piece.bytes / item_size(dtype)});
    }
  }

  BenchWorld& owner_;
  model::CanonicalPlan plan_;
  std::vector<transfer::Chunk> chunks_;
  transfer::UpdatePlan updates_;
  rollout::RolloutEngine engine_;
  wire::StartRequest start_;
  std::vector<std::unique_ptr<Device>> devices_;
  wire::HandleMap handles_;
  ByteBuffer frame_;
};

void measure_updates(benchmark::State& state) {
  BenchWorld owner(world_of(small_tensors(), static_cast<std::uint64_t>(state.range(0))));
  SilentLog log;
  OsWorld os(log);
  const World world = os.world();
  Parent parent(owner, world);
  Relay relay(world, kTp);
  std::vector<double> updates;
  std::vector<double> relays;
  std::size_t frame_bytes = 0;
  const auto update = [&](const auto& send, ByteView frame) {
    relays.push_back(microseconds(relay.round_trip(frame)));
    const TimePoint start = world.clock.now();
    send();
    updates.push_back(microseconds(world.clock.now() - start));
    frame_bytes = std::max(frame_bytes, frame.size());
  };
  parent.publish(update);  // what a first time costs is not counted
  updates.clear();
  relays.clear();
  for (auto _ : state) {
    const std::size_t before = updates.size();
    parent.publish(update);
    double sum = 0;
    for (std::size_t i = before; i < updates.size(); ++i) sum += updates[i];
    state.SetIterationTime(sum * 1e-6 / static_cast<double>(updates.size() - before));
  }
  state.counters["tensors"] = parent.tensors_per_chunk();
  state.counters["frame_bytes"] = static_cast<double>(frame_bytes);
  state.counters["update_us"] = median(updates);
  state.counters["relay_us"] = median(relays);
  state.counters["ratio"] = median(updates) / median(relays);
}

// ---- a publication ------------------------------------------------------------------------------

// Copies `bytes` from one place to another, both of which were touched before.
class PlainCopy {
 public:
  explicit PlainCopy(std::uint64_t bytes) : from_(bytes, std::byte{1}), to_(bytes) { run(); }
  void run() {
    std::memcpy(to_.data(), from_.data(), from_.size());
    benchmark::DoNotOptimize(to_.data());
    benchmark::ClobberMemory();
  }

 private:
  std::vector<std::byte> from_;
  std::vector<std::byte> to_;
};

void print_phases(const PhaseLog& log, bool digest) {
  fmt::print(stderr, "\nphases on rank 0, digest {}, mean of {} publications:\n", digest ? 1 : 0,
             kPublications);
  for (const auto& [phase, ms] : log.phases())
    fmt::print(stderr, "{:>10.2f} ms  {}\n", ms / static_cast<double>(kPublications), phase);
}

void measure_publications(benchmark::State& state) {
  conformance::WorldSpec spec = world_of(model::load_model_config(kLargeModel), kLargeBucketBytes);
  spec.sync.content_digest = state.range(0) != 0;
  BenchWorld owner(spec);
  SilentLog silent;
  OsWorld os(silent);
  PhaseLog log(os.world().clock);
  OsWorld logging(log);
  const World world = logging.world();
  std::vector<std::unique_ptr<Process>> others;
  for (int rank = 1; rank < spec.actors; ++rank)
    others.push_back(start_actor(world, owner.folder(), rank));
  const std::uint64_t bytes = model::plan_canonical(spec.config).byte_count;
  PlainCopy copy(bytes);
  std::vector<double> publications;
  std::vector<double> copies;
  {
    BenchActor actor(owner.folder(), owner.written(), 0, world);
    const auto publish = [&](const std::function<void()>& before) {
      actor.hear(BenchActor::kGoOn);
      const Duration took = actor.publish(before);
      log.end();
      owner.check_resident(actor.version());  // the other ranks wait for their turn
      return milliseconds(took);
    };
    state.counters["first_ms"] = publish({});
    for (auto _ : state) {
      publications.push_back(publish([&] { log.begin(); }));
      state.SetIterationTime(publications.back() * 1e-3);
      const TimePoint start = world.clock.now();
      copy.run();
      copies.push_back(milliseconds(world.clock.now() - start));
    }
    actor.hear(BenchActor::kStop);
  }
  for (const auto& other : others) {
    if (other->wait(Deadline::after(world.clock, kLongest)) != ExitStatus{false, 0})
      throw_broken(ErrorKind::kRemote, "publication", "an actor failed");
  }
  print_phases(log, spec.sync.content_digest);
  state.counters["MiB"] = static_cast<double>(bytes) / static_cast<double>(kMiB);
  state.counters["publish_ms"] = median(publications);
  state.counters["memcpy_ms"] = median(copies);
  state.counters["ratio"] = median(publications) / median(copies);
}

template <typename Measure>
void measured(benchmark::State& state, Measure&& measure) {
  try {
    measure(state);
  } catch (const std::exception& error) {
    state.SkipWithError(to_text(record_of(error)).c_str());
  }
}

void BM_UpdateCommand(benchmark::State& state) { measured(state, measure_updates); }
BENCHMARK(BM_UpdateCommand)
    ->ArgName("bucket_bytes")
    ->Arg(512)
    ->Arg(8192)
    ->Iterations(kCommandRounds)
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime();

void BM_Publication(benchmark::State& state) { measured(state, measure_publications); }
BENCHMARK(BM_Publication)
    ->ArgName("digest")
    ->Arg(0)
    ->Arg(1)
    ->Iterations(kPublications)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();

}  // namespace
}  // namespace tpsync::bench

int main(int argc, char** argv) {
  using namespace tpsync::bench;
  if (const auto status = run_role({argv + 1, argv + argc})) return *status;
  Reporter reporter;
  return run_benchmarks(argc, argv, reporter);
}
