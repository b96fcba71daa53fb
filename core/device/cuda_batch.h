// A prepared batch of a CUDA device: its tiles in device memory, and what a launch checks and
// needs. Device memory comes from a pool, so that preparing and dropping batches calls the driver
// only until the pool has grown to what is used at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "tpsync/device/cuda_memory.h"
#include "tpsync/device/cuda_stream.h"
#include "tpsync/device/cuda_tiles.h"
#include "tpsync/device/device.h"

namespace tpsync::device::cuda {

// Blocks of device memory whose sizes are powers of two from 4 KiB on. Never shrinks.
class TablePool {
 public:
  explicit TablePool(CudaMemory& memory) : memory_(memory) {}
  ~TablePool();
  TablePool(const TablePool&) = delete;
  TablePool& operator=(const TablePool&) = delete;

  Block take(std::uint64_t bytes);  // throws RuntimeBroken kOutOfMemory; empty for no bytes
  void give_back(Block block) noexcept;

 private:
  CudaMemory& memory_;
  std::vector<Block> free_;
  std::size_t made_ = 0;
};

enum class BatchKind : std::uint8_t { kCopies, kPacks, kDigests };

class CudaBatch final : public Prepared {
 public:
  struct Tables {
    const void* tiles = nullptr;
    std::uint64_t tile_bytes = 0;
    std::uint64_t tile_count = 0;
    std::uint64_t item_count = 0;  // of digests
  };
  // Uploads the tiles through `stream` and waits for them. Throws RuntimeBroken kOutOfMemory.
  CudaBatch(BatchKind kind, const Tables& tables, Extents extents, CudaErrors& errors,
            TablePool& pool, CudaStream& stream, Clock& clock);
  ~CudaBatch() override;
  CudaBatch(const CudaBatch&) = delete;
  CudaBatch& operator=(const CudaBatch&) = delete;

  BatchKind kind() const { return kind_; }
  const Extents& extents() const { return extents_; }
  std::uint64_t item_count() const { return item_count_; }

  // `addresses` by binding, at least as many as extents. Enqueues the kernel, and for digests what
  // brings the sums home. The batch may be on several streams at a time: launches that share its
  // device memory are then done one after the other.
  void launch(CudaStream& stream, std::span<const std::uint64_t> addresses,
              std::span<std::uint64_t> sums) const;

 private:
  bool has_shared_memory() const { return sums_.bytes != 0 || bases_.bytes != 0; }

  const BatchKind kind_;
  const Extents extents_;
  const std::uint32_t tile_count_;
  const std::uint64_t item_count_;
  CudaErrors& errors_;
  TablePool& pool_;
  Block tiles_;
  Block sums_;
  Block bases_;           // where the kernel's parameters cannot hold them
  void* done_ = nullptr;  // event: the last launch has left the shared memory
  mutable bool recorded_ = false;
  mutable std::vector<std::uint64_t> last_addresses_;  // what bases_ holds
};

}  // namespace tpsync::device::cuda
