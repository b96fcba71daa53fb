// The shard-invariant content digest of canonical tensors, as both sides use it: keys by canonical
// index, partial sums that add up modulo 2^64 (device/digest_weights.h).
#pragma once

#include <cstdint>
#include <span>

#include "tpsync/wire/manifest.h"
#include "tpsync/wire/publication.h"

namespace tpsync::transfer {

constexpr std::uint64_t digest_key(std::uint64_t tensor_index) { return tensor_index + 1; }

// What the receipts must come to, from the sum over all actors' partial sums (one per tensor).
wire::ExpectedDigest expected_digest(std::span<const wire::TensorRecord> tensors,
                                     std::span<const std::uint64_t> sums);

}  // namespace tpsync::transfer
