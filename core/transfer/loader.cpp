#include "tpsync/transfer/loader.h"

#include <algorithm>
#include <string>

#include "tpsync/base/dtype.h"
#include "tpsync/base/errors.h"
#include "tpsync/device/handles.h"
#include "tpsync/transfer/chunk_layout.h"
#include "tpsync/transfer/content_digest.h"

namespace tpsync::transfer {

namespace {

// The record that the update announces; its numel follows from its shape. What is no bare dtype
// name is quoted, and so equals no planned one.
wire::TensorRecord received_record(wire::UpdateRequest& update, std::uint64_t i) {
  wire::TensorRecord record;
  record.name = std::move(update.names[i]);
  record.shape = std::move(update.shapes[i]);
  const auto dtype = dtype_from_bare(update.dtype_names[i]);
  record.dtype =
      dtype ? std::string(torch_name(*dtype)) : '"' + std::move(update.dtype_names[i]) + '"';
  record.numel = 1;
  for (const std::int64_t dim : record.shape) record.numel *= static_cast<std::uint64_t>(dim);
  record.nbytes = update.tensor_sizes[i];
  return record;
}

// The header was validated before.
wire::Route route_of(const wire::StartRequest& start) {
  const auto route = wire::route_of_transport(start.header.transport);
  TPSYNC_ASSERT(route.has_value());
  return *route;
}

void check_reshard(const wire::StartRequest& start) {
  if (start.layout != wire::Layout::kRankMajor) {
    throw_violation(ErrorKind::kProtocol, "layout", "must be rank_major by the reshard route");
  }
  if (start.source_layout->world != start.header.device_uuids.size()) {
    throw_violation(ErrorKind::kProtocol, "source_layout",
                    "is of " + std::to_string(start.source_layout->world) + " actors, there are " +
                        std::to_string(start.header.device_uuids.size()));
  }
}

}  // namespace

// What depends on the chunk table and the source layout; kept from one publication to the next.
struct WeightLoader::Prepared {
  std::vector<std::uint64_t> counts;
  wire::Layout layout = wire::Layout::kCompact;
  wire::Route route = wire::Route::kGather;
  std::uint64_t slots = 1;
  std::uint64_t slot_bytes = 0;
  std::optional<wire::SourceLayout> source;
  std::vector<Chunk> chunks;
  std::vector<std::unique_ptr<device::Prepared>> copies;  // null where a chunk has none here
  std::unique_ptr<device::Prepared> digests;
  std::vector<std::vector<std::int64_t>> layers_done;  // by chunk
  std::uint64_t used_bytes = 0;                        // of a slot, at most
};

WeightLoader::WeightLoader(device::Device& device, device::RegionId resident,
                           const model::CanonicalPlan& plan, const model::TpLayout& layout,
                           LayerSink& layers)
    : device_(device),
      stream_(device::create_stream(device)),
      resident_(resident),
      plan_(plan),
      layout_(layout),
      layers_(layers) {}

WeightLoader::~WeightLoader() = default;

void WeightLoader::begin(const wire::StartRequest& start, Deadline deadline) {
  TPSYNC_ASSERT(!active_);
  const bool rank_major = start.layout == wire::Layout::kRankMajor;
  const wire::Route route = route_of(start);
  if (start.slots == 0 || start.slots > kSlotsMax || start.buffer_bytes % start.slots != 0) {
    throw_violation(ErrorKind::kProtocol, "slots",
                    "are " + std::to_string(start.slots) + " of " +
                        std::to_string(start.buffer_bytes) + " bytes; they must be 1 to " +
                        std::to_string(kSlotsMax) + " equal parts");
  }
  const std::uint64_t slot_bytes = start.buffer_bytes / start.slots;
  if (!prepared_ || prepared_->counts != start.chunk_tensor_counts ||
      prepared_->layout != start.layout || prepared_->route != route ||
      prepared_->slots != start.slots || (start.slots > 1 && prepared_->slot_bytes != slot_bytes) ||
      (rank_major && prepared_->source != start.source_layout) ||
      (start.content_digest && !prepared_->digests)) {
    auto chunks = chunks_from_counts(plan_.tensors, start.chunk_tensor_counts);
    if (rank_major) {
      if (!start.source_layout) {
        throw_violation(ErrorKind::kProtocol, "source_layout", "is required by rank_major");
      }
      check_source_layout(plan_.tensors, *start.source_layout);
    }
    if (route == wire::Route::kReshard) check_reshard(start);
    prepare(start, std::move(chunks));
  }
  if (slot_bytes < prepared_->used_bytes) {
    throw_violation(ErrorKind::kMismatch, "buffer_bytes",
                    "is " + std::to_string(start.buffer_bytes) + ", the chunks need " +
                        std::to_string(prepared_->used_bytes * start.slots));
  }
  if (!layout_.zero_fills.empty()) {
    for (const model::ZeroFill& fill : layout_.zero_fills) {
      device_.fill(stream_.id(), resident_, fill.offset, fill.bytes, std::byte{0});
    }
    device_.synchronize(stream_.id(), deadline);
  }
  manifest_.emplace();
  buffer_bytes_ = start.buffer_bytes;
  digest_ = start.content_digest;
  next_chunk_ = 0;
  active_ = true;
}

void WeightLoader::prepare(const wire::StartRequest& start, std::vector<Chunk> chunks) {
  auto prepared = std::make_unique<Prepared>();
  prepared->counts = start.chunk_tensor_counts;
  prepared->layout = start.layout;
  prepared->route = route_of(start);
  prepared->slots = start.slots;
  prepared->slot_bytes = start.buffer_bytes / start.slots;
  if (start.layout == wire::Layout::kRankMajor) prepared->source = start.source_layout;
  prepared->chunks = std::move(chunks);
  const wire::SourceLayout* source = prepared->source.has_value() ? &*prepared->source : nullptr;
  CopyPlan plan = plan_copies(layout_, plan_.tensors, prepared->chunks, prepared->layout, source,
                              prepared->route);
  check_coverage(layout_, plan);

  // A layer is done with the chunk that holds the last tensor placed in it.
  std::vector<std::uint64_t> last_of_layer;
  for (const model::Placement& placement : layout_.placements) {
    const std::int64_t layer = layout_.parameters[placement.parameter].layer;
    if (layer < 0) continue;
    if (static_cast<std::size_t>(layer) >= last_of_layer.size()) {
      last_of_layer.resize(static_cast<std::size_t>(layer) + 1, 0);
    }
    auto& last = last_of_layer[static_cast<std::size_t>(layer)];
    last = std::max(last, placement.tensor);
  }
  prepared->layers_done.resize(prepared->chunks.size());
  std::size_t c = 0;
  for (std::size_t layer = 0; layer < last_of_layer.size(); ++layer) {
    while (prepared->chunks[c].first + prepared->chunks[c].count <= last_of_layer[layer]) ++c;
    prepared->layers_done[c].push_back(static_cast<std::int64_t>(layer));
  }
  prepared->layers_done.back().push_back(-1);

  prepared->used_bytes = plan.buffer_bytes;
  prepared->copies.reserve(prepared->chunks.size());
  for (std::size_t i = 0; i < prepared->chunks.size(); ++i) {
    const std::uint64_t slot = slot_offset(start.buffer_bytes, start.slots, i);
    for (device::TileCopy& copy : plan.chunks[i]) copy.src_offset += slot;
    prepared->copies.push_back(plan.chunks[i].empty() ? nullptr
                                                      : device_.prepare_copies(plan.chunks[i]));
  }
  std::vector<device::DigestItem> items;
  items.reserve(layout_.placements.size());
  for (const model::Placement& p : layout_.placements) {
    items.push_back({.region = 0,
                     .offset = p.offset,
                     .pitch = p.pitch,
                     .item_bytes = static_cast<std::uint32_t>(layout_.item_bytes),
                     .row0 = p.row0,
                     .rows = p.row1 - p.row0,
                     .col0 = p.col0,
                     .cols = p.col1 - p.col0,
                     .key = digest_key(p.tensor)});
  }
  if (start.content_digest) prepared->digests = device_.prepare_digests(items);
  prepared_ = std::move(prepared);
}

void WeightLoader::check_record(const wire::TensorRecord& received, std::uint64_t tensor) const {
  const wire::TensorRecord& expected = plan_.tensors[tensor];
  if (received == expected) return;
  const auto fail = [&](const std::string& what) {
    throw_violation(ErrorKind::kMismatch, expected.name, what);
  };
  if (received.name != expected.name) fail("is due, the update has " + received.name);
  if (received.dtype != expected.dtype) fail("has another dtype than planned: " + received.dtype);
  if (received.shape != expected.shape) fail("has another shape than planned");
  fail("has another size than planned");
}

void WeightLoader::check_records(wire::UpdateRequest& update, const Chunk& chunk) {
  const std::uint64_t have = update.names.size();
  for (std::uint64_t i = 0; i < std::min(have, chunk.count); ++i) {
    const wire::TensorRecord received = received_record(update, i);
    check_record(received, chunk.first + i);
    manifest_->add(received);
  }
  if (have < chunk.count) {
    throw_violation(ErrorKind::kMismatch, plan_.tensors[chunk.first + have].name,
                    "is missing from its chunk");
  }
  if (have > chunk.count) {
    throw_violation(ErrorKind::kMismatch, update.names[chunk.count],
                    "is one tensor too many in its chunk");
  }
}

void WeightLoader::load(wire::UpdateRequest update, std::span<const device::RegionId> packed,
                        Deadline deadline) {
  TPSYNC_ASSERT(active_);
  const Prepared& prepared = *prepared_;
  TPSYNC_ASSERT(packed.size() ==
                (prepared.route == wire::Route::kReshard ? prepared.source->world : 1));
  if (update.chunk_index != next_chunk_ || next_chunk_ >= prepared.chunks.size()) {
    throw_violation(ErrorKind::kProtocol, "chunk_index",
                    "is " + std::to_string(update.chunk_index) + ", due is " +
                        std::to_string(next_chunk_) + " of " +
                        std::to_string(prepared.chunks.size()));
  }
  const std::uint64_t have = update.names.size();
  if (update.dtype_names.size() != have || update.shapes.size() != have ||
      update.tensor_sizes.size() != have) {
    throw_violation(ErrorKind::kProtocol, "update_info",
                    "names, dtype_names, shapes and tensor_sizes differ in length");
  }
  const Chunk& chunk = prepared.chunks[next_chunk_];
  // The copy runs while the host checks and hashes what it was told. An error found by then does
  // not matter to the bytes: a failed publication leaves no usable weights anyway.
  if (prepared.copies[next_chunk_]) {
    bindings_.assign(1, resident_);
    bindings_.insert(bindings_.end(), packed.begin(), packed.end());
    device_.launch(stream_.id(), *prepared.copies[next_chunk_], bindings_);
  }
  try {
    check_records(update, chunk);
  } catch (const std::exception&) {
    device_.synchronize(stream_.id(),
                        deadline);  // nothing may still read a buffer that is closed next
    throw;
  }
  device_.synchronize(stream_.id(), deadline);
  report_layers(next_chunk_);
  ++next_chunk_;
}

void WeightLoader::report_layers(std::uint64_t chunk) {
  for (const std::int64_t layer : prepared_->layers_done[chunk]) layers_.layer_loaded(layer);
}

Attestation WeightLoader::finish(Deadline deadline) {
  TPSYNC_ASSERT(active_);
  const Prepared& prepared = *prepared_;
  if (next_chunk_ < prepared.chunks.size()) {
    throw_violation(ErrorKind::kMismatch, plan_.tensors[prepared.chunks[next_chunk_].first].name,
                    "never came: " + std::to_string(next_chunk_) + " of " +
                        std::to_string(prepared.chunks.size()) + " chunks were loaded");
  }
  if (digest_) {
    sums_.assign(layout_.placements.size(), 0);
    const device::RegionId bindings[] = {resident_};
    device_.launch_digests(stream_.id(), *prepared.digests, bindings, sums_);
  }
  Attestation attestation;
  try {
    attestation.received = manifest_->finish();  // while the device adds up
  } catch (const std::exception&) {
    device_.synchronize(stream_.id(), deadline);  // it still writes the sums
    throw;
  }
  attestation.resident_parameter_count = layout_.parameters.size();
  if (digest_) {
    device_.synchronize(stream_.id(), deadline);
    attestation.digest.reserve(sums_.size());
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      const model::Placement& p = layout_.placements[i];
      attestation.digest.push_back({p.tensor, p.row0, p.row1, p.col0, p.col1, sums_[i]});
    }
  }
  abandon();
  return attestation;
}

void WeightLoader::abandon() noexcept {
  active_ = false;
  manifest_.reset();
}

}  // namespace tpsync::transfer
