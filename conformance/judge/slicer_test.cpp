#include "conformance/judge/slicer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "conformance/judge/content.h"

namespace tpsync::judge {
namespace {

constexpr std::uint64_t kSeed = 11;

Shape tiny() {
  Shape shape;
  shape.layers = 1;
  shape.experts = 2;
  shape.hidden = 4;
  shape.moe = 4;
  shape.vocab = 70;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 2;
  return shape;
}

std::vector<ResidentBytes> of(const Shape& shape, int tp, int rank, std::uint64_t version = 1) {
  return resident_parameters(shape, tp, rank, ElementType::kBFloat16, kSeed, version);
}

const std::string& bytes(const std::vector<ResidentBytes>& parameters, const std::string& name) {
  for (const ResidentBytes& p : parameters) {
    if (p.parameter == name) return p.bytes;
  }
  ADD_FAILURE() << "no parameter " << name;
  return parameters.front().bytes;
}

std::uint16_t element(const std::string& bytes, std::size_t index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes.data() + 2 * index, 2);
  return bits;
}

std::uint16_t content(const std::string& tensor, std::uint64_t index, std::uint64_t version = 1) {
  return bf16_content(content_base(kSeed, name_hash(tensor), version), index);
}

TEST(Slicer, AModelHasNineParametersPerLayerAndThreeBesides) {
  const auto parameters = of(tiny(), 1, 0);
  std::vector<std::string> names;
  for (const auto& p : parameters) names.push_back(p.parameter);
  EXPECT_EQ(
      names,
      (std::vector<std::string>{
          "model.embed_tokens.weight", "model.layers.0.self_attn.qkv_proj.weight",
          "model.layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.q_norm.weight",
          "model.layers.0.self_attn.k_norm.weight", "model.layers.0.mlp.gate.weight",
          "model.layers.0.mlp.experts.w13_weight", "model.layers.0.mlp.experts.w2_weight",
          "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight",
          "model.norm.weight", "lm_head.weight"}));
}

TEST(Slicer, ATiedModelHasNoHeadOfItsOwn) {
  Shape shape = tiny();
  shape.tied = true;
  for (const auto& p : of(shape, 1, 0)) EXPECT_NE(p.parameter, "lm_head.weight");
}

TEST(Slicer, TheVocabularyIsPaddedToSixtyFourRowsWithZeros) {
  // 70 rows become 128; each of 2 ranks owns 64, so rank 1 has 6 real rows.
  const auto embed = bytes(of(tiny(), 2, 1), "model.embed_tokens.weight");
  ASSERT_EQ(embed.size(), 64U * 4 * 2);
  EXPECT_EQ(element(embed, 0), content("model.embed_tokens.weight", 64 * 4));
  EXPECT_EQ(element(embed, 6 * 4 - 1), content("model.embed_tokens.weight", 70 * 4 - 1));
  for (std::size_t i = 6 * 4; i < 64 * 4; ++i) ASSERT_EQ(element(embed, i), 0) << i;
}

TEST(Slicer, ARankWithoutRealRowsHoldsPaddingAlone) {
  Shape shape = tiny();
  shape.vocab = 16;
  const auto parameters = of(shape, 4, 3);
  EXPECT_FALSE(parameters.front().from_tensors);
  EXPECT_EQ(parameters.front().bytes, std::string(16 * 4 * 2, '\0'));
}

TEST(Slicer, QueryKeyAndValueRowsStandOneAfterTheOther) {
  const std::string prefix = "model.layers.0.self_attn.";
  const auto qkv = bytes(of(tiny(), 2, 1), prefix + "qkv_proj.weight");
  // 2 heads of q, 1 of k, 1 of v; 2 rows of 4 each.
  ASSERT_EQ(qkv.size(), (4U + 2 + 2) * 4 * 2);
  EXPECT_EQ(element(qkv, 0), content(prefix + "q_proj.weight", 4 * 4));
  EXPECT_EQ(element(qkv, 4 * 4), content(prefix + "k_proj.weight", 2 * 4));
  EXPECT_EQ(element(qkv, 6 * 4), content(prefix + "v_proj.weight", 2 * 4));
}

TEST(Slicer, NeighbouringRanksHoldTheSameKeyHeadWhereThereAreFewerThanRanks) {
  const std::string prefix = "model.layers.0.self_attn.";
  const std::size_t key = 2 * 4;  // after one query head
  for (const int rank : {2, 3}) {
    const auto qkv = bytes(of(tiny(), 4, rank), prefix + "qkv_proj.weight");
    ASSERT_EQ(qkv.size(), 6U * 4 * 2);
    EXPECT_EQ(element(qkv, key), content(prefix + "k_proj.weight", 2 * 4));
  }
  EXPECT_EQ(element(bytes(of(tiny(), 4, 1), prefix + "qkv_proj.weight"), key),
            content(prefix + "k_proj.weight", 0));
}

TEST(Slicer, TheOutputProjectionIsSplitByColumns) {
  const std::string name = "model.layers.0.self_attn.o_proj.weight";
  const auto slice = bytes(of(tiny(), 2, 1), name);
  ASSERT_EQ(slice.size(), 4U * 4 * 2);  // 4 rows of 4 of 8 columns
  EXPECT_EQ(element(slice, 0), content(name, 4));
  EXPECT_EQ(element(slice, 4), content(name, 8 + 4));
}

TEST(Slicer, GateStandsAboveUpPerExpertAndDownIsSplitByColumns) {
  const std::string prefix = "model.layers.0.mlp.experts.";
  const auto parameters = of(tiny(), 2, 1);
  const auto& w13 = bytes(parameters, prefix + "w13_weight");
  ASSERT_EQ(w13.size(), 2U * 4 * 4 * 2);
  EXPECT_EQ(element(w13, 0), content(prefix + "0.gate_proj.weight", 2 * 4));
  EXPECT_EQ(element(w13, 2 * 4), content(prefix + "0.up_proj.weight", 2 * 4));
  EXPECT_EQ(element(w13, 4 * 4), content(prefix + "1.gate_proj.weight", 2 * 4));
  const auto& w2 = bytes(parameters, prefix + "w2_weight");
  ASSERT_EQ(w2.size(), 2U * 4 * 2 * 2);
  EXPECT_EQ(element(w2, 0), content(prefix + "0.down_proj.weight", 2));
  EXPECT_EQ(element(w2, 2), content(prefix + "0.down_proj.weight", 4 + 2));
}

TEST(Slicer, TheSlicesOfAllRanksAddUpToTheWholeParameter) {
  const Shape shape = tiny();
  for (const int tp : {2, 4}) {
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      std::string rows;
      for (int rank = 0; rank < tp; ++rank) rows += bytes(of(shape, tp, rank), name);
      EXPECT_EQ(rows, bytes(of(shape, 1, 0), name)) << name << " at TP " << tp;
    }
    const std::string output = "model.layers.0.self_attn.o_proj.weight";
    const std::string whole = bytes(of(shape, 1, 0), output);
    std::string woven;
    const std::size_t run = whole.size() / 4 / static_cast<std::size_t>(tp);
    for (std::size_t row = 0; row < 4; ++row) {
      for (int rank = 0; rank < tp; ++rank) {
        woven += bytes(of(shape, tp, rank), output).substr(row * run, run);
      }
    }
    EXPECT_EQ(woven, whole) << "at TP " << tp;
  }
}

TEST(Slicer, ReplicatedParametersAreEqualOnAllRanks) {
  for (const char* name :
       {"model.norm.weight", "model.layers.0.mlp.gate.weight",
        "model.layers.0.input_layernorm.weight", "model.layers.0.self_attn.q_norm.weight"}) {
    EXPECT_EQ(bytes(of(tiny(), 2, 0), name), bytes(of(tiny(), 2, 1), name)) << name;
    EXPECT_EQ(bytes(of(tiny(), 2, 0), name), bytes(of(tiny(), 1, 0), name)) << name;
  }
}

TEST(Slicer, UnevenShapesAreNotSplit) {
  EXPECT_TRUE(splits_evenly(tiny(), 4));
  EXPECT_FALSE(splits_evenly(tiny(), 8));  // 4 heads
  EXPECT_FALSE(splits_evenly(tiny(), 3));
  EXPECT_FALSE(splits_evenly(tiny(), 0));
}

TEST(Lanes, DifferBetweenRanksVersionsSeedsAndWorlds) {
  Facts facts;
  facts.shape = tiny();
  facts.tp = 2;
  facts.content_seed = kSeed;
  ExpectedLanes lanes;
  lanes.set_world(facts);
  const auto first = lanes.lanes(1);
  ASSERT_EQ(first.size(), 2U);
  EXPECT_NE(first[0], first[1]);
  EXPECT_NE(lanes.lanes(2)[0], first[0]);
  EXPECT_EQ(lanes.lanes(1), first);
  facts.content_seed = kSeed + 1;
  lanes.set_world(facts);
  EXPECT_NE(lanes.lanes(1)[0], first[0]);
  facts.content_seed = kSeed;
  facts.phantom = true;
  lanes.set_world(facts);
  EXPECT_NE(lanes.lanes(1)[0], first[0]);
}

TEST(Lanes, AreUnknownWithoutAShape) {
  ExpectedLanes lanes;
  lanes.set_world({});
  EXPECT_TRUE(lanes.lanes(1).empty());
}

}  // namespace
}  // namespace tpsync::judge
