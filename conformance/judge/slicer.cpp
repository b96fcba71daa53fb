#include "conformance/judge/slicer.h"

#include <algorithm>
#include <cstring>

#include "conformance/judge/content.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tpsync::judge {
namespace {

constexpr std::uint64_t kVocabularyMultiple = 64;

std::size_t bytes_of(ElementType element) { return element == ElementType::kFloat32 ? 4 : 2; }

std::uint64_t padded_vocabulary(const Shape& shape) {
  return (shape.vocab + kVocabularyMultiple - 1) / kVocabularyMultiple * kVocabularyMultiple;
}

// Writes rectangles of tensors, one after the other, densely, until a parameter has `most` bytes.
class Writer {
 public:
  Writer(ElementType element, std::uint64_t seed, std::uint64_t version, std::uint64_t most)
      : element_(element), seed_(seed), version_(version), most_(most) {}

  // Rows [row0, row1) and columns [col0, col1) of a tensor whose rows are `width` elements long.
  void rectangle(std::string& out, const std::string& tensor, std::uint64_t width,
                 std::uint64_t row0, std::uint64_t row1, std::uint64_t col0,
                 std::uint64_t col1) const {
    const std::uint64_t base = content_base(seed_, name_hash(tensor), version_);
    const std::size_t item = bytes_of(element_);
    std::size_t at = out.size();
    out.resize(at + std::min(room(out), (row1 - row0) * (col1 - col0) * item));
    for (std::uint64_t row = row0; row < row1; ++row) {
      for (std::uint64_t col = col0; col < col1; ++col, at += item) {
        if (at == out.size()) return;
        const std::uint64_t index = row * width + col;
        if (element_ == ElementType::kFloat32) {
          const std::uint32_t bits = f32_content(base, index);
          std::memcpy(out.data() + at, &bits, item);
        } else {
          const std::uint16_t bits = element_ == ElementType::kFloat16 ? f16_content(base, index)
                                                                       : bf16_content(base, index);
          std::memcpy(out.data() + at, &bits, item);
        }
      }
    }
  }
  void rows(std::string& out, const std::string& tensor, std::uint64_t width, std::uint64_t row0,
            std::uint64_t row1) const {
    rectangle(out, tensor, width, row0, row1, 0, width);
  }
  void zeros(std::string& out, std::uint64_t elements) const {
    out.append(std::min(room(out), elements * bytes_of(element_)), '\0');
  }

 private:
  std::uint64_t room(const std::string& out) const { return most_ - out.size(); }

  ElementType element_;
  std::uint64_t seed_;
  std::uint64_t version_;
  std::uint64_t most_;  // a multiple of the element
};

struct Rank {
  const Shape& shape;
  std::uint64_t tp;
  std::uint64_t rank;
  const Writer& writer;
  std::vector<ResidentBytes>& parameters;

  std::string& add(std::string name) {
    parameters.push_back({std::move(name), {}, true});
    return parameters.back().bytes;
  }

  void whole(const std::string& name, std::uint64_t rows, std::uint64_t width) {
    writer.rows(add(name), name, width, 0, rows);
  }

  void vocabulary(const std::string& name) {
    const std::uint64_t own = padded_vocabulary(shape) / tp;
    const std::uint64_t first = std::min(rank * own, shape.vocab);
    const std::uint64_t last = std::min((rank + 1) * own, shape.vocab);
    std::string& bytes = add(name);
    writer.rows(bytes, name, shape.hidden, first, last);
    writer.zeros(bytes, (own - (last - first)) * shape.hidden);
    parameters.back().from_tensors = last > first;
  }

  void attention(const std::string& prefix) {
    const std::uint64_t query = shape.heads / tp * shape.head_dim;
    const std::uint64_t kv_heads = shape.kv_heads >= tp ? shape.kv_heads / tp : 1;
    const std::uint64_t kv_first =
        shape.kv_heads >= tp ? rank * kv_heads : rank / (tp / shape.kv_heads);
    const std::uint64_t kv0 = kv_first * shape.head_dim;
    const std::uint64_t kv1 = (kv_first + kv_heads) * shape.head_dim;
    std::string& qkv = add(prefix + "qkv_proj.weight");
    writer.rows(qkv, prefix + "q_proj.weight", shape.hidden, rank * query, (rank + 1) * query);
    writer.rows(qkv, prefix + "k_proj.weight", shape.hidden, kv0, kv1);
    writer.rows(qkv, prefix + "v_proj.weight", shape.hidden, kv0, kv1);
    const std::string output = prefix + "o_proj.weight";
    writer.rectangle(add(output), output, shape.heads * shape.head_dim, 0, shape.hidden,
                     rank * query, (rank + 1) * query);
    whole(prefix + "q_norm.weight", 1, shape.head_dim);
    whole(prefix + "k_norm.weight", 1, shape.head_dim);
  }

  void experts(const std::string& prefix) {
    const std::uint64_t own = shape.moe / tp;
    std::string& w13 = add(prefix + "w13_weight");
    for (std::uint64_t e = 0; e < shape.experts; ++e) {
      for (const char* half : {".gate_proj.weight", ".up_proj.weight"}) {
        writer.rows(w13, prefix + std::to_string(e) + half, shape.hidden, rank * own,
                    (rank + 1) * own);
      }
    }
    std::string& w2 = add(prefix + "w2_weight");
    for (std::uint64_t e = 0; e < shape.experts; ++e) {
      writer.rectangle(w2, prefix + std::to_string(e) + ".down_proj.weight", shape.moe, 0,
                       shape.hidden, rank * own, (rank + 1) * own);
    }
  }

  void model() {
    vocabulary("model.embed_tokens.weight");
    for (std::uint64_t layer = 0; layer < shape.layers; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      attention(prefix + "self_attn.");
      whole(prefix + "mlp.gate.weight", shape.experts, shape.hidden);
      experts(prefix + "mlp.experts.");
      whole(prefix + "input_layernorm.weight", 1, shape.hidden);
      whole(prefix + "post_attention_layernorm.weight", 1, shape.hidden);
    }
    whole("model.norm.weight", 1, shape.hidden);
    if (!shape.tied) vocabulary("lm_head.weight");
  }
};

// In a world without bytes a parameter is known by the version that it holds.
std::uint64_t phantom_lane(const Shape& shape, std::uint64_t tp, std::uint64_t rank,
                           std::uint64_t version) {
  std::uint64_t sum = 0;
  const auto add = [&](const std::string& name, bool from_tensors = true) {
    sum += lane_term(name_hash(name), from_tensors ? mix(version) : 0);
  };
  const bool has_rows = rank * (padded_vocabulary(shape) / tp) < shape.vocab;
  add("model.embed_tokens.weight", has_rows);
  for (std::uint64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    for (const char* name :
         {"self_attn.qkv_proj.weight", "self_attn.o_proj.weight", "self_attn.q_norm.weight",
          "self_attn.k_norm.weight", "mlp.gate.weight", "mlp.experts.w13_weight",
          "mlp.experts.w2_weight", "input_layernorm.weight", "post_attention_layernorm.weight"}) {
      add(prefix + name);
    }
  }
  add("model.norm.weight");
  if (!shape.tied) add("lm_head.weight", has_rows);
  return sum;
}

}  // namespace

bool splits_evenly(const Shape& shape, int tp_size) {
  if (tp_size <= 0) return false;
  const auto tp = static_cast<std::uint64_t>(tp_size);
  const bool kv_even = shape.kv_heads >= tp ? shape.kv_heads % tp == 0 : tp % shape.kv_heads == 0;
  return shape.heads % tp == 0 && kv_even && shape.moe % tp == 0 &&
         padded_vocabulary(shape) % tp == 0;
}

std::vector<ResidentBytes> resident_parameters(const Shape& shape, int tp, int rank,
                                               ElementType element, std::uint64_t seed,
                                               std::uint64_t version, std::uint64_t first_bytes) {
  std::vector<ResidentBytes> parameters;
  parameters.reserve(3 + shape.layers * 9);  // references into it stay valid
  const std::uint64_t most = first_bytes == 0 ? UINT64_MAX : first_bytes;
  const Writer writer(element, seed, version, most / 8 * 8);
  Rank{shape, static_cast<std::uint64_t>(tp), static_cast<std::uint64_t>(rank), writer, parameters}
      .model();
  return parameters;
}

void ExpectedLanes::set_world(const Facts& facts) {
  const bool known = facts.shape.has_value() && splits_evenly(*facts.shape, facts.tp);
  const bool same = known == known_ && (!known || shape_ == *facts.shape) && tp_ == facts.tp &&
                    phantom_ == facts.phantom && element_ == facts.element &&
                    seed_ == facts.content_seed && lane_bytes_ == facts.lane_bytes;
  if (same) return;
  by_version_.clear();
  known_ = known;
  if (known) shape_ = *facts.shape;
  tp_ = facts.tp;
  phantom_ = facts.phantom;
  element_ = facts.element;
  seed_ = facts.content_seed;
  lane_bytes_ = facts.lane_bytes;
}

const std::vector<std::uint64_t>& ExpectedLanes::lanes(std::uint64_t version) {
  for (const auto& [known_version, lanes] : by_version_) {
    if (known_version == version) return lanes;
  }
  by_version_.emplace_back(version, compute(version));
  return by_version_.back().second;
}

std::vector<std::uint64_t> ExpectedLanes::compute(std::uint64_t version) const {
  std::vector<std::uint64_t> lanes;
  for (int rank = 0; known_ && rank < tp_; ++rank) {
    std::uint64_t sum = 0;
    if (phantom_) {
      sum = phantom_lane(shape_, static_cast<std::uint64_t>(tp_), static_cast<std::uint64_t>(rank),
                         version);
    } else {
      for (const ResidentBytes& p :
           resident_parameters(shape_, tp_, rank, element_, seed_, version, lane_bytes_)) {
        sum += lane_term(name_hash(p.parameter), XXH3_64bits(p.bytes.data(), p.bytes.size()));
      }
    }
    lanes.push_back(static_cast<std::uint64_t>(lane_token(sum)));
  }
  return lanes;
}

}  // namespace tpsync::judge
