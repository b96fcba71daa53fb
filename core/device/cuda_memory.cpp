#include "tpsync/device/cuda_memory.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <cstring>
#include <utility>

#include "tpsync/base/bytes.h"

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
  std::uint64_t physical = 0;
  errors_.check(driver_.create(block.bytes, ordinal_, exportable, physical),
                fmt::format("cuMemCreate of {} bytes", block.bytes), what);
  try {
    errors_.check(driver_.reserve(block.bytes, block.address), "cuMemAddressReserve", what);
    put_back(block, physical, what);
  } catch (const std::exception&) {
    drop_physical(physical);
    release(block);
    throw;
  }
  return block;
}

void CudaMemory::release(Block& block) noexcept {
  const Block old = std::exchange(block, Block{});
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
  if (old.physical != 0) {
    errors_.note(driver_.unmap(old.address, old.bytes), "cuMemUnmap");
    drop_physical(old.physical);
  }
  if (old.address != 0) {
    errors_.note(driver_.unreserve(old.address, old.bytes), "cuMemAddressFree");
  }
}

void CudaMemory::give_back(Block& block, std::string_view what) {
  if (block.physical == 0) return;
  errors_.check(driver_.unmap(block.address, block.bytes), "cuMemUnmap", what);
  errors_.check(driver_.release(std::exchange(block.physical, 0)), "cuMemRelease", what);
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
  errors_.check(driver_.map(block.address, block.bytes, physical), "cuMemMap", what);
  const int status = driver_.allow_access(block.address, block.bytes, ordinal_);
  if (status != 0) errors_.note(driver_.unmap(block.address, block.bytes), "cuMemUnmap");
  errors_.check(status, "cuMemSetAccess", what);
  block.physical = physical;
}

void CudaMemory::take_away(Block& block) noexcept {
  errors_.note(driver_.unmap(block.address, block.bytes), "cuMemUnmap");
  block.physical = 0;
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

int CudaMemory::export_descriptor(const Block& block) {
  int descriptor = -1;
  errors_.check(driver_.export_descriptor(block.physical, descriptor),
                "cuMemExportToShareableHandle", "export", ErrorKind::kIpc);
  return descriptor;
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

Block CudaMemory::open_descriptor(int descriptor, std::uint64_t bytes) {
  Block block;
  block.kind = Block::Kind::kVirtual;
  block.bytes = bytes;
  std::uint64_t physical = 0;
  errors_.check(driver_.import_descriptor(descriptor, physical), "cuMemImportFromShareableHandle",
                "import", ErrorKind::kIpc);
  int status = driver_.reserve(bytes, block.address);
  const char* call = "cuMemAddressReserve";
  if (status == 0) {
    status = driver_.map(block.address, bytes, physical);
    call = "cuMemMap";
  }
  if (status == 0) {
    block.physical = physical;
    status = driver_.allow_access(block.address, bytes, ordinal_);
    call = "cuMemSetAccess";
  }
  if (status != 0) {
    if (block.physical == 0) drop_physical(physical);
    release(block);
  }
  errors_.check(status, call, "import", ErrorKind::kIpc);
  return block;
}

int CudaMemory::device_behind(const Block& block) {
  int ordinal = ordinal_;
  if (block.kind == Block::Kind::kVirtual) {
    errors_.check(driver_.device_of(block.physical, ordinal),
                  "cuMemGetAllocationPropertiesFromHandle", "import", ErrorKind::kIpc);
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
