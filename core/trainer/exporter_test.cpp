// The exporter against the planner, and actors to workers over host devices: storage forms,
// shardings, layouts and digests.
#include "tpsync/trainer/exporter.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <atomic>
#include <barrier>
#include <map>

#include "tpsync/base/bytes.h"
#include "tpsync/base/errors.h"
#include "tpsync/base/os_clock.h"
#include "tpsync/base/os_threads.h"
#include "tpsync/device/digest_weights.h"
#include "tpsync/device/handles.h"
#include "tpsync/device/host_device.h"
#include "tpsync/model/tp_layout.h"
#include "tpsync/transfer/chunk_layout.h"
#include "tpsync/transfer/content_digest.h"
#include "tpsync/transfer/importer.h"
#include "tpsync/transfer/loader.h"
#include "tpsync/transfer/sender.h"

namespace tpsync::trainer {
namespace {

constexpr std::uint64_t kDeviceBytes = 1 << 24;

model::ModelConfig config_named(const std::string& name) {
  return model::load_model_config(std::string(TPSYNC_SOURCE_DIR) + "/conformance/models/" + name +
                                  ".json");
}

// A value for each element of each tensor.
std::uint16_t value_of(const std::string& tensor, std::uint64_t element) {
  std::uint64_t hash = element;
  for (const char c : tensor) hash = device::mix64(hash ^ static_cast<unsigned char>(c));
  return static_cast<std::uint16_t>(hash);
}

// Ranks of one process, a thread each: once all have packed, each reads its peers' parts straight
// from their buffers. Every rank allocates in the same order, so the same region number names the
// same buffer on each device.
struct Meeting {
  struct Member {
    device::HostDevice* device = nullptr;
  };
  explicit Meeting(int ranks)
      : members(static_cast<std::size_t>(ranks)), all(ranks), one(threads.make_mutex()) {}
  OsThreads threads;
  std::vector<Member> members;
  std::barrier<> all;
  std::unique_ptr<Mutex> one;
  bool reads_peers = false;  // gathers are done in wait()
  bool lets_go = true;       // what detach() says
  std::atomic<int> gathers = 0;
  int attached = 0;
  int detached = 0;
};

class LocalShards final : public collective::ShardGroup {
 public:
  LocalShards(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_.members.size()); }
  void all_gather(device::StreamId stream, device::RegionId buffer,
                  std::span<const collective::GatherPart> parts) override {
    ++meeting_.gathers;
    pending_ = [this, stream, buffer, kept = std::vector(parts.begin(), parts.end())] {
      meeting_.all.arrive_and_wait();
      {
        const MutexLock lock(*meeting_.one);
        copy_parts(stream, buffer, kept);
      }
      meeting_.all.arrive_and_wait();
    };
    if (!meeting_.reads_peers) std::exchange(pending_, nullptr)();
  }
  bool reads_peers() const override { return meeting_.reads_peers; }
  void attach(device::RegionId, ByteView handle) override {
    EXPECT_EQ(handle.size(), 1U);
    ++meeting_.attached;
  }
  bool detach(device::RegionId, Deadline) override {
    ++meeting_.detached;
    return meeting_.lets_go;
  }
  void wait(device::StreamId stream, Deadline deadline, collective::ControlGroup&) override {
    if (pending_) std::exchange(pending_, nullptr)();
    const MutexLock lock(*meeting_.one);
    meeting_.members[static_cast<std::size_t>(rank_)].device->synchronize(stream, deadline);
  }
  void abort() noexcept override {}
  bool usable() const noexcept override { return true; }

 private:
  void copy_parts(device::StreamId stream, device::RegionId buffer,
                  std::span<const collective::GatherPart> parts) {
    device::Device& own = *meeting_.members[static_cast<std::size_t>(rank_)].device;
    for (std::size_t r = 0; r < parts.size(); ++r) {
      if (static_cast<int>(r) == rank_ || parts[r].bytes == 0) continue;
      ByteBuffer bytes(parts[r].bytes);
      device::Device& peer = *meeting_.members[r].device;
      const device::Stream reading = device::create_stream(peer);
      peer.download(reading.id(), buffer, parts[r].offset, bytes);
      peer.synchronize(reading.id(), Deadline::never());
      own.upload(stream, buffer, parts[r].offset, bytes);
      own.synchronize(stream, Deadline::never());
    }
  }

  Meeting& meeting_;
  int rank_;
  std::function<void()> pending_;
};

class NoControl final : public collective::ControlGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_gather_word(std::uint64_t, std::span<std::uint64_t>, Deadline) override {}
  std::vector<ByteBuffer> all_gather(ByteView, Deadline) override { return {}; }
  void broadcast(ByteBuffer&, int, Deadline) override {}
  std::optional<int> lost_peer() override { return std::nullopt; }
  void raise_alarm() noexcept override {}
  std::optional<int> alarm() override { return std::nullopt; }
  void leave() noexcept override {}
};

class NoLayers final : public transfer::LayerSink {
 public:
  void layer_loaded(std::int64_t layer) override { layers.push_back(layer); }
  std::vector<std::int64_t> layers;
};

struct Form {
  bool fused = true;
  DType stored = DType::kBFloat16;
  std::uint64_t cut_key = 0;  // 0: as FSDP cuts; else uneven by this key
  bool reads_peers = false;   // of the weight group
  wire::Route route = wire::Route::kGather;
};

// All ranks' shards of a model, on one host device per rank.
class Actors {
 public:
  Actors(const model::ModelConfig& config, int world, const Form& form)
      : config_(config), form_(form), meeting_(world) {
    meeting_.reads_peers = form.reads_peers;
    for (int r = 0; r < world; ++r) {
      memory_.add_device(uuid(r), kDeviceBytes);
      devices_.push_back(std::make_unique<device::HostDevice>(
          memory_,
          device::HostDeviceOptions{.uuid = uuid(r), .landing = device::Landing::kAtLaunch}));
      meeting_.members[static_cast<std::size_t>(r)].device = devices_.back().get();
      groups_.push_back(std::make_unique<LocalShards>(meeting_, r));
    }
    for (int r = 0; r < world; ++r) {
      exporters_.push_back(std::make_unique<Exporter>(
          *devices_[static_cast<std::size_t>(r)], *groups_[static_cast<std::size_t>(r)],
          shards(static_cast<std::uint64_t>(r)),
          ExporterOptions{.wire_dtype = DType::kBFloat16,
                          .tie_word_embeddings = config.tie_word_embeddings,
                          .moe_intermediate_size = config.moe_intermediate_size}));
    }
  }

  static std::string uuid(int rank) { return "device-" + std::to_string(rank); }
  int world() const { return static_cast<int>(devices_.size()); }
  Exporter& exporter(int rank) { return *exporters_[static_cast<std::size_t>(rank)]; }
  device::HostDevice& device(int rank) { return *devices_[static_cast<std::size_t>(rank)]; }
  device::HostMemory& memory() { return memory_; }
  Meeting& meeting() { return meeting_; }

  // Publishes into one worker per rank and returns all of their resident bytes; sums are the
  // actors' digests.
  std::vector<ByteBuffer> publish(wire::Layout layout, std::uint64_t bucket,
                                  std::vector<std::uint64_t>& sums,
                                  std::vector<transfer::Attestation>& attestations) {
    const model::CanonicalPlan plan = model::plan_canonical(config_);
    const auto chunks = transfer::plan_chunks(plan.tensors, bucket);
    const auto ranks = static_cast<std::uint64_t>(world());
    const bool reshards = form_.route == wire::Route::kReshard;
    const std::uint64_t slots_max = reshards ? transfer::kReshardSlotsMax : transfer::kSlotsMax;
    const std::uint64_t slots =
        layout == wire::Layout::kRankMajor ? std::min<std::uint64_t>(slots_max, chunks.size()) : 1;
    const std::uint64_t bytes =
        slots * (reshards ? transfer::reshard_slot_bytes(plan.tensors, chunks, exporter(0).layout())
                          : transfer::slot_bytes(layout, bucket, ranks, slots));
    std::vector<device::Region> buffers;
    std::vector<std::unique_ptr<transfer::WeightPass>> passes;
    for (int r = 0; r < world(); ++r) {
      buffers.push_back(device::allocate(
          device(r), {.bytes = bytes, .kind = device::RegionKind::kExportable, .tag = {}}));
    }
    std::vector<Worker> workers;
    wire::StartRequest start;
    start.header.transport = transport_of(form_.route);
    for (int r = 0; r < world(); ++r) start.header.device_uuids.push_back(uuid(r));
    for (const auto& chunk : chunks) start.chunk_tensor_counts.push_back(chunk.count);
    start.buffer_bytes = bytes;
    start.slots = slots;
    start.layout = layout;
    start.content_digest = true;
    if (layout == wire::Layout::kRankMajor) start.source_layout = exporter(0).layout();
    for (int r = 0; r < world(); ++r) {
      workers.push_back(make_worker(plan, r));
      workers.back().loader->begin(start, Deadline::never());
    }
    for (int r = 0; r < world(); ++r) {
      passes.push_back(exporter(r).begin({.buffer = buffers[static_cast<std::size_t>(r)].id(),
                                          .handle = ByteBuffer(1),
                                          .buffer_bytes = bytes,
                                          .slots = slots,
                                          .layout = layout,
                                          .route = form_.route,
                                          .bucket_bytes = bucket,
                                          .content_digest = true,
                                          .chunks = chunks}));
    }
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      for (auto& pass : passes) pass->prepare(c, 0);
      {
        std::vector<std::unique_ptr<Thread>> running;
        for (auto& pass : passes) {
          running.push_back(
              threads_.spawn("rank", [&] { pass->gather(c, 0, Deadline::never(), control_); }));
        }
        for (const auto& rank : running) rank->join();
      }
      wire::HandleMap handles;
      for (int r = 0; r < world(); ++r) {
        handles.entries.emplace_back(
            uuid(r), device(r).export_region(buffers[static_cast<std::size_t>(r)].id()));
      }
      for (int r = 0; r < world(); ++r) {
        Worker& worker = workers[static_cast<std::size_t>(r)];
        transfer::Importer importer(*worker.device);
        const std::vector<std::string> own = {uuid(r)};
        const auto packed =
            importer.open_all(handles, reshards ? start.header.device_uuids : own, bytes);
        worker.loader->load(update(plan, chunks[c], c), packed, Deadline::never());
      }
      for (int r = 0; r < world(); ++r) {
        device(r).revoke_export(buffers[static_cast<std::size_t>(r)].id());
      }
    }
    sums.assign(plan.tensors.size(), 0);
    for (auto& pass : passes) {
      EXPECT_TRUE(pass->exhausted());
      for (std::size_t t = 0; t < sums.size(); ++t) sums[t] += pass->digest_sums()[t];
      EXPECT_EQ(pass->quiesce(Deadline::never()), meeting_.lets_go);
    }
    std::vector<ByteBuffer> resident;
    for (Worker& worker : workers) {
      attestations.push_back(worker.loader->finish(Deadline::never()));
      ByteBuffer all(worker.layout->resident_bytes);
      const device::Stream stream = device::create_stream(*worker.device);
      worker.device->download(stream.id(), worker.resident.id(), 0, all);
      worker.device->synchronize(stream.id(), Deadline::never());
      resident.push_back(std::move(all));
    }
    return resident;
  }

 private:
  struct Worker {
    std::unique_ptr<device::HostDevice> device;
    std::unique_ptr<model::TpLayout> layout;
    std::unique_ptr<NoLayers> layers;
    device::Region resident;
    std::unique_ptr<transfer::WeightLoader> loader;
  };

  Worker make_worker(const model::CanonicalPlan& plan, int rank) {
    Worker worker;
    worker.device = std::make_unique<device::HostDevice>(
        memory_,
        device::HostDeviceOptions{.uuid = uuid(rank), .landing = device::Landing::kAtSynchronize});
    worker.layout =
        std::make_unique<model::TpLayout>(model::plan_tp_layout(config_, plan, world(), rank));
    worker.layers = std::make_unique<NoLayers>();
    worker.resident = device::allocate(*worker.device, {.bytes = worker.layout->resident_bytes,
                                                        .kind = device::RegionKind::kSleepable,
                                                        .tag = "weights"});
    worker.loader = std::make_unique<transfer::WeightLoader>(*worker.device, worker.resident.id(),
                                                             plan, *worker.layout, *worker.layers);
    return worker;
  }

  static wire::UpdateRequest update(const model::CanonicalPlan& plan, const transfer::Chunk& chunk,
                                    std::uint64_t index) {
    wire::UpdateRequest request;
    request.chunk_index = index;
    for (std::uint64_t t = chunk.first; t < chunk.first + chunk.count; ++t) {
      request.names.push_back(plan.tensors[t].name);
      request.dtype_names.emplace_back("bfloat16");
      request.shapes.push_back(plan.tensors[t].shape);
      request.tensor_sizes.push_back(plan.tensors[t].nbytes);
    }
    return request;
  }

  // The rank's shards in state-dict order, derived from the canonical tensors.
  std::vector<ShardedParameter> shards(std::uint64_t rank) {
    const model::CanonicalPlan plan = model::plan_canonical(config_);
    std::vector<ShardedParameter> result;
    std::map<std::string, std::size_t> fused;
    for (const wire::TensorRecord& tensor : plan.tensors) {
      const auto at = tensor.name.find(".mlp.experts.");
      if (at == std::string::npos || !form_.fused) {
        std::vector<std::uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
        result.push_back(make(tensor.name, shape));
        continue;
      }
      const bool down = tensor.name.ends_with("down_proj.weight");
      const std::string name =
          tensor.name.substr(0, at + 13) + (down ? "down_proj" : "gate_up_proj");
      if (fused.emplace(name, result.size()).second) {
        const auto d0 = static_cast<std::uint64_t>(tensor.shape[0]);
        const auto d1 = static_cast<std::uint64_t>(tensor.shape[1]);
        result.push_back(make(name, {config_.num_experts, down ? d0 : 2 * d0, d1}));
      }
    }
    for (ShardedParameter& parameter : result) place(parameter, rank);
    return result;
  }

  ShardedParameter make(std::string name, std::vector<std::uint64_t> shape) const {
    ShardedParameter parameter;
    const auto ranks = static_cast<std::uint64_t>(world_size());
    parameter.row_bounds = fsdp_row_bounds(shape[0], ranks);
    if (form_.cut_key != 0) {
      for (std::uint64_t r = 1; r < ranks; ++r) {
        parameter.row_bounds[r] =
            device::mix64(form_.cut_key + r * 977 + name.size()) % (shape[0] + 1);
      }
      std::sort(parameter.row_bounds.begin(), parameter.row_bounds.end());
    }
    parameter.name = std::move(name);
    parameter.shape = std::move(shape);
    parameter.dtype = form_.stored;
    return parameter;
  }
  std::size_t world_size() const { return meeting_.members.size(); }

  void place(ShardedParameter& parameter, std::uint64_t rank) {
    std::uint64_t row = 1;
    for (std::size_t d = 1; d < parameter.shape.size(); ++d) row *= parameter.shape[d];
    const std::uint64_t first = parameter.row_bounds[rank];
    const std::uint64_t rows = parameter.row_bounds[rank + 1] - first;
    const std::uint64_t item = item_size(parameter.dtype);
    ByteBuffer bytes(rows * row * item);
    for (std::uint64_t i = 0; i < rows * row; ++i) {
      const std::uint16_t bits = element(parameter, first * row + i, row);
      for (std::uint64_t b = 0; b < item; ++b) {
        // bfloat16 as it is, or widened to float32: its bits are the upper half.
        const std::uint64_t shift = 8 * b - (item == 4 ? 16 : 0);
        bytes[i * item + b] =
            item == 4 && b < 2 ? std::byte{0} : static_cast<std::byte>(bits >> shift);
      }
    }
    device::HostDevice& device = *devices_[rank];
    regions_.push_back(device::allocate(
        device, {.bytes = bytes.size() + 6, .kind = device::RegionKind::kPlain, .tag = {}}));
    parameter.region = regions_.back().id();
    parameter.offset = 4;
    if (bytes.empty()) return;
    const device::Stream stream = device::create_stream(device);
    device.upload(stream.id(), parameter.region, parameter.offset, bytes);
    device.synchronize(stream.id(), Deadline::never());
  }

  static std::uint16_t element(const ShardedParameter& parameter, std::uint64_t index,
                               std::uint64_t row) {
    if (parameter.shape.size() != 3) return clean(value_of(parameter.name, index));
    const std::string base =
        parameter.name.substr(0, parameter.name.rfind('.') + 1) + std::to_string(index / row) + ".";
    const std::uint64_t in = index % row;
    if (parameter.name.ends_with("down_proj"))
      return clean(value_of(base + "down_proj.weight", in));
    return in < row / 2 ? clean(value_of(base + "gate_proj.weight", in))
                        : clean(value_of(base + "up_proj.weight", in - row / 2));
  }
  // A not-a-number may change its payload in a cast; there is none here.
  static std::uint16_t clean(std::uint16_t bits) {
    return (bits & 0x7f80) == 0x7f80 ? static_cast<std::uint16_t>(bits ^ 0x4000) : bits;
  }

  model::ModelConfig config_;
  Form form_;
  OsThreads threads_;
  device::HostMemory memory_;
  Meeting meeting_;
  std::vector<std::unique_ptr<device::HostDevice>> devices_;
  std::vector<std::unique_ptr<LocalShards>> groups_;
  std::vector<device::Region> regions_;
  std::vector<std::unique_ptr<Exporter>> exporters_;
  NoControl control_;
};

struct Published {
  std::vector<ByteBuffer> resident;
  std::vector<std::uint64_t> sums;
  std::vector<transfer::Attestation> attestations;
};

Published published(const model::ModelConfig& config, int world, const Form& form,
                    wire::Layout layout, std::uint64_t bucket) {
  Actors actors(config, world, form);
  Published result;
  result.resident = actors.publish(layout, bucket, result.sums, result.attestations);
  return result;
}

TEST(Exporter, EnumeratesFromItsShardsExactlyWhatThePlanExpects) {
  for (const char* name : {"tiny", "tiny-tp4", "tiny-tied"}) {
    const model::ModelConfig config = config_named(name);
    for (const bool fused : {true, false}) {
      Actors actors(config, 2, {.fused = fused});
      const auto exported = actors.exporter(1).metadata();
      const auto expected = model::plan_canonical(config).tensors;
      ASSERT_EQ(exported.size(), expected.size());
      for (std::size_t t = 0; t < expected.size(); ++t) EXPECT_EQ(exported[t], expected[t]);
    }
  }
}

TEST(Exporter, SeparateExpertsOfAnyOrderComeInTheFusedOrder) {
  device::HostMemory memory;
  memory.add_device("d", kDeviceBytes);
  device::HostDevice device(memory, {.uuid = "d"});
  Meeting meeting(1);
  meeting.members[0].device = &device;
  LocalShards shards(meeting, 0);
  const device::Region region =
      device::allocate(device, {.bytes = 64, .kind = device::RegionKind::kPlain, .tag = {}});
  std::vector<ShardedParameter> parameters;
  for (const char* suffix :
       {"1.down_proj", "0.up_proj", "1.gate_proj", "0.down_proj", "1.up_proj", "0.gate_proj"}) {
    ShardedParameter p;
    p.name = std::string("model.layers.0.mlp.experts.") + suffix + ".weight";
    p.shape = {2, 2};
    p.row_bounds = {0, 2};
    p.region = region.id();
    parameters.push_back(p);
  }
  Exporter exporter(device, shards, parameters, {});
  std::vector<std::string> names;
  for (const auto& record : exporter.metadata()) names.push_back(record.name.substr(27));
  EXPECT_EQ(names, (std::vector<std::string>{"0.gate_proj.weight", "0.up_proj.weight",
                                             "1.gate_proj.weight", "1.up_proj.weight",
                                             "0.down_proj.weight", "1.down_proj.weight"}));
}

TEST(Publication, BothLayoutsBothStorageFormsAndAnyShardingGiveTheSameResidentBytes) {
  EXPECT_TRUE(rc::check([] {
    const model::ModelConfig config =
        config_named(*rc::gen::element<std::string>("tiny", "tiny-tp4", "tiny-tied"));
    const int world = *rc::gen::element(1, 2);
    const std::uint64_t bucket = static_cast<std::uint64_t>(*rc::gen::inRange(256, 1500));
    const Published reference = published(config, world, {}, wire::Layout::kCompact, bucket);
    Form form;
    form.fused = *rc::gen::arbitrary<bool>();
    form.stored = *rc::gen::element(DType::kBFloat16, DType::kFloat32);
    form.cut_key = *rc::gen::inRange<std::uint64_t>(0, 1000);
    form.reads_peers = *rc::gen::arbitrary<bool>();
    const wire::Layout layout = *rc::gen::element(wire::Layout::kCompact, wire::Layout::kRankMajor);
    if (layout == wire::Layout::kRankMajor) {
      form.route = *rc::gen::element(wire::Route::kGather, wire::Route::kReshard);
    }
    const Published other = published(config, world, form, layout,
                                      static_cast<std::uint64_t>(*rc::gen::inRange(256, 1500)));
    RC_ASSERT(other.resident == reference.resident);
    RC_ASSERT(other.sums == reference.sums);
  }));
}

TEST(Publication, AtFourRanksKvHeadsAreReplicatedAndAllLayoutsAgree) {
  const model::ModelConfig config = config_named("tiny-tp4");
  const Published compact = published(config, 4, {}, wire::Layout::kCompact, 1024);
  const Published rank_major =
      published(config, 4, {.fused = false, .cut_key = 7}, wire::Layout::kRankMajor, 1024);
  EXPECT_EQ(compact.resident, rank_major.resident);
  const Published resharded =
      published(config, 4, {.fused = false, .cut_key = 7, .route = wire::Route::kReshard},
                wire::Layout::kRankMajor, 1024);
  EXPECT_EQ(compact.resident, resharded.resident);
  EXPECT_EQ(compact.sums, resharded.sums);
}

TEST(Exporter, WithoutAWeightGroupOnlyTheReshardRouteIsUsable) {
  device::HostMemory memory;
  memory.add_device("d", kDeviceBytes);
  device::HostDevice device(memory, {.uuid = "d"});
  const Exporter exporter(device, ActorPlace{0, 1}, {}, {});
  EXPECT_TRUE(exporter.usable(wire::Route::kReshard));
  EXPECT_FALSE(exporter.usable(wire::Route::kGather));
}

TEST(Publication, TheReshardRouteNeitherGathersNorLetsPeersReadItsBuffer) {
  Actors actors(config_named("tiny"), 2, {.reads_peers = true, .route = wire::Route::kReshard});
  Published result;
  actors.publish(wire::Layout::kRankMajor, 1024, result.sums, result.attestations);
  EXPECT_EQ(actors.meeting().attached, 0);
  EXPECT_EQ(actors.meeting().detached, 0);
  EXPECT_EQ(actors.meeting().gathers, 0);
}

TEST(Publication, APassKeepsABufferThatAPeerMayStillRead) {
  const model::ModelConfig config = config_named("tiny");
  for (const wire::Layout layout : {wire::Layout::kCompact, wire::Layout::kRankMajor}) {
    for (const bool lets_go : {true, false}) {
      Actors actors(config, 2, {.reads_peers = true});
      actors.meeting().lets_go = lets_go;
      const std::uint64_t free_before = actors.device(0).memory().free_bytes;
      Published result;
      actors.publish(layout, 1024, result.sums, result.attestations);
      // The exported buffer is known by its handle; the staging buffer of compact is the pass's
      // own.
      EXPECT_EQ(actors.meeting().attached, layout == wire::Layout::kRankMajor ? 2 : 0);
      EXPECT_EQ(actors.meeting().detached, 2);
      const bool keeps = layout == wire::Layout::kCompact && !lets_go;
      EXPECT_EQ(actors.device(0).memory().free_bytes < free_before, keeps);
    }
  }
}

TEST(Publication, TheWorkersDigestsAddUpToTheActors) {
  const model::ModelConfig config = config_named("tiny-tp4");
  for (const int world : {1, 2, 4}) {
    const Published p = published(config, world, {.cut_key = 3}, wire::Layout::kRankMajor, 1024);
    const auto plan = model::plan_canonical(config);
    wire::PublicationHeader header;
    header.publication_id = "p";
    header.model_version = 1;
    header.tp_world_size = world;
    header.expected_manifest = wire::build_manifest(plan.tensors);
    std::vector<wire::WorkerReceipt> receipts;
    for (int r = 0; r < world; ++r) {
      header.device_uuids.push_back(Actors::uuid(r));
      wire::WorkerReceipt receipt;
      receipt.tp_rank = r;
      receipt.tp_world_size = world;
      receipt.device_uuid = Actors::uuid(r);
      receipt.publication_id = "p";
      receipt.model_version = 1;
      const auto& attestation = p.attestations[static_cast<std::size_t>(r)];
      receipt.expected_manifest_fingerprint = attestation.received.fingerprint;
      receipt.resident_parameter_count =
          static_cast<std::int64_t>(attestation.resident_parameter_count);
      receipt.ready = true;
      receipt.digest = attestation.digest;
      receipts.push_back(receipt);
    }
    const auto digest = transfer::expected_digest(plan.tensors, p.sums);
    EXPECT_NO_THROW(wire::validate_receipts(header, receipts, digest));
    receipts[0].digest[0].sum += 1;
    EXPECT_THROW(wire::validate_receipts(header, receipts, digest), PeerViolation);
  }
}

TEST(Exporter, RefusesShardBoundsThatDoNotCoverItsRows) {
  device::HostMemory memory;
  memory.add_device("d", kDeviceBytes);
  device::HostDevice device(memory, {.uuid = "d"});
  Meeting meeting(1);
  meeting.members[0].device = &device;
  LocalShards shards(meeting, 0);
  ShardedParameter p;
  p.name = "w";
  p.shape = {4, 2};
  const std::vector<std::vector<std::uint64_t>> bad = {{}, {0}, {0, 3}, {1, 4}, {0, 2, 4}};
  for (const auto& bounds : bad) {
    p.row_bounds = bounds;
    try {
      Exporter exporter(device, shards, {&p, 1}, {});
      FAIL() << "accepted";
    } catch (const InvalidInput& error) {
      EXPECT_EQ(error.record().subject, "w");
    }
  }
  p.row_bounds = {0, 4};  // owns rows, has no memory
  EXPECT_THROW(Exporter(device, shards, {&p, 1}, {}), InvalidInput);
}

TEST(FsdpRowBounds, AreCeilingPartsWithSmallerOrEmptyLastOnes) {
  EXPECT_EQ(fsdp_row_bounds(5, 4), (std::vector<std::uint64_t>{0, 2, 4, 5, 5}));
  EXPECT_EQ(fsdp_row_bounds(13, 4), (std::vector<std::uint64_t>{0, 4, 8, 12, 13}));
  EXPECT_EQ(fsdp_row_bounds(0, 2), (std::vector<std::uint64_t>{0, 0, 0}));
}

}  // namespace
}  // namespace tpsync::trainer
