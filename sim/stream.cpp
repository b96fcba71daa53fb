// How work of a stream lands: see the header.
#include "sim/stream.h"

#include <algorithm>
#include <cstring>

#include "sim/sanitizers.h"
#include "tpsync/device/host_kernels.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tpsync::sim {

namespace {

constexpr std::uint64_t kLiteralLimit = 64 * kKiB;

bool has_content(const Memory& memory, bool phantom) {
  return phantom ? memory.physical : !memory.data.empty();
}

void digest_phantom(const Memory& memory, const device::DigestItem& item, std::uint64_t& sum) {
  std::vector<std::byte> row(item.cols * item.item_bytes);
  for (std::uint64_t r = 0; r < item.rows; ++r) {
    memory.extents.bytes(item.offset + r * item.pitch, row);
    sum += device::digest_rect(row.data(), row.size(), item.item_bytes, item.row0 + r, 1, item.col0,
                               item.cols, item.key);
  }
}

}  // namespace

bool Stream::timer_live(std::uint64_t) const { return !operations_.empty() && !destroyed; }

void Stream::on_timer(std::uint64_t argument) { land(argument == kForce); }

void Stream::push(std::unique_ptr<StreamOperation> made, std::int64_t cost_ns) {
  StreamOperation& operation = *made;
  SimProcess& process = device_.process();
  SimWorld& world = process.sim();
  const SimConfig& config = world.config();
  const std::int64_t now = world.now();
  operations_.push_back(std::move(made));
  if (operation.kind == StreamOperation::Kind::kGather) {
    // The hardware reaches it when all before it is done, whether or not anybody waits.
    busy_until_ = std::max(busy_until_, now);
    if (operations_.size() == 1)
      land(false);
    else
      world.scheduler().add_timer(busy_until_, *this, kForce);
    return;
  }
  busy_until_ = std::max(busy_until_, now) + cost_ns;
  operation.pieces = 1;
  operation.ends[0] = operation.units;
  operation.due[0] = now;
  if (config.cruelty.late_copies && operation.units > 0) {
    if (operation.units > 1) {
      const std::uint64_t most =
          std::min<std::uint64_t>(operation.units, StreamOperation::kMostPieces);
      operation.pieces = 1 + below(process.next_draw(Purpose::kLandingCut), most);
      std::uint64_t begin = 0;
      for (std::size_t i = 0; i + 1 < operation.pieces; ++i) {
        const std::uint64_t left = operation.pieces - 1 - i;
        const std::uint64_t room = operation.units - begin - left;
        begin += 1 + below(process.next_draw(Purpose::kLandingCut), room);
        operation.ends[i] = begin;
      }
      operation.ends[operation.pieces - 1] = operation.units;
    }
    std::int64_t due = now;
    for (std::size_t i = 0; i < operation.pieces; ++i) {
      switch (due == INT64_MAX ? 2 : below(process.next_draw(Purpose::kLandingMode), 3)) {
        case 0:
          break;
        case 1:
          due += within(process.next_draw(Purpose::kLandingDelay), config.landing_delay_ns);
          break;
        default:
          due = INT64_MAX;
          break;
      }
      operation.due[i] = due;
      if (due > now && due != INT64_MAX) world.scheduler().add_timer(due, *this, 0);
    }
  }
  land(false);
}

bool Stream::land(bool all) {
  const std::int64_t now = device_.process().sim().now();
  std::size_t done = 0;
  while (done < operations_.size()) {
    StreamOperation& operation = *operations_[done];
    if (operation.kind == StreamOperation::Kind::kGather) {
      if (operation.reached) {
        const auto reached = std::move(operation.reached);
        operation.reached = nullptr;
        reached();
      }
      if (!operation.complete) break;
    } else {
      while (operation.landed < operation.pieces && (all || operation.due[operation.landed] <= now))
        land_piece(operation);
      if (operation.landed < operation.pieces) break;
    }
    ++done;
  }
  completed_ += done;
  for (std::size_t i = 0; i < done; ++i) {
    device_.system().give_operation(std::move(operations_[i]));
  }
  operations_.erase(operations_.begin(), operations_.begin() + static_cast<std::ptrdiff_t>(done));
  return operations_.empty();
}

void Stream::land_piece(StreamOperation& operation) {
  const std::size_t piece = operation.landed++;
  const std::uint64_t first = piece == 0 ? 0 : operation.ends[piece - 1];
  const std::uint64_t last = operation.ends[piece];
  const HarnessAccess harness;
  const std::uint64_t key = operation.kind == StreamOperation::Kind::kBatch
                                ? land_batch(operation, first, last)
                                : land_simple(operation, first, last);
  std::uint64_t hash = operation.batch ? operation.batch->hash : mix(operation.offset);
  hash = mix(hash ^ operation.bindings_hash);
  hash = mix(mix(hash + first) + last);
  device_.process().sim().record_for(&device_.process(), EventKind::kDeviceLanding, key,
                                     operation.serial, hash);
}

std::uint64_t Stream::land_batch(const StreamOperation& operation, std::uint64_t first,
                                 std::uint64_t last) {
  const BatchData& batch = *operation.batch;
  const bool phantom = device_.phantom();
  const bool by_item = batch.items() != 1 || !batch.digests.empty();
  std::uint64_t key = 0;
  for (std::uint64_t i = by_item ? first : 0; i < (by_item ? last : 1); ++i) {
    if (!batch.copies.empty()) {
      const device::TileCopy& copy = batch.copies[i];
      const std::uint64_t row0 = by_item ? 0 : first;
      const std::uint64_t rows = by_item ? copy.rows : last - first;
      if (rows == 0 || copy.row_bytes == 0) continue;
      Memory& dst = *operation.memories[copy.dst];
      Memory& src = *operation.memories[copy.src];
      if (key == 0) key = dst.key;
      if (!has_content(dst, phantom) || !has_content(src, phantom)) continue;
      const std::uint64_t to = copy.dst_offset + row0 * copy.dst_pitch;
      const std::uint64_t from = copy.src_offset + row0 * copy.src_pitch;
      if (phantom)
        dst.extents.copy(Rect{to, copy.row_bytes, rows, copy.dst_pitch}, src.extents,
                         Rect{from, copy.row_bytes, rows, copy.src_pitch});
      else
        device::copy_rows(dst.data.data() + to, copy.dst_pitch, src.data.data() + from,
                          copy.src_pitch, copy.row_bytes, rows);
    } else if (!batch.packs.empty()) {
      const device::PackPiece& pack = batch.packs[i];
      const std::uint64_t begin = by_item ? 0 : first;
      const std::uint64_t count = by_item ? pack.count : last - first;
      if (count == 0) continue;
      Memory& dst = *operation.memories[pack.dst];
      Memory& src = *operation.memories[pack.src];
      if (key == 0) key = dst.key;
      if (!has_content(dst, phantom) || !has_content(src, phantom)) continue;
      const auto dst_item = item_size(pack.dst_dtype);
      const auto src_item = item_size(pack.src_dtype);
      const std::uint64_t to = pack.dst_offset + begin * dst_item;
      const std::uint64_t from = pack.src_offset + begin * src_item;
      if (phantom)
        dst.extents.convert(to, static_cast<std::uint32_t>(dst_item), src.extents, from,
                            static_cast<std::uint32_t>(src_item), count);
      else
        device::convert(dst.data.data() + to, pack.dst_dtype, src.data.data() + from,
                        pack.src_dtype, count);
    } else {
      const device::DigestItem& item = batch.digests[i];
      std::uint64_t sum = 0;
      if (item.rows != 0 && item.cols != 0) {
        const Memory& memory = *operation.memories[item.region];
        if (key == 0) key = memory.key;
        if (!has_content(memory, phantom))
          sum = 0;
        else if (phantom)
          digest_phantom(memory, item, sum);
        else
          sum = device::digest_rect(memory.data.data() + item.offset, item.pitch, item.item_bytes,
                                    item.row0, item.rows, item.col0, item.cols, item.key);
      }
      if (!device_.process().dead()) operation.sums[i] = sum;
    }
  }
  return key;
}

std::uint64_t Stream::land_simple(const StreamOperation& operation, std::uint64_t first,
                                  std::uint64_t last) {
  Memory& memory = *operation.memories[0];
  const bool phantom = device_.phantom();
  if (first == last || !has_content(memory, phantom)) return memory.key;
  const std::uint64_t at = operation.offset + first;
  const std::uint64_t count = last - first;
  const bool dead = device_.process().dead();
  switch (operation.kind) {
    case StreamOperation::Kind::kFill:
      if (phantom)
        memory.extents.write({at,
                              count,
                              1,
                              0,
                              0,
                              {kFilledBytes, static_cast<std::uint64_t>(operation.value), 1, 0}});
      else
        std::memset(memory.data.data() + at, static_cast<int>(operation.value), count);
      break;
    case StreamOperation::Kind::kUpload:
      if (dead) break;
      if (!phantom) {
        std::memcpy(memory.data.data() + at, operation.from + first, count);
      } else if (operation.bytes <= kLiteralLimit) {
        for (std::uint64_t i = 0; i < count; i += 8) {
          const std::uint64_t part = std::min<std::uint64_t>(8, count - i);
          std::uint64_t word = 0;
          for (std::uint64_t b = 0; b < part; ++b)
            word |= static_cast<std::uint64_t>(operation.from[first + i + b]) << (8 * b);
          memory.extents.write({at + i, part, 1, 0, 0, {kLiteralBytes, 0, 1, word}});
        }
      } else {
        memory.extents.write({at,
                              count,
                              1,
                              0,
                              0,
                              {kUploadedBytes, XXH3_64bits(operation.from + first, count), 1, 0}});
      }
      break;
    case StreamOperation::Kind::kDownload:
      if (dead) break;
      if (phantom)
        memory.extents.bytes(at, std::span(operation.into + first, count));
      else
        std::memcpy(operation.into + first, memory.data.data() + at, count);
      break;
    default:
      break;
  }
  return memory.key;
}

void Stream::abandon() {
  SimProcess& process = device_.process();
  const SimConfig& config = process.sim().config();
  for (auto& operation : operations_) {
    if (operation->kind == StreamOperation::Kind::kGather) continue;
    std::size_t lands = operation->pieces;
    if (config.cruelty.lost_copies)
      lands = operation->landed + below(process.next_draw(Purpose::kLandingSurvives),
                                        operation->pieces - operation->landed + 1);
    while (operation->landed < lands) land_piece(*operation);
    if (operation->landed < operation->pieces) {
      process.sim().record_for(&process, EventKind::kDeviceVanished, operation->serial,
                               operation->pieces - operation->landed);
      break;  // the stream is in order: nothing after it lands either
    }
  }
  drop();
}

void Stream::drop() {
  operations_.clear();
  destroyed = true;
}

void Stream::drop_gathers() {
  std::erase_if(operations_, [](const auto& operation) {
    return operation->kind == StreamOperation::Kind::kGather;
  });
  device_.process().sim().scheduler().wake(progress);
}

std::size_t Stream::settle() { return std::exchange(completed_, 0); }

}  // namespace tpsync::sim
