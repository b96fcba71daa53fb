// The functions of the CUDA driver that the runtime has no equal for: virtual memory, contexts and
// unique ids. They are looked up through the runtime when an object is made, so that programs link
// and start on machines without a driver. All return the driver's error number, 0 for success.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tpsync/device/cuda_errors.h"

namespace tpsync::device::cuda {

using Uuid = std::array<std::byte, 16>;

class CudaDriver {
 public:
  // Throws RuntimeBroken kDevice if the installed driver lacks one of them.
  explicit CudaDriver(CudaErrors& errors);
  ~CudaDriver();

  // Of the slice where the device is one of a divided GPU.
  int device_uuid(int ordinal, Uuid& uuid) const;
  // The primary context, which the runtime uses too. Kept until the process ends.
  int retain_primary_context(int ordinal, void*& context) const;
  int push_context(void* context) const;
  int pop_context() const;

  int granularity(int ordinal, std::uint64_t& bytes) const;
  int reserve(std::uint64_t bytes, std::uint64_t& address) const;
  int unreserve(std::uint64_t address, std::uint64_t bytes) const;
  // Physical memory; where `exportable` it can be passed on as a descriptor.
  int create(std::uint64_t bytes, int ordinal, bool exportable, std::uint64_t& handle) const;
  int release(std::uint64_t handle) const;
  int map(std::uint64_t address, std::uint64_t bytes, std::uint64_t handle) const;
  int unmap(std::uint64_t address, std::uint64_t bytes) const;
  int allow_access(std::uint64_t address, std::uint64_t bytes, int ordinal) const;
  int export_descriptor(std::uint64_t handle, int& descriptor) const;
  int import_descriptor(int descriptor, std::uint64_t& handle) const;
  // The device that physical memory lies on.
  int device_of(std::uint64_t handle, int& ordinal) const;
  // The allocation that an address belongs to.
  int allocation_of(std::uint64_t address, std::uint64_t& base, std::uint64_t& bytes) const;

 private:
  struct Table;
  std::unique_ptr<Table> table_;
};

}  // namespace tpsync::device::cuda
