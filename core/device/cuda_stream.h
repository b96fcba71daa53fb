// One stream of a CUDA device, and the pinned memory through which host bytes go. The runtime makes
// a copy from or to ordinary host memory wait for all earlier work of its stream, however long that
// takes; here host bytes are staged, so that only synchronize() waits, and polls to its deadline.
//
// The device's context is current during every call.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tpsync/base/bytes.h"
#include "tpsync/base/clock.h"
#include "tpsync/device/cuda_memory.h"

namespace tpsync::device::cuda {

inline constexpr std::uint64_t kStagingBytes = 4 * 1024 * 1024;

// Pinned blocks of kStagingBytes, kept for the next stream.
class StagingPool {
 public:
  explicit StagingPool(CudaMemory& memory) : memory_(memory) {}
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  std::byte* take();                          // throws RuntimeBroken kOutOfMemory
  void give_back(std::byte* block) noexcept;  // nothing uses it any more

 private:
  CudaMemory& memory_;
  std::vector<std::byte*> free_;
  std::size_t made_ = 0;
};

class CudaStream {
 public:
  CudaStream(CudaErrors& errors, Clock& clock, StagingPool& pool);
  // Must be complete, or the context lost: destroying a stream doesn't wait.
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void* native() const { return stream_; }

  // Both return once the work is enqueued. Of what is uploaded the bytes are read in the call; what
  // is downloaded is written by synchronize(). More than kStagingBytes between two calls of it is
  // done in parts, for whose turn the call waits: up to 60 s, then RuntimeBroken kDevice.
  void upload(std::uint64_t address, ByteView from, std::string_view what);
  void download(std::uint64_t address, MutableByteView into, std::string_view what);

  // RuntimeBroken kTimeout at the deadline (what is pending stays pending), kDevice if work failed.
  void synchronize(Deadline deadline);
  // Whether all work is done; also true if the context is lost, since none will be done then.
  bool complete() noexcept;
  // Forgets downloads whose bytes were not delivered yet.
  void drop_downloads() noexcept { downloads_.clear(); }

 private:
  struct Download {
    const std::byte* from;
    MutableByteView into;
  };
  // Staging for up to `wanted` bytes.
  MutableByteView stage(std::uint64_t wanted);
  bool wait(Deadline deadline);
  void deliver();

  CudaErrors& errors_;
  Clock& clock_;
  StagingPool& pool_;
  void* stream_ = nullptr;
  std::byte* staging_ = nullptr;
  std::uint64_t staged_ = 0;
  std::vector<Download> downloads_;
};

}  // namespace tpsync::device::cuda
