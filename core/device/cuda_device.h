// A Device on one CUDA GPU, in the device's primary context.
//
// All work is on streams of its own, never on the default stream; a prepared batch is one kernel,
// whatever the number of its operations. Waits poll to their deadline. Nothing is freed while a
// stream of this device still has work, because the driver would wait for that work without bound:
// memory that is freed then is kept and freed later, at the latest by the end of the process.
//
// Plain regions are memory of cudaMalloc; exportable ones are what CudaExportKind says; sleepable
// ones are virtual memory, which the driver can neither export nor register. Fresh memory is
// undefined. Free memory is the driver's figure for the whole GPU, other processes included.
//
// An error after which the context takes no more work is final: every call is RuntimeBroken kDevice
// from then on, and only the end of the process frees what it holds.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tpsync/base/clock.h"
#include "tpsync/device/cuda_access.h"
#include "tpsync/device/cuda_exports.h"
#include "tpsync/device/device.h"

namespace tpsync::device {

struct CudaDeviceOptions {
  int ordinal = 0;  // among the devices that this process sees
  CudaExportKind export_kind = CudaExportKind::kCudaIpc;
  // In place of the driver's figure, for a trainer that must not count memory which its allocator
  // holds, and for tests; empty: the driver's.
  std::function<MemoryInfo()> free_memory = nullptr;
};

// What this process sees. `reason` says why where there is no device; it never throws, also where
// no driver is installed.
struct CudaDevices {
  int count = 0;
  std::string reason;
};
CudaDevices find_cuda_devices();

// Used by one thread at a time; calls leave the thread's current context as they found it. Opens
// the primary context, which stays until the process ends.
//
// An import needs the exporter to be a living process of the same user and process namespace;
// kVmmFd needs the right to trace it as well. An export of this very device is refused (kIpc), and
// with kCudaIpc every export of the same process. An import stays readable when its exporter has
// died or freed the region, as far as the driver lets it: with kCudaIpc this is undefined, so
// imports are closed before exporters free.
//
// With `keep`, a sleepable region gets pinned host memory of its own size, the first time; it is
// kept for the next sleep and freed with the region.
class CudaDevice final : public Device, public CudaAccess {
 public:
  // Throws InvalidInput kInvalidConfig if there is no such device; RuntimeBroken kDevice or
  // kOutOfMemory if it cannot be opened. `clock` outlives the device.
  CudaDevice(Clock& clock, CudaDeviceOptions options);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

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

  void* stream_of(StreamId stream) override;
  void* address_of(RegionId region) override;  // nullptr without bytes

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tpsync::device
