#include "tpsync/device/cuda_driver.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

namespace tpsync::device::cuda {

struct CudaDriver::Table {
  decltype(&cuDeviceGetUuid) device_get_uuid = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  decltype(&cuCtxPushCurrent) push = nullptr;
  decltype(&cuCtxPopCurrent) pop = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) unreserve = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&cuMemGetAllocationPropertiesFromHandle) properties = nullptr;
  decltype(&cuMemGetAddressRange) address_range = nullptr;
};

namespace {

template <typename Function>
void look_up(CudaErrors& errors, const char* name, Function& into) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const int status =
      cudaGetDriverEntryPointByVersion(name, &found, CUDART_VERSION, cudaEnableDefault, &result);
#else
  const int status = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  errors.check(status, "cudaGetDriverEntryPoint", name);
  if (result != cudaDriverEntryPointSuccess || found == nullptr) {
    throw_broken(ErrorKind::kDevice, name,
                 "the installed CUDA driver has no such function: install a newer one");
  }
  std::memcpy(&into, &found, sizeof into);
}

CUmemAllocationProp properties_on(int ordinal, bool exportable) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  if (exportable) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

}  // namespace

CudaDriver::CudaDriver(CudaErrors& errors) : table_(std::make_unique<Table>()) {
  Table& table = *table_;
  look_up(errors, "cuDeviceGetUuid", table.device_get_uuid);
  look_up(errors, "cuDevicePrimaryCtxRetain", table.retain);
  look_up(errors, "cuCtxPushCurrent", table.push);
  look_up(errors, "cuCtxPopCurrent", table.pop);
  look_up(errors, "cuMemGetAllocationGranularity", table.granularity);
  look_up(errors, "cuMemAddressReserve", table.reserve);
  look_up(errors, "cuMemAddressFree", table.unreserve);
  look_up(errors, "cuMemCreate", table.create);
  look_up(errors, "cuMemRelease", table.release);
  look_up(errors, "cuMemMap", table.map);
  look_up(errors, "cuMemUnmap", table.unmap);
  look_up(errors, "cuMemSetAccess", table.set_access);
  look_up(errors, "cuMemExportToShareableHandle", table.export_handle);
  look_up(errors, "cuMemImportFromShareableHandle", table.import_handle);
  look_up(errors, "cuMemGetAllocationPropertiesFromHandle", table.properties);
  look_up(errors, "cuMemGetAddressRange", table.address_range);
}

CudaDriver::~CudaDriver() = default;

int CudaDriver::device_uuid(int ordinal, Uuid& uuid) const {
  CUuuid found{};
  const int status = table_->device_get_uuid(&found, ordinal);
  std::memcpy(uuid.data(), found.bytes, uuid.size());
  return status;
}

int CudaDriver::retain_primary_context(int ordinal, void*& context) const {
  CUcontext found = nullptr;
  const int status = table_->retain(&found, ordinal);
  context = found;
  return status;
}

int CudaDriver::push_context(void* context) const {
  return table_->push(static_cast<CUcontext>(context));
}

int CudaDriver::pop_context() const {
  CUcontext popped = nullptr;
  return table_->pop(&popped);
}

int CudaDriver::granularity(int ordinal, std::uint64_t& bytes) const {
  const CUmemAllocationProp properties = properties_on(ordinal, true);
  std::size_t found = 0;
  const int status = table_->granularity(&found, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  bytes = found;
  return status;
}

int CudaDriver::reserve(std::uint64_t bytes, std::uint64_t& address) const {
  CUdeviceptr found = 0;
  const int status = table_->reserve(&found, bytes, 0, 0, 0);
  address = found;
  return status;
}

int CudaDriver::unreserve(std::uint64_t address, std::uint64_t bytes) const {
  return table_->unreserve(address, bytes);
}

int CudaDriver::create(std::uint64_t bytes, int ordinal, bool exportable,
                       std::uint64_t& handle) const {
  const CUmemAllocationProp properties = properties_on(ordinal, exportable);
  CUmemGenericAllocationHandle made = 0;
  const int status = table_->create(&made, bytes, &properties, 0);
  handle = made;
  return status;
}

int CudaDriver::release(std::uint64_t handle) const { return table_->release(handle); }

int CudaDriver::map(std::uint64_t address, std::uint64_t bytes, std::uint64_t handle) const {
  return table_->map(address, bytes, 0, handle, 0);
}

int CudaDriver::unmap(std::uint64_t address, std::uint64_t bytes) const {
  return table_->unmap(address, bytes);
}

int CudaDriver::allow_access(std::uint64_t address, std::uint64_t bytes, int ordinal) const {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = ordinal;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return table_->set_access(address, bytes, &access, 1);
}

int CudaDriver::export_descriptor(std::uint64_t handle, int& descriptor) const {
  return table_->export_handle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

int CudaDriver::import_descriptor(int descriptor, std::uint64_t& handle) const {
  CUmemGenericAllocationHandle found = 0;
  // The driver takes the number itself where it asks for an address.
  void* number = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
  const int status =
      table_->import_handle(&found, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  handle = found;
  return status;
}

int CudaDriver::device_of(std::uint64_t handle, int& ordinal) const {
  CUmemAllocationProp found{};
  const int status = table_->properties(&found, handle);
  ordinal = found.location.id;
  return status;
}

int CudaDriver::allocation_of(std::uint64_t address, std::uint64_t& base,
                              std::uint64_t& bytes) const {
  CUdeviceptr found_base = 0;
  std::size_t found_bytes = 0;
  const int status = table_->address_range(&found_base, &found_bytes, address);
  base = found_base;
  bytes = found_bytes;
  return status;
}

}  // namespace tpsync::device::cuda
