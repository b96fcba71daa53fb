// How a worker moves a chunk from the packed buffer, or by the reshard route from those of all
// actors, into its resident weights: strided 2-D copies, planned once per (plan, layout, source
// layout, route), one launch per chunk. The plan is checked as a
// whole before it is used: every resident byte outside the vocabulary padding is written exactly
// once per publication.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tpsync/device/device.h"
#include "tpsync/model/tp_layout.h"
#include "tpsync/transfer/chunk_layout.h"
#include "tpsync/transfer/chunk_plan.h"

namespace tpsync::transfer {

// Bindings of the planned copies: the resident weights, and the buffers that are read, behind one
// another: this worker's actor's packed buffer, or by the reshard route those of all actors.
inline constexpr device::Binding kResidentBinding = 0;
inline constexpr device::Binding kPackedBinding = 1;
constexpr device::Binding source_binding(std::uint64_t actor) {
  return kPackedBinding + static_cast<device::Binding>(actor);
}

struct CopyPlan {
  std::vector<std::vector<device::TileCopy>> chunks;  // by chunk; may be empty for a chunk
  std::uint64_t buffer_bytes = 0;  // how far into a packed buffer the chunks reach at most
};

// `source` is needed for rank_major and must have passed check_source_layout. The reshard route is
// rank_major. Its copies take turns among the actors, so that all links are busy all the time, each
// as far through its part as the others, and each worker begins with another actor.
CopyPlan plan_copies(const model::TpLayout& layout, std::span<const wire::TensorRecord> tensors,
                     std::span<const Chunk> chunks, wire::Layout chunk_layout,
                     const wire::SourceLayout* source, wire::Route route = wire::Route::kGather);

// Throws PeerViolation kMismatch, subject the resident parameter: bytes that no copy writes, or
// that two copies write.
void check_coverage(const model::TpLayout& layout, const CopyPlan& plan);

}  // namespace tpsync::transfer
