// The handle of a CUDA device's export, and the register in which an exporter keeps what it has
// exported at the moment.
//
// CUDA itself tells nobody that an export was revoked or freed: its handles may go on opening, or
// open what lies at that place by then. So each exporter holds a memory file with a copy of every
// live handle, and an importer that does not find its handle there, byte for byte, before and
// after it opened it, refuses it. The file ends with its process.
//
// Nothing here calls CUDA.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tpsync/base/bytes.h"
#include "tpsync/device/os_memory.h"

namespace tpsync::device {

enum class CudaExportKind : std::uint8_t {
  // Memory of cudaMalloc, in multiples of 2 MiB; opened by the runtime's IPC handle. What engines
  // that use the runtime (torch's IPC) can open. Never opens in the exporter's own process.
  kCudaIpc = 1,
  // Memory of the virtual memory API, opened by a descriptor. The importer takes it from the
  // exporter's process and so needs the right to trace it.
  kVmmFd = 2,
};

namespace cuda {

struct Handle {
  os_memory::ProcessId exporter;
  std::uint64_t pid_namespace = 0;
  int register_descriptor = -1;  // of the exporter
  std::uint64_t register_inode = 0;
  std::uint64_t serial = 0;  // of the export in its register; never used again
  CudaExportKind kind = CudaExportKind::kCudaIpc;
  std::uint64_t region = 0;  // the exporter's id
  std::uint64_t bytes = 0;
  std::uint64_t mapped_bytes = 0;  // of the memory behind it, rounded up
  std::array<std::byte, 16> device_uuid{};
  // kCudaIpc: a cudaIpcMemHandle_t. kVmmFd: for each piece its descriptor's number, of four bytes
  // with the least significant first.
  std::array<std::byte, 64> driver{};

  friend bool operator==(const Handle&, const Handle&) = default;
};

inline constexpr std::size_t kHandleBytes = 168;

// Memory that is passed on as descriptors is made of equal pieces and a last one: another GPU opens
// memory of 512 MiB and more in 8 ms, one process after the other, and less in 0.1 ms (two H200,
// driver 580). Their number is bounded by what a handle has room for.
inline constexpr std::uint64_t kPieceUnit = 510ULL << 20;
inline constexpr std::size_t kPiecesMax = 16;

constexpr std::uint64_t piece_bytes(std::uint64_t mapped_bytes) {
  const std::uint64_t units = mapped_bytes / kPieceUnit + (mapped_bytes % kPieceUnit != 0 ? 1 : 0);
  const std::uint64_t of_piece = units / kPiecesMax + (units % kPiecesMax != 0 ? 1 : 0);
  return checked_mul(of_piece, kPieceUnit).value_or(mapped_bytes);
}
constexpr std::size_t piece_count(std::uint64_t mapped_bytes) {
  if (mapped_bytes == 0) return 0;
  const std::uint64_t bytes = piece_bytes(mapped_bytes);
  return static_cast<std::size_t>((mapped_bytes - 1) / bytes + 1);
}

ByteBuffer encode(const Handle& handle);
// Throws PeerViolation kProtocol for another length or mark. What is wrong with the fields shows
// when the handle is looked up.
Handle decode(ByteView bytes);

// "b6557281-0c4f-...": lower case, without a prefix.
std::string uuid_text(const std::array<std::byte, 16>& uuid);

// Used by one thread at a time.
class ExportRegister {
 public:
  // Throws RuntimeBroken kOutOfMemory.
  ExportRegister();

  // Gives the handle its serial number and its place, keeps it, and returns its bytes. Throws
  // RuntimeBroken kIpc if 1024 exports are live.
  ByteBuffer publish(Handle& handle);
  void revoke(std::uint64_t serial) noexcept;
  // Whether the handle's export was published here.
  bool is_own(const Handle& handle) const;
  const os_memory::ProcessId& process() const { return process_; }

 private:
  os_memory::Descriptor file_;
  os_memory::Mapping mapping_;
  os_memory::ProcessId process_;
  std::uint64_t inode_ = 0;
  std::uint64_t last_serial_ = 0;
};

// Throws RuntimeBroken kIpc unless the exporter lives and has exactly this export.
void require_published(ByteView bytes, const Handle& handle);

}  // namespace cuda
}  // namespace tpsync::device
