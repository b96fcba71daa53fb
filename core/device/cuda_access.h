// What the groups of core/collective/ need of a device that is CUDA's beyond the Device seam: the
// driver's own names of its streams and memory. No CUDA header is included, so that code which
// hands it through builds everywhere. For core/collective/ alone: everybody else names memory by
// region, offset and length.
#pragma once

#include "tpsync/device/device.h"

namespace tpsync::device {

class CudaAccess {
 public:
  virtual ~CudaAccess() = default;

  // A cudaStream_t; never the default stream. Valid until the stream is destroyed.
  virtual void* stream_of(StreamId stream) = 0;
  // Where a region or an import begins in device memory. Valid until it is freed, closed or put to
  // sleep; asserts that it lives and is awake.
  virtual void* address_of(RegionId region) = 0;
};

}  // namespace tpsync::device
