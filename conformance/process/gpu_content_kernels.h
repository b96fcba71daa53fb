// Writes test weights (judge/content.h) where they belong, in device memory. No CUDA header is
// included: a stream is a cudaStream_t, results are the runtime's error numbers (0: launched).
#pragma once

#include <cstdint>

namespace tpsync::conformance {

// Elements of `item_bytes` (2, 4), `half` for float16 rather than bfloat16 where they have 2.
// `rows` runs of `count` of them; a run begins `stride` elements after the one before it in the
// tensor, and `pitch` bytes after it in memory.
struct FillJob {
  void* at = nullptr;
  std::uint64_t base = 0;  // judge::content_base
  std::uint64_t element = 0;
  std::uint64_t count = 0;
  std::uint64_t rows = 1;
  std::uint64_t stride = 0;
  std::uint64_t pitch = 0;
  std::uint32_t item_bytes = 2;
  bool half = false;
};

int launch_fill(const FillJob& job, void* stream);

}  // namespace tpsync::conformance
