// A Device over host memory, for hosts without an accelerator: in one process, or between processes
// that share a HostMemory (see host_memory.h) and open each other's exports.
//
// Exportable regions are memory files that are mapped by everybody who imports them. Others are
// memory of this process; a sleeping one keeps its addresses and gives its pages back to the
// system. Fresh memory carries kUndefinedByte, so that a read of something never written is
// recognized. An import reads what its exporter wrote last, and stays readable when that has gone.
//
// A handle names exporter, descriptor, file, size and a serial number that is never used again. All
// of it must agree with the account, and the file behind the descriptor with that, so that a handle
// which was altered, or whose export has gone, opens nothing. Stricter than the contract, as
// drivers are: opening an export of one's own is refused.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tpsync/device/device.h"
#include "tpsync/device/host_memory.h"

namespace tpsync::device {

class MemoryAccount;
enum class AccountDevice : std::uint32_t;
enum class AccountEntry : std::uint32_t;

inline constexpr std::byte kUndefinedByte{0xa5};

// When the work of a stream is done.
enum class Landing : std::uint8_t {
  kAtLaunch,       // in the launching call
  kAtSynchronize,  // in synchronize(), so that a missing wait leaves destinations untouched
};

struct HostDeviceOptions {
  std::string uuid;  // of a device of the HostMemory
  Landing landing = Landing::kAtLaunch;
};

// Used by one thread at a time. Its destructor closes its imports, revokes its exports and frees
// its memory, as the end of a process does. allocate, free, export, import, sleep, wake and memory
// make system calls; copies and synchronize do not.
//
// Imports need the exporter's process to be of the same user, in the same process namespace: what
// the process file system refuses is RuntimeBroken kIpc, which says so.
class HostDevice final : public Device {
 public:
  // Throws InvalidInput kInvalidConfig if `memory` has no such device; RuntimeBroken kOutOfMemory
  // if it serves too many participants (4096, exports and imports included).
  HostDevice(HostMemory& memory, const HostDeviceOptions& options);
  ~HostDevice() override;
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  std::string uuid() override;
  MemoryInfo memory() override;
  RegionId allocate(const AllocationRequest& request) override;
  void free(RegionId region) noexcept override;
  ByteBuffer export_region(RegionId region) override;
  void revoke_export(RegionId region) noexcept override;
  ImportedRegion import_region(ByteView handle) override;
  void close_import(RegionId region) noexcept override;
  void sleep(std::string_view tag, bool keep) override;
  void wake(std::string_view tag) override;
  StreamId create_stream() override;
  void destroy_stream(StreamId stream) noexcept override;
  std::unique_ptr<Prepared> prepare_copies(std::span<const TileCopy> copies) override;
  std::unique_ptr<Prepared> prepare_packs(std::span<const PackPiece> pieces) override;
  std::unique_ptr<Prepared> prepare_digests(std::span<const DigestItem> items) override;
  void launch(StreamId stream, const Prepared& batch, std::span<const RegionId> bindings) override;
  void launch_digests(StreamId stream, const Prepared& batch, std::span<const RegionId> bindings,
                      std::span<std::uint64_t> sums) override;
  void fill(StreamId stream, RegionId region, std::uint64_t offset, std::uint64_t bytes,
            std::byte value) override;
  void copy(StreamId stream, const RunCopy& run) override;
  void upload(StreamId stream, RegionId region, std::uint64_t offset, ByteView from) override;
  void download(StreamId stream, RegionId region, std::uint64_t offset,
                MutableByteView into) override;
  void synchronize(StreamId stream, Deadline deadline) override;

  // For groups that move host memory: work of the stream that others do. What is launched behind it
  // is done in synchronize(), which first calls `wait`: it blocks until that work is done or has
  // been given up, or throws RuntimeBroken kTimeout at the deadline.
  void await(StreamId stream, std::function<void(Deadline)> wait);
  // For the same: where [offset, offset + bytes) of a region lies, until the
  // region is freed or put to sleep. Asserts that it lives, is awake and has these bytes.
  std::byte* host_pointer(RegionId region, std::uint64_t offset, std::uint64_t bytes);

 private:
  struct Region;
  struct Work;
  struct Stream;

  Region& find(RegionId region);
  std::unique_ptr<Region> make_region(const AllocationRequest& request);
  RegionId add(std::unique_ptr<Region> region);
  void release(Region& region) noexcept;
  // The bytes [offset, offset + bytes) of a region; asserts that it lives, is awake and has them.
  std::byte* at(RegionId region, std::uint64_t offset, std::uint64_t bytes);
  // The same for `rows` runs of `row_bytes` that lie `pitch` bytes apart.
  std::byte* at(RegionId region, std::uint64_t offset, std::uint64_t pitch, std::uint64_t row_bytes,
                std::uint64_t rows);
  void check(const Work& work);
  void perform(const Work& work);
  void submit(StreamId stream, Work work);

  MemoryAccount& account_;
  const AccountDevice device_;
  const std::string uuid_;
  const AccountEntry participant_;
  const Landing landing_;
  std::map<RegionId, std::unique_ptr<Region>> regions_;
  std::map<StreamId, std::unique_ptr<Stream>> streams_;
  std::uint64_t next_region_ = 1;
  std::uint32_t next_stream_ = 1;
};

}  // namespace tpsync::device
