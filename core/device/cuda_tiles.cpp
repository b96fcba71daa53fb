#include "tpsync/device/cuda_tiles.h"

#include <algorithm>
#include <bit>

#include "tpsync/base/errors.h"
#include "tpsync/device/digest_weights.h"

namespace tpsync::device::cuda {

namespace {

constexpr std::uint32_t kWidest = 16;  // bytes of one access

// The largest power of two up to 16 that divides all of them, as its logarithm.
std::uint32_t common_width_log2(std::uint64_t combined) {
  return static_cast<std::uint32_t>(std::countr_zero(combined | kWidest));
}

// `rows` runs of `row_bytes`, `pitch` bytes apart, as a span from `offset` on.
std::optional<std::uint64_t> end_of(std::uint64_t offset, std::uint64_t pitch,
                                    std::uint64_t row_bytes, std::uint64_t rows) {
  if (rows == 0) return offset;
  const auto before_last = checked_mul(pitch, rows - 1);
  const auto length = before_last ? checked_add(*before_last, row_bytes) : std::nullopt;
  return length ? checked_add(offset, *length) : std::nullopt;
}

void reach(Extents& extents, Binding binding, std::optional<std::uint64_t> end) {
  if (extents.size() <= binding) extents.resize(std::size_t{binding} + 1, std::uint64_t{0});
  std::optional<std::uint64_t>& extent = extents[binding];
  extent = extent && end ? std::optional(std::max(*extent, *end)) : std::nullopt;
}

bool overflows(const Extents& extents) {
  return std::any_of(extents.begin(), extents.end(), [](const auto& one) { return !one; });
}

// Tiles are large, so that their table is small, as long as there are enough of them that the last
// ones to run leave few multiprocessors idle.
std::uint64_t copy_tile_bytes(std::span<const TileCopy> copies) {
  constexpr std::uint64_t kEnough = 4096;
  std::uint64_t bytes = 0;
  for (const TileCopy& copy : copies) bytes += copy.row_bytes * copy.rows;
  return std::bit_floor(
      std::clamp<std::uint64_t>(bytes / kEnough, kSmallestCopyTileBytes, kCopyTileBytes));
}

void add_copy_tile(CopyTile tile, std::vector<CopyTile>& out) {
  std::uint64_t combined = tile.dst_offset | tile.src_offset | tile.row_bytes;
  if (tile.rows > 1) combined |= tile.dst_pitch | tile.src_pitch;
  tile.width_log2 = common_width_log2(combined);
  const std::uint32_t accesses = tile.row_bytes >> tile.width_log2;
  // Exact for every index below 2^16, of which a tile has no more.
  tile.inverse = accesses == 1 ? 0 : UINT32_MAX / accesses + 1;
  out.push_back(tile);
}

void cut_copy(const TileCopy& copy, std::uint64_t tile_bytes, std::vector<CopyTile>& out) {
  if (copy.rows == 0 || copy.row_bytes == 0) return;
  CopyTile tile;
  tile.dst = copy.dst;
  tile.src = copy.src;
  if (copy.row_bytes >= tile_bytes) {
    tile.rows = 1;
    for (std::uint64_t row = 0; row < copy.rows; ++row) {
      for (std::uint64_t done = 0; done < copy.row_bytes; done += tile_bytes) {
        tile.dst_offset = copy.dst_offset + row * copy.dst_pitch + done;
        tile.src_offset = copy.src_offset + row * copy.src_pitch + done;
        tile.row_bytes = static_cast<std::uint32_t>(std::min(tile_bytes, copy.row_bytes - done));
        add_copy_tile(tile, out);
      }
    }
    return;
  }
  tile.row_bytes = static_cast<std::uint32_t>(copy.row_bytes);
  tile.dst_pitch = copy.dst_pitch;
  tile.src_pitch = copy.src_pitch;
  const std::uint64_t rows_per_tile = tile_bytes / copy.row_bytes;
  for (std::uint64_t row = 0; row < copy.rows; row += rows_per_tile) {
    tile.dst_offset = copy.dst_offset + row * copy.dst_pitch;
    tile.src_offset = copy.src_offset + row * copy.src_pitch;
    tile.rows = static_cast<std::uint32_t>(std::min(rows_per_tile, copy.rows - row));
    add_copy_tile(tile, out);
  }
}

PackMode mode_of(DType dst, DType src) {
  if (dst == src) return PackMode::kBytes;
  if (src == DType::kFloat32) {
    return dst == DType::kBFloat16 ? PackMode::kBf16FromF32 : PackMode::kF16FromF32;
  }
  if (src == DType::kBFloat16) {
    return dst == DType::kFloat32 ? PackMode::kF32FromBf16 : PackMode::kF16FromBf16;
  }
  return dst == DType::kFloat32 ? PackMode::kF32FromF16 : PackMode::kBf16FromF16;
}

void cut_pack(const PackPiece& piece, std::vector<PackTile>& out) {
  const std::uint64_t dst_item = item_size(piece.dst_dtype);
  const std::uint64_t src_item = item_size(piece.src_dtype);
  PackTile tile;
  tile.dst = piece.dst;
  tile.src = piece.src;
  tile.mode = mode_of(piece.dst_dtype, piece.src_dtype);
  const bool bytes = tile.mode == PackMode::kBytes;
  const std::uint64_t count = bytes ? piece.count * dst_item : piece.count;
  const std::uint64_t step = bytes ? kCopyTileBytes : kPackTileItems;
  for (std::uint64_t done = 0; done < count; done += step) {
    tile.dst_offset = piece.dst_offset + done * (bytes ? 1 : dst_item);
    tile.src_offset = piece.src_offset + done * (bytes ? 1 : src_item);
    tile.count = static_cast<std::uint32_t>(std::min(step, count - done));
    const std::uint64_t offsets = tile.dst_offset | tile.src_offset;
    tile.width_log2 =
        static_cast<std::uint8_t>(common_width_log2(bytes ? offsets | tile.count : offsets));
    if (offsets % kWidest == 0) {
      tile.access = Access::kVector;
    } else {
      const bool aligned = tile.dst_offset % dst_item == 0 && tile.src_offset % src_item == 0;
      tile.access = aligned ? Access::kElement : Access::kByte;
    }
    out.push_back(tile);
  }
}

// Powers of two: the threads of a block then share out the columns without a rest that idles.
// Narrow rests are one tile, since tiles cost something too.
std::uint32_t digest_tile_cols(std::uint64_t left) {
  constexpr std::uint64_t kNarrow = 64;
  const std::uint64_t cols = left < kNarrow ? left : std::bit_floor(left);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(cols, kDigestTileCols));
}

void cut_digest(const DigestItem& item, std::uint32_t index, std::vector<DigestTile>& out) {
  if (item.rows == 0 || item.cols == 0) return;
  DigestTile tile;
  tile.pitch = item.pitch;
  tile.row_key = mix64(item.key);
  tile.col_key = mix64(item.key ^ kColumnKey);
  tile.region = item.region;
  tile.item = index;
  tile.item_log2 = static_cast<std::uint8_t>(std::countr_zero(item.item_bytes));
  for (std::uint64_t col = 0; col < item.cols; col += tile.cols) {
    tile.cols = digest_tile_cols(item.cols - col);
    tile.col0 = item.col0 + col;
    const std::uint64_t rows_per_tile =
        std::min<std::uint64_t>(kDigestTileRows, kDigestTileItems / tile.cols);
    for (std::uint64_t row = 0; row < item.rows; row += rows_per_tile) {
      tile.rows = static_cast<std::uint32_t>(std::min(rows_per_tile, item.rows - row));
      tile.row0 = item.row0 + row;
      tile.offset = item.offset + row * item.pitch + col * item.item_bytes;
      const std::uint64_t places = tile.offset | (tile.rows > 1 ? tile.pitch : 0);
      if (places % kWidest == 0) {
        tile.access = Access::kVector;
      } else {
        tile.access = places % item.item_bytes == 0 ? Access::kElement : Access::kByte;
      }
      out.push_back(tile);
    }
  }
}

}  // namespace

TileTable<CopyTile> cut_copies(std::span<const TileCopy> copies) {
  TileTable<CopyTile> table;
  for (const TileCopy& copy : copies) {
    reach(table.extents, copy.dst,
          end_of(copy.dst_offset, copy.dst_pitch, copy.row_bytes, copy.rows));
    reach(table.extents, copy.src,
          end_of(copy.src_offset, copy.src_pitch, copy.row_bytes, copy.rows));
  }
  if (overflows(table.extents)) return table;
  const std::uint64_t tile_bytes = copy_tile_bytes(copies);
  for (const TileCopy& copy : copies) cut_copy(copy, tile_bytes, table.tiles);
  return table;
}

TileTable<PackTile> cut_packs(std::span<const PackPiece> pieces) {
  TileTable<PackTile> table;
  for (const PackPiece& piece : pieces) {
    const std::uint64_t dst_item = item_size(piece.dst_dtype);
    const std::uint64_t src_item = item_size(piece.src_dtype);
    reach(table.extents, piece.dst, end_of(piece.dst_offset, dst_item, dst_item, piece.count));
    reach(table.extents, piece.src, end_of(piece.src_offset, src_item, src_item, piece.count));
  }
  if (overflows(table.extents)) return table;
  for (const PackPiece& piece : pieces) cut_pack(piece, table.tiles);
  return table;
}

TileTable<DigestTile> cut_digests(std::span<const DigestItem> items) {
  TileTable<DigestTile> table;
  for (const DigestItem& item : items) {
    const auto row_bytes = checked_mul(item.cols, item.item_bytes);
    reach(table.extents, item.region,
          row_bytes ? end_of(item.offset, item.pitch, *row_bytes, item.rows) : std::nullopt);
  }
  if (overflows(table.extents)) return table;
  for (std::uint32_t i = 0; i < items.size(); ++i) cut_digest(items[i], i, table.tiles);
  return table;
}

}  // namespace tpsync::device::cuda
