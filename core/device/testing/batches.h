// Random batches for tests of devices that cut them: operations of every alignment, shape and type,
// whose destinations do not overlap, and what they must do to the bytes by host_kernels.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "tpsync/device/device.h"
#include "tpsync/device/host_kernels.h"
#include "tpsync/device/testing/random_bytes.h"

namespace tpsync::device {

inline constexpr std::array<std::uint64_t, 12> kRowBytes{1,   2,   3,    7,     12,    16,
                                                         192, 770, 1536, 65535, 65536, 200'003};

// Copies from binding 0 to binding 1, one behind the other in the destination.
struct CopyBatch {
  std::vector<TileCopy> copies;
  std::uint64_t src_bytes = 0;
  std::uint64_t dst_bytes = 0;
};

inline CopyBatch random_copies(std::uint64_t key, std::uint64_t count) {
  Draws draws(key);
  CopyBatch batch;
  for (std::uint64_t i = 0; i < count; ++i) {
    // How far the places are aligned: widest accesses as well as single bytes.
    const std::uint64_t unit = std::uint64_t{1} << draws.below(5);
    TileCopy copy;
    copy.dst = 1;
    copy.row_bytes = align_up(kRowBytes[draws.below(kRowBytes.size())], unit);
    copy.rows = copy.row_bytes > 10'000 ? draws.below(3) : draws.below(150);
    copy.src_pitch = copy.row_bytes + unit * draws.below(20);
    copy.dst_pitch = copy.row_bytes + unit * draws.below(20);
    copy.src_offset = align_up(batch.src_bytes, unit) + unit * draws.below(4);
    copy.dst_offset = align_up(batch.dst_bytes, unit) + unit * draws.below(4);
    batch.src_bytes = copy.src_offset + copy.src_pitch * std::max<std::uint64_t>(copy.rows, 1);
    batch.dst_bytes = copy.dst_offset + copy.dst_pitch * std::max<std::uint64_t>(copy.rows, 1);
    batch.copies.push_back(copy);
  }
  return batch;
}

inline void apply(const TileCopy& copy, ByteView src, MutableByteView dst) {
  copy_rows(dst.data() + copy.dst_offset, copy.dst_pitch, src.data() + copy.src_offset,
            copy.src_pitch, copy.row_bytes, copy.rows);
}

struct PackBatch {
  std::vector<PackPiece> pieces;
  std::uint64_t src_bytes = 0;
  std::uint64_t dst_bytes = 0;
};

// Every pair of types that converts, at aligned and unaligned places, of few and of many elements.
inline PackBatch all_packs(std::uint64_t key) {
  Draws draws(key);
  PackBatch batch;
  const std::array<DType, 5> types{DType::kBFloat16, DType::kFloat16, DType::kFloat32,
                                   DType::kInt64, DType::kUInt8};
  for (const DType dst : types) {
    for (const DType src : types) {
      if (!can_convert(dst, src)) continue;
      for (const std::uint64_t count : {0, 1, 7, 8, 9, 1000, 16384, 50'001}) {
        for (const std::uint64_t unit : {1, 2, 4, 16}) {
          PackPiece piece;
          piece.dst = 1;
          piece.dst_dtype = dst;
          piece.src_dtype = src;
          piece.count = count;
          piece.src_offset = align_up(batch.src_bytes, unit) + unit * draws.below(3);
          piece.dst_offset = align_up(batch.dst_bytes, unit) + unit * draws.below(3);
          batch.src_bytes = piece.src_offset + count * item_size(src);
          batch.dst_bytes = piece.dst_offset + count * item_size(dst);
          batch.pieces.push_back(piece);
        }
      }
    }
  }
  return batch;
}

inline void apply(const PackPiece& piece, ByteView src, MutableByteView dst) {
  convert(dst.data() + piece.dst_offset, piece.dst_dtype, src.data() + piece.src_offset,
          piece.src_dtype, piece.count);
}

// Rectangles that lie anywhere in one region of `bytes`.
inline std::vector<DigestItem> random_digests(std::uint64_t key, std::uint64_t count,
                                              std::uint64_t bytes) {
  constexpr std::array<std::uint64_t, 11> kCols{0, 1, 2, 7, 8, 96, 128, 384, 2048, 2049, 5000};
  Draws draws(key);
  std::vector<DigestItem> items;
  for (std::uint64_t i = 0; i < count; ++i) {
    DigestItem item;
    item.item_bytes = 1U << draws.below(4);
    const std::uint64_t unit = std::uint64_t{1} << draws.below(5);
    item.cols = kCols[draws.below(kCols.size())];
    item.pitch = align_up(item.cols * item.item_bytes, unit) + unit * draws.below(3);
    item.offset = unit * draws.below(100);
    const std::uint64_t most = (bytes - item.offset) / std::max<std::uint64_t>(item.pitch, 1);
    item.rows = draws.below(std::min<std::uint64_t>(most, 1200));
    item.row0 = draws.below(1'000'000);
    item.col0 = draws.below(1'000'000);
    item.key = draws.next();
    items.push_back(item);
  }
  return items;
}

inline std::uint64_t digest_of(const DigestItem& item, ByteView bytes) {
  return digest_rect(bytes.data() + item.offset, item.pitch, item.item_bytes, item.row0, item.rows,
                     item.col0, item.cols, item.key);
}

}  // namespace tpsync::device
