// The kernels of a CUDA device and the tables that they work from. A prepared batch is cut into
// tiles once (cuda_tiles.h); one launch then does all of it, one block to a tile.
//
// Region bases are multiples of 256, so that how far a tile may use wide accesses is known from its
// offsets alone. Launches return the runtime's error number (0: launched); streams are
// cudaStream_t, so that this header needs no CUDA.
#pragma once

#include <array>
#include <cstdint>

namespace tpsync::device::cuda {

// Addresses of the regions that a batch is launched with: in the kernel's parameters, or, where
// there are more, in device memory.
inline constexpr std::uint32_t kInlineBases = 240;
struct Bases {
  const std::uint64_t* table = nullptr;  // nullptr: `inlined`
  std::array<std::uint64_t, kInlineBases> inlined{};
};

// `rows` runs of `row_bytes`, moved by accesses of 1 << width_log2 bytes that fit both sides.
struct CopyTile {
  std::uint64_t dst_offset = 0;
  std::uint64_t src_offset = 0;
  std::uint64_t dst_pitch = 0;
  std::uint64_t src_pitch = 0;
  std::uint32_t dst = 0;  // bindings
  std::uint32_t src = 0;
  std::uint32_t row_bytes = 0;  // rows * row_bytes <= kCopyTileBytes
  std::uint32_t rows = 0;
  std::uint32_t inverse = 0;  // ceil(2^32 / accesses of a row); 0 where a row is one access
  std::uint32_t width_log2 = 0;
};
inline constexpr std::uint32_t kCopyTileBytes = 64 * 1024;
// What a block moves at a time; smaller tiles gain nothing.
inline constexpr std::uint32_t kSmallestCopyTileBytes = 16 * 1024;

enum class PackMode : std::uint8_t {
  kBytes,  // equal types
  kBf16FromF32,
  kF16FromF32,
  kF32FromBf16,
  kF16FromBf16,
  kF32FromF16,
  kBf16FromF16,
};
// How a side may be accessed.
enum class Access : std::uint8_t { kVector, kElement, kByte };

struct PackTile {
  std::uint64_t dst_offset = 0;
  std::uint64_t src_offset = 0;
  std::uint32_t dst = 0;
  std::uint32_t src = 0;
  std::uint32_t count = 0;  // elements; bytes in mode kBytes
  PackMode mode = PackMode::kBytes;
  Access access = Access::kByte;  // of both sides
  std::uint8_t width_log2 = 0;    // in mode kBytes
};
inline constexpr std::uint32_t kPackTileItems = 16 * 1024;

struct DigestTile {
  std::uint64_t offset = 0;
  std::uint64_t pitch = 0;
  std::uint64_t row_key = 0;  // mixed
  std::uint64_t col_key = 0;
  std::uint64_t row0 = 0;  // of the full tensor
  std::uint64_t col0 = 0;
  std::uint32_t region = 0;
  std::uint32_t item = 0;
  std::uint32_t rows = 0;  // <= kDigestTileRows
  std::uint32_t cols = 0;  // <= kDigestTileCols
  std::uint8_t item_log2 = 0;
  Access access = Access::kByte;
};
inline constexpr std::uint32_t kDigestTileRows = 512;
inline constexpr std::uint32_t kDigestTileCols = 2048;
inline constexpr std::uint32_t kDigestTileItems = 64 * 1024;

inline constexpr std::uint32_t kBlockThreads = 256;

// Loads the kernels into the current context, so that no launch has to.
int load_kernels();
// `tiles` lie in device memory; `count` is not 0.
int launch_copies(const CopyTile* tiles, std::uint32_t count, const Bases& bases, void* stream);
int launch_packs(const PackTile* tiles, std::uint32_t count, const Bases& bases, void* stream);
// Adds to `sums` in device memory, one word per item.
int launch_digests(const DigestTile* tiles, std::uint32_t count, const Bases& bases,
                   std::uint64_t* sums, void* stream);

}  // namespace tpsync::device::cuda
