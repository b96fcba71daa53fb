#include "tpsync/device/cuda_errors.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>

namespace tpsync::device::cuda {

namespace {

// What the driver answers to everything once it has happened.
bool loses_context(int status) {
  switch (status) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string error_symbol(int status) { return cudaGetErrorName(static_cast<cudaError_t>(status)); }

void CudaErrors::check(int status, std::string_view call, std::string_view what, ErrorKind kind) {
  if (status == cudaSuccess) return;
  note(status, call);
  require_context();
  if (status == cudaErrorMemoryAllocation) kind = ErrorKind::kOutOfMemory;
  throw_broken(
      kind, what,
      fmt::format("{} failed on CUDA device {} ({})", call, ordinal_, error_symbol(status)));
}

void CudaErrors::note(int status, std::string_view call) noexcept {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // else a later call of the runtime would report this one
  if (lost() || !loses_context(status)) return;
  lost_status_ = status;
  const std::size_t length = std::min(call.size(), sizeof lost_call_ - 1);
  std::copy_n(call.begin(), length, lost_call_);
}

void CudaErrors::require_context() const {
  if (!lost()) return;
  throw_broken(ErrorKind::kDevice, fmt::format("CUDA device {}", ordinal_),
               fmt::format("the context of this process is lost since {} failed ({}): end the "
                           "process",
                           lost_call_, error_symbol(lost_status_)));
}

}  // namespace tpsync::device::cuda
