// Tiles against the operations that they were cut from: done one after the other on the host, they
// write the same bytes and give the same sums, and each keeps the limits that the kernels rely on.
#include "tpsync/device/cuda_tiles.h"

#include <gtest/gtest.h>

#include "tpsync/device/testing/batches.h"

namespace tpsync::device::cuda {
namespace {

TEST(CudaTiles, CutCopiesWriteTheSameBytesByAccessesThatFitAndExactRowNumbers) {
  for (std::uint64_t key = 0; key < 20; ++key) {
    const CopyBatch batch = random_copies(key, 30);
    const ByteBuffer src = random_bytes(batch.src_bytes, key);
    ByteBuffer expected(batch.dst_bytes, std::byte{0xee}), found = expected;
    for (const TileCopy& copy : batch.copies) apply(copy, src, expected);
    const TileTable<CopyTile> table = cut_copies(batch.copies);
    for (const CopyTile& tile : table.tiles) {
      ASSERT_LE(std::uint64_t{tile.rows} * tile.row_bytes, kCopyTileBytes);
      const std::uint64_t width = std::uint64_t{1} << tile.width_log2;
      ASSERT_EQ((tile.dst_offset | tile.src_offset | tile.row_bytes) % width, 0u);
      const std::uint64_t pitches = tile.rows > 1 ? tile.dst_pitch | tile.src_pitch : 0;
      ASSERT_EQ(pitches % width, 0u);
      const std::uint64_t per_row = tile.row_bytes / width;
      for (std::uint64_t index = 0; index < per_row * tile.rows; ++index) {
        const std::uint64_t row = tile.inverse == 0 ? index : index * tile.inverse >> 32;
        ASSERT_EQ(row, index / per_row) << index << " of " << per_row;
      }
      copy_rows(found.data() + tile.dst_offset, tile.dst_pitch, src.data() + tile.src_offset,
                tile.src_pitch, tile.row_bytes, tile.rows);
    }
    EXPECT_EQ(found, expected) << key;
    ASSERT_EQ(table.extents.size(), 2u);
    EXPECT_LE(table.extents[0], batch.src_bytes);
    EXPECT_LE(table.extents[1], batch.dst_bytes);
  }
}

TEST(CudaTiles, WidestAccessesAreUsedWhereBothSidesAllowThem) {
  TileCopy copy{1, 0, 48, 1536, 96, 768, 768, 2048};
  for (const CopyTile& tile : cut_copies({&copy, 1}).tiles) EXPECT_EQ(tile.width_log2, 4u);
  copy.src_offset += 8;
  for (const CopyTile& tile : cut_copies({&copy, 1}).tiles) EXPECT_EQ(tile.width_log2, 3u);
  copy.dst_pitch += 1;
  for (const CopyTile& tile : cut_copies({&copy, 1}).tiles) EXPECT_EQ(tile.width_log2, 0u);
  copy.rows = 1;  // then no pitch counts
  for (const CopyTile& tile : cut_copies({&copy, 1}).tiles) EXPECT_EQ(tile.width_log2, 3u);
}

TEST(CudaTiles, CutPacksConvertTheSameElements) {
  const PackBatch batch = all_packs(5);
  const ByteBuffer src = random_bytes(batch.src_bytes, 6);
  ByteBuffer expected(batch.dst_bytes, std::byte{0xee}), found = expected;
  for (const PackPiece& piece : batch.pieces) apply(piece, src, expected);
  const TileTable<PackTile> table = cut_packs(batch.pieces);
  using Types = std::pair<DType, DType>;
  const std::array<Types, 7> types{
      Types{DType::kUInt8, DType::kUInt8},      Types{DType::kBFloat16, DType::kFloat32},
      Types{DType::kFloat16, DType::kFloat32},  Types{DType::kFloat32, DType::kBFloat16},
      Types{DType::kFloat16, DType::kBFloat16}, Types{DType::kFloat32, DType::kFloat16},
      Types{DType::kBFloat16, DType::kFloat16}};
  for (const PackTile& tile : table.tiles) {
    const auto [dst, src_dtype] = types[static_cast<std::size_t>(tile.mode)];
    const std::uint64_t alignment = tile.access == Access::kVector ? 16 : item_size(dst);
    if (tile.access != Access::kByte && tile.mode != PackMode::kBytes) {
      ASSERT_EQ(tile.dst_offset % alignment, 0u);
    }
    convert(found.data() + tile.dst_offset, dst, src.data() + tile.src_offset, src_dtype,
            tile.count);
  }
  EXPECT_EQ(found, expected);
}

TEST(CudaTiles, CutDigestsAddUpToTheSameSums) {
  const ByteBuffer bytes = random_bytes(2'000'000, 3);
  const std::vector<DigestItem> items = random_digests(4, 200, bytes.size());
  const TileTable<DigestTile> table = cut_digests(items);
  std::vector<std::uint64_t> sums(items.size());
  for (const DigestTile& tile : table.tiles) {
    ASSERT_LE(tile.rows, kDigestTileRows);
    ASSERT_LE(tile.cols, kDigestTileCols);
    ASSERT_EQ(std::uint64_t{1} << tile.item_log2, items[tile.item].item_bytes);
    sums[tile.item] +=
        digest_rect(bytes.data() + tile.offset, tile.pitch, items[tile.item].item_bytes, tile.row0,
                    tile.rows, tile.col0, tile.cols, items[tile.item].key);
    ASSERT_EQ(tile.row_key, mix64(items[tile.item].key));
  }
  for (std::size_t i = 0; i < items.size(); ++i) EXPECT_EQ(sums[i], digest_of(items[i], bytes));
}

TEST(CudaTiles, ExtentsNameWhatEachBindingNeedsAndOverflow) {
  std::vector<TileCopy> copies(2);
  copies[0] = {3, 1, 10, 100, 0, 8, 4, 3};
  copies[1] = {3, 1, 0, 0, 50, 0, 4, 0};  // no rows: its offsets count
  Extents extents = cut_copies(copies).extents;
  EXPECT_EQ(extents, (Extents{0, 50, 0, 214}));
  copies[0].src_pitch = UINT64_MAX;
  const TileTable<CopyTile> table = cut_copies(copies);
  EXPECT_EQ(table.extents[1], std::nullopt);
  EXPECT_EQ(table.extents[3], 214u);
  EXPECT_TRUE(table.tiles.empty());
}

}  // namespace
}  // namespace tpsync::device::cuda
