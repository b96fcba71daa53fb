// The arithmetic of a device that computes on the host: strided copies, element conversion and the
// content digest, as plain functions over pointers. The host device and every simulated device run
// exactly these, so that a byte differs between two worlds only if its inputs did.
//
// No function allocates, fails or reads the environment. Pointers need no alignment. Source and
// destination never overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tpsync/base/dtype.h"

namespace tpsync::device {

// Copies `rows` runs of `row_bytes`, `*_pitch` bytes apart. A pitch is not looked at where there is
// at most one row.
void copy_rows(std::byte* dst, std::uint64_t dst_pitch, const std::byte* src,
               std::uint64_t src_pitch, std::uint64_t row_bytes, std::uint64_t rows);

// True for equal types, and among the floating types.
bool can_convert(DType dst_dtype, DType src_dtype);

// Copies `count` elements and converts them where the types differ: round to nearest, ties to even;
// overflow becomes infinity, NaN stays NaN with its sign (quiet, with the leading bits of its
// payload), zeros keep their sign, denormals are exact. Asserts can_convert().
void convert(std::byte* dst, DType dst_dtype, const std::byte* src, DType src_dtype,
             std::uint64_t count);

// The digest of digest_weights.h over the rectangle [row0, row0 + rows) x [col0, col0 + cols) of a
// tensor; `first` is its element (row0, col0), rows lie `pitch` bytes apart, `item_bytes` is 1, 2,
// 4 or 8. Reads each byte once.
std::uint64_t digest_rect(const std::byte* first, std::uint64_t pitch, std::uint32_t item_bytes,
                          std::uint64_t row0, std::uint64_t rows, std::uint64_t col0,
                          std::uint64_t cols, std::uint64_t key);

}  // namespace tpsync::device
