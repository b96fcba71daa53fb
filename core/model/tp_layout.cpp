// Lays out one rank's parameters in the engine's order and says where each canonical tensor's slice
// goes. The canonical tensors are visited in plan order; every rule of slicing stands here once.
#include "tpsync/model/tp_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "tpsync/base/bytes.h"
#include "tpsync/base/errors.h"

namespace tpsync::model {
namespace {

constexpr std::uint64_t kVocabularyAlignment = 64;
constexpr std::uint64_t kParameterAlignment = 256;

void refuse_uneven(const ModelConfig& config, std::uint64_t tp) {
  const auto refuse = [](std::string_view field, const std::string& detail) {
    throw_invalid(ErrorKind::kUnsupported, field, detail);
  };
  if (config.num_attention_heads % tp != 0) {
    refuse("num_attention_heads",
           fmt::format("{} heads cannot be split over {} ranks", config.num_attention_heads, tp));
  }
  const std::uint64_t kv = config.num_key_value_heads;
  if (kv >= tp && kv % tp != 0) {
    refuse("num_key_value_heads", fmt::format("{} heads cannot be split over {} ranks", kv, tp));
  }
  if (kv < tp && tp % kv != 0) {
    refuse("num_key_value_heads",
           fmt::format("{} heads cannot be replicated evenly over {} ranks", kv, tp));
  }
  if (config.moe_intermediate_size % tp != 0) {
    refuse("moe_intermediate_size",
           fmt::format("{} cannot be split over {} ranks", config.moe_intermediate_size, tp));
  }
  if (align_up(config.vocab_size, kVocabularyAlignment) % tp != 0) {
    refuse("vocab_size", fmt::format("{} padded to a multiple of {} cannot be split over {} ranks",
                                     config.vocab_size, kVocabularyAlignment, tp));
  }
  if (tp > config.num_experts) {
    refuse("num_experts", fmt::format("{} ranks exceed {} experts", tp, config.num_experts));
  }
}

struct Range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;  // half open
  std::uint64_t size() const { return last - first; }
};

Range share(std::uint64_t total, std::uint64_t parts, std::uint64_t part) {
  const std::uint64_t each = total / parts;
  return {part * each, (part + 1) * each};
}

class Builder {
 public:
  Builder(const ModelConfig& config, const CanonicalPlan& plan, int tp_size, int tp_rank)
      : config_(config),
        plan_(plan),
        tp_(static_cast<std::uint64_t>(tp_size)),
        rank_(static_cast<std::uint64_t>(tp_rank)) {
    layout_.tp_size = tp_size;
    layout_.tp_rank = tp_rank;
    layout_.item_bytes = item_size(config.dtype);
    layout_.placements.reserve(plan.tensors.size());
  }

  TpLayout build() {
    add_vocabulary("model.embed_tokens.weight");
    for (std::uint64_t layer = 0; layer < config_.num_hidden_layers; ++layer) add_layer(layer);
    layer_ = -1;
    add_replicated("model.norm.weight", {config_.hidden_size});
    if (!config_.tie_word_embeddings) add_vocabulary("lm_head.weight");
    TPSYNC_ASSERT(next_ == plan_.tensors.size());
    layout_.resident_bytes = align_up(end_, kParameterAlignment);
    return std::move(layout_);
  }

 private:
  ResidentParameter& add_parameter(std::string name, std::initializer_list<std::uint64_t> shape) {
    ResidentParameter parameter;
    parameter.name = std::move(name);
    parameter.shape = shape;
    parameter.offset = align_up(end_, kParameterAlignment);
    parameter.bytes = layout_.item_bytes;
    for (const std::uint64_t dimension : shape) parameter.bytes *= dimension;
    parameter.layer = layer_;
    end_ = parameter.offset + parameter.bytes;
    return layout_.parameters.emplace_back(std::move(parameter));
  }

  // The next canonical tensor of the plan: its rows and columns land densely at `offset_bytes` of
  // the newest parameter, beside whatever else the parameter holds. Nothing if there are no rows.
  void place_next(Range rows, Range cols, std::uint64_t offset_bytes) {
    TPSYNC_ASSERT(next_ < plan_.tensors.size());
    const RowsCols whole = rows_cols(plan_.tensors[next_]);
    TPSYNC_ASSERT(rows.last <= whole.rows && cols.last <= whole.cols);
    const std::uint64_t tensor = next_++;
    if (rows.size() == 0 || cols.size() == 0) return;
    Placement placement;
    placement.tensor = tensor;
    placement.row0 = rows.first;
    placement.row1 = rows.last;
    placement.col0 = cols.first;
    placement.col1 = cols.last;
    placement.parameter = static_cast<std::uint32_t>(layout_.parameters.size() - 1);
    placement.offset = layout_.parameters.back().offset + offset_bytes;
    placement.pitch = cols.size() * layout_.item_bytes;
    layout_.placements.push_back(placement);
  }

  void add_replicated(std::string name, std::initializer_list<std::uint64_t> shape) {
    add_parameter(std::move(name), shape);
    const RowsCols whole = rows_cols(plan_.tensors[next_]);
    place_next({0, whole.rows}, {0, whole.cols}, 0);
  }

  void add_vocabulary(std::string name) {
    const std::uint64_t hidden = config_.hidden_size;
    const std::uint64_t padded = align_up(config_.vocab_size, kVocabularyAlignment);
    const Range own = share(padded, tp_, rank_);
    const std::uint64_t row_bytes = hidden * layout_.item_bytes;
    const ResidentParameter parameter = add_parameter(std::move(name), {own.size(), hidden});
    const Range real = {std::min(own.first, config_.vocab_size),
                        std::min(own.last, config_.vocab_size)};
    place_next(real, {0, hidden}, 0);
    if (real.size() == own.size()) return;
    ZeroFill fill;
    fill.parameter = static_cast<std::uint32_t>(layout_.parameters.size() - 1);
    fill.offset = parameter.offset + real.size() * row_bytes;
    fill.bytes = (own.size() - real.size()) * row_bytes;
    layout_.zero_fills.push_back(fill);
  }

  void add_layer(std::uint64_t layer) {
    layer_ = static_cast<std::int64_t>(layer);
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    add_attention(prefix + "self_attn.");
    add_replicated(prefix + "mlp.gate.weight", {config_.num_experts, config_.hidden_size});
    add_experts(prefix + "mlp.experts.");
    add_replicated(prefix + "input_layernorm.weight", {config_.hidden_size});
    add_replicated(prefix + "post_attention_layernorm.weight", {config_.hidden_size});
  }

  void add_attention(const std::string& prefix) {
    const std::uint64_t hidden = config_.hidden_size;
    const std::uint64_t head = config_.head_dim;
    const std::uint64_t kv_heads = config_.num_key_value_heads;
    const Range query = share(config_.num_attention_heads * head, tp_, rank_);
    // With fewer KV heads than ranks, neighbouring ranks hold the same head.
    const Range kv = kv_heads >= tp_ ? share(kv_heads * head, tp_, rank_)
                                     : share(kv_heads * head, kv_heads, rank_ / (tp_ / kv_heads));
    const std::uint64_t row_bytes = hidden * layout_.item_bytes;
    add_parameter(prefix + "qkv_proj.weight", {query.size() + 2 * kv.size(), hidden});
    place_next(query, {0, hidden}, 0);
    place_next(kv, {0, hidden}, query.size() * row_bytes);
    place_next(kv, {0, hidden}, (query.size() + kv.size()) * row_bytes);
    add_parameter(prefix + "o_proj.weight", {hidden, query.size()});
    place_next({0, hidden}, query, 0);
    add_replicated(prefix + "q_norm.weight", {head});
    add_replicated(prefix + "k_norm.weight", {head});
  }

  void add_experts(const std::string& prefix) {
    const std::uint64_t hidden = config_.hidden_size;
    const std::uint64_t experts = config_.num_experts;
    const Range inner = share(config_.moe_intermediate_size, tp_, rank_);
    const std::uint64_t half_bytes = inner.size() * hidden * layout_.item_bytes;
    add_parameter(prefix + "w13_weight", {experts, 2 * inner.size(), hidden});
    for (std::uint64_t expert = 0; expert < experts; ++expert) {
      place_next(inner, {0, hidden}, 2 * expert * half_bytes);
      place_next(inner, {0, hidden}, (2 * expert + 1) * half_bytes);
    }
    add_parameter(prefix + "w2_weight", {experts, hidden, inner.size()});
    for (std::uint64_t expert = 0; expert < experts; ++expert) {
      place_next({0, hidden}, inner, expert * half_bytes);
    }
  }

  const ModelConfig& config_;
  const CanonicalPlan& plan_;
  const std::uint64_t tp_;
  const std::uint64_t rank_;
  TpLayout layout_;
  std::uint64_t end_ = 0;   // of the last parameter
  std::uint64_t next_ = 0;  // canonical tensor
  std::int64_t layer_ = -1;
};

}  // namespace

TpLayout plan_tp_layout(const ModelConfig& config, const CanonicalPlan& plan, int tp_size,
                        int tp_rank) {
  if (tp_size < 1) {
    throw_invalid(ErrorKind::kInvalidConfig, "tp_size",
                  fmt::format("is {}, must be positive", tp_size));
  }
  if (tp_rank < 0 || tp_rank >= tp_size) {
    throw_invalid(ErrorKind::kInvalidConfig, "tp_rank",
                  fmt::format("is {}, ranks are 0 to {}", tp_rank, tp_size - 1));
  }
  refuse_uneven(config, static_cast<std::uint64_t>(tp_size));
  return Builder(config, plan, tp_size, tp_rank).build();
}

}  // namespace tpsync::model
