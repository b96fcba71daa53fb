// A handle is a mark, ten numbers of eight bytes with the least significant first, the UUID and
// what the driver made.
#include "tpsync/device/cuda_exports.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <span>

#include "tpsync/base/errors.h"

namespace tpsync::device::cuda {

namespace {

constexpr std::string_view kMark = "tpscuda1";
constexpr std::string_view kImport = "import";
constexpr std::size_t kSlots = 1024;

void put_u64(ByteBuffer& out, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(std::byte(value >> shift & 0xff));
}

std::uint64_t take_u64(ByteView& bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i > 0; --i) value = value << 8 | std::to_integer<unsigned>(bytes[i - 1]);
  bytes = bytes.subspan(8);
  return value;
}

// Written by the exporter, read by importers at any moment: the serial number is stored last and
// cleared first.
struct Slot {
  std::uint64_t serial;  // 0: free
  std::array<std::uint64_t, kHandleBytes / sizeof(std::uint64_t)> handle;

  std::uint64_t load() { return std::atomic_ref(serial).load(std::memory_order_acquire); }
  void store(std::uint64_t value) {
    std::atomic_ref(serial).store(value, std::memory_order_release);
  }
  // Nothing that is read after it is read before it.
  bool holds(ByteView bytes) {
    for (std::size_t i = 0; i < handle.size(); ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i * sizeof(word), sizeof(word));
      if (std::atomic_ref(handle[i]).load(std::memory_order_acquire) != word) return false;
    }
    return true;
  }
};
static_assert(kHandleBytes % sizeof(std::uint64_t) == 0);
constexpr std::size_t kRegisterBytes = kSlots * sizeof(Slot);

std::span<Slot> slots_of(const os_memory::Mapping& mapping) {
  return {reinterpret_cast<Slot*>(mapping.data()), kSlots};
}

[[noreturn]] void throw_gone() {
  throw_broken(ErrorKind::kIpc, kImport, "the export is gone, or the handle was altered");
}

}  // namespace

ByteBuffer encode(const Handle& handle) {
  const ByteView mark = as_view(kMark);
  ByteBuffer out(mark.begin(), mark.end());
  put_u64(out, static_cast<std::uint64_t>(handle.exporter.pid));
  put_u64(out, handle.exporter.start);
  put_u64(out, handle.pid_namespace);
  put_u64(out, static_cast<std::uint64_t>(handle.register_descriptor));
  put_u64(out, handle.register_inode);
  put_u64(out, handle.serial);
  put_u64(out, static_cast<std::uint64_t>(handle.kind));
  put_u64(out, handle.region);
  put_u64(out, handle.bytes);
  put_u64(out, handle.mapped_bytes);
  out.insert(out.end(), handle.device_uuid.begin(), handle.device_uuid.end());
  out.insert(out.end(), handle.driver.begin(), handle.driver.end());
  TPSYNC_ASSERT(out.size() == kHandleBytes);
  return out;
}

Handle decode(ByteView bytes) {
  if (bytes.size() != kHandleBytes || as_text(bytes.first(kMark.size())) != kMark) {
    throw_violation(ErrorKind::kProtocol, kImport, "the bytes are no handle of CUDA memory");
  }
  bytes = bytes.subspan(kMark.size());
  Handle handle;
  handle.exporter.pid = static_cast<std::int64_t>(take_u64(bytes));
  handle.exporter.start = take_u64(bytes);
  handle.pid_namespace = take_u64(bytes);
  const std::uint64_t descriptor = take_u64(bytes);
  handle.register_descriptor = descriptor <= INT32_MAX ? static_cast<int>(descriptor) : -1;
  handle.register_inode = take_u64(bytes);
  handle.serial = take_u64(bytes);
  // Not looked at before it was found in a register, where only true kinds are.
  handle.kind = static_cast<CudaExportKind>(take_u64(bytes) & 0xff);
  handle.region = take_u64(bytes);
  handle.bytes = take_u64(bytes);
  handle.mapped_bytes = take_u64(bytes);
  std::copy_n(bytes.begin(), handle.device_uuid.size(), handle.device_uuid.begin());
  std::copy_n(bytes.begin() + handle.device_uuid.size(), handle.driver.size(),
              handle.driver.begin());
  return handle;
}

std::string uuid_text(const std::array<std::byte, 16>& uuid) {
  std::string text;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text.push_back('-');
    text += fmt::format("{:02x}", std::to_integer<int>(uuid[i]));
  }
  return text;
}

ExportRegister::ExportRegister()
    : file_(os_memory::make_memory_file(kRegisterBytes, "exports")),
      mapping_(os_memory::Mapping::of_file(file_, kRegisterBytes, "exports")),
      process_(os_memory::own_process()),
      inode_(os_memory::identity(file_).inode) {}

ByteBuffer ExportRegister::publish(Handle& handle) {
  handle.exporter = process_;
  handle.pid_namespace = os_memory::pid_namespace();
  handle.register_descriptor = file_.number();
  handle.register_inode = inode_;
  for (Slot& slot : slots_of(mapping_)) {
    if (slot.load() != 0) continue;
    handle.serial = ++last_serial_;
    ByteBuffer bytes = encode(handle);
    std::memcpy(slot.handle.data(), bytes.data(), kHandleBytes);
    slot.store(handle.serial);
    return bytes;
  }
  throw_broken(ErrorKind::kIpc, "export",
               fmt::format("{} exports are live: export fewer regions", kSlots));
}

void ExportRegister::revoke(std::uint64_t serial) noexcept {
  for (Slot& slot : slots_of(mapping_)) {
    if (slot.load() == serial) slot.store(0);
  }
}

bool ExportRegister::is_own(const Handle& handle) const {
  return handle.exporter == process_ && handle.register_inode == inode_;
}

void require_published(ByteView bytes, const Handle& handle) {
  if (handle.pid_namespace != os_memory::pid_namespace()) {
    throw_broken(ErrorKind::kIpc, kImport,
                 "the handle was altered, or comes from another process namespace: run exporter "
                 "and importer in one");
  }
  if (handle.serial == 0 || !os_memory::is_alive(handle.exporter)) throw_gone();
  const os_memory::Opened opened = os_memory::open_file(
      os_memory::path_of_descriptor(handle.exporter.pid, handle.register_descriptor));
  if (opened.error == EACCES || opened.error == EPERM) {
    throw_broken(ErrorKind::kIpc, kImport,
                 fmt::format("opening the export of process {} is not permitted ({}): run exporter "
                             "and importer as the same user, and let the exporter be dumpable",
                             handle.exporter.pid, os_memory::symbol(opened.error)));
  }
  if (!opened.file) throw_gone();
  const os_memory::FileIdentity found = os_memory::identity(opened.file);
  if (!found.regular || found.inode != handle.register_inode || found.bytes != kRegisterBytes) {
    throw_gone();
  }
  const os_memory::Mapping mapping =
      os_memory::Mapping::of_file(opened.file, kRegisterBytes, kImport);
  for (Slot& slot : slots_of(mapping)) {
    if (slot.load() != handle.serial) continue;
    if (slot.holds(bytes) && slot.load() == handle.serial) return;
  }
  throw_gone();
}

}  // namespace tpsync::device::cuda
