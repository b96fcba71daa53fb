#include "tpsync/trainer/exporter.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "tpsync/base/bytes.h"
#include "tpsync/base/errors.h"
#include "tpsync/device/handles.h"
#include "tpsync/transfer/chunk_layout.h"
#include "tpsync/transfer/content_digest.h"

namespace tpsync::trainer {

namespace {

constexpr std::string_view kExperts = ".mlp.experts.";

// Where a separately stored expert's tensor stands in the fused order of its layer.
struct ExpertKey {
  std::string_view layer;  // text before ".mlp.experts."
  bool down = false;
  std::uint64_t expert = 0;
  bool up = false;
};

std::optional<ExpertKey> parse_expert(std::string_view name) {
  const auto at = name.find(kExperts);
  if (at == std::string_view::npos) return std::nullopt;
  ExpertKey key;
  key.layer = name.substr(0, at);
  std::string_view rest = name.substr(at + kExperts.size());
  std::size_t digits = 0;
  while (digits < rest.size() && rest[digits] >= '0' && rest[digits] <= '9') ++digits;
  if (digits == 0 || digits > 9) return std::nullopt;
  for (std::size_t i = 0; i < digits; ++i) {
    key.expert = key.expert * 10 + static_cast<std::uint64_t>(rest[i] - '0');
  }
  rest.remove_prefix(digits);
  if (rest == ".gate_proj.weight") return key;
  key.up = rest == ".up_proj.weight";
  key.down = rest == ".down_proj.weight";
  if (!key.up && !key.down) return std::nullopt;
  return key;
}

bool fused_order(const ExpertKey& a, const ExpertKey& b) {
  if (a.down != b.down) return !a.down;
  if (a.expert != b.expert) return a.expert < b.expert;
  return !a.up && b.up;
}

// Brings each layer's run of separately stored experts into the fused order; everything else stays
// where it is.
void order_experts(std::vector<const ShardedParameter*>& parameters) {
  std::size_t begin = 0;
  while (begin < parameters.size()) {
    const auto first = parse_expert(parameters[begin]->name);
    std::size_t end = begin + 1;
    while (first && end < parameters.size()) {
      const auto key = parse_expert(parameters[end]->name);
      if (!key || key->layer != first->layer) break;
      ++end;
    }
    if (first) {
      std::stable_sort(parameters.begin() + static_cast<std::ptrdiff_t>(begin),
                       parameters.begin() + static_cast<std::ptrdiff_t>(end),
                       [](const ShardedParameter* a, const ShardedParameter* b) {
                         return fused_order(*parse_expert(a->name), *parse_expert(b->name));
                       });
    }
    begin = end;
  }
}

std::uint64_t product(const std::vector<std::uint64_t>& shape, std::size_t from) {
  std::uint64_t result = 1;
  for (std::size_t i = from; i < shape.size(); ++i) result *= shape[i];
  return result;
}

}  // namespace

Exporter::Exporter(device::Device& device, collective::ShardGroup& shards,
                   std::span<const ShardedParameter> parameters, const ExporterOptions& options)
    : Exporter(device, &shards, ActorPlace{shards.rank(), shards.size()}, parameters, options) {}

Exporter::Exporter(device::Device& device, ActorPlace place,
                   std::span<const ShardedParameter> parameters, const ExporterOptions& options)
    : Exporter(device, nullptr, place, parameters, options) {}

Exporter::Exporter(device::Device& device, collective::ShardGroup* shards, ActorPlace place,
                   std::span<const ShardedParameter> parameters, const ExporterOptions& options)
    : device_(device),
      shards_(shards),
      options_(options),
      rank_(static_cast<std::uint64_t>(place.rank)),
      world_(static_cast<std::uint64_t>(place.world)) {
  if (place.world < 1 || place.rank < 0 || place.rank >= place.world) {
    throw_invalid(ErrorKind::kInvalidConfig, "place",
                  "is rank " + std::to_string(place.rank) + " of " + std::to_string(place.world));
  }
  layout_.world = world_;
  std::vector<const ShardedParameter*> ordered;
  ordered.reserve(parameters.size());
  for (const ShardedParameter& parameter : parameters) ordered.push_back(&parameter);
  order_experts(ordered);
  records_.reserve(ordered.size());
  sources_.reserve(ordered.size());
  layout_.row_bounds.reserve(ordered.size() * (world_ + 1));
  for (const ShardedParameter* parameter : ordered) add_parameter(*parameter);
}

Exporter::~Exporter() = default;

std::uint32_t Exporter::bind(device::RegionId region) {
  const auto at = std::find(regions_.begin(), regions_.end(), region);
  if (at == regions_.end()) regions_.push_back(region);
  const auto index = std::find(regions_.begin(), regions_.end(), region) - regions_.begin();
  return static_cast<std::uint32_t>(index) + 1;
}

void Exporter::add_parameter(const ShardedParameter& parameter) {
  const std::uint64_t rows = parameter.shape.empty() ? 1 : parameter.shape[0];
  const auto& bounds = parameter.row_bounds;
  const bool ascending = bounds.size() == world_ + 1 && bounds.front() == 0 &&
                         bounds.back() == rows && std::is_sorted(bounds.begin(), bounds.end());
  if (!ascending) {
    throw_invalid(ErrorKind::kInvalidConfig, parameter.name,
                  "shard bounds must ascend from 0 to " + std::to_string(rows) + " over " +
                      std::to_string(world_) + " ranks");
  }
  const bool holds = bounds[rank_ + 1] > bounds[rank_] && product(parameter.shape, 0) > 0;
  if (holds && parameter.region == device::RegionId::kNone) {
    throw_invalid(ErrorKind::kInvalidConfig, parameter.name,
                  "rank " + std::to_string(rank_) + " owns rows but gave no memory for them");
  }
  if (options_.tie_word_embeddings && parameter.name == "lm_head.weight") return;
  if (parameter.shape.size() == 3 && parameter.name.ends_with(".mlp.experts.gate_up_proj")) {
    add_fused_experts(parameter, true);
  } else if (parameter.shape.size() == 3 && parameter.name.ends_with(".mlp.experts.down_proj")) {
    add_fused_experts(parameter, false);
  } else {
    std::vector<std::int64_t> shape(parameter.shape.begin(), parameter.shape.end());
    add_tensor(parameter.name, std::move(shape), parameter.dtype, bounds,
               holds ? bind(parameter.region) : 0, parameter.offset);
  }
}

void Exporter::add_fused_experts(const ShardedParameter& parameter, bool gate_up) {
  const std::uint64_t experts = parameter.shape[0];
  const std::uint64_t rows = parameter.shape[1];
  const std::uint64_t cols = parameter.shape[2];
  const std::uint64_t moe = options_.moe_intermediate_size;
  if (gate_up && rows % 2 != 0) {
    throw_invalid(
        ErrorKind::kInvalidConfig, parameter.name,
        "has " + std::to_string(rows) + " rows per expert, gate and up need an even number");
  }
  if (moe != 0 && (gate_up ? rows != 2 * moe : cols != moe)) {
    throw_invalid(ErrorKind::kInvalidConfig, parameter.name,
                  "does not fit moe_intermediate_size " + std::to_string(moe));
  }
  const std::uint64_t item = item_size(parameter.dtype);
  const std::string base = parameter.name.substr(0, parameter.name.rfind('.') + 1);
  const auto& cut = parameter.row_bounds;
  std::vector<std::uint64_t> bounds(world_ + 1, 0);
  for (std::uint64_t e = 0; e < experts; ++e) {
    // One rank owns the whole expert: its rows end there for every later rank and have not begun
    // for every earlier one.
    const auto owner =
        static_cast<std::uint64_t>(std::upper_bound(cut.begin(), cut.end(), e) - cut.begin() - 1);
    const std::uint64_t part_rows = gate_up ? rows / 2 : rows;
    for (std::uint64_t r = 0; r <= world_; ++r) bounds[r] = r > owner ? part_rows : 0;
    const bool own = owner == rank_ && part_rows * cols > 0;
    const std::uint32_t binding = own ? bind(parameter.region) : 0;
    const std::uint64_t at = own ? parameter.offset + (e - cut[rank_]) * rows * cols * item : 0;
    const std::string prefix = base + std::to_string(e);
    const auto add = [&](const char* suffix, std::uint64_t offset) {
      add_tensor(prefix + suffix,
                 {static_cast<std::int64_t>(part_rows), static_cast<std::int64_t>(cols)},
                 parameter.dtype, bounds, binding, offset);
    };
    if (gate_up) {
      add(".gate_proj.weight", at);
      add(".up_proj.weight", own ? at + part_rows * cols * item : 0);
    } else {
      add(".down_proj.weight", at);
    }
  }
}

void Exporter::add_tensor(std::string name, std::vector<std::int64_t> shape, DType stored,
                          const std::vector<std::uint64_t>& bounds, std::uint32_t binding,
                          std::uint64_t offset) {
  const DType wire = options_.wire_dtype && is_floating(stored) ? *options_.wire_dtype : stored;
  wire::TensorRecord record;
  record.name = std::move(name);
  record.dtype = torch_name(wire);
  record.numel = 1;
  for (const std::int64_t dim : shape) record.numel *= static_cast<std::uint64_t>(dim);
  record.nbytes = record.numel * item_size(wire);
  record.shape = std::move(shape);
  records_.push_back(std::move(record));
  layout_.row_bounds.insert(layout_.row_bounds.end(), bounds.begin(), bounds.end());
  sources_.push_back({binding, offset, stored, wire});
}

std::span<const wire::TensorRecord> Exporter::metadata() { return records_; }
const wire::SourceLayout& Exporter::layout() { return layout_; }
bool Exporter::usable(wire::Route route) const noexcept {
  return route == wire::Route::kReshard || (shards_ != nullptr && shards_->usable());
}

// Everything about a target but its memory; kept for the next publication with the same chunks and
// layout.
struct Exporter::Plan {
  struct ChunkPlan {
    std::vector<collective::GatherPart> parts;
    std::unique_ptr<device::Prepared> pack;       // null if this rank has nothing in the chunk
    std::unique_ptr<device::Prepared> digests;    // of this rank's packed pieces; null likewise
    std::vector<std::uint64_t> digest_tensors;    // whose sums they are
    std::unique_ptr<device::Prepared> unpermute;  // compact: from the staging buffer; else null
  };
  std::vector<transfer::Chunk> chunks;
  wire::Layout layout = wire::Layout::kCompact;
  wire::Route route = wire::Route::kGather;
  bool digest = false;
  std::uint64_t buffer_bytes = 0;
  std::uint64_t slots = 1;
  std::vector<ChunkPlan> plans;
};

class Exporter::Pass final : public transfer::WeightPass {
 public:
  Pass(Exporter& owner, const transfer::PassTarget& target);
  ~Pass() override;

  std::uint64_t group_count(std::uint64_t) override { return 1; }
  void prepare(std::uint64_t chunk, std::uint64_t group) override;
  void gather(std::uint64_t chunk, std::uint64_t group, Deadline deadline,
              collective::ControlGroup& watch) override;
  std::span<const wire::TensorRecord> emitted() const override {
    return std::span(owner_.records_).first(emitted_count_);
  }
  bool exhausted() override { return emitted_count_ == owner_.records_.size(); }
  bool quiesce(Deadline deadline) override;
  std::span<const std::uint64_t> digest_sums() const override { return sums_; }

 private:
  void pack(std::uint64_t chunk);
  void add_sums(std::uint64_t chunk);

  // The chunk that is gathered, and the one that is packed meanwhile.
  static constexpr std::size_t kPackedChunks = 2;

  Exporter& owner_;
  transfer::PassTarget target_;
  device::Region staging_;                  // compact only: the gather is un-permuted from here
  std::vector<device::RegionId> bindings_;  // the first one is gathered into
  std::vector<std::uint64_t> sums_;         // per tensor emitted
  std::array<std::vector<std::uint64_t>, kPackedChunks> chunk_sums_;
  std::uint64_t packed_count_ = 0;  // chunks whose part is packed or on its way
  std::size_t emitted_count_ = 0;   // of the owner's records, from the first
  bool peers_may_read_ = false;     // what is gathered into
  // Last: destroyed before what their work writes to.
  device::Stream packing_;
  device::Stream stream_;
};

std::unique_ptr<transfer::WeightPass> Exporter::begin(const transfer::PassTarget& target) {
  TPSYNC_ASSERT(target.layout == wire::Layout::kRankMajor ||
                (target.slots == 1 && target.route == wire::Route::kGather));
  TPSYNC_ASSERT(target.route == wire::Route::kReshard || shards_ != nullptr);
  if (plan_ && plan_->chunks == target.chunks && plan_->layout == target.layout &&
      plan_->route == target.route && plan_->digest == target.content_digest &&
      plan_->buffer_bytes == target.buffer_bytes && plan_->slots == target.slots) {
    return std::make_unique<Pass>(*this, target);
  }
  auto plan = std::make_unique<Plan>();
  plan->chunks = target.chunks;
  plan->layout = target.layout;
  plan->route = target.route;
  plan->digest = target.content_digest;
  plan->buffer_bytes = target.buffer_bytes;
  plan->slots = target.slots;
  for (const transfer::Chunk& chunk : target.chunks) {
    const std::uint64_t slot =
        transfer::slot_offset(target.buffer_bytes, target.slots, plan->plans.size());
    TPSYNC_ASSERT(chunk.first + chunk.count <= records_.size());
    const auto regions = transfer::rank_major_pieces(records_, chunk, layout_, target.route);
    Plan::ChunkPlan& out = plan->plans.emplace_back();
    out.parts.reserve(regions.regions.size());
    for (const auto& region : regions.regions)
      out.parts.push_back({slot + region.offset, region.bytes});

    std::vector<device::PackPiece> pack;
    std::vector<device::DigestItem> digests;
    const auto own_pieces = regions.pieces_of(rank_);
    pack.reserve(own_pieces.size());
    digests.reserve(own_pieces.size());
    out.digest_tensors.reserve(own_pieces.size());
    for (const transfer::Piece& piece : own_pieces) {
      const Source& source = sources_[piece.tensor];
      const std::uint64_t item = item_size(source.wire);
      pack.push_back({.dst = 0,
                      .src = source.binding,
                      .dst_offset = slot + piece.offset,
                      .src_offset = source.offset,
                      .count = piece.bytes / item,
                      .dst_dtype = source.wire,
                      .src_dtype = source.stored});
      const std::uint64_t row_bytes = piece.bytes / (piece.row1 - piece.row0);
      digests.push_back({.region = 0,
                         .offset = slot + piece.offset,
                         .pitch = row_bytes,
                         .item_bytes = static_cast<std::uint32_t>(item),
                         .row0 = piece.row0,
                         .rows = piece.row1 - piece.row0,
                         .col0 = 0,
                         .cols = row_bytes / item,
                         .key = transfer::digest_key(piece.tensor)});
      out.digest_tensors.push_back(piece.tensor);
    }
    if (!pack.empty()) out.pack = device_.prepare_packs(pack);
    if (!digests.empty() && target.content_digest) {
      out.digests = device_.prepare_digests(digests);
    }
    if (target.layout == wire::Layout::kCompact && chunk.bytes > 0) {
      std::vector<device::TileCopy> copies;
      std::vector<std::uint64_t> tensor_offset;
      for (const transfer::Piece& whole : transfer::compact_pieces(records_, chunk)) {
        tensor_offset.push_back(whole.offset);
      }
      copies.reserve(regions.pieces.size());
      for (const transfer::Piece& piece : regions.pieces) {
        const std::uint64_t row_bytes = piece.bytes / (piece.row1 - piece.row0);
        copies.push_back(
            {.dst = 1,
             .src = 0,
             .dst_offset = tensor_offset[piece.tensor - chunk.first] + piece.row0 * row_bytes,
             .dst_pitch = piece.bytes,
             .src_offset = piece.offset,
             .src_pitch = piece.bytes,
             .row_bytes = piece.bytes,
             .rows = 1});
      }
      out.unpermute = device_.prepare_copies(copies);
    }
  }
  plan_ = std::move(plan);
  return std::make_unique<Pass>(*this, target);
}

Exporter::Pass::Pass(Exporter& owner, const transfer::PassTarget& target)
    : owner_(owner),
      target_(target),
      packing_(device::create_stream(owner.device_)),
      stream_(device::create_stream(owner.device_)) {
  device::RegionId packed = target.buffer;
  const bool reads_peers = target.route == wire::Route::kGather && owner.shards_->reads_peers();
  if (target.layout == wire::Layout::kCompact) {
    staging_ = device::allocate(
        owner.device_,
        {.bytes = transfer::slot_bytes(wire::Layout::kRankMajor, target.bucket_bytes, owner.world_),
         .kind = reads_peers ? device::RegionKind::kExportable : device::RegionKind::kPlain});
    packed = staging_.id();
  } else if (reads_peers) {
    owner.shards_->attach(packed, target.handle);
  }
  peers_may_read_ = reads_peers;
  bindings_.reserve(1 + owner.regions_.size());
  bindings_.push_back(packed);
  bindings_.insert(bindings_.end(), owner.regions_.begin(), owner.regions_.end());
}

Exporter::Pass::~Pass() {
  if (peers_may_read_ && staging_) staging_.leak();
}

void Exporter::Pass::prepare(std::uint64_t chunk, std::uint64_t) {
  const transfer::Chunk& range = target_.chunks[chunk];
  TPSYNC_ASSERT(range.first == emitted_count_);
  emitted_count_ += range.count;
}

// This rank's part, and its digest.
void Exporter::Pass::pack(std::uint64_t chunk) {
  const Plan::ChunkPlan& plan = owner_.plan_->plans[chunk];
  if (plan.pack) owner_.device_.launch(packing_.id(), *plan.pack, bindings_);
  if (plan.digests) {
    std::vector<std::uint64_t>& sums = chunk_sums_[chunk % kPackedChunks];
    sums.assign(plan.digest_tensors.size(), 0);
    owner_.device_.launch_digests(packing_.id(), *plan.digests, bindings_, sums);
  }
  packed_count_ = chunk + 1;
}

void Exporter::Pass::gather(std::uint64_t chunk, std::uint64_t, Deadline deadline,
                            collective::ControlGroup& watch) {
  const Plan::ChunkPlan& plan = owner_.plan_->plans[chunk];
  if (packed_count_ == chunk) pack(chunk);
  if (target_.route == wire::Route::kReshard) {
    owner_.device_.synchronize(packing_.id(), deadline);
    if (target_.content_digest) add_sums(chunk);
    return;
  }
  owner_.shards_->wait(packing_.id(), deadline, watch);
  if (target_.content_digest) add_sums(chunk);
  const bool ahead = target_.slots == transfer::kSlotsMax;
  if (ahead && packed_count_ < target_.chunks.size()) pack(chunk + 1);
  owner_.shards_->all_gather(stream_.id(), bindings_[0], plan.parts);
  if (plan.unpermute) {
    if (owner_.shards_->reads_peers()) owner_.shards_->wait(stream_.id(), deadline, watch);
    const device::RegionId both[] = {staging_.id(), target_.buffer};
    owner_.device_.launch(stream_.id(), *plan.unpermute, both);
  }
  owner_.shards_->wait(stream_.id(), deadline, watch);
}

void Exporter::Pass::add_sums(std::uint64_t chunk) {
  sums_.resize(emitted_count_, 0);
  const Plan::ChunkPlan& plan = owner_.plan_->plans[chunk];
  if (!plan.digests) return;
  const std::vector<std::uint64_t>& sums = chunk_sums_[chunk % kPackedChunks];
  for (std::size_t i = 0; i < sums.size(); ++i) sums_[plan.digest_tensors[i]] += sums[i];
}

bool Exporter::Pass::quiesce(Deadline deadline) {
  try {
    owner_.device_.synchronize(packing_.id(), deadline);
    owner_.device_.synchronize(stream_.id(), deadline);
    peers_may_read_ = peers_may_read_ && !owner_.shards_->detach(bindings_[0], deadline);
    return !peers_may_read_;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace tpsync::trainer
