// The kinds of memory of a CUDA device, as blocks: plain, virtual (whose physical memory can be
// given back and renewed under the same address), opened from another process; and pinned host
// memory. The device's context is current during every call.
//
// Blocks are handles, not owners: whoever holds one releases it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tpsync/device/cuda_driver.h"
#include "tpsync/device/cuda_errors.h"
#include "tpsync/device/os_memory.h"

namespace tpsync::device::cuda {

inline constexpr std::uint64_t kExportGranularity = 2 * 1024 * 1024;

struct Block {
  enum class Kind : std::uint8_t { kNone, kPlain, kVirtual, kOpened };
  Kind kind = Kind::kNone;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  // rounded up
  // kVirtual: its physical memory, in order; none while it has none. What is passed on as
  // descriptors consists of pieces of piece_bytes(), all else of one.
  std::vector<std::uint64_t> physical;
};

class CudaMemory {
 public:
  CudaMemory(CudaErrors& errors, const CudaDriver& driver, int ordinal);

  // All throw RuntimeBroken kOutOfMemory, `what` as subject, and then hold nothing. No bytes: no
  // block.
  Block plain(std::uint64_t bytes, std::string_view what);
  Block exportable_plain(std::uint64_t bytes, std::string_view what);
  Block virtual_memory(std::uint64_t bytes, bool exportable, std::string_view what);
  // Frees what the block holds; whoever worked with it is done. May wait for work of this process
  // on the device.
  void release(Block& block) noexcept;

  // Of virtual memory. Giving back unmaps and frees the physical memory; the address stays.
  void give_back(Block& block, std::string_view what);
  std::uint64_t make_physical(std::uint64_t bytes, std::string_view what);
  void drop_physical(std::uint64_t physical) noexcept;
  // Maps physical memory under a block that has none, and owns it then. On failure the block has
  // none, and the caller still has the memory.
  void put_back(Block& block, std::uint64_t physical, std::string_view what);
  void take_away(Block& block) noexcept;  // undoes put_back without freeing

  // Throw RuntimeBroken kIpc.
  std::array<std::byte, 64> export_ipc(const Block& block);
  // One per piece.
  std::vector<os_memory::Descriptor> export_descriptors(const Block& block);
  Block open_ipc(const std::array<std::byte, 64>& handle, std::uint64_t bytes);
  Block open_descriptors(std::span<const os_memory::Descriptor> descriptors, std::uint64_t bytes);
  // The device that an opened block lies on as far as the driver tells: it may name the opening
  // process's own device for memory of another one.
  int device_behind(const Block& block);

  // Pinned host memory. Throws RuntimeBroken kOutOfMemory.
  std::byte* pin(std::uint64_t bytes, std::string_view what);
  void unpin(std::byte* memory) noexcept;

 private:
  CudaErrors& errors_;
  const CudaDriver& driver_;
  // Maps the pieces under the block's address, which has none, and owns them then; a driver's
  // error otherwise, and the block still has none. `call` is what failed.
  int map_pieces(Block& block, std::span<const std::uint64_t> pieces, const char*& call);
  int unmap(Block& block) const;

  const int ordinal_;
  std::uint64_t granularity_ = 0;
};

}  // namespace tpsync::device::cuda
