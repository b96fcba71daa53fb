// A device for tests and benchmarks of the groups: memory, exports, copies and streams straight
// from the CUDA runtime, and nothing else of the Device seam. Current device of its threads: its
// own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "tpsync/base/errors.h"
#include "tpsync/device/cuda_access.h"
#include "tpsync/device/device.h"

namespace tpsync::collective::fakes {

inline void require(cudaError_t result, const char* call) {
  if (result != cudaSuccess) {
    throw_broken(ErrorKind::kDevice, call,
                 "failed with CUDA error " + std::to_string(static_cast<int>(result)));
  }
}

inline int cuda_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

class CudaTestDevice final : public device::Device, public device::CudaAccess {
 public:
  CudaTestDevice(int ordinal, Clock& clock) : ordinal_(ordinal), clock_(clock) {
    require(cudaSetDevice(ordinal), "cudaSetDevice");
  }

  void* stream_of(device::StreamId stream) override { return streams_.at(stream); }
  void* address_of(device::RegionId region) override { return regions_.at(region); }

  std::string uuid() override { return uuid_of(ordinal_); }
  device::MemoryInfo memory() override {
    std::size_t free_bytes = 0;
    std::size_t total = 0;
    require(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
    return {free_bytes, total};
  }
  device::RegionId allocate(const device::AllocationRequest& request) override {
    void* address = nullptr;
    require(cudaMalloc(&address, request.bytes), "cudaMalloc");
    return add(address, request.bytes);
  }
  void free(device::RegionId region) noexcept override { cudaFree(take(region)); }

  ByteBuffer export_region(device::RegionId region) override {
    Handle handle{};
    require(cudaIpcGetMemHandle(&handle.handle, regions_.at(region)), "cudaIpcGetMemHandle");
    handle.bytes = sizes_.at(region);
    ByteBuffer bytes(sizeof handle);
    std::memcpy(bytes.data(), &handle, sizeof handle);
    return bytes;
  }
  void revoke_export(device::RegionId) noexcept override {}
  device::ImportedRegion import_region(ByteView bytes) override {
    Handle handle{};
    TPSYNC_ASSERT(bytes.size() == sizeof handle);
    std::memcpy(&handle, bytes.data(), sizeof handle);
    void* address = nullptr;
    require(cudaIpcOpenMemHandle(&address, handle.handle, cudaIpcMemLazyEnablePeerAccess),
            "cudaIpcOpenMemHandle");
    cudaPointerAttributes attributes{};
    require(cudaPointerGetAttributes(&attributes, address), "cudaPointerGetAttributes");
    return {add(address, handle.bytes), handle.bytes, uuid_of(attributes.device)};
  }
  void close_import(device::RegionId region) noexcept override {
    cudaIpcCloseMemHandle(take(region));
  }

  void sleep(std::string_view, bool) override { TPSYNC_ASSERT(false); }
  void wake(std::string_view) override { TPSYNC_ASSERT(false); }

  device::StreamId create_stream() override {
    cudaStream_t stream = nullptr;
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    const device::StreamId id{next_stream_++};
    streams_[id] = stream;
    return id;
  }
  void destroy_stream(device::StreamId stream) noexcept override {
    cudaStreamDestroy(streams_.at(stream));
    streams_.erase(stream);
  }

  std::unique_ptr<device::Prepared> prepare_copies(std::span<const device::TileCopy>) override {
    return nothing();
  }
  std::unique_ptr<device::Prepared> prepare_packs(std::span<const device::PackPiece>) override {
    return nothing();
  }
  std::unique_ptr<device::Prepared> prepare_digests(std::span<const device::DigestItem>) override {
    return nothing();
  }
  void launch(device::StreamId, const device::Prepared&,
              std::span<const device::RegionId>) override {
    nothing();
  }
  void launch_digests(device::StreamId, const device::Prepared&, std::span<const device::RegionId>,
                      std::span<std::uint64_t>) override {
    nothing();
  }

  void fill(device::StreamId stream, device::RegionId region, std::uint64_t offset,
            std::uint64_t bytes, std::byte value) override {
    require(cudaMemsetAsync(at(region, offset), std::to_integer<int>(value), bytes,
                            streams_.at(stream)),
            "cudaMemsetAsync");
  }
  void copy(device::StreamId stream, const device::RunCopy& run) override {
    require(cudaMemcpyAsync(at(run.dst, run.dst_offset), at(run.src, run.src_offset), run.bytes,
                            cudaMemcpyDeviceToDevice, streams_.at(stream)),
            "cudaMemcpyAsync");
  }
  void upload(device::StreamId stream, device::RegionId region, std::uint64_t offset,
              ByteView from) override {
    require(cudaMemcpyAsync(at(region, offset), from.data(), from.size(), cudaMemcpyHostToDevice,
                            streams_.at(stream)),
            "cudaMemcpyAsync");
  }
  void download(device::StreamId stream, device::RegionId region, std::uint64_t offset,
                MutableByteView into) override {
    require(cudaMemcpyAsync(into.data(), at(region, offset), into.size(), cudaMemcpyDeviceToHost,
                            streams_.at(stream)),
            "cudaMemcpyAsync");
  }
  void synchronize(device::StreamId stream, Deadline deadline) override {
    for (;;) {
      const cudaError_t state = cudaStreamQuery(streams_.at(stream));
      if (state == cudaSuccess) return;
      if (state != cudaErrorNotReady) require(state, "cudaStreamQuery");
      const TimePoint now = clock_.now();
      if (deadline.passed(now))
        throw_broken(ErrorKind::kTimeout, "stream", "its work was not complete at the deadline");
      clock_.sleep_until(now + std::chrono::microseconds(20));
    }
  }

 private:
  struct Handle {
    cudaIpcMemHandle_t handle;
    std::uint64_t bytes;
  };

  static std::string uuid_of(int ordinal) {
    cudaDeviceProp properties{};
    require(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (std::size_t i = 0; i < 16; ++i) {
      if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
      const auto byte = static_cast<unsigned char>(properties.uuid.bytes[i]);
      text += kDigits[byte >> 4];
      text += kDigits[byte & 0xf];
    }
    return text;
  }
  static std::unique_ptr<device::Prepared> nothing() {
    throw_invalid(ErrorKind::kUnsupported, "test device", "prepares no batches");
  }
  device::RegionId add(void* address, std::uint64_t bytes) {
    const device::RegionId id{next_region_++};
    regions_[id] = address;
    sizes_[id] = bytes;
    return id;
  }
  void* take(device::RegionId region) {
    void* address = regions_.at(region);
    regions_.erase(region);
    sizes_.erase(region);
    return address;
  }
  std::byte* at(device::RegionId region, std::uint64_t offset) {
    return static_cast<std::byte*>(regions_.at(region)) + offset;
  }

  int ordinal_;
  Clock& clock_;
  std::map<device::RegionId, void*> regions_;
  std::map<device::RegionId, std::uint64_t> sizes_;
  std::map<device::StreamId, cudaStream_t> streams_;
  std::uint64_t next_region_ = 1;
  std::uint32_t next_stream_ = 1;
};

}  // namespace tpsync::collective::fakes
