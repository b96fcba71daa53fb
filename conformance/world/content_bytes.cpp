#include "conformance/world/content_bytes.h"

#include <cstring>

#include "conformance/judge/content.h"

namespace tpsync::conformance {

namespace {

template <typename Bits>
void fill_row(MutableByteView bytes, std::uint64_t first, const Bits& bits) {
  using Value = decltype(bits(first));
  std::byte* into = bytes.data();
  for (std::uint64_t i = 0; i < bytes.size() / sizeof(Value); ++i, into += sizeof(Value)) {
    const Value value = bits(first + i);
    std::memcpy(into, &value, sizeof(value));
  }
}

}  // namespace

void fill_content(MutableByteView bytes, DType dtype, std::uint64_t base, std::uint64_t first) {
  switch (dtype) {
    case DType::kFloat32:
      fill_row(bytes, first, [base](std::uint64_t e) { return judge::f32_content(base, e); });
      break;
    case DType::kFloat16:
      fill_row(bytes, first, [base](std::uint64_t e) { return judge::f16_content(base, e); });
      break;
    default:
      fill_row(bytes, first, [base](std::uint64_t e) { return judge::bf16_content(base, e); });
  }
}

}  // namespace tpsync::conformance
