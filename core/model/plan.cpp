// Walks the model as its state dict would, but from the configuration alone. The experts of a layer
// count as two entries, as in the fused storage: gate with up, then down.
#include "tpsync/model/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "tpsync/base/errors.h"

namespace tpsync::model {
namespace {

class Planner {
 public:
  explicit Planner(const ModelConfig& config)
      : item_bytes_(item_size(config.dtype)), dtype_(torch_name(config.dtype)) {}

  // Adds a tensor that is, or ends, an entry of the state dict.
  void add_entry(std::string name, std::initializer_list<std::uint64_t> shape) {
    add(std::move(name), shape);
    plan_.boundaries.push_back(plan_.tensors.size() - 1);
  }

  void add(std::string name, std::initializer_list<std::uint64_t> shape) {
    wire::TensorRecord record;
    record.name = std::move(name);
    record.dtype = dtype_;
    record.numel = 1;
    record.shape.reserve(shape.size());
    for (const std::uint64_t dimension : shape) {
      record.shape.push_back(static_cast<std::int64_t>(dimension));
      record.numel *= dimension;
    }
    record.nbytes = record.numel * item_bytes_;
    plan_.byte_count += record.nbytes;
    plan_.largest_tensor_bytes = std::max(plan_.largest_tensor_bytes, record.nbytes);
    group_bytes_ += record.nbytes;
    plan_.tensors.push_back(std::move(record));
  }

  // Ends what counts as one layer: a decoder layer, or a single tensor outside of them.
  void end_group() {
    plan_.largest_layer_bytes = std::max(plan_.largest_layer_bytes, group_bytes_);
    group_bytes_ = 0;
  }

  void reserve(std::size_t tensors) { plan_.tensors.reserve(tensors); }
  CanonicalPlan take() { return std::move(plan_); }

 private:
  CanonicalPlan plan_;
  std::uint64_t item_bytes_;
  std::string dtype_;
  std::uint64_t group_bytes_ = 0;
};

void add_layer(Planner& planner, const ModelConfig& config, std::uint64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::uint64_t hidden = config.hidden_size;
  const std::uint64_t query_rows = config.num_attention_heads * config.head_dim;
  const std::uint64_t kv_rows = config.num_key_value_heads * config.head_dim;
  planner.add_entry(prefix + "self_attn.q_proj.weight", {query_rows, hidden});
  planner.add_entry(prefix + "self_attn.k_proj.weight", {kv_rows, hidden});
  planner.add_entry(prefix + "self_attn.v_proj.weight", {kv_rows, hidden});
  planner.add_entry(prefix + "self_attn.o_proj.weight", {hidden, query_rows});
  planner.add_entry(prefix + "self_attn.q_norm.weight", {config.head_dim});
  planner.add_entry(prefix + "self_attn.k_norm.weight", {config.head_dim});
  planner.add_entry(prefix + "mlp.gate.weight", {config.num_experts, hidden});
  const std::uint64_t inner = config.moe_intermediate_size;
  const std::string experts = prefix + "mlp.experts.";
  std::string base;  // of one expert's names
  const auto begin_expert = [&](std::uint64_t expert) {
    const fmt::format_int number(expert);
    base.assign(experts).append(number.data(), number.size()).append(1, '.');
  };
  for (std::uint64_t expert = 0; expert < config.num_experts; ++expert) {
    begin_expert(expert);
    planner.add(base + "gate_proj.weight", {inner, hidden});
    if (expert + 1 < config.num_experts) {
      planner.add(base + "up_proj.weight", {inner, hidden});
    } else {
      planner.add_entry(base + "up_proj.weight", {inner, hidden});
    }
  }
  for (std::uint64_t expert = 0; expert < config.num_experts; ++expert) {
    begin_expert(expert);
    std::string name = base + "down_proj.weight";
    if (expert + 1 < config.num_experts) {
      planner.add(std::move(name), {hidden, inner});
    } else {
      planner.add_entry(std::move(name), {hidden, inner});
    }
  }
  planner.add_entry(prefix + "input_layernorm.weight", {hidden});
  planner.add_entry(prefix + "post_attention_layernorm.weight", {hidden});
  planner.end_group();
}

void refuse_unsupported(const ModelConfig& config, const ExportTraits& traits) {
  const auto refuse = [](std::string_view subject, std::string_view detail) {
    throw_invalid(ErrorKind::kUnsupported, subject, detail);
  };
  if (traits.lora_merged) refuse("lora_merged", "merged adapters cannot be published");
  if (traits.peft_model) refuse("peft_model", "a model with adapters cannot be published");
  if (traits.expert_export_transform) {
    refuse("expert_export_transform", "experts that are transformed on export are not supported");
  }
  if (traits.name_remap) refuse("name_remap", "renamed tensors are not supported");
  if (config.model_type != "qwen3_moe") {
    refuse("model_type", fmt::format("is {}, only qwen3_moe is supported", config.model_type));
  }
  if (traits.wire_dtype && *traits.wire_dtype != config.dtype) {
    refuse("wire_dtype", fmt::format("is {}, the workers hold {}", bare_name(*traits.wire_dtype),
                                     bare_name(config.dtype)));
  }
}

}  // namespace

CanonicalPlan plan_canonical(const ModelConfig& config, const ExportTraits& traits) {
  refuse_unsupported(config, traits);
  Planner planner(config);
  planner.reserve(config.num_hidden_layers * (3 * config.num_experts + 9) + 3);
  planner.add_entry("model.embed_tokens.weight", {config.vocab_size, config.hidden_size});
  planner.end_group();
  for (std::uint64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    add_layer(planner, config, layer);
  }
  planner.add_entry("model.norm.weight", {config.hidden_size});
  planner.end_group();
  if (!config.tie_word_embeddings) {
    planner.add_entry("lm_head.weight", {config.vocab_size, config.hidden_size});
    planner.end_group();
  }
  return planner.take();
}

RowsCols rows_cols(const wire::TensorRecord& record) {
  RowsCols view;
  if (record.shape.empty()) return view;
  view.rows = static_cast<std::uint64_t>(record.shape.front());
  for (std::size_t i = 1; i < record.shape.size(); ++i) {
    view.cols *= static_cast<std::uint64_t>(record.shape[i]);
  }
  return view;
}

}  // namespace tpsync::model
