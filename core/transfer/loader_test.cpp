// The loader over a host device: bytes end where the layout wants them, and every deviation from
// the plan is named.
#include "tpsync/transfer/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "core/base/testing/fake_world.h"
#include "core/model/testing/models.h"
#include "tpsync/base/dtype.h"
#include "tpsync/device/host_device.h"

namespace tpsync::transfer {
namespace {

using fakes::failure_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kBucket = 1024;

class Layers final : public LayerSink {
 public:
  void layer_loaded(std::int64_t layer) override { seen.push_back(layer); }
  std::vector<std::int64_t> seen;
};

// A byte of a canonical tensor: its number and place.
std::byte content(std::uint64_t tensor, std::uint64_t offset, int version) {
  return std::byte(static_cast<unsigned char>(tensor * 37 + offset * 11 + (offset >> 8) +
                                              static_cast<std::uint64_t>(version) * 101));
}

class LoaderTest : public testing::Test {
 protected:
  explicit LoaderTest(std::uint64_t layers = 1, int tp_size = 2, int tp_rank = 1)
      : config_(make_config(layers)),
        plan_(model::plan_canonical(config_)),
        layout_(model::plan_tp_layout(config_, plan_, tp_size, tp_rank)),
        chunks_(plan_chunks(plan_.tensors, kBucket)) {
    memory_.add_device("gpu-0", 1 << 20);
    device_.emplace(memory_, device::HostDeviceOptions{"gpu-0", device::Landing::kAtSynchronize});
    resident_ = device_->allocate({.bytes = layout_.resident_bytes,
                                   .kind = device::RegionKind::kSleepable,
                                   .tag = "weights"});
    packed_ = device_->allocate({.bytes = kBucket + 64, .kind = {}, .tag = {}});
    loader_.emplace(*device_, resident_, plan_, layout_, layers_);
  }
  static model::ModelConfig make_config(std::uint64_t layers) {
    model::ModelConfig config = model::model_named("tiny-tp4");
    config.num_hidden_layers = layers;
    return config;
  }

  wire::StartRequest start(wire::Layout layout = wire::Layout::kCompact) const {
    wire::StartRequest request;
    for (const Chunk& chunk : chunks_) request.chunk_tensor_counts.push_back(chunk.count);
    request.layout = layout;
    request.buffer_bytes = slot_bytes(layout, kBucket, 2);
    if (layout == wire::Layout::kRankMajor) request.source_layout = uneven();
    return request;
  }
  // A third of each tensor's rows with actor 0.
  wire::SourceLayout uneven() const {
    wire::SourceLayout source;
    source.world = 2;
    for (const auto& tensor : plan_.tensors) {
      const std::uint64_t rows = model::rows_cols(tensor).rows;
      for (const std::uint64_t bound : {std::uint64_t{0}, rows / 3, rows}) {
        source.row_bounds.push_back(bound);
      }
    }
    return source;
  }
  wire::UpdateRequest update(std::uint64_t chunk) const {
    wire::UpdateRequest request;
    request.chunk_index = chunk;
    for (std::uint64_t i = 0; i < chunks_[chunk].count; ++i) {
      const wire::TensorRecord& tensor = plan_.tensors[chunks_[chunk].first + i];
      request.names.push_back(tensor.name);
      request.dtype_names.emplace_back("bfloat16");
      request.shapes.push_back(tensor.shape);
      request.tensor_sizes.push_back(tensor.nbytes);
    }
    return request;
  }
  void pack(const Piece& piece, int version) {
    const std::uint64_t row_bytes = model::rows_cols(plan_.tensors[piece.tensor]).cols * 2;
    ByteBuffer bytes;
    for (std::uint64_t i = 0; i < piece.bytes; ++i) {
      bytes.push_back(content(piece.tensor, piece.row0 * row_bytes + i, version));
    }
    const device::Stream stream = device::create_stream(*device_);
    device_->upload(stream.id(), packed_, piece.offset, bytes);
    device_->synchronize(stream.id(), Deadline::never());
  }
  void load(std::uint64_t chunk, int version = 1) {
    for (const Piece& piece : compact_pieces(plan_.tensors, chunks_[chunk])) pack(piece, version);
    loader_->load(update(chunk), std::span(&packed_, 1), Deadline::never());
  }
  Attestation load_all(int version = 1) {
    for (std::uint64_t c = 0; c < chunks_.size(); ++c) load(c, version);
    return loader_->finish(Deadline::never());
  }
  ByteBuffer resident() {
    ByteBuffer bytes(layout_.resident_bytes);
    const device::Stream stream = device::create_stream(*device_);
    device_->download(stream.id(), resident_, 0, bytes);
    device_->synchronize(stream.id(), Deadline::never());
    return bytes;
  }
  void expect_resident(int version) {
    const ByteBuffer bytes = resident();
    for (const model::Placement& p : layout_.placements) {
      const std::uint64_t cols = model::rows_cols(plan_.tensors[p.tensor]).cols;
      for (std::uint64_t row = p.row0; row < p.row1; ++row) {
        for (std::uint64_t at = p.col0 * 2; at < p.col1 * 2; ++at) {
          ASSERT_EQ(bytes[p.offset + (row - p.row0) * p.pitch + at - p.col0 * 2],
                    content(p.tensor, row * cols * 2 + at, version))
              << plan_.tensors[p.tensor].name << " row " << row;
        }
      }
    }
    for (const model::ZeroFill& fill : layout_.zero_fills) {
      for (std::uint64_t i = 0; i < fill.bytes; ++i) {
        ASSERT_EQ(bytes[fill.offset + i], std::byte{0});
      }
    }
  }
  // Begins, loads the chunks before `chunk`, and gives that one as the edit makes it.
  ErrorRecord refusal(std::uint64_t chunk, const std::function<void(wire::UpdateRequest&)>& edit) {
    loader_->abandon();
    loader_->begin(start(), Deadline::never());
    for (std::uint64_t c = 0; c < chunk; ++c) load(c);
    wire::UpdateRequest request = update(chunk);
    edit(request);
    const ErrorRecord record = failure_of(
        [&] { loader_->load(std::move(request), std::span(&packed_, 1), Deadline::never()); });
    EXPECT_EQ(record.remedy, Remedy::kFixPeer);
    return record;
  }
  const std::string& name_of(std::uint64_t chunk, std::uint64_t tensor) const {
    return plan_.tensors[chunks_[chunk].first + tensor].name;
  }

  model::ModelConfig config_;
  model::CanonicalPlan plan_;
  model::TpLayout layout_;
  std::vector<Chunk> chunks_;
  device::HostMemory memory_;
  std::optional<device::HostDevice> device_;
  device::RegionId resident_{}, packed_{};
  Layers layers_;
  std::optional<WeightLoader> loader_;
};

TEST_F(LoaderTest, EveryByteLandsWhereTheLayoutWantsItAndThePaddingIsZero) {
  loader_->begin(start(), Deadline::never());
  const Attestation attestation = load_all(1);
  expect_resident(1);
  EXPECT_EQ(attestation.received, wire::build_manifest(plan_.tensors));
  EXPECT_EQ(attestation.resident_parameter_count, layout_.parameters.size());
  EXPECT_THAT(attestation.digest, IsEmpty());
  EXPECT_FALSE(loader_->active());
}

TEST_F(LoaderTest, TheNextPublicationReplacesAllOfIt) {
  loader_->begin(start(), Deadline::never());
  load_all(1);
  loader_->begin(start(), Deadline::never());
  load_all(2);
  expect_resident(2);
}

TEST_F(LoaderTest, RankMajorBringsTheSameBytes) {
  const wire::StartRequest request = start(wire::Layout::kRankMajor);
  loader_->begin(request, Deadline::never());
  EXPECT_EQ(loader_->buffer_bytes_needed(), kBucket + 32);
  for (std::uint64_t c = 0; c < chunks_.size(); ++c) {
    const auto chunk = rank_major_pieces(plan_.tensors, chunks_[c], *request.source_layout);
    for (const Piece& piece : chunk.pieces) pack(piece, 1);
    loader_->load(update(c), std::span(&packed_, 1), Deadline::never());
  }
  loader_->finish(Deadline::never());
  expect_resident(1);
}

TEST_F(LoaderTest, TheReshardRouteBringsTheSameBytesOutOfTwoBuffers) {
  wire::StartRequest request = start(wire::Layout::kRankMajor);
  request.header.transport = transport_of(wire::Route::kReshard);
  request.header.device_uuids = {"gpu-0", "gpu-1"};
  request.buffer_bytes = reshard_slot_bytes(plan_.tensors, chunks_, *request.source_layout);
  loader_->begin(request, Deadline::never());
  EXPECT_EQ(loader_->buffer_bytes_needed(), request.buffer_bytes);
  const device::RegionId own = packed_;
  const device::RegionId buffers[] = {
      own, device_->allocate({.bytes = request.buffer_bytes, .kind = {}, .tag = {}})};
  for (std::uint64_t c = 0; c < chunks_.size(); ++c) {
    const auto chunk =
        rank_major_pieces(plan_.tensors, chunks_[c], *request.source_layout, wire::Route::kReshard);
    for (std::uint64_t actor = 0; actor < 2; ++actor) {
      packed_ = buffers[actor];
      for (const Piece& piece : chunk.pieces_of(actor)) pack(piece, 1);
    }
    loader_->load(update(c), buffers, Deadline::never());
  }
  packed_ = own;
  loader_->finish(Deadline::never());
  expect_resident(1);
  // The other route is planned anew.
  loader_->begin(start(), Deadline::never());
  load_all(2);
  expect_resident(2);
}

TEST_F(LoaderTest, AReshardStartMustBeRankMajorAndOfAsManyActorsAsDevices) {
  wire::StartRequest request = start(wire::Layout::kRankMajor);
  request.header.transport = transport_of(wire::Route::kReshard);
  request.header.device_uuids = {"gpu-0"};
  const auto subject = [&] {
    const ErrorRecord record = failure_of([&] { loader_->begin(request, Deadline::never()); });
    EXPECT_EQ(record.kind, ErrorKind::kProtocol);
    EXPECT_EQ(record.remedy, Remedy::kFixPeer);
    EXPECT_FALSE(loader_->active());
    return record.subject;
  };
  EXPECT_EQ(subject(), "source_layout");
  request.layout = wire::Layout::kCompact;
  EXPECT_EQ(subject(), "layout");
}

TEST_F(LoaderTest, TheDigestHasOnePartPerPlacementAndMayBeAskedForLater) {
  loader_->begin(start(), Deadline::never());
  load_all(1);
  wire::StartRequest request = start();
  request.content_digest = true;
  loader_->begin(request, Deadline::never());
  const Attestation first = load_all(1);
  ASSERT_EQ(first.digest.size(), layout_.placements.size());
  for (std::size_t i = 0; i < first.digest.size(); ++i) {
    const model::Placement& p = layout_.placements[i];
    EXPECT_EQ(first.digest[i].tensor, p.tensor);
    EXPECT_EQ(first.digest[i].row0, p.row0);
    EXPECT_EQ(first.digest[i].row1, p.row1);
    EXPECT_EQ(first.digest[i].col0, p.col0);
    EXPECT_EQ(first.digest[i].col1, p.col1);
  }
  loader_->begin(request, Deadline::never());
  EXPECT_NE(load_all(2).digest, first.digest);
  loader_->begin(request, Deadline::never());
  EXPECT_EQ(load_all(1).digest, first.digest);
}

// ---- begin

TEST_F(LoaderTest, AChunkTableThatIsNotThePlansIsRefused) {
  const auto refused = [&](const std::function<void(wire::StartRequest&)>& edit) {
    wire::StartRequest request = start(wire::Layout::kRankMajor);
    edit(request);
    const ErrorRecord record = failure_of([&] { loader_->begin(request, Deadline::never()); });
    EXPECT_EQ(record.remedy, Remedy::kFixPeer);
    EXPECT_FALSE(loader_->active());
    return record;
  };
  EXPECT_EQ(refused([](auto& r) { r.chunk_tensor_counts.clear(); }).kind, ErrorKind::kProtocol);
  EXPECT_EQ(refused([](auto& r) { ++r.chunk_tensor_counts[0]; }).kind, ErrorKind::kProtocol);
  EXPECT_EQ(refused([](auto& r) { r.chunk_tensor_counts.push_back(0); }).kind,
            ErrorKind::kProtocol);
  EXPECT_EQ(refused([](auto& r) { r.source_layout.reset(); }).subject, "source_layout");
  EXPECT_EQ(refused([](auto& r) { ++r.source_layout->row_bounds[2]; }).subject, "source_layout");
  for (const std::uint64_t slots : {0, 4}) {
    EXPECT_EQ(refused([slots](auto& r) { r.slots = slots; }).subject, "slots");
  }
  EXPECT_EQ(refused([](auto& r) {
              r.slots = 2;
              r.buffer_bytes |= 1;
            }).subject,
            "slots");
  EXPECT_EQ(refused([](auto& r) { r.slots = 3; }).subject, "buffer_bytes");
  const ErrorRecord record = refused([](auto& r) { r.buffer_bytes = 10; });
  EXPECT_EQ(record.kind, ErrorKind::kMismatch);
  EXPECT_EQ(record.subject, "buffer_bytes");
  loader_->begin(start(), Deadline::never());
  load_all(1);
  expect_resident(1);
}

TEST_F(LoaderTest, ABufferOfExactlyTheLargestChunkIsEnough) {
  wire::StartRequest request = start();
  std::uint64_t largest = 0;
  for (const Chunk& chunk : chunks_) largest = std::max(largest, chunk.bytes);
  request.buffer_bytes = largest - 1;
  EXPECT_EQ(failure_of([&] { loader_->begin(request, Deadline::never()); }).detail,
            "is " + std::to_string(largest - 1) + ", the chunks need " + std::to_string(largest));
  request.buffer_bytes = largest;
  loader_->begin(request, Deadline::never());
  EXPECT_EQ(loader_->buffer_bytes_needed(), largest);
}

TEST_F(LoaderTest, CompactNeverLooksAtASourceLayout) {
  wire::StartRequest request = start();
  request.source_layout = wire::SourceLayout{1u << 20, {1}};  // far fewer bounds than it says
  loader_->begin(request, Deadline::never());
  load_all(1);
  expect_resident(1);
}

// ---- load

TEST_F(LoaderTest, ChunksComeInOrderEachExactlyOnce) {
  for (const std::uint64_t wrong : {std::uint64_t{0}, std::uint64_t{2}, UINT64_MAX}) {
    const ErrorRecord record = refusal(1, [&](auto& u) { u.chunk_index = wrong; });
    EXPECT_EQ(record.kind, ErrorKind::kProtocol);
    EXPECT_EQ(record.subject, "chunk_index");
    EXPECT_EQ(record.detail,
              "is " + std::to_string(wrong) + ", due is 1 of " + std::to_string(chunks_.size()));
  }
}

TEST_F(LoaderTest, AChunkAfterTheLastIsRefused) {
  loader_->begin(start(), Deadline::never());
  for (std::uint64_t c = 0; c < chunks_.size(); ++c) load(c);
  wire::UpdateRequest more = update(0);
  more.chunk_index = chunks_.size();
  const ErrorRecord record = failure_of(
      [&] { loader_->load(std::move(more), std::span(&packed_, 1), Deadline::never()); });
  EXPECT_EQ(record.kind, ErrorKind::kProtocol);
  EXPECT_EQ(record.subject, "chunk_index");
}

TEST_F(LoaderTest, EveryDeviationOfATensorIsNamed) {
  const auto mismatch = [&](const std::string& why,
                            const std::function<void(wire::UpdateRequest&)>& edit) {
    const ErrorRecord record = refusal(1, edit);
    EXPECT_EQ(record.kind, ErrorKind::kMismatch);
    EXPECT_EQ(record.subject, name_of(1, 1));
    EXPECT_THAT(record.detail, HasSubstr(why));
  };
  mismatch("is due, the update has x", [](auto& u) { u.names[1] = "x"; });
  mismatch("is due", [](auto& u) { std::swap(u.names[1], u.names[2]); });
  mismatch("another dtype", [](auto& u) { u.dtype_names[1] = "float16"; });
  mismatch("another dtype than planned: \"torch.bfloat16\"",
           [](auto& u) { u.dtype_names[1] = "torch.bfloat16"; });
  mismatch("another shape", [](auto& u) { u.shapes[1].push_back(1); });
  mismatch("another shape", [](auto& u) { u.shapes[1][0] = -1; });
  mismatch("another size", [](auto& u) { ++u.tensor_sizes[1]; });
}

TEST_F(LoaderTest, AMissingTensorAndOneTooManyAreNamed) {
  const ErrorRecord missing = refusal(0, [](auto& u) {
    u.names.pop_back(), u.dtype_names.pop_back(), u.shapes.pop_back(), u.tensor_sizes.pop_back();
  });
  EXPECT_EQ(missing.kind, ErrorKind::kMismatch);
  EXPECT_EQ(missing.subject, name_of(0, chunks_[0].count - 1));
  EXPECT_EQ(missing.detail, "is missing from its chunk");
  const ErrorRecord extra = refusal(0, [](auto& u) {
    u.names.push_back("one.more");
    u.dtype_names.push_back(u.dtype_names[0]);
    u.shapes.push_back(u.shapes[0]);
    u.tensor_sizes.push_back(u.tensor_sizes[0]);
  });
  EXPECT_EQ(extra.kind, ErrorKind::kMismatch);
  EXPECT_EQ(extra.subject, "one.more");
}

TEST_F(LoaderTest, ListsOfUnequalLengthAreAViolation) {
  for (const auto& edit : std::vector<std::function<void(wire::UpdateRequest&)>>{
           [](auto& u) { u.dtype_names.pop_back(); }, [](auto& u) { u.shapes.pop_back(); },
           [](auto& u) { u.tensor_sizes.pop_back(); }, [](auto& u) { u.names.pop_back(); }}) {
    const ErrorRecord record = refusal(0, edit);
    EXPECT_EQ(record.kind, ErrorKind::kProtocol);
    EXPECT_EQ(record.subject, "update_info");
  }
}

// ---- finish and abandon

TEST_F(LoaderTest, FinishBeforeTheLastChunkNamesTheFirstTensorThatDidNotCome) {
  for (std::uint64_t loaded = 0; loaded < chunks_.size(); ++loaded) {
    loader_->abandon();
    loader_->begin(start(), Deadline::never());
    for (std::uint64_t c = 0; c < loaded; ++c) load(c);
    const ErrorRecord record = failure_of([&] { loader_->finish(Deadline::never()); });
    EXPECT_EQ(record.kind, ErrorKind::kMismatch);
    EXPECT_EQ(record.remedy, Remedy::kFixPeer);
    EXPECT_EQ(record.subject, name_of(loaded, 0));
    EXPECT_THAT(record.detail, HasSubstr(std::to_string(loaded) + " of 3 chunks"));
  }
}

TEST_F(LoaderTest, AnAbandonedPublicationLeavesNothingToTheNext) {
  loader_->begin(start(), Deadline::never());
  load(0, 7);
  loader_->abandon();
  EXPECT_FALSE(loader_->active());
  loader_->begin(start(), Deadline::never());
  EXPECT_EQ(load_all(1).received, wire::build_manifest(plan_.tensors));
  expect_resident(1);
}

class TwoLayers : public LoaderTest {
 protected:
  TwoLayers() : LoaderTest(2) {}
};

TEST_F(TwoLayers, ALayerIsReportedWithTheChunkThatCompletesItAndTheRestLast) {
  loader_->begin(start(), Deadline::never());
  std::vector<std::uint64_t> reported_with;
  for (std::uint64_t c = 0; c < chunks_.size(); ++c) {
    load(c);
    while (reported_with.size() < layers_.seen.size()) reported_with.push_back(c);
  }
  EXPECT_THAT(layers_.seen, ElementsAre(0, 1, -1));
  // The chunks that hold the last tensor of each layer, and the last chunk of all.
  std::vector<std::uint64_t> expected(3, chunks_.size() - 1);
  for (std::uint64_t layer = 0; layer < 2; ++layer) {
    const std::string last =
        "model.layers." + std::to_string(layer) + ".post_attention_layernorm.weight";
    for (std::uint64_t c = 0; c < chunks_.size(); ++c) {
      for (std::uint64_t i = 0; i < chunks_[c].count; ++i) {
        if (name_of(c, i) == last) expected[layer] = c;
      }
    }
  }
  EXPECT_EQ(reported_with, expected);
  EXPECT_LT(expected[0], expected[1]);
}

TEST_F(TwoLayers, AFailedChunkReportsNoLayer) {
  loader_->begin(start(), Deadline::never());
  for (std::uint64_t c = 0; c + 1 < chunks_.size(); ++c) load(c);
  const std::size_t before = layers_.seen.size();
  wire::UpdateRequest request = update(chunks_.size() - 1);
  request.names[0] = "x";
  failure_of([&] { loader_->load(std::move(request), std::span(&packed_, 1), Deadline::never()); });
  EXPECT_EQ(layers_.seen.size(), before);
}

}  // namespace
}  // namespace tpsync::transfer
