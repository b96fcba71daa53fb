// Fixed layouts of the small models, every refusal, and the property that the ranks' slices tile
// every tensor and never write one resident byte twice.
#include "tpsync/model/tp_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/model/testing/models.h"
#include "tpsync/base/bytes.h"
#include "tpsync/base/errors.h"

namespace tpsync::model {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TpLayout layout_of(const ModelConfig& config, int tp_size, int tp_rank) {
  return plan_tp_layout(config, plan_canonical(config), tp_size, tp_rank);
}

using Rectangle = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;

Rectangle rectangle(const Placement& p) { return {p.row0, p.row1, p.col0, p.col1}; }

const Placement& placement_of(const TpLayout& layout, const CanonicalPlan& plan,
                              const std::string& name) {
  for (const Placement& placement : layout.placements) {
    if (plan.tensors[placement.tensor].name == name) return placement;
  }
  throw std::runtime_error("no placement of " + name);
}

const ResidentParameter& parameter_named(const TpLayout& layout, const std::string& name) {
  for (const ResidentParameter& parameter : layout.parameters) {
    if (parameter.name == name) return parameter;
  }
  throw std::runtime_error("no parameter " + name);
}

TEST(TpLayout, FusesQueryKeyAndValueRowsAndReplicatesKvHeads) {
  // 4 heads and 2 KV heads of 4 over 4 ranks: rank 3 has query head 3 and KV head 1.
  const ModelConfig config = model_named("tiny-tp4");
  const CanonicalPlan plan = plan_canonical(config);
  const TpLayout layout = plan_tp_layout(config, plan, 4, 3);
  const std::string prefix = "model.layers.0.self_attn.";
  const ResidentParameter& qkv = parameter_named(layout, prefix + "qkv_proj.weight");
  EXPECT_THAT(qkv.shape, ElementsAre(12, 8));
  const Placement& q = placement_of(layout, plan, prefix + "q_proj.weight");
  const Placement& k = placement_of(layout, plan, prefix + "k_proj.weight");
  const Placement& v = placement_of(layout, plan, prefix + "v_proj.weight");
  EXPECT_EQ(rectangle(q), Rectangle(12, 16, 0, 8));
  EXPECT_EQ(rectangle(k), Rectangle(4, 8, 0, 8));
  EXPECT_EQ(rectangle(v), Rectangle(4, 8, 0, 8));
  EXPECT_EQ(q.offset, qkv.offset);
  EXPECT_EQ(k.offset, qkv.offset + 4 * 8 * 2);
  EXPECT_EQ(v.offset, qkv.offset + 8 * 8 * 2);
}

TEST(TpLayout, CutsOutputProjectionAndDownByColumns) {
  const ModelConfig config = model_named("tiny-tp4");
  const CanonicalPlan plan = plan_canonical(config);
  const TpLayout layout = plan_tp_layout(config, plan, 4, 1);
  const Placement& o = placement_of(layout, plan, "model.layers.0.self_attn.o_proj.weight");
  EXPECT_EQ(rectangle(o), Rectangle(0, 8, 4, 8));
  EXPECT_EQ(o.pitch, 4u * 2);
  const Placement& down =
      placement_of(layout, plan, "model.layers.0.mlp.experts.2.down_proj.weight");
  const ResidentParameter& w2 = parameter_named(layout, "model.layers.0.mlp.experts.w2_weight");
  EXPECT_THAT(w2.shape, ElementsAre(4, 8, 2));
  EXPECT_EQ(rectangle(down), Rectangle(0, 8, 2, 4));
  EXPECT_EQ(down.pitch, 2u * 2);
  EXPECT_EQ(down.offset, w2.offset + 2 * 8 * 2 * 2);
}

TEST(TpLayout, PutsGateBeforeUpInEachExpertsHalf) {
  const ModelConfig config = model_named("tiny-tp4");
  const CanonicalPlan plan = plan_canonical(config);
  const TpLayout layout = plan_tp_layout(config, plan, 4, 2);
  const ResidentParameter& w13 = parameter_named(layout, "model.layers.0.mlp.experts.w13_weight");
  EXPECT_THAT(w13.shape, ElementsAre(4, 4, 8));
  EXPECT_EQ(w13.layer, 0);
  const std::string expert = "model.layers.0.mlp.experts.3.";
  const Placement& gate = placement_of(layout, plan, expert + "gate_proj.weight");
  const Placement& up = placement_of(layout, plan, expert + "up_proj.weight");
  EXPECT_EQ(rectangle(gate), Rectangle(4, 6, 0, 8));
  EXPECT_EQ(rectangle(up), Rectangle(4, 6, 0, 8));
  EXPECT_EQ(gate.offset, w13.offset + 3 * 4 * 8 * 2);
  EXPECT_EQ(up.offset, gate.offset + 2 * 8 * 2);
}

TEST(TpLayout, PadsTheVocabularyAndZeroFillsWhatHasNoRow) {
  // 16 rows are padded to 64: of four ranks the first owns all real rows.
  const ModelConfig config = model_named("tiny-tp4");
  const CanonicalPlan plan = plan_canonical(config);
  const TpLayout first = plan_tp_layout(config, plan, 4, 0);
  EXPECT_THAT(parameter_named(first, "model.embed_tokens.weight").shape, ElementsAre(16, 8));
  EXPECT_EQ(rectangle(placement_of(first, plan, "lm_head.weight")), Rectangle(0, 16, 0, 8));
  EXPECT_THAT(first.zero_fills, IsEmpty());
  const TpLayout second = plan_tp_layout(config, plan, 4, 1);
  ASSERT_EQ(second.zero_fills.size(), 2u);
  const ResidentParameter& head = parameter_named(second, "lm_head.weight");
  EXPECT_EQ(second.zero_fills[1].offset, head.offset);
  EXPECT_EQ(second.zero_fills[1].bytes, head.bytes);
  EXPECT_EQ(second.placements.front().tensor, 1u);
  const TpLayout whole = plan_tp_layout(config, plan, 1, 0);
  ASSERT_EQ(whole.zero_fills.size(), 2u);
  EXPECT_EQ(whole.zero_fills[0].offset, 16u * 8 * 2);
  EXPECT_EQ(whole.zero_fills[0].bytes, 48u * 8 * 2);
}

TEST(TpLayout, TiedEmbeddingsShareOneParameter) {
  const TpLayout layout = layout_of(model_named("tiny-tied"), 1, 0);
  EXPECT_EQ(layout.parameters.back().name, "model.norm.weight");
  EXPECT_EQ(layout.parameters.back().layer, -1);
  EXPECT_EQ(layout.zero_fills.size(), 1u);
}

TEST(TpLayout, OfQwen3AtTp4HoldsAQuarterOfWhatIsCut) {
  const TpLayout layout = layout_of(model_named("qwen3-30b-a3b"), 4, 3);
  EXPECT_EQ(layout.placements.size(), 18867u);
  EXPECT_EQ(layout.parameters.size(), 48u * 9 + 3);
  std::uint64_t bytes = 0;
  for (const ResidentParameter& parameter : layout.parameters) bytes += parameter.bytes;
  const std::uint64_t attention =
      48ull * (32 + 2 * 4) / 4 * 128 * 2048 + 48ull * 32 / 4 * 128 * 2048;
  const std::uint64_t experts = 48ull * 128 * 3 * (768 / 4) * 2048;
  const std::uint64_t replicated = 48ull * (128 * 2048 + 2 * 2048 + 2 * 128) + 2048;
  const std::uint64_t vocabulary = 2ull * (151936 / 4) * 2048;
  EXPECT_EQ(bytes, 2 * (attention + experts + replicated + vocabulary));
}

void expect_refused(const ModelConfig& config, int tp_size, int tp_rank, ErrorKind kind,
                    const std::string& subject) {
  try {
    layout_of(config, tp_size, tp_rank);
    FAIL() << "laid out, expected a refusal of " << subject;
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_EQ(error.record().subject, subject);
  }
}

TEST(TpLayout, UnevenCasesAreRefusedByNameAndInOrder) {
  ModelConfig config = model_named("tiny-tp4");
  config.num_attention_heads = 6;
  config.num_key_value_heads = 6;
  config.moe_intermediate_size = 6;
  config.num_experts = 2;
  expect_refused(config, 4, 0, ErrorKind::kUnsupported, "num_attention_heads");
  config.num_attention_heads = 12;
  expect_refused(config, 4, 0, ErrorKind::kUnsupported, "num_key_value_heads");
  config.num_key_value_heads = 3;
  expect_refused(config, 4, 0, ErrorKind::kUnsupported, "num_key_value_heads");
  config.num_key_value_heads = 2;
  expect_refused(config, 4, 0, ErrorKind::kUnsupported, "moe_intermediate_size");
  config.moe_intermediate_size = 8;
  expect_refused(config, 4, 0, ErrorKind::kUnsupported, "num_experts");
  config.num_experts = 4;
  EXPECT_EQ(layout_of(config, 4, 0).tp_size, 4);
}

TEST(TpLayout, APaddedVocabularyThatRanksDoNotDivideIsRefusedBeforeExperts) {
  ModelConfig config = model_named("tiny-tp4");
  config.num_attention_heads = 6;
  config.num_key_value_heads = 3;
  config.moe_intermediate_size = 6;
  config.num_experts = 2;
  expect_refused(config, 3, 0, ErrorKind::kUnsupported, "vocab_size");
  config.vocab_size = 129;
  expect_refused(config, 3, 0, ErrorKind::kUnsupported, "num_experts");
}

TEST(TpLayout, ARankOutsideTheWorldIsRefused) {
  const ModelConfig config = model_named("tiny-tp4");
  expect_refused(config, 0, 0, ErrorKind::kInvalidConfig, "tp_size");
  expect_refused(config, 2, 2, ErrorKind::kInvalidConfig, "tp_rank");
  expect_refused(config, 2, -1, ErrorKind::kInvalidConfig, "tp_rank");
}

// ---- properties

struct Draw {
  ModelConfig config;
  int tp_size = 1;
};

rc::Gen<Draw> draws() {
  return rc::gen::exec([] {
    const auto up_to = [](std::uint64_t last) {
      return *rc::gen::inRange<std::uint64_t>(1, last + 1);
    };
    Draw draw;
    ModelConfig& config = draw.config;
    draw.tp_size = static_cast<int>(*rc::gen::element<std::uint64_t>(1, 2, 3, 4, 8));
    const auto tp = static_cast<std::uint64_t>(draw.tp_size);
    config.model_type = "qwen3_moe";
    config.tie_word_embeddings = *rc::gen::arbitrary<bool>();
    config.num_hidden_layers = up_to(2);
    config.num_experts = tp + up_to(3) - 1;
    config.hidden_size = up_to(9);
    config.moe_intermediate_size = tp * up_to(3);
    const std::uint64_t alignment = tp == 3 ? 192 : 64;
    config.vocab_size = align_up(up_to(300), alignment) - up_to(63) + 1;
    // KV heads: a multiple of the ranks, or a divisor.
    std::vector<std::uint64_t> kv = {tp, 2 * tp};
    for (std::uint64_t d = 1; d < tp; ++d) {
      if (tp % d == 0) kv.push_back(d);
    }
    config.num_key_value_heads = *rc::gen::elementOf(kv);
    config.num_attention_heads = std::max(tp, config.num_key_value_heads) * up_to(2);
    config.head_dim = up_to(4);
    config.dtype = *rc::gen::element(DType::kBFloat16, DType::kFloat32);
    return draw;
  });
}

void show(const Draw& draw, std::ostream& out) {
  const ModelConfig& c = draw.config;
  out << "tp " << draw.tp_size << " layers " << c.num_hidden_layers << " experts " << c.num_experts
      << " hidden " << c.hidden_size << " inner " << c.moe_intermediate_size << " vocabulary "
      << c.vocab_size << " heads " << c.num_attention_heads << "/" << c.num_key_value_heads << "x"
      << c.head_dim << (c.tie_word_embeddings ? " tied" : "");
}

TEST(TpLayout, SlicesOfAllRanksTileEveryTensor) {
  EXPECT_TRUE(rc::check("slices tile every tensor", [] {
    const Draw draw = *draws();
    std::ostringstream text;
    show(draw, text);
    RC_LOG() << text.str();
    const CanonicalPlan plan = plan_canonical(draw.config);
    std::vector<std::set<Rectangle>> distinct(plan.tensors.size());
    for (int rank = 0; rank < draw.tp_size; ++rank) {
      for (const Placement& p : plan_tp_layout(draw.config, plan, draw.tp_size, rank).placements) {
        distinct[p.tensor].insert(rectangle(p));
      }
    }
    for (std::size_t t = 0; t < distinct.size(); ++t) {
      const RowsCols whole = rows_cols(plan.tensors[t]);
      std::vector<int> covered(whole.rows * whole.cols, 0);
      for (const auto& [row0, row1, col0, col1] : distinct[t]) {
        for (std::uint64_t row = row0; row < row1; ++row) {
          for (std::uint64_t col = col0; col < col1; ++col) covered[row * whole.cols + col] += 1;
        }
      }
      for (const int count : covered) RC_ASSERT(count == 1);
    }
  }));
}

TEST(TpLayout, EveryParameterByteIsWrittenExactlyOnce) {
  EXPECT_TRUE(rc::check("resident bytes are written once", [] {
    const Draw draw = *draws();
    const CanonicalPlan plan = plan_canonical(draw.config);
    const int rank = *rc::gen::inRange(0, draw.tp_size);
    const TpLayout layout = plan_tp_layout(draw.config, plan, draw.tp_size, rank);
    std::vector<int> written(layout.resident_bytes, 0);
    const auto write = [&written](std::uint64_t offset, std::uint64_t bytes) {
      for (std::uint64_t i = 0; i < bytes; ++i) written.at(offset + i) += 1;
    };
    std::uint64_t previous = 0;
    for (const Placement& p : layout.placements) {
      RC_ASSERT(p.tensor >= previous);
      previous = p.tensor;
      const std::uint64_t row_bytes = (p.col1 - p.col0) * layout.item_bytes;
      for (std::uint64_t row = 0; row < p.row1 - p.row0; ++row) {
        write(p.offset + row * p.pitch, row_bytes);
      }
    }
    for (const ZeroFill& fill : layout.zero_fills) write(fill.offset, fill.bytes);
    for (const ResidentParameter& parameter : layout.parameters) {
      RC_ASSERT(parameter.offset % 256 == 0u);
      for (std::uint64_t i = 0; i < parameter.bytes; ++i) {
        RC_ASSERT(written[parameter.offset + i] == 1);
        written[parameter.offset + i] = 0;
      }
    }
    // Nothing is written between parameters.
    RC_ASSERT(std::count(written.begin(), written.end(), 0) ==
              static_cast<std::ptrdiff_t>(written.size()));
  }));
}

}  // namespace
}  // namespace tpsync::model
