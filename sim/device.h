// The simulated device as one process sees it: implements the Device seam over device_memory.h.
//
// Operations of a stream land in their order, each in pieces: at once, at any later step, or when
// the stream is synchronized; sources are read when a piece lands. Misuse that real hardware would
// answer with garbage (use after free, bounds, sleep, unordered access) is a violation of the run.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/device_memory.h"
#include "sim/world.h"
#include "tpsync/device/device.h"

namespace tpsync::sim {

class Stream;
struct StreamOperation;

class SimDevice final : public device::Device {
 public:
  SimDevice(SimProcess& process, DeviceSystem& system);
  ~SimDevice() override;

  std::string uuid() override;
  device::MemoryInfo memory() override;
  device::RegionId allocate(const device::AllocationRequest& request) override;
  void free(device::RegionId region) noexcept override;
  ByteBuffer export_region(device::RegionId region) override;
  void revoke_export(device::RegionId region) noexcept override;
  device::ImportedRegion import_region(ByteView handle) override;
  void close_import(device::RegionId region) noexcept override;
  void sleep(std::string_view tag, bool keep) override;
  void wake(std::string_view tag) override;
  device::StreamId create_stream() override;
  void destroy_stream(device::StreamId stream) noexcept override;
  std::unique_ptr<device::Prepared> prepare_copies(
      std::span<const device::TileCopy> copies) override;
  std::unique_ptr<device::Prepared> prepare_packs(
      std::span<const device::PackPiece> pieces) override;
  std::unique_ptr<device::Prepared> prepare_digests(
      std::span<const device::DigestItem> items) override;
  void launch(device::StreamId stream, const device::Prepared& batch,
              std::span<const device::RegionId> bindings) override;
  void launch_digests(device::StreamId stream, const device::Prepared& batch,
                      std::span<const device::RegionId> bindings,
                      std::span<std::uint64_t> sums) override;
  void fill(device::StreamId stream, device::RegionId region, std::uint64_t offset,
            std::uint64_t bytes, std::byte value) override;
  void copy(device::StreamId stream, const device::RunCopy& run) override;
  void upload(device::StreamId stream, device::RegionId region, std::uint64_t offset,
              ByteView from) override;
  void download(device::StreamId stream, device::RegionId region, std::uint64_t offset,
                MutableByteView into) override;
  void synchronize(device::StreamId stream, Deadline deadline) override;

  // ---- for the harness: outside of time, without events. On a dead process, from its own fiber,
  // looks at memory throw Killed: code that was killed in an operation that cannot throw gets no
  // further. ----
  bool phantom() const;
  std::uint64_t region_bytes(device::RegionId region) const;
  std::uint64_t region_key(device::RegionId region) const;  // of its memory, as in events
  // Byte mode.
  void poke(device::RegionId region, std::uint64_t offset, ByteView bytes);
  void peek(device::RegionId region, std::uint64_t offset, MutableByteView into) const;
  ByteView view(device::RegionId region) const;  // valid until the region goes
  // Phantom mode; peek works too, with bytes made from the content's identity.
  void stamp(device::RegionId region, const Extent& extent);
  std::vector<Extent> query(device::RegionId region, const Rect& rect) const;
  // The next synchronize of `stream` finds that work was lost (kDevice). For decorators.
  void fail_stream(device::StreamId stream);

  // ---- for sim/ ----
  SimProcess& process() { return process_; }
  DeviceSystem& system() { return system_; }
  Stream& stream_of(device::StreamId stream);
  // The memory behind a region that may be used; throws and says why where it may not.
  Memory& usable(device::RegionId region, std::uint64_t begin, std::uint64_t end);
  void process_ended();
  // Waits for the stream's work and lands it; false at the deadline.
  bool drain(Stream& stream, Deadline deadline);
  // The process knows now that the stream's completed work is complete; returns how much that was.
  std::size_t settle_stream(Stream& stream);

 private:
  struct Entry {
    Memory* memory = nullptr;
    bool imported = false;
  };
  class Batch;
  Memory& looked_at(device::RegionId region) const;
  Entry* find(device::RegionId region);
  const Entry* find(device::RegionId region) const;
  device::RegionId add(Memory& memory, bool imported);
  void enqueue(device::StreamId stream, std::unique_ptr<StreamOperation> operation,
               std::uint64_t bytes_per_us);
  void check_pending(const Memory& memory, std::string_view name);
  static std::shared_ptr<const BatchData> batch_of(std::span<const device::TileCopy> copies);
  void launch_batch(device::StreamId stream, const std::shared_ptr<const BatchData>& data,
                    std::span<const device::RegionId> bindings, std::span<std::uint64_t> sums);
  void host_copy(Op kind, device::StreamId stream, device::RegionId region, std::uint64_t offset,
                 std::uint64_t bytes, const std::byte* from, std::byte* into, std::byte value);

  SimProcess& process_;
  DeviceSystem& system_;
  std::vector<Entry> regions_;                    // region id - 1
  std::vector<std::unique_ptr<Stream>> streams_;  // stream id - 1
};

}  // namespace tpsync::sim
