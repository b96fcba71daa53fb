// A device whose memory, exports and imports are also on the account of the world
// (core/device/memory_account.h): its budget is then exact, whatever else the GPU holds, and what a
// killed process held is known to whoever looks from outside.
//
// The wrapped device does everything; an operation that it refuses is not on the account. Handles
// are its own, with the export's serial number behind them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tpsync/base/threads.h"
#include "tpsync/device/forwarding_device.h"
#include "tpsync/device/memory_account.h"

namespace tpsync::conformance {

struct AccountedDeviceOptions {
  std::string name;                       // of the device on the account
  std::vector<std::string> device_uuids;  // of the wrapped devices of the world, and
  std::vector<std::string> names;         // what each is called on the account
  bool report_account = false;            // memory() gives the account's figures
};

// Used by one thread at a time, but for while_awake(), which waits for the other thread's call to
// end and makes its next one wait.
class AccountedDevice final : public device::ForwardingDevice {
 public:
  // All are borrowed. Throws as MemoryAccount::find_device and join do.
  AccountedDevice(device::Device& inner, device::MemoryAccount& account, Threads& threads,
                  AccountedDeviceOptions options);
  ~AccountedDevice() override;

  std::string uuid() override { return options_.name; }
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

  // From any thread: calls `use` while `region` is there and awake, and keeps it so until `use`
  // returns; false if it is not. `use` may launch on a stream of its own.
  bool while_awake(device::RegionId region, const std::function<void(device::Device&)>& use);

 private:
  struct Region {
    std::uint64_t bytes = 0;
    std::string tag;  // of sleepable regions
    bool awake = true;
    bool exported = false;
    std::optional<device::AccountEntry> entry;  // of exportable regions and imports
  };

  std::vector<Region*> with_tag(std::string_view tag, bool awake);

  device::MemoryAccount& account_;
  AccountedDeviceOptions options_;
  device::AccountDevice device_;
  device::AccountEntry participant_;
  // Held over every call of the wrapped device, which one thread at a time may use.
  std::unique_ptr<Mutex> mutex_;
  std::map<device::RegionId, Region> regions_;
};

}  // namespace tpsync::conformance
