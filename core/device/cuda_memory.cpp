#include "tpsync/device/cuda_memory.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tpsync/base/bytes.h"
#include "tpsync/device/cuda_exports.h"

namespace tpsync::device::cuda {

namespace {

void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

CudaMemory::CudaMemory(CudaErrors& errors, const CudaDriver& driver, int ordinal)
    : errors_(errors), driver_(driver), ordinal_(ordinal) {
  errors_.check(driver_.granularity(ordinal, granularity_), "cuMemGetAllocationGranularity",
                "device");
}

Block CudaMemory::plain(std::uint64_t bytes, std::string_view what) {
  Block block;
  if (bytes == 0) return block;
  void* memory = nullptr;
  errors_.check(cudaMalloc(&memory, bytes), fmt::format("cudaMalloc of {} bytes", bytes), what);
  block.kind = Block::Kind::kPlain;
  block.address = reinterpret_cast<std::uint64_t>(memory);
  block.bytes = bytes;
  return block;
}

// Smaller allocations may share one allocation of the driver, which an export would open whole.
Block CudaMemory::exportable_plain(std::uint64_t bytes, std::string_view what) {
  if (bytes > UINT64_MAX - kExportGranularity) return plain(bytes, what);  // is refused
  return plain(align_up(bytes, kExportGranularity), what);
}

Block CudaMemory::virtual_memory(std::uint64_t bytes, bool exportable, std::string_view what) {
  Block block;
  if (bytes == 0) return block;
  if (bytes > UINT64_MAX - granularity_) return plain(bytes, what);  // is refused
  block.kind = Block::Kind::kVirtual;
  block.bytes = align_up(bytes, granularity_);
  const std::uint64_t piece = exportable ? piece_bytes(block.bytes) : block.bytes;
  std::vector<std::uint64_t> pieces;
  pieces.reserve(exportable ? piece_count(block.bytes) : 1);
  try {
    for (std::uint64_t begin = 0; begin < block.bytes; begin += piece) {
      const std::uint64_t size = std::min(piece, block.bytes - begin);
      pieces.push_back(0);
      errors_.check(driver_.create(size, ordinal_, exportable, pieces.back()),
                    fmt::format("cuMemCreate of {} bytes", size), what);
    }
    errors_.check(driver_.reserve(block.bytes, block.address), "cuMemAddressReserve", what);
    const char* call = "";
    const int status = map_pieces(block, pieces, call);
    errors_.check(status, call, what);
  } catch (const std::exception&) {
    for (const std::uint64_t one : pieces) {
      if (one != 0) drop_physical(one);
    }
    release(block);
    throw;
  }
  return block;
}

void CudaMemory::release(Block& block) noexcept {
  Block old = std::exchange(block, Block{});
  switch (old.kind) {
    case Block::Kind::kNone:
      return;
    case Block::Kind::kPlain:
      return errors_.note(cudaFree(pointer(old.address)), "cudaFree");
    case Block::Kind::kOpened:
      return errors_.note(cudaIpcCloseMemHandle(pointer(old.address)), "cudaIpcCloseMemHandle");
    case Block::Kind::kVirtual:
      break;
  }
  if (!old.physical.empty()) {
    errors_.note(unmap(old), "cuMemUnmap");
    for (const std::uint64_t piece : old.physical) drop_physical(piece);
  }
  if (old.address != 0) {
    errors_.note(driver_.unreserve(old.address, old.bytes), "cuMemAddressFree");
  }
}

void CudaMemory::give_back(Block& block, std::string_view what) {
  if (block.physical.empty()) return;
  errors_.check(unmap(block), "cuMemUnmap", what);
  int status = 0;
  for (const std::uint64_t piece : std::exchange(block.physical, {})) {
    const int one = driver_.release(piece);
    if (status == 0) status = one;
  }
  errors_.check(status, "cuMemRelease", what);
}

std::uint64_t CudaMemory::make_physical(std::uint64_t bytes, std::string_view what) {
  std::uint64_t physical = 0;
  errors_.check(driver_.create(bytes, ordinal_, false, physical),
                fmt::format("cuMemCreate of {} bytes", bytes), what);
  return physical;
}

void CudaMemory::drop_physical(std::uint64_t physical) noexcept {
  errors_.note(driver_.release(physical), "cuMemRelease");
}

void CudaMemory::put_back(Block& block, std::uint64_t physical, std::string_view what) {
  const char* call = "";
  const int status = map_pieces(block, std::span(&physical, 1), call);
  errors_.check(status, call, what);
}

int CudaMemory::map_pieces(Block& block, std::span<const std::uint64_t> pieces, const char*& call) {
  const std::uint64_t piece = pieces.size() == 1 ? block.bytes : piece_bytes(block.bytes);
  block.physical.assign(pieces.begin(), pieces.end());
  std::uint64_t mapped = 0;
  int status = 0;
  for (const std::uint64_t one : pieces) {
    const std::uint64_t size = std::min(piece, block.bytes - mapped);
    call = "cuMemMap";
    status = driver_.map(block.address + mapped, size, one);
    if (status != 0) break;
    mapped += size;
    call = "cuMemSetAccess";
    status = driver_.allow_access(block.address + mapped - size, size, ordinal_);
    if (status != 0) break;
  }
  if (status == 0) return 0;
  block.physical.clear();
  for (std::uint64_t begin = 0; begin < mapped; begin += piece) {
    errors_.note(driver_.unmap(block.address + begin, std::min(piece, mapped - begin)),
                 "cuMemUnmap");
  }
  return status;
}

// Each piece has a mapping of its own, which is taken away as a whole.
int CudaMemory::unmap(Block& block) const {
  const std::uint64_t piece = block.physical.size() == 1 ? block.bytes : piece_bytes(block.bytes);
  int status = 0;
  for (std::uint64_t begin = 0; begin < block.bytes; begin += piece) {
    const int one = driver_.unmap(block.address + begin, std::min(piece, block.bytes - begin));
    if (status == 0) status = one;
  }
  return status;
}

void CudaMemory::take_away(Block& block) noexcept {
  errors_.note(unmap(block), "cuMemUnmap");
  block.physical.clear();
}

std::array<std::byte, 64> CudaMemory::export_ipc(const Block& block) {
  std::array<std::byte, 64> bytes{};
  std::uint64_t base = 0, length = 0;
  errors_.check(driver_.allocation_of(block.address, base, length), "cuMemGetAddressRange",
                "export", ErrorKind::kIpc);
  if (base != block.address) {
    throw_broken(ErrorKind::kIpc, "export",
                 "the driver placed the region inside a larger allocation, which cannot be "
                 "exported in part");
  }
  cudaIpcMemHandle_t handle{};
  static_assert(sizeof handle == bytes.size());
  errors_.check(cudaIpcGetMemHandle(&handle, pointer(block.address)), "cudaIpcGetMemHandle",
                "export", ErrorKind::kIpc);
  std::memcpy(bytes.data(), &handle, bytes.size());
  return bytes;
}

std::vector<os_memory::Descriptor> CudaMemory::export_descriptors(const Block& block) {
  std::vector<os_memory::Descriptor> descriptors;
  for (const std::uint64_t piece : block.physical) {
    int descriptor = -1;
    errors_.check(driver_.export_descriptor(piece, descriptor), "cuMemExportToShareableHandle",
                  "export", ErrorKind::kIpc);
    descriptors.emplace_back(descriptor);
  }
  return descriptors;
}

Block CudaMemory::open_ipc(const std::array<std::byte, 64>& handle, std::uint64_t bytes) {
  cudaIpcMemHandle_t opening{};
  std::memcpy(&opening, handle.data(), sizeof opening);
  void* memory = nullptr;
  errors_.check(cudaIpcOpenMemHandle(&memory, opening, cudaIpcMemLazyEnablePeerAccess),
                "cudaIpcOpenMemHandle", "import", ErrorKind::kIpc);
  Block block;
  block.kind = Block::Kind::kOpened;
  block.address = reinterpret_cast<std::uint64_t>(memory);
  block.bytes = bytes;
  return block;
}

Block CudaMemory::open_descriptors(std::span<const os_memory::Descriptor> descriptors,
                                   std::uint64_t bytes) {
  Block block;
  block.kind = Block::Kind::kVirtual;
  block.bytes = bytes;
  std::vector<std::uint64_t> pieces;
  pieces.reserve(descriptors.size());
  block.physical.reserve(descriptors.size());  // nothing is thrown while something is held
  int status = 0;
  const char* call = "cuMemImportFromShareableHandle";
  for (const os_memory::Descriptor& descriptor : descriptors) {
    std::uint64_t piece = 0;
    status = driver_.import_descriptor(descriptor.number(), piece);
    if (status != 0) break;
    pieces.push_back(piece);
  }
  if (status == 0) {
    call = "cuMemAddressReserve";
    status = driver_.reserve(bytes, block.address);
  }
  if (status == 0) status = map_pieces(block, pieces, call);
  if (status != 0) {
    for (const std::uint64_t piece : pieces) drop_physical(piece);
    release(block);
  }
  errors_.check(status, call, "import", ErrorKind::kIpc);
  return block;
}

int CudaMemory::device_behind(const Block& block) {
  int ordinal = ordinal_;
  if (block.kind == Block::Kind::kVirtual) {
    for (const std::uint64_t piece : block.physical) {
      errors_.check(driver_.device_of(piece, ordinal), "cuMemGetAllocationPropertiesFromHandle",
                    "import", ErrorKind::kIpc);
      if (ordinal != ordinal_) break;
    }
  } else {
    cudaPointerAttributes attributes{};
    errors_.check(cudaPointerGetAttributes(&attributes, pointer(block.address)),
                  "cudaPointerGetAttributes", "import", ErrorKind::kIpc);
    ordinal = attributes.device;
  }
  return ordinal;
}

std::byte* CudaMemory::pin(std::uint64_t bytes, std::string_view what) {
  if (bytes == 0) return nullptr;
  void* memory = nullptr;
  errors_.check(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault),
                fmt::format("cudaHostAlloc of {} bytes", bytes), what);
  return static_cast<std::byte*>(memory);
}

void CudaMemory::unpin(std::byte* memory) noexcept {
  if (memory != nullptr) errors_.note(cudaFreeHost(memory), "cudaFreeHost");
}

}  // namespace tpsync::device::cuda
