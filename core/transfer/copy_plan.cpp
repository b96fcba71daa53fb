#include "tpsync/transfer/copy_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tpsync/base/errors.h"
#include "tpsync/model/plan.h"

namespace tpsync::transfer {

namespace {

// The part of `piece` that `placement` wants, as one copy; joined into one run where both sides are
// contiguous.
void append_copy(const Piece& piece, device::Binding src, std::uint64_t cols,
                 std::uint64_t item_bytes, const model::Placement& placement,
                 std::vector<device::TileCopy>& out) {
  const std::uint64_t row0 = std::max(piece.row0, placement.row0);
  const std::uint64_t row1 = std::min(piece.row1, placement.row1);
  if (row0 >= row1 || placement.col0 >= placement.col1) return;
  device::TileCopy copy;
  copy.dst = kResidentBinding;
  copy.src = src;
  copy.dst_pitch = placement.pitch;
  copy.dst_offset = placement.offset + (row0 - placement.row0) * placement.pitch;
  copy.src_pitch = cols * item_bytes;
  copy.src_offset =
      piece.offset + (row0 - piece.row0) * copy.src_pitch + placement.col0 * item_bytes;
  copy.row_bytes = (placement.col1 - placement.col0) * item_bytes;
  copy.rows = row1 - row0;
  if (copy.dst_pitch == copy.row_bytes && copy.src_pitch == copy.row_bytes) {
    copy.row_bytes *= copy.rows;
    copy.dst_pitch = copy.src_pitch = copy.row_bytes;
    copy.rows = 1;
  }
  out.push_back(copy);
}

std::uint64_t bytes_of(std::span<const device::TileCopy> copies) {
  std::uint64_t bytes = 0;
  for (const device::TileCopy& copy : copies) bytes += copy.row_bytes * copy.rows;
  return bytes;
}

// The copies of all actors in the order in which one launch begins them: always one of the actor
// whose part is the least done, and of equal ones of the first from `first_actor` on.
std::vector<device::TileCopy> take_turns(const std::vector<std::vector<device::TileCopy>>& by_actor,
                                         std::uint64_t first_actor) {
  struct Part {
    std::span<const device::TileCopy> rest;
    std::uint64_t bytes = 0;
    std::uint64_t done = 0;
    std::uint64_t progress() const {  // in thousandths, of what a device may hold
      constexpr std::uint64_t kUnits = 1000;
      return done * kUnits / std::max<std::uint64_t>(bytes, 1);
    }
  };
  std::vector<Part> parts;
  std::size_t count = 0;
  for (std::size_t i = 0; i < by_actor.size(); ++i) {
    const auto& copies = by_actor[(first_actor + i) % by_actor.size()];
    parts.push_back({copies, bytes_of(copies)});
    count += copies.size();
  }
  std::vector<device::TileCopy> order;
  order.reserve(count);
  while (order.size() < count) {
    Part* next = nullptr;
    for (Part& part : parts) {
      if (part.rest.empty()) continue;
      if (next == nullptr || part.progress() < next->progress()) next = &part;
    }
    order.push_back(next->rest.front());
    next->done += bytes_of(next->rest.first(1));
    next->rest = next->rest.subspan(1);
  }
  return order;
}

struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

void append_intervals(const device::TileCopy& copy, std::vector<Interval>& out) {
  if (copy.dst_pitch == copy.row_bytes) {
    out.push_back({copy.dst_offset, copy.dst_offset + copy.rows * copy.row_bytes});
    return;
  }
  for (std::uint64_t r = 0; r < copy.rows; ++r) {
    const std::uint64_t begin = copy.dst_offset + r * copy.dst_pitch;
    out.push_back({begin, begin + copy.row_bytes});
  }
}

}  // namespace

CopyPlan plan_copies(const model::TpLayout& layout, std::span<const wire::TensorRecord> tensors,
                     std::span<const Chunk> chunks, wire::Layout chunk_layout,
                     const wire::SourceLayout* source, wire::Route route) {
  TPSYNC_ASSERT(chunk_layout == wire::Layout::kCompact || source != nullptr);
  TPSYNC_ASSERT(chunk_layout == wire::Layout::kRankMajor || route == wire::Route::kGather);
  std::vector<std::uint64_t> first_placement(tensors.size() + 1, 0);
  std::size_t next = 0;
  for (std::uint64_t t = 0; t < tensors.size(); ++t) {
    first_placement[t] = next;
    while (next < layout.placements.size() && layout.placements[next].tensor == t) ++next;
  }
  first_placement[tensors.size()] = next;
  TPSYNC_ASSERT(next == layout.placements.size());

  CopyPlan plan;
  plan.chunks.resize(chunks.size());
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const auto copies_of = [&](std::span<const Piece> pieces, device::Binding src) {
      std::vector<device::TileCopy> copies;
      copies.reserve(pieces.size());
      for (const Piece& piece : pieces) {
        const std::uint64_t cols = model::rows_cols(tensors[piece.tensor]).cols;
        for (std::uint64_t p = first_placement[piece.tensor]; p < first_placement[piece.tensor + 1];
             ++p) {
          append_copy(piece, src, cols, layout.item_bytes, layout.placements[p], copies);
        }
      }
      return copies;
    };
    std::uint64_t bytes = chunks[c].bytes;
    if (chunk_layout == wire::Layout::kCompact) {
      plan.chunks[c] = copies_of(compact_pieces(tensors, chunks[c]), kPackedBinding);
    } else {
      const RankMajorChunk chunk = rank_major_pieces(tensors, chunks[c], *source, route);
      bytes = 0;
      for (const ActorRegion& region : chunk.regions) {
        bytes = std::max(bytes, region.offset + region.bytes);
      }
      if (route == wire::Route::kGather) {
        plan.chunks[c] = copies_of(chunk.pieces, kPackedBinding);
      } else {
        std::vector<std::vector<device::TileCopy>> by_actor;
        for (std::uint64_t r = 0; r < chunk.regions.size(); ++r) {
          by_actor.push_back(copies_of(chunk.pieces_of(r), source_binding(r)));
        }
        plan.chunks[c] = take_turns(by_actor, static_cast<std::uint64_t>(layout.tp_rank));
      }
    }
    plan.buffer_bytes = std::max(plan.buffer_bytes, bytes);
  }
  return plan;
}

void check_coverage(const model::TpLayout& layout, const CopyPlan& plan) {
  std::vector<Interval> written;
  written.reserve(layout.placements.size() + layout.zero_fills.size());
  for (const auto& chunk : plan.chunks) {
    for (const device::TileCopy& copy : chunk) append_intervals(copy, written);
  }
  for (const model::ZeroFill& fill : layout.zero_fills) {
    written.push_back({fill.offset, fill.offset + fill.bytes});
  }
  std::sort(written.begin(), written.end(), [](const Interval& a, const Interval& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::vector<std::size_t> order(layout.parameters.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return layout.parameters[a].offset < layout.parameters[b].offset;
  });

  std::size_t next = 0;
  const auto fail = [](const std::string& name, std::uint64_t offset, const char* what) {
    throw_violation(ErrorKind::kMismatch, name,
                    "byte " + std::to_string(offset) + " of the resident parameter " + what);
  };
  for (const std::size_t index : order) {
    const model::ResidentParameter& parameter = layout.parameters[index];
    const std::uint64_t end = parameter.offset + parameter.bytes;
    std::uint64_t at = parameter.offset;
    while (at < end) {
      while (next < written.size() && written[next].begin == written[next].end) ++next;
      if (next == written.size() || written[next].begin > at) {
        fail(parameter.name, at - parameter.offset, "would be written by no copy");
      }
      if (written[next].begin < at) {
        fail(parameter.name, written[next].begin - parameter.offset,
             "would be written by two copies");
      }
      at = written[next].end;
      ++next;
    }
    if (at > end) fail(parameter.name, parameter.bytes, "would be overrun by a copy");
  }
  while (next < written.size() && written[next].begin == written[next].end) ++next;
  if (next != written.size()) {
    throw_violation(ErrorKind::kMismatch, "resident weights",
                    "a copy would write outside every parameter, at byte " +
                        std::to_string(written[next].begin));
  }
}

}  // namespace tpsync::transfer
