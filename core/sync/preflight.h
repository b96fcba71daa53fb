// Whether a publication can succeed, found out before the runtime is touched. Pure functions over
// what every rank gathered, so that all ranks come to the same verdict and the same text.
#pragma once

#include <cstdint>
#include <span>

#include "tpsync/model/plan.h"
#include "tpsync/wire/messages.h"

namespace tpsync::sync {

// Free device memory that a publication asks for: 3 * bucket + largest_layer + headroom. Throws
// InvalidInput kInvalidConfig if that does not fit 64 bits.
std::uint64_t required_free_bytes(std::uint64_t bucket_bytes, std::uint64_t largest_layer_bytes,
                                  std::uint64_t headroom_bytes);

struct PreflightLimits {
  std::uint64_t bucket_bytes = 0;
  std::uint64_t largest_tensor_bytes = 0;
  std::uint64_t required_free_bytes = 0;
};

// Checks in order, each naming rank and subject; kind kMismatch unless said otherwise: one visible
// device per actor; as many actors as TP ranks; one host name and boot id; actor device UUIDs equal
// the workers', in rank order; the largest tensor fits the bucket (kInvalidConfig); enough free
// memory on every rank (kOutOfMemory; exactly enough passes). Throws InvalidInput, or
// NothingHappened for memory.
void check_preflight(std::span<const wire::PreflightReport> reports,
                     const wire::TopologyReport& topology, const PreflightLimits& limits);

}  // namespace tpsync::sync
