// The expected canonical plan: every Hugging Face-named tensor that a publication of this model
// must carry, in one fixed order, derived from the configuration alone. The exporter shares no code
// with it, so that an omission in one of them shows as a difference.
//
// Order: embedding; per layer q, k, v, o, q_norm, k_norm, router gate, all experts' gate and up
// (expert ascending, gate before up), all experts' down, input and post-attention norm; final norm;
// lm_head unless tied.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tpsync/model/config.h"
#include "tpsync/wire/manifest.h"

namespace tpsync::model {

struct CanonicalPlan {
  std::vector<wire::TensorRecord> tensors;
  std::vector<std::uint64_t>
      boundaries;  // index of the last tensor of each state-dict entry, ascending
  std::uint64_t byte_count = 0;
  std::uint64_t largest_tensor_bytes = 0;
  std::uint64_t largest_layer_bytes =
      0;  // max over decoder layers' sums and single tensors outside layers
};

// What a trainer declares about its state that the plan refuses to guess.
struct ExportTraits {
  bool lora_merged = false;
  bool peft_model = false;
  bool expert_export_transform = false;
  bool name_remap = false;
  std::optional<DType> wire_dtype;  // of floating tensors; must be the resident one
};

// Throws InvalidInput kUnsupported, in order: lora_merged or peft_model; expert_export_transform;
// name_remap; model_type; a wire dtype other than config.dtype.
CanonicalPlan plan_canonical(const ModelConfig& config, const ExportTraits& traits = {});

// The rows and columns of the 2-D view that sharding, digest and TP slices use: rows is the first
// dimension (1 for a scalar), cols the product of the others.
struct RowsCols {
  std::uint64_t rows = 1;
  std::uint64_t cols = 1;
};
RowsCols rows_cols(const wire::TensorRecord& record);

}  // namespace tpsync::model
