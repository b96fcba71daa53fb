#include "tpsync/trainer/sharded_parameter.h"

#include <algorithm>

#include "tpsync/base/bytes.h"

namespace tpsync::trainer {

std::vector<std::uint64_t> fsdp_row_bounds(std::uint64_t rows, std::uint64_t world) {
  const std::uint64_t part = ceil_div(rows, world);
  std::vector<std::uint64_t> bounds(world + 1, 0);
  for (std::uint64_t r = 1; r <= world; ++r) bounds[r] = std::min(rows, r * part);
  return bounds;
}

}  // namespace tpsync::trainer
