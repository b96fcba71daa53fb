#include "tpsync/device/cuda_stream.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "tpsync/base/errors.h"

namespace tpsync::device::cuda {

namespace {

using namespace std::chrono_literals;

constexpr Duration kStagingLimit = 60s;
// A wait asks without pause for as long as the work of a chunk takes, whose end a pause would
// overrun; then with pauses that cost little beside what has been waited already.
constexpr Duration kAskWithoutPause = 5ms;
constexpr Duration kLongestPause = 200us;
constexpr int kPausePart = 32;
constexpr std::uint64_t kStagingAlignment = 16;

cudaStream_t native_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

StagingPool::~StagingPool() {
  for (std::byte* block : free_) memory_.unpin(block);
}

std::byte* StagingPool::take() {
  if (free_.empty()) {
    free_.reserve(made_ + 1);  // so that giving back cannot fail
    std::byte* block = memory_.pin(kStagingBytes, "staging");
    ++made_;
    return block;
  }
  std::byte* block = free_.back();
  free_.pop_back();
  return block;
}

void StagingPool::give_back(std::byte* block) noexcept {
  if (block != nullptr) free_.push_back(block);
}

CudaStream::CudaStream(CudaErrors& errors, Clock& clock, StagingPool& pool)
    : errors_(errors), clock_(clock), pool_(pool), staging_(pool.take()) {
  cudaStream_t stream = nullptr;
  const int status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (status != 0) pool_.give_back(staging_);
  errors_.check(status, "cudaStreamCreateWithFlags", "stream");
  stream_ = stream;
}

CudaStream::~CudaStream() {
  errors_.note(cudaStreamDestroy(native_of(stream_)), "cudaStreamDestroy");
  pool_.give_back(staging_);
}

MutableByteView CudaStream::stage(std::uint64_t wanted) {
  if (staged_ == kStagingBytes) {
    if (!wait(Deadline::after(clock_, kStagingLimit))) {
      throw_broken(ErrorKind::kDevice, "stream", "did not finish its work within 60 s");
    }
    deliver();
  }
  const std::uint64_t bytes = std::min(wanted, kStagingBytes - staged_);
  const MutableByteView part(staging_ + staged_, bytes);
  staged_ = std::min(kStagingBytes, align_up(staged_ + bytes, kStagingAlignment));
  return part;
}

void CudaStream::upload(std::uint64_t address, ByteView from, std::string_view what) {
  while (!from.empty()) {
    const MutableByteView part = stage(from.size());
    std::memcpy(part.data(), from.data(), part.size());
    errors_.check(cudaMemcpyAsync(reinterpret_cast<void*>(address), part.data(), part.size(),
                                  cudaMemcpyHostToDevice, native_of(stream_)),
                  "cudaMemcpyAsync", what);
    address += part.size();
    from = from.subspan(part.size());
  }
}

void CudaStream::download(std::uint64_t address, MutableByteView into, std::string_view what) {
  while (!into.empty()) {
    const MutableByteView part = stage(into.size());
    errors_.check(cudaMemcpyAsync(part.data(), reinterpret_cast<const void*>(address), part.size(),
                                  cudaMemcpyDeviceToHost, native_of(stream_)),
                  "cudaMemcpyAsync", what);
    downloads_.push_back({part.data(), into.first(part.size())});
    address += part.size();
    into = into.subspan(part.size());
  }
}

void CudaStream::synchronize(Deadline deadline) {
  if (!wait(deadline)) {
    throw_broken(ErrorKind::kTimeout, "stream", "its work was not done by the deadline");
  }
  deliver();
}

bool CudaStream::complete() noexcept {
  const int status = cudaStreamQuery(native_of(stream_));
  errors_.note(status, "cudaStreamQuery");
  return status != cudaErrorNotReady || errors_.lost();
}

bool CudaStream::wait(Deadline deadline) {
  const TimePoint start = clock_.now();
  for (;;) {
    const int status = cudaStreamQuery(native_of(stream_));
    if (status == cudaSuccess) return true;
    if (status != cudaErrorNotReady) errors_.check(status, "cudaStreamQuery", "stream");
    cudaGetLastError();  // that it isn't ready counts as the last error
    const TimePoint now = clock_.now();
    if (deadline.passed(now)) return false;
    const Duration waited = now - start;
    if (waited < kAskWithoutPause) continue;
    const TimePoint next = now + std::min(waited / kPausePart, kLongestPause);
    clock_.sleep_until(std::min(next, deadline.time()));
  }
}

// All work is done: the staging is free again.
void CudaStream::deliver() {
  for (const Download& download : downloads_) {
    std::memcpy(download.into.data(), download.from, download.into.size());
  }
  downloads_.clear();
  staged_ = 0;
}

}  // namespace tpsync::device::cuda
