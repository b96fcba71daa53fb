// One table of the element types: size, kind and both spellings.
#include "tpsync/base/dtype.h"

#include <array>

#include "tpsync/base/errors.h"

namespace tpsync {
namespace {

struct Entry {
  DType dtype;
  std::uint64_t item_bytes;
  bool floating;
  std::string_view torch;  // the bare name is what follows "torch."
};

constexpr std::size_t kTorchPrefixLength = 6;
constexpr std::array<Entry, 5> kEntries{{
    {DType::kBFloat16, 2, true, "torch.bfloat16"},
    {DType::kFloat16, 2, true, "torch.float16"},
    {DType::kFloat32, 4, true, "torch.float32"},
    {DType::kInt64, 8, false, "torch.int64"},
    {DType::kUInt8, 1, false, "torch.uint8"},
}};

const Entry& entry_of(DType dtype) {
  const auto number = static_cast<std::size_t>(dtype);
  TPSYNC_ASSERT(number >= 1 && number <= kEntries.size());
  return kEntries[number - 1];
}

}  // namespace

std::uint64_t item_size(DType dtype) { return entry_of(dtype).item_bytes; }

bool is_floating(DType dtype) { return entry_of(dtype).floating; }

std::string_view bare_name(DType dtype) { return entry_of(dtype).torch.substr(kTorchPrefixLength); }

std::string_view torch_name(DType dtype) { return entry_of(dtype).torch; }

std::optional<DType> dtype_from_bare(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.torch.substr(kTorchPrefixLength) == name) return entry.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_torch(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.torch == name) return entry.dtype;
  }
  return std::nullopt;
}

}  // namespace tpsync
