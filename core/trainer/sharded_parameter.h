// One entry of a trainer's state dict as FSDP holds it: cut along its first dimension, each actor
// with some rows, possibly none. The memory belongs to the trainer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tpsync/base/dtype.h"
#include "tpsync/device/device.h"

namespace tpsync::trainer {

struct ShardedParameter {
  std::string name;  // Hugging Face name; 3-D experts: "...mlp.experts.gate_up_proj"
  std::vector<std::uint64_t> shape;  // of the whole parameter
  DType dtype = DType::kBFloat16;    // of the shard in memory
  std::vector<std::uint64_t>
      row_bounds;  // world + 1: actor r holds rows [row_bounds[r], row_bounds[r+1])
  device::RegionId region = device::RegionId::kNone;  // of this actor's rows; unused if it has none
  std::uint64_t offset = 0;  // its first byte in the region; rows are contiguous
};

// FSDP2's cut of `rows` into `world` parts: ceil(rows / world) each, the last ones smaller or
// empty.
std::vector<std::uint64_t> fsdp_row_bounds(std::uint64_t rows, std::uint64_t world);

}  // namespace tpsync::trainer
