// A forwarding wrapper for Device: each call goes to the wrapped object, so that a decorator
// overrides only what it changes. Prepared batches are those of the wrapped device.
#pragma once

#include <memory>
#include <utility>

#include "tpsync/base/forwarding.h"
#include "tpsync/device/device.h"

namespace tpsync::device {

// Borrows the device, which must outlive the wrapper, or owns it where it came as a unique_ptr.
class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(Device& inner) : inner_(inner) {}
  explicit ForwardingDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  std::string uuid() override { return inner_->uuid(); }
  MemoryInfo memory() override { return inner_->memory(); }
  RegionId allocate(const AllocationRequest& request) override { return inner_->allocate(request); }
  void free(RegionId region) noexcept override { inner_->free(region); }
  ByteBuffer export_region(RegionId region) override { return inner_->export_region(region); }
  void revoke_export(RegionId region) noexcept override { inner_->revoke_export(region); }
  ImportedRegion import_region(ByteView handle) override { return inner_->import_region(handle); }
  void close_import(RegionId region) noexcept override { inner_->close_import(region); }
  void sleep(std::string_view tag, bool keep) override { inner_->sleep(tag, keep); }
  void wake(std::string_view tag) override { inner_->wake(tag); }
  StreamId create_stream() override { return inner_->create_stream(); }
  void destroy_stream(StreamId stream) noexcept override { inner_->destroy_stream(stream); }
  std::unique_ptr<Prepared> prepare_copies(std::span<const TileCopy> copies) override {
    return inner_->prepare_copies(copies);
  }
  std::unique_ptr<Prepared> prepare_packs(std::span<const PackPiece> pieces) override {
    return inner_->prepare_packs(pieces);
  }
  std::unique_ptr<Prepared> prepare_digests(std::span<const DigestItem> items) override {
    return inner_->prepare_digests(items);
  }
  void launch(StreamId stream, const Prepared& batch, std::span<const RegionId> bindings) override {
    inner_->launch(stream, batch, bindings);
  }
  void launch_digests(StreamId stream, const Prepared& batch, std::span<const RegionId> bindings,
                      std::span<std::uint64_t> sums) override {
    inner_->launch_digests(stream, batch, bindings, sums);
  }
  void fill(StreamId stream, RegionId region, std::uint64_t offset, std::uint64_t bytes,
            std::byte value) override {
    inner_->fill(stream, region, offset, bytes, value);
  }
  void copy(StreamId stream, const RunCopy& run) override { inner_->copy(stream, run); }
  void upload(StreamId stream, RegionId region, std::uint64_t offset, ByteView from) override {
    inner_->upload(stream, region, offset, from);
  }
  void download(StreamId stream, RegionId region, std::uint64_t offset,
                MutableByteView into) override {
    inner_->download(stream, region, offset, into);
  }
  void synchronize(StreamId stream, Deadline deadline) override {
    inner_->synchronize(stream, deadline);
  }
  Device& inner() noexcept { return *inner_; }

 private:
  Wrapped<Device> inner_;
};

}  // namespace tpsync::device
