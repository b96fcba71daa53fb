#include "conformance/world/test_trainer.h"

#include <algorithm>

#include "conformance/judge/content.h"

namespace tpsync::conformance {

TestTrainer::TestTrainer(const WorldSpec& spec, device::Device& device, ContentPort& content,
                         int rank)
    : spec_(spec), device_(device), content_(content), rank_(static_cast<std::uint64_t>(rank)) {
  const model::ModelConfig& c = spec.config;
  add("model.embed_tokens.weight", {c.vocab_size, c.hidden_size});
  for (std::uint64_t l = 0; l < c.num_hidden_layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    const std::uint64_t q = c.num_attention_heads * c.head_dim;
    const std::uint64_t kv = c.num_key_value_heads * c.head_dim;
    add(layer + "self_attn.q_proj.weight", {q, c.hidden_size});
    add(layer + "self_attn.k_proj.weight", {kv, c.hidden_size});
    add(layer + "self_attn.v_proj.weight", {kv, c.hidden_size});
    add(layer + "self_attn.o_proj.weight", {c.hidden_size, q});
    add(layer + "self_attn.q_norm.weight", {c.head_dim});
    add(layer + "self_attn.k_norm.weight", {c.head_dim});
    add(layer + "mlp.gate.weight", {c.num_experts, c.hidden_size});
    if (spec.storage == Storage::kFusedExperts) {
      add(layer + "mlp.experts.gate_up_proj",
          {c.num_experts, 2 * c.moe_intermediate_size, c.hidden_size});
      add(layer + "mlp.experts.down_proj", {c.num_experts, c.hidden_size, c.moe_intermediate_size});
    } else {
      for (std::uint64_t e = 0; e < c.num_experts; ++e) {
        const std::string expert = layer + "mlp.experts." + std::to_string(e) + ".";
        add(expert + "gate_proj.weight", {c.moe_intermediate_size, c.hidden_size});
        add(expert + "up_proj.weight", {c.moe_intermediate_size, c.hidden_size});
        add(expert + "down_proj.weight", {c.hidden_size, c.moe_intermediate_size});
      }
    }
    add(layer + "input_layernorm.weight", {c.hidden_size});
    add(layer + "post_attention_layernorm.weight", {c.hidden_size});
  }
  add("model.norm.weight", {c.hidden_size});
  // A tied state dict lists the head as well; the exporter leaves it out.
  add("lm_head.weight", {c.vocab_size, c.hidden_size});
  memory_ = device::allocate(device_, {.bytes = bytes_});
  for (trainer::ShardedParameter& parameter : parameters_) parameter.region = memory_.id();
}

void TestTrainer::add(std::string name, std::vector<std::uint64_t> shape) {
  if (spec_.lost_tensor && *spec_.lost_tensor == name) return;
  trainer::ShardedParameter parameter;
  const auto world = static_cast<std::uint64_t>(spec_.actors);
  const std::uint64_t rows = shape[0];
  if (spec_.uneven_shards) {
    const std::uint64_t key = judge::mix(spec_.seed ^ judge::name_hash(name));
    parameter.row_bounds.push_back(0);
    for (std::uint64_t r = 1; r < world; ++r) {
      parameter.row_bounds.push_back(judge::mix(key + r) % (rows + 1));
    }
    parameter.row_bounds.push_back(rows);
    std::sort(parameter.row_bounds.begin(), parameter.row_bounds.end());
  } else {
    parameter.row_bounds = trainer::fsdp_row_bounds(rows, world);
  }
  std::uint64_t row_elements = 1;
  for (std::size_t d = 1; d < shape.size(); ++d) row_elements *= shape[d];
  const std::uint64_t own = parameter.row_bounds[rank_ + 1] - parameter.row_bounds[rank_];
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  parameter.dtype = spec_.stored;
  parameter.offset = align_up(bytes_, 16);
  bytes_ = parameter.offset + own * row_elements * item_size(spec_.stored);
  parameters_.push_back(std::move(parameter));
}

void TestTrainer::step(std::uint64_t version) {
  for (const trainer::ShardedParameter& parameter : parameters_) write_rows(parameter, version);
}

void TestTrainer::write_rows(const trainer::ShardedParameter& parameter, std::uint64_t version) {
  const std::uint64_t first = parameter.row_bounds[rank_];
  const std::uint64_t count = parameter.row_bounds[rank_ + 1] - first;
  std::uint64_t row = 1;
  for (std::size_t d = 1; d < parameter.shape.size(); ++d) row *= parameter.shape[d];
  const auto write = [&](const std::string& tensor, std::uint64_t offset_elements,
                         std::uint64_t element, std::uint64_t elements) {
    if (elements == 0) return;
    content_.write(device_, parameter.region,
                   parameter.offset + offset_elements * item_size(parameter.dtype),
                   {.tensor = tensor,
                    .version = version,
                    .dtype = parameter.dtype,
                    .element = element,
                    .count = elements});
  };
  const bool fused = parameter.shape.size() == 3;
  if (!fused) {
    write(parameter.name, 0, first * row, count * row);
    return;
  }
  const bool gate_up = parameter.name.ends_with("gate_up_proj");
  const std::string base = parameter.name.substr(0, parameter.name.rfind('.') + 1);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string expert = base + std::to_string(first + i);
    if (gate_up) {
      write(expert + ".gate_proj.weight", i * row, 0, row / 2);
      write(expert + ".up_proj.weight", i * row + row / 2, 0, row / 2);
    } else {
      write(expert + ".down_proj.weight", i * row, 0, row);
    }
  }
}

}  // namespace tpsync::conformance
