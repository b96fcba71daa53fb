// The bytes of test weights (judge/content.h), for any dtype that they may have.
#pragma once

#include <cstdint>

#include "tpsync/base/bytes.h"
#include "tpsync/base/dtype.h"

namespace tpsync::conformance {

// Elements from `first` on of the tensor and version that `base` stands for (judge::content_base),
// as many as `bytes` has room for.
void fill_content(MutableByteView bytes, DType dtype, std::uint64_t base, std::uint64_t first);

}  // namespace tpsync::conformance
