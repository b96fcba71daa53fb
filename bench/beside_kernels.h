// Kernels that keep a GPU busy, for bench_beside.cpp. Streams are CUDA's.
#pragma once

#include <cstddef>

namespace tpsync::bench {

// Arithmetic alone, on so many blocks of 256 threads; its duration is proportional to `rounds`.
void launch_arithmetic(void* stream, float* sink, int blocks, int rounds);
// Reads and writes `bytes` (a multiple of 16) of device memory.
void launch_copy(void* stream, void* dst, const void* src, std::size_t bytes);

}  // namespace tpsync::bench
