// The Qwen3-MoE configuration, from a Hugging Face config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tpsync/base/dtype.h"

namespace tpsync::model {

struct ModelConfig {
  std::string model_type;  // "qwen3_moe"
  bool tie_word_embeddings = false;
  std::uint64_t num_hidden_layers = 0;
  std::uint64_t num_experts = 0;
  std::uint64_t hidden_size = 0;
  std::uint64_t moe_intermediate_size = 0;
  std::uint64_t vocab_size = 0;
  std::uint64_t num_attention_heads = 0;
  std::uint64_t num_key_value_heads = 0;
  std::uint64_t head_dim = 0;
  DType dtype = DType::kBFloat16;  // torch_dtype (or dtype) of the file: what workers hold

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// Parses and checks. `origin` (a path) begins every message's detail. Throws InvalidInput:
// kInvalidConfig for text that is no JSON object (subject "config"; the detail says at which byte,
// from 1, it stops being JSON), a field that stands twice in one object, a missing field, a wrong
// type, zero or absurd sizes (the byte count must fit 2^63), heads that KV heads do not divide;
// kUnsupported for another model_type, attention_bias, dense layers (mlp_only_layers,
// decoder_sparse_step other than 1), shared experts, quantization_config. Subject is the field.
ModelConfig parse_model_config(std::string_view json_text, std::string_view origin);

// Reads DIR/config.json or the file itself; throws InvalidInput kInvalidConfig if it cannot be
// read or is larger than 16 MiB.
ModelConfig load_model_config(const std::string& path);

}  // namespace tpsync::model
