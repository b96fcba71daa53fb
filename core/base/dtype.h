// Element types of weights, and their spellings: torch's long form in manifests ("torch.bfloat16"),
// the bare name on the update wire ("bfloat16").
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tpsync {

enum class DType : std::uint8_t {
  kBFloat16 = 1,
  kFloat16 = 2,
  kFloat32 = 3,
  kInt64 = 4,
  kUInt8 = 5
};

std::uint64_t item_size(DType dtype);
bool is_floating(DType dtype);
std::string_view bare_name(DType dtype);   // "bfloat16"
std::string_view torch_name(DType dtype);  // "torch.bfloat16"
std::optional<DType> dtype_from_bare(std::string_view name);
std::optional<DType> dtype_from_torch(std::string_view name);

}  // namespace tpsync
