#include "tpsync/transfer/chunk_layout.h"

#include <algorithm>

#include "tpsync/base/bytes.h"
#include "tpsync/base/errors.h"
#include "tpsync/model/plan.h"

namespace tpsync::transfer {

namespace {

std::uint64_t row_bytes(const wire::TensorRecord& tensor, std::uint64_t rows) {
  return rows == 0 ? 0 : tensor.nbytes / rows;
}

}  // namespace

std::uint64_t slot_bytes(wire::Layout layout, std::uint64_t bucket_bytes, std::uint64_t world,
                         std::uint64_t slots) {
  const std::uint64_t bytes =
      layout == wire::Layout::kRankMajor ? bucket_bytes + kRegionAlignment * world : bucket_bytes;
  return slots > 1 ? align_up(bytes, kSlotAlignment) : bytes;
}

std::uint64_t reshard_slot_bytes(std::span<const wire::TensorRecord> tensors,
                                 std::span<const Chunk> chunks, const wire::SourceLayout& source) {
  std::uint64_t largest = 1;  // an export has bytes
  std::vector<std::uint64_t> bytes(source.world);
  for (const Chunk& chunk : chunks) {
    std::fill(bytes.begin(), bytes.end(), 0);
    for (std::uint64_t t = chunk.first; t < chunk.first + chunk.count; ++t) {
      const std::uint64_t* bounds = source.row_bounds.data() + t * (source.world + 1);
      const std::uint64_t row = row_bytes(tensors[t], bounds[source.world]);
      for (std::uint64_t r = 0; r < source.world; ++r)
        bytes[r] += (bounds[r + 1] - bounds[r]) * row;
    }
    for (const std::uint64_t one : bytes) largest = std::max(largest, one);
  }
  return align_up(largest, kSlotAlignment);
}

std::vector<Piece> compact_pieces(std::span<const wire::TensorRecord> tensors, const Chunk& chunk) {
  std::vector<Piece> pieces;
  pieces.reserve(chunk.count);
  std::uint64_t offset = 0;
  for (std::uint64_t t = chunk.first; t < chunk.first + chunk.count; ++t) {
    const std::uint64_t rows = model::rows_cols(tensors[t]).rows;
    pieces.push_back({t, 0, rows, offset, tensors[t].nbytes});
    offset += tensors[t].nbytes;
  }
  return pieces;
}

RankMajorChunk rank_major_pieces(std::span<const wire::TensorRecord> tensors, const Chunk& chunk,
                                 const wire::SourceLayout& source, wire::Route route) {
  RankMajorChunk result;
  result.regions.resize(source.world);
  result.pieces.reserve(chunk.count * source.world);
  std::uint64_t offset = 0;
  for (std::uint64_t r = 0; r < source.world; ++r) {
    offset = route == wire::Route::kReshard ? 0 : align_up(offset, kRegionAlignment);
    ActorRegion& region = result.regions[r];
    region.offset = offset;
    region.first_piece = result.pieces.size();
    for (std::uint64_t t = chunk.first; t < chunk.first + chunk.count; ++t) {
      const std::uint64_t* bounds = source.row_bounds.data() + t * (source.world + 1);
      const std::uint64_t bytes =
          (bounds[r + 1] - bounds[r]) * row_bytes(tensors[t], bounds[source.world]);
      if (bytes == 0) continue;
      result.pieces.push_back({t, bounds[r], bounds[r + 1], offset, bytes});
      offset += bytes;
    }
    region.bytes = offset - region.offset;
    region.piece_count = result.pieces.size() - region.first_piece;
  }
  return result;
}

void check_source_layout(std::span<const wire::TensorRecord> tensors,
                         const wire::SourceLayout& source) {
  const std::uint64_t bounds_count = source.row_bounds.size();
  const std::uint64_t stride = source.world + 1;  // looked at only where it did not wrap
  if (source.world == 0 || source.world >= bounds_count || bounds_count % stride != 0 ||
      bounds_count / stride != tensors.size()) {
    throw_violation(ErrorKind::kProtocol, "source_layout",
                    "has " + std::to_string(bounds_count) + " bounds for " +
                        std::to_string(tensors.size()) + " tensors and " +
                        std::to_string(source.world) + " actors");
  }
  for (std::uint64_t t = 0; t < tensors.size(); ++t) {
    const std::uint64_t* bounds = source.row_bounds.data() + t * stride;
    const std::uint64_t rows = model::rows_cols(tensors[t]).rows;
    bool ascending = bounds[0] == 0 && bounds[source.world] == rows;
    for (std::uint64_t r = 0; r < source.world; ++r) ascending &= bounds[r] <= bounds[r + 1];
    if (!ascending) {
      throw_violation(ErrorKind::kProtocol, "source_layout",
                      tensors[t].name + ": shard bounds do not ascend from 0 to " +
                          std::to_string(rows) + " rows");
    }
  }
}

}  // namespace tpsync::transfer
