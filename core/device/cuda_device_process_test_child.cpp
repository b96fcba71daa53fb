// What cuda_device_process_test.cpp starts: the owner of one CUDA device, which does what it is
// told (testing/device_participant.h). "open <ordinal> <cuda_ipc|vmm_fd>" opens the device.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "tpsync/base/os_clock.h"
#include "tpsync/device/cuda_device.h"
#include "tpsync/device/testing/device_participant.h"

namespace {

using namespace tpsync;
using namespace tpsync::device;

class CudaParticipant final : public DeviceParticipant {
 private:
  std::string open(std::istringstream& words) override {
    CudaDeviceOptions options;
    std::string kind;
    words >> options.ordinal >> kind;
    if (kind == "vmm_fd") options.export_kind = CudaExportKind::kVmmFd;
    auto device = std::make_unique<CudaDevice>(clock_, options);
    cuda_ = device.get();
    device_ = std::move(device);
    return cuda_->uuid();
  }

  std::string other(const std::string& command, std::istringstream& words) override {
    if (command == "become-nobody") return setresuid(65534, 65534, 65534) == 0 ? "" : "refused";
    if (command == "break-context") return break_context();
    if (command == "driver-says") return driver_says(words);
    if (command == "driver-opens") return driver_opens(words);
    return "no such command";
  }

  // A kernel copies from memory that was unmapped behind the device's back.
  std::string break_context() {
    AllocationRequest request;
    request.bytes = 256 * kMiB;
    const RegionId from = device_->allocate(request), into = device_->allocate(request);
    cudaFree(cuda_->address_of(from));
    TileCopy copy;
    copy.dst = 1;
    copy.row_bytes = request.bytes;
    copy.rows = 1;
    const auto batch = device_->prepare_copies({&copy, 1});
    const StreamId stream = device_->create_stream();
    device_->launch(stream, *batch, std::array{from, into});
    device_->synchronize(stream, Deadline::after(clock_, std::chrono::seconds(30)));
    return "";
  }

  // The ordinal that the driver names for a region, which for an import is not to be relied on.
  std::string driver_says(std::istringstream& words) {
    std::uint64_t number = 0;
    words >> number;
    cudaPointerAttributes attributes{};
    cudaPointerGetAttributes(&attributes, cuda_->address_of(RegionId{number}));
    return fmt::format("ordinal {}", attributes.device);
  }

  // What the driver alone answers to a handle of kind cuda_ipc, whatever became of the export.
  std::string driver_opens(std::istringstream& words) {
    std::string text;
    words >> text;
    const cuda::Handle handle = cuda::decode(from_hex(text));
    cudaIpcMemHandle_t opening{};
    std::memcpy(&opening, handle.driver.data(), sizeof opening);
    void* memory = nullptr;
    const cudaError_t status =
        cudaIpcOpenMemHandle(&memory, opening, cudaIpcMemLazyEnablePeerAccess);
    if (status == cudaSuccess) cudaIpcCloseMemHandle(memory);
    return cudaGetErrorName(status);
  }

  OsClock clock_;
  CudaDevice* cuda_ = nullptr;
};

}  // namespace

int main() {
  CudaParticipant participant;
  participant.serve();
}
