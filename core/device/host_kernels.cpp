// Portable loops that both compilers vectorize where it helps. All arithmetic is on integers, so
// that no compiler flag and no rounding mode can change a result.
#include "tpsync/device/host_kernels.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tpsync/base/errors.h"
#include "tpsync/device/digest_weights.h"
#include "tpsync/device/element_conversion.h"

namespace tpsync::device {

namespace {

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

template <typename Dst, typename Src, typename Function>
void map_items(std::byte* dst, const std::byte* src, std::uint64_t count, Function function) {
  for (std::uint64_t i = 0; i < count; ++i) {
    store<Dst>(dst + i * sizeof(Dst), function(load<Src>(src + i * sizeof(Src))));
  }
}

// Columns whose weights are held at a time: small enough for the first cache level, large enough
// that making them is cheap beside using them.
constexpr std::uint64_t kColumnBlock = 256;

template <typename T>
std::uint64_t digest_items(const std::byte* first, std::uint64_t pitch, std::uint64_t row0,
                           std::uint64_t rows, std::uint64_t col0, std::uint64_t cols,
                           std::uint64_t key) {
  std::array<std::uint64_t, kColumnBlock> weights;
  std::uint64_t digest = 0;
  for (std::uint64_t begin = 0; begin < cols; begin += kColumnBlock) {
    const std::uint64_t width = std::min(kColumnBlock, cols - begin);
    for (std::uint64_t i = 0; i < width; ++i) weights[i] = col_weight(key, col0 + begin + i);
    for (std::uint64_t row = 0; row < rows; ++row) {
      const std::byte* items = first + row * pitch + begin * sizeof(T);
      std::uint64_t sum = 0;
      for (std::uint64_t i = 0; i < width; ++i) {
        sum += std::uint64_t{load<T>(items + i * sizeof(T))} * weights[i];
      }
      digest += sum * row_weight(key, row0 + row);
    }
  }
  return digest;
}

}  // namespace

void copy_rows(std::byte* dst, std::uint64_t dst_pitch, const std::byte* src,
               std::uint64_t src_pitch, std::uint64_t row_bytes, std::uint64_t rows) {
  if (row_bytes == 0 || rows == 0) return;
  if (rows == 1 || (dst_pitch == row_bytes && src_pitch == row_bytes)) {
    std::memcpy(dst, src, row_bytes * rows);
    return;
  }
  for (std::uint64_t row = 0; row < rows; ++row) {
    std::memcpy(dst + row * dst_pitch, src + row * src_pitch, row_bytes);
  }
}

bool can_convert(DType dst_dtype, DType src_dtype) {
  return dst_dtype == src_dtype || (is_floating(dst_dtype) && is_floating(src_dtype));
}

void convert(std::byte* dst, DType dst_dtype, const std::byte* src, DType src_dtype,
             std::uint64_t count) {
  TPSYNC_ASSERT(can_convert(dst_dtype, src_dtype));
  if (count == 0) return;
  using F16 = std::uint16_t;
  using F32 = std::uint32_t;
  if (dst_dtype == src_dtype) {
    std::memcpy(dst, src, count * item_size(dst_dtype));
  } else if (src_dtype == DType::kFloat32 && dst_dtype == DType::kBFloat16) {
    map_items<F16, F32>(dst, src, count, bf16_from_f32);
  } else if (src_dtype == DType::kFloat32) {
    map_items<F16, F32>(dst, src, count, f16_from_f32);
  } else if (src_dtype == DType::kBFloat16 && dst_dtype == DType::kFloat32) {
    map_items<F32, F16>(dst, src, count, f32_from_bf16);
  } else if (src_dtype == DType::kBFloat16) {
    map_items<F16, F16>(dst, src, count, f16_from_bf16);
  } else if (dst_dtype == DType::kFloat32) {
    map_items<F32, F16>(dst, src, count, f32_from_f16);
  } else {
    map_items<F16, F16>(dst, src, count, bf16_from_f16);
  }
}

std::uint64_t digest_rect(const std::byte* first, std::uint64_t pitch, std::uint32_t item_bytes,
                          std::uint64_t row0, std::uint64_t rows, std::uint64_t col0,
                          std::uint64_t cols, std::uint64_t key) {
  switch (item_bytes) {
    case 1:
      return digest_items<std::uint8_t>(first, pitch, row0, rows, col0, cols, key);
    case 2:
      return digest_items<std::uint16_t>(first, pitch, row0, rows, col0, cols, key);
    case 4:
      return digest_items<std::uint32_t>(first, pitch, row0, rows, col0, cols, key);
    default:
      TPSYNC_ASSERT(item_bytes == 8);
      return digest_items<std::uint64_t>(first, pitch, row0, rows, col0, cols, key);
  }
}

}  // namespace tpsync::device
