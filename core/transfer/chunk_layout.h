// Where the rows of a chunk's tensors lie in the packed buffer. An all-gather of shards is
// rank-major, not a concatenation of tensors, so the layout is data that both sides derive from the
// same small inputs.
//
// - compact: tensors back to back, offsets a running byte sum.
// - rank_major: actor r's pieces back to back in region r, nothing padded to the largest shard;
//   regions begin at multiples of 16. Gathered, all regions lie in one buffer behind one another;
//   by the reshard route, region r alone lies in actor r's buffer, at its beginning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tpsync/transfer/chunk_plan.h"
#include "tpsync/wire/messages.h"

namespace tpsync::transfer {

inline constexpr std::uint64_t kRegionAlignment = 16;

// Rows [row0, row1) of one tensor, contiguous at `offset`.
struct Piece {
  std::uint64_t tensor = 0;
  std::uint64_t row0 = 0;
  std::uint64_t row1 = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

struct ActorRegion {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::size_t first_piece = 0;
  std::size_t piece_count = 0;
};

struct RankMajorChunk {
  std::vector<ActorRegion> regions;  // one per actor
  std::vector<Piece> pieces;         // of all actors, in the order of the regions; no empty ones

  std::span<const Piece> pieces_of(std::uint64_t actor) const {
    return std::span(pieces).subspan(regions[actor].first_piece, regions[actor].piece_count);
  }
};

// A packed buffer has one slot, or several of equal size: one is read by the worker, one gathered
// into, and in one the actor packs its own part of the chunk after that.
inline constexpr std::uint64_t kSlotsMax = 3;
// By the reshard route there is no gather: one is read by the workers, one packed into.
inline constexpr std::uint64_t kReshardSlotsMax = 2;
inline constexpr std::uint64_t kSlotAlignment = 256;

// Where chunk `chunk` begins in a buffer of `buffer_bytes`: chunks take the slots in turn.
constexpr std::uint64_t slot_offset(std::uint64_t buffer_bytes, std::uint64_t slots,
                                    std::uint64_t chunk) {
  return chunk % slots * (buffer_bytes / slots);
}

// Bytes that one of `slots` slots of a layout needs so that every chunk of at most `bucket_bytes`
// fits.
std::uint64_t slot_bytes(wire::Layout layout, std::uint64_t bucket_bytes, std::uint64_t world,
                         std::uint64_t slots = 1);

// The same for the reshard route: the largest region of any actor and chunk, so that the slots of
// all actors are of one size. `source` must have passed check_source_layout.
std::uint64_t reshard_slot_bytes(std::span<const wire::TensorRecord> tensors,
                                 std::span<const Chunk> chunks, const wire::SourceLayout& source);

std::vector<Piece> compact_pieces(std::span<const wire::TensorRecord> tensors, const Chunk& chunk);

// `source` must have passed check_source_layout.
RankMajorChunk rank_major_pieces(std::span<const wire::TensorRecord> tensors, const Chunk& chunk,
                                 const wire::SourceLayout& source,
                                 wire::Route route = wire::Route::kGather);

// For a layout from outside: world + 1 bounds per tensor, ascending, from 0 to the tensor's rows.
// Throws PeerViolation kProtocol, subject the tensor.
void check_source_layout(std::span<const wire::TensorRecord> tensors,
                         const wire::SourceLayout& source);

}  // namespace tpsync::transfer
