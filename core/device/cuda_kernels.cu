// One block to a tile. Threads of a block take consecutive accesses, whatever rows they fall into,
// so that a row of 192 or 768 bytes costs no more than its bytes, and each thread has several
// loads under way before its first store. Copies use plain loads and stores: with those that are
// marked as streaming, slices of rows were copied at nine tenths of the rate.
#include <cuda_runtime.h>

#include "tpsync/device/cuda_kernels.h"
#include "tpsync/device/digest_weights.h"
#include "tpsync/device/element_conversion.h"

namespace tpsync::device::cuda {

namespace {

// What a thread has under way, and copying blocks per multiprocessor. Twice the blocks copy more
// slowly: so many places of memory are then touched at a time that fewer accesses find their page
// open.
constexpr std::uint32_t kUnroll = 8;
constexpr std::uint32_t kCopyBlocks = 4;

__device__ char* base_of(const Bases& bases, std::uint32_t binding) {
  return reinterpret_cast<char*>(bases.table != nullptr ? bases.table[binding]
                                                        : (&bases.inlined[0])[binding]);
}

// `total` accesses of type T; `src_offset` and `dst_offset` give where an access lies. Offsets are
// made where they are used, which costs fewer registers than keeping them from load to store.
template <typename T, typename SrcOffset, typename DstOffset>
__device__ void move(char* dst, const char* src, std::uint32_t total, SrcOffset src_offset,
                     DstOffset dst_offset) {
  for (std::uint32_t first = threadIdx.x; first < total; first += kUnroll * kBlockThreads) {
    T values[kUnroll];
#pragma unroll
    for (std::uint32_t i = 0; i < kUnroll; ++i) {
      const std::uint32_t index = first + i * kBlockThreads;
      if (index < total) values[i] = *reinterpret_cast<const T*>(src + src_offset(index));
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kUnroll; ++i) {
      const std::uint32_t index = first + i * kBlockThreads;
      if (index < total) *reinterpret_cast<T*>(dst + dst_offset(index)) = values[i];
    }
  }
}

template <typename T>
__device__ void move_run(char* dst, const char* src, std::uint32_t bytes) {
  const auto offset = [](std::uint32_t index) { return std::uint64_t{index} * sizeof(T); };
  move<T>(dst, src, bytes / sizeof(T), offset, offset);
}

template <typename T>
__device__ void move_rows(const CopyTile& tile, char* dst, const char* src) {
  if (tile.rows == 1) {
    move_run<T>(dst, src, tile.row_bytes);
    return;
  }
  const std::uint32_t per_row = tile.row_bytes / sizeof(T);
  const std::uint32_t inverse = tile.inverse;
  const auto offset = [=](std::uint32_t index, std::uint64_t pitch) {
    const std::uint32_t row = inverse == 0 ? index : __umulhi(index, inverse);
    return row * pitch + std::uint64_t{index - row * per_row} * sizeof(T);
  };
  const std::uint64_t dst_pitch = tile.dst_pitch, src_pitch = tile.src_pitch;
  move<T>(
      dst, src, per_row * tile.rows, [=](std::uint32_t index) { return offset(index, src_pitch); },
      [=](std::uint32_t index) { return offset(index, dst_pitch); });
}

__global__ void __launch_bounds__(kBlockThreads, kCopyBlocks)
    copy_tiles(const CopyTile* tiles, const __grid_constant__ Bases bases) {
  const CopyTile tile = tiles[blockIdx.x];
  char* dst = base_of(bases, tile.dst) + tile.dst_offset;
  const char* src = base_of(bases, tile.src) + tile.src_offset;
  switch (tile.width_log2) {
    case 4:
      return move_rows<uint4>(tile, dst, src);
    case 3:
      return move_rows<uint2>(tile, dst, src);
    case 2:
      return move_rows<unsigned int>(tile, dst, src);
    case 1:
      return move_rows<unsigned short>(tile, dst, src);
    default:
      return move_rows<unsigned char>(tile, dst, src);
  }
}

// ---- packs --------------------------------------------------------------------------------------

constexpr std::uint32_t kPackVector = 8;  // elements

template <typename T>
union Vector {
  uint4 words[kPackVector * sizeof(T) / sizeof(uint4)];
  T items[kPackVector];
};

template <typename T>
__device__ T load_bytes(const char* from) {
  T value = 0;
  for (std::uint32_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<unsigned char>(from[i])) << (8 * i));
  }
  return value;
}

template <typename T>
__device__ T load_item(const char* from, Access access) {
  return access == Access::kByte ? load_bytes<T>(from) : *reinterpret_cast<const T*>(from);
}

template <typename T>
__device__ void store_item(char* into, T value, Access access) {
  if (access != Access::kByte) {
    *reinterpret_cast<T*>(into) = value;
    return;
  }
  for (std::uint32_t i = 0; i < sizeof(T); ++i) into[i] = static_cast<char>(value >> (8 * i));
}

template <typename Dst, typename Src, typename Convert>
__device__ void convert_tile(const PackTile& tile, char* dst, const char* src, Convert convert) {
  std::uint32_t done = 0;
  if (tile.access == Access::kVector) {
    const std::uint32_t vectors = tile.count / kPackVector;
    constexpr std::uint32_t kTwo = 2;
    for (std::uint32_t first = threadIdx.x; first < vectors; first += kTwo * kBlockThreads) {
      Vector<Src> from[kTwo];
#pragma unroll
      for (std::uint32_t i = 0; i < kTwo; ++i) {
        const std::uint32_t index = first + i * kBlockThreads;
        if (index >= vectors) continue;
        const auto* words = reinterpret_cast<const uint4*>(src) + index * (sizeof(Src) / 2);
#pragma unroll
        for (std::uint32_t word = 0; word < sizeof(Src) / 2; ++word) {
          from[i].words[word] = __ldcs(words + word);
        }
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kTwo; ++i) {
        const std::uint32_t index = first + i * kBlockThreads;
        if (index >= vectors) continue;
        Vector<Dst> into;
#pragma unroll
        for (std::uint32_t item = 0; item < kPackVector; ++item) {
          into.items[item] = convert(from[i].items[item]);
        }
        auto* words = reinterpret_cast<uint4*>(dst) + index * (sizeof(Dst) / 2);
#pragma unroll
        for (std::uint32_t word = 0; word < sizeof(Dst) / 2; ++word) {
          __stcs(words + word, into.words[word]);
        }
      }
    }
    done = vectors * kPackVector;
  }
  for (std::uint32_t i = done + threadIdx.x; i < tile.count; i += kBlockThreads) {
    const Src value = load_item<Src>(src + std::uint64_t{i} * sizeof(Src), tile.access);
    store_item<Dst>(dst + std::uint64_t{i} * sizeof(Dst), convert(value), tile.access);
  }
}

__device__ void move_bytes(const PackTile& tile, char* dst, const char* src) {
  switch (tile.width_log2) {
    case 4:
      return move_run<uint4>(dst, src, tile.count);
    case 3:
      return move_run<uint2>(dst, src, tile.count);
    case 2:
      return move_run<unsigned int>(dst, src, tile.count);
    case 1:
      return move_run<unsigned short>(dst, src, tile.count);
    default:
      return move_run<unsigned char>(dst, src, tile.count);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    pack_tiles(const PackTile* tiles, const __grid_constant__ Bases bases) {
  using U16 = std::uint16_t;
  using U32 = std::uint32_t;
  const PackTile tile = tiles[blockIdx.x];
  char* dst = base_of(bases, tile.dst) + tile.dst_offset;
  const char* src = base_of(bases, tile.src) + tile.src_offset;
  switch (tile.mode) {
    case PackMode::kBytes:
      return move_bytes(tile, dst, src);
    case PackMode::kBf16FromF32:
      return convert_tile<U16, U32>(tile, dst, src, [](U32 x) { return bf16_from_f32(x); });
    case PackMode::kF16FromF32:
      return convert_tile<U16, U32>(tile, dst, src, [](U32 x) { return f16_from_f32(x); });
    case PackMode::kF32FromBf16:
      return convert_tile<U32, U16>(tile, dst, src, [](U16 x) { return f32_from_bf16(x); });
    case PackMode::kF16FromBf16:
      return convert_tile<U16, U16>(tile, dst, src, [](U16 x) { return f16_from_bf16(x); });
    case PackMode::kF32FromF16:
      return convert_tile<U32, U16>(tile, dst, src, [](U16 x) { return f32_from_f16(x); });
    case PackMode::kBf16FromF16:
      return convert_tile<U16, U16>(tile, dst, src, [](U16 x) { return bf16_from_f16(x); });
  }
}

// ---- digests ------------------------------------------------------------------------------------

// Weights of a tile's rows, made once per block.
__shared__ std::uint64_t row_weights[kDigestTileRows];

// The part of a tile's sum that this thread has: it keeps the weights of kItems columns and walks
// down the rows, so that a weight is made once per tile and not once per element.
template <typename T, std::uint32_t kItems>
__device__ std::uint64_t digest_part(const DigestTile& tile, const char* first) {
  const std::uint32_t groups = (tile.cols + kItems - 1) / kItems;  // <= kDigestTileCols / kItems
  const std::uint32_t lanes = groups < kBlockThreads ? kBlockThreads / groups : 1;
  std::uint64_t sum = 0;
  for (std::uint32_t group0 = 0; group0 < groups; group0 += kBlockThreads) {
    const std::uint32_t group = group0 + (lanes > 1 ? threadIdx.x % groups : threadIdx.x);
    const std::uint32_t lane = lanes > 1 ? threadIdx.x / groups : 0;
    if (group >= groups || lane >= lanes) continue;
    const std::uint32_t column = group * kItems;
    const std::uint32_t width = min(kItems, tile.cols - column);
    std::uint64_t weights[kItems];
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; ++i) {
      weights[i] = i < width ? mix64(tile.col_key + tile.col0 + column + i) | 1 : 0;
    }
    const char* items = first + std::uint64_t{column} * sizeof(T);
    if (kItems > 1 && width == kItems) {
#pragma unroll 4
      for (std::uint32_t row = lane; row < tile.rows; row += lanes) {
        union {
          uint4 words;
          T values[kItems];
        } vector;
        if (kItems * sizeof(T) == 16) {
          vector.words = __ldcs(reinterpret_cast<const uint4*>(items + row * tile.pitch));
        } else {
          const uint2 half = __ldcs(reinterpret_cast<const uint2*>(items + row * tile.pitch));
          vector.words.x = half.x;
          vector.words.y = half.y;
        }
        std::uint64_t part = 0;
#pragma unroll
        for (std::uint32_t i = 0; i < kItems; ++i) {
          part += std::uint64_t{vector.values[i]} * weights[i];
        }
        sum += part * row_weights[row];
      }
    } else {
      for (std::uint32_t row = lane; row < tile.rows; row += lanes) {
        std::uint64_t part = 0;
#pragma unroll
        for (std::uint32_t i = 0; i < kItems; ++i) {
          if (i < width) {
            const char* item = items + row * tile.pitch + i * sizeof(T);
            part += std::uint64_t{load_item<T>(item, tile.access)} * weights[i];
          }
        }
        sum += part * row_weights[row];
      }
    }
  }
  return sum;
}

// Vectors are 16 bytes, and 8 for bytes, whose 16 weights would take too many registers.
template <typename T>
__device__ std::uint64_t digest_items(const DigestTile& tile, const char* first) {
  constexpr std::uint32_t kItems = sizeof(T) == 1 ? 8 : 16 / sizeof(T);
  return tile.access == Access::kVector ? digest_part<T, kItems>(tile, first)
                                        : digest_part<T, 1>(tile, first);
}

__global__ void __launch_bounds__(kBlockThreads)
    digest_tiles(const DigestTile* tiles, const __grid_constant__ Bases bases,
                 std::uint64_t* sums) {
  const DigestTile tile = tiles[blockIdx.x];
  for (std::uint32_t row = threadIdx.x; row < tile.rows; row += kBlockThreads) {
    row_weights[row] = mix64(tile.row_key + tile.row0 + row) | 1;
  }
  __syncthreads();
  const char* first = base_of(bases, tile.region) + tile.offset;
  std::uint64_t sum = 0;
  switch (tile.item_log2) {
    case 0:
      sum = digest_items<std::uint8_t>(tile, first);
      break;
    case 1:
      sum = digest_items<std::uint16_t>(tile, first);
      break;
    case 2:
      sum = digest_items<std::uint32_t>(tile, first);
      break;
    default:
      sum = digest_items<std::uint64_t>(tile, first);
  }
    // Addition modulo 2^64 has no order, so that the sum is the same in every run.
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_down_sync(0xffffffffU, sum, static_cast<unsigned>(distance));
  }
  __shared__ std::uint64_t of_warps[kBlockThreads / 32];
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (std::uint32_t warp = 1; warp < kBlockThreads / 32; ++warp) sum += of_warps[warp];
    atomicAdd(reinterpret_cast<unsigned long long*>(sums + tile.item),
              static_cast<unsigned long long>(sum));
  }
}

// Unlike the launch syntax, it tells of this launch alone and not of an earlier error.
template <typename... Parameters>
int launch_kernel(void (*kernel)(Parameters...), std::uint32_t blocks, void* stream,
                  Parameters... parameters) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kBlockThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&config, kernel, parameters...);
}

}  // namespace

int load_kernels() {
  cudaFuncAttributes attributes{};
  int status = cudaFuncGetAttributes(&attributes, copy_tiles);
  if (status == 0) status = cudaFuncGetAttributes(&attributes, pack_tiles);
  if (status == 0) status = cudaFuncGetAttributes(&attributes, digest_tiles);
  return status;
}

int launch_copies(const CopyTile* tiles, std::uint32_t count, const Bases& bases, void* stream) {
  return launch_kernel(copy_tiles, count, stream, tiles, bases);
}

int launch_packs(const PackTile* tiles, std::uint32_t count, const Bases& bases, void* stream) {
  return launch_kernel(pack_tiles, count, stream, tiles, bases);
}

int launch_digests(const DigestTile* tiles, std::uint32_t count, const Bases& bases,
                   std::uint64_t* sums, void* stream) {
  return launch_kernel(digest_tiles, count, stream, tiles, bases, sums);
}

}  // namespace tpsync::device::cuda
