// Every CUDA call of this folder is checked here. Runtime and driver number their errors alike, so
// one check serves both; the error names the call, what it was for and the device. An error after
// which the context takes no more work (an illegal access, an uncorrectable memory error) is kept:
// from then on everything is RuntimeBroken kDevice that names this first one.
#pragma once

#include <string>
#include <string_view>

#include "tpsync/base/errors.h"

namespace tpsync::device::cuda {

class CudaErrors {
 public:
  explicit CudaErrors(int ordinal) : ordinal_(ordinal) {}

  // Throws RuntimeBroken unless `status` is 0: kOutOfMemory where memory is missing, kDevice where
  // the context is lost, `kind` otherwise. `call` is the function, `what` its purpose ("import").
  void check(int status, std::string_view call, std::string_view what,
             ErrorKind kind = ErrorKind::kDevice);
  // For calls that must not throw: keeps a lost context in mind.
  void note(int status, std::string_view call) noexcept;
  // Throws RuntimeBroken kDevice if the context is lost.
  void require_context() const;
  bool lost() const noexcept { return lost_call_[0] != '\0'; }

 private:
  int ordinal_;
  int lost_status_ = 0;
  char lost_call_[48] = {};  // in place, so that noting it cannot fail
};

// The symbol of an error: "cudaErrorMemoryAllocation".
std::string error_symbol(int status);

}  // namespace tpsync::device::cuda
