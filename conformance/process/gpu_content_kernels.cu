#include <cuda_runtime.h>

#include "conformance/judge/content.h"
#include "conformance/process/gpu_content_kernels.h"

namespace tpsync::conformance {

namespace {

constexpr unsigned kThreads = 256;
constexpr std::uint64_t kBlocksMax = 65535;

struct Bf16 {
  using Value = std::uint16_t;
  static __device__ Value bits(std::uint64_t base, std::uint64_t element) {
    return judge::bf16_content(base, element);
  }
};
struct F16 {
  using Value = std::uint16_t;
  static __device__ Value bits(std::uint64_t base, std::uint64_t element) {
    return judge::f16_content(base, element);
  }
};
struct F32 {
  using Value = std::uint32_t;
  static __device__ Value bits(std::uint64_t base, std::uint64_t element) {
    return judge::f32_content(base, element);
  }
};

template <typename Format>
__global__ void fill(FillJob job) {
  const std::uint64_t total = job.count * job.rows;
  const std::uint64_t step = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  const std::uint64_t first = blockIdx.x * static_cast<std::uint64_t>(blockDim.x) + threadIdx.x;
  for (std::uint64_t i = first; i < total; i += step) {
    const std::uint64_t row = i / job.count;
    const std::uint64_t at = i - row * job.count;
    auto* const begin = static_cast<char*>(job.at) + row * job.pitch;
    reinterpret_cast<typename Format::Value*>(begin)[at] =
        Format::bits(job.base, job.element + row * job.stride + at);
  }
}

}  // namespace

int launch_fill(const FillJob& job, void* stream) {
  const std::uint64_t total = job.count * job.rows;
  if (total == 0) return 0;
  const std::uint64_t wanted = (total + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kBlocksMax ? wanted : kBlocksMax);
  auto* const on = static_cast<cudaStream_t>(stream);
  if (job.item_bytes == 4) {
    fill<F32><<<blocks, kThreads, 0, on>>>(job);
  } else if (job.half) {
    fill<F16><<<blocks, kThreads, 0, on>>>(job);
  } else {
    fill<Bf16><<<blocks, kThreads, 0, on>>>(job);
  }
  return static_cast<int>(cudaGetLastError());
}

}  // namespace tpsync::conformance
