// Which canonical tensors travel together: planned from metadata, before anything is materialized.
//
// Greedy in canonical order: a chunk is cut where the next tensor would not fit (an exact fit
// stays) or would begin at an offset that its item size does not divide. Zero-size tensors stay
// with their neighbours and are never lost.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tpsync/wire/manifest.h"

namespace tpsync::transfer {

struct Chunk {
  std::uint64_t first = 0;  // index of its first tensor in canonical order
  std::uint64_t count = 0;  // >= 1
  std::uint64_t bytes = 0;  // of its tensors; 0 is possible
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

// Throws InvalidInput kInvalidConfig: no tensors; a tensor larger than the bucket (subject: its
// name); an unknown dtype.
std::vector<Chunk> plan_chunks(std::span<const wire::TensorRecord> tensors,
                               std::uint64_t bucket_bytes);

// The same table from the counts that travel in `start`. Throws PeerViolation kProtocol if the
// counts are not positive or do not add up to the tensors.
std::vector<Chunk> chunks_from_counts(std::span<const wire::TensorRecord> tensors,
                                      std::span<const std::uint64_t> counts);

}  // namespace tpsync::transfer
