// A Device over plain memory of one process, for hosts without an accelerator.
//
// A HostMemory stands for the physical devices of one host and for its driver's table of exports; a
// HostDevice is one of these devices as one participant (an actor, a worker) sees it. Participants
// that share a HostMemory can open each other's exports, and those on the same device share its
// budget. Memory is charged when it is allocated or woken, and stays charged until its owner freed
// it and the last import was closed, as a driver does it. Fresh memory carries kUndefinedByte, so
// that a read of something never written is recognized.
//
// Stricter than the contract, as drivers are: opening an export of one's own is refused.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tpsync/base/threads.h"
#include "tpsync/device/device.h"

namespace tpsync::device {

inline constexpr std::byte kUndefinedByte{0xa5};

class HostDevice;

// The physical devices and the exports. Outlives every HostDevice that was made on it. May be used
// from any thread.
class HostMemory {
 public:
  explicit HostMemory(Threads& threads);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Throws InvalidInput kInvalidConfig for an empty or a known uuid.
  void add_device(std::string uuid, std::uint64_t total_bytes);

  // Exports that are neither revoked nor freed, and open imports of them or of dead ones.
  std::uint64_t live_exports();
  std::uint64_t open_imports();

 private:
  friend class HostDevice;
  struct Physical;
  struct Block;
  struct Export;

  Physical& find(const std::string& uuid);
  std::shared_ptr<Block> charge(Physical& device, std::uint64_t bytes, std::string_view subject);

  std::unique_ptr<Mutex> mutex_;  // guards everything below, and what it points to except content
  std::map<std::string, std::unique_ptr<Physical>> devices_;
  std::map<std::uint64_t, Export> exports_;
  std::uint64_t next_serial_ = 1;
  std::uint64_t open_imports_ = 0;
};

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
// its memory, as the end of a process does.
class HostDevice final : public Device {
 public:
  // Throws InvalidInput kInvalidConfig if `memory` has no such device.
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
  void upload(StreamId stream, RegionId region, std::uint64_t offset, ByteView from) override;
  void download(StreamId stream, RegionId region, std::uint64_t offset,
                MutableByteView into) override;
  void synchronize(StreamId stream, Deadline deadline) override;

  // For groups that move host memory: where [offset, offset + bytes) of a region lies, until the
  // region is freed or put to sleep. Asserts that it lives, is awake and has these bytes.
  std::byte* host_pointer(RegionId region, std::uint64_t offset, std::uint64_t bytes);

 private:
  struct Region;
  struct Work;
  struct Stream;

  Region& find(RegionId region);
  // The bytes [offset, offset + bytes) of a region; asserts that it lives, is awake and has them.
  std::byte* at(RegionId region, std::uint64_t offset, std::uint64_t bytes);
  // The same for `rows` runs of `row_bytes` that lie `pitch` bytes apart.
  std::byte* at(RegionId region, std::uint64_t offset, std::uint64_t pitch, std::uint64_t row_bytes,
                std::uint64_t rows);
  void check(const Work& work);
  void perform(const Work& work);
  void submit(StreamId stream, Work work);

  HostMemory& memory_;
  HostMemory::Physical& physical_;
  Landing landing_;
  std::map<RegionId, std::unique_ptr<Region>> regions_;
  std::map<StreamId, std::unique_ptr<Stream>> streams_;
  std::uint64_t next_region_ = 1;
  std::uint32_t next_stream_ = 1;
};

}  // namespace tpsync::device
