// The tensor-parallel layout of a rank's resident weights: fused parameters, TP slices, vocabulary
// padding, KV replication. Known to the runtime alone: trainer/, sync/ and the sender never include
// this file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tpsync/model/config.h"
#include "tpsync/model/plan.h"

namespace tpsync::model {

struct ResidentParameter {
  std::string name;  // the engine's: "model.layers.0.self_attn.qkv_proj.weight"
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;  // in the rank's resident region, a multiple of 256
  std::uint64_t bytes = 0;
  std::int64_t layer = -1;  // decoder layer, -1 outside
};

// The rectangle [row0,row1) x [col0,col1) of canonical tensor `tensor` lies in the resident region,
// row by row, `pitch` bytes apart, beginning at `offset`.
struct Placement {
  std::uint64_t tensor = 0;
  std::uint64_t row0 = 0, row1 = 0, col0 = 0, col1 = 0;
  std::uint32_t parameter = 0;
  std::uint64_t offset = 0;
  std::uint64_t pitch = 0;
};

struct ZeroFill {  // vocabulary padding: never sent, always zero
  std::uint32_t parameter = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct TpLayout {
  int tp_size = 1;
  int tp_rank = 0;
  std::uint64_t item_bytes = 2;
  std::uint64_t resident_bytes = 0;  // of the region; parameters, padded to their alignment
  std::vector<ResidentParameter> parameters;
  std::vector<Placement>
      placements;  // ascending by tensor; a tensor may have none (a high vocabulary rank)
  std::vector<ZeroFill> zero_fills;
};

// Tied embeddings share one parameter. Throws InvalidInput: kInvalidConfig for a size or rank out
// of range; kUnsupported, subject the config field, unless
// - the query heads divide by TP;
// - the KV heads divide by TP or, where there are fewer than TP, TP divides by them;
// - moe_intermediate_size divides by TP;
// - the vocabulary, padded to a multiple of 64, divides by TP;
// - TP is at most num_experts (UniRL refuses more as well).
TpLayout plan_tp_layout(const ModelConfig& config, const CanonicalPlan& plan, int tp_size,
                        int tp_rank);

}  // namespace tpsync::model
