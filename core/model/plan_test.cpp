// The plan against numbers and fingerprints that were computed elsewhere.
#include "tpsync/model/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/model/testing/models.h"
#include "tpsync/base/errors.h"

namespace tpsync::model {
namespace {

using testing::ElementsAre;

TEST(CanonicalPlan, OfTheTinyModelHasItsPublishedNumbers) {
  const CanonicalPlan plan = plan_canonical(model_named("tiny"));
  const wire::Manifest manifest = wire::build_manifest(plan.tensors);
  EXPECT_EQ(manifest.tensor_count, 18u);
  EXPECT_EQ(manifest.byte_count, 1376u);
  EXPECT_EQ(plan.byte_count, 1376u);
  EXPECT_EQ(plan.largest_layer_bytes, 848u);
  EXPECT_THAT(plan.boundaries, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 11, 13, 14, 15, 16, 17));
  EXPECT_EQ(manifest.fingerprint,
            "26f48d360a430e85ad55f2c2feebaa80c04a3b2ebd4297582317f2b8afec1086");
}

TEST(CanonicalPlan, OfTheTiedTinyModelLeavesTheHeadOut) {
  const CanonicalPlan plan = plan_canonical(model_named("tiny-tied"));
  const wire::Manifest manifest = wire::build_manifest(plan.tensors);
  EXPECT_EQ(manifest.tensor_count, 17u);
  EXPECT_EQ(manifest.byte_count, 1120u);
  EXPECT_EQ(manifest.fingerprint,
            "20f24cbf0c8b3c7d4a5dd6d015d28582963c640745287b83b7566eee140c9b57");
  EXPECT_EQ(plan.boundaries.back(), 16u);
}

TEST(CanonicalPlan, OfTheTinyTp4ModelHas24TensorsAnd2944Bytes) {
  const CanonicalPlan plan = plan_canonical(model_named("tiny-tp4"));
  EXPECT_EQ(plan.tensors.size(), 24u);
  EXPECT_EQ(plan.byte_count, 2944u);
}

TEST(CanonicalPlan, OfQwen3HasItsPublishedNumbers) {
  const CanonicalPlan plan = plan_canonical(model_named("qwen3-30b-a3b"));
  const wire::Manifest manifest = wire::build_manifest(plan.tensors);
  EXPECT_EQ(manifest.tensor_count, 18867u);
  EXPECT_EQ(manifest.byte_count, 61064245248u);
  EXPECT_EQ(plan.byte_count, 61064245248u);
  EXPECT_EQ(plan.largest_tensor_bytes, 622329856u);
  EXPECT_EQ(plan.largest_layer_bytes, 1246241280u);
  EXPECT_EQ(plan.boundaries.size(), 531u);
  EXPECT_EQ(plan.boundaries.back(), 18866u);
  EXPECT_EQ(manifest.fingerprint,
            "fdbde6442ff4fbf827d46a8c89e3e12c07d0fbf9a5272f396d7e60b63979253f");
}

TEST(CanonicalPlan, NamesTensorsInTheOrderOfTheStateDict) {
  const CanonicalPlan plan = plan_canonical(model_named("tiny"));
  std::vector<std::string> names;
  for (const wire::TensorRecord& record : plan.tensors) names.push_back(record.name);
  const std::string layer = "model.layers.0.";
  EXPECT_THAT(
      names, ElementsAre(
                 "model.embed_tokens.weight", layer + "self_attn.q_proj.weight",
                 layer + "self_attn.k_proj.weight", layer + "self_attn.v_proj.weight",
                 layer + "self_attn.o_proj.weight", layer + "self_attn.q_norm.weight",
                 layer + "self_attn.k_norm.weight", layer + "mlp.gate.weight",
                 layer + "mlp.experts.0.gate_proj.weight", layer + "mlp.experts.0.up_proj.weight",
                 layer + "mlp.experts.1.gate_proj.weight", layer + "mlp.experts.1.up_proj.weight",
                 layer + "mlp.experts.0.down_proj.weight", layer + "mlp.experts.1.down_proj.weight",
                 layer + "input_layernorm.weight", layer + "post_attention_layernorm.weight",
                 "model.norm.weight", "lm_head.weight"));
}

void expect_unsupported(const ModelConfig& config, const ExportTraits& traits,
                        const std::string& subject) {
  try {
    plan_canonical(config, traits);
    FAIL() << "planned, expected a refusal of " << subject;
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_EQ(error.record().subject, subject);
  }
}

TEST(CanonicalPlan, RefusalsComeInTheirOrder) {
  ModelConfig config = model_named("tiny");
  config.model_type = "llama";
  ExportTraits traits;
  traits.lora_merged = true;
  traits.peft_model = true;
  traits.expert_export_transform = true;
  traits.name_remap = true;
  traits.wire_dtype = DType::kFloat32;
  expect_unsupported(config, traits, "lora_merged");
  traits.lora_merged = false;
  expect_unsupported(config, traits, "peft_model");
  traits.peft_model = false;
  expect_unsupported(config, traits, "expert_export_transform");
  traits.expert_export_transform = false;
  expect_unsupported(config, traits, "name_remap");
  traits.name_remap = false;
  expect_unsupported(config, traits, "model_type");
  config.model_type = "qwen3_moe";
  expect_unsupported(config, traits, "wire_dtype");
  traits.wire_dtype = config.dtype;
  EXPECT_EQ(plan_canonical(config, traits).tensors.size(), 18u);
}

TEST(CanonicalPlan, RowsAndColumnsFollowTheFirstDimension) {
  wire::TensorRecord record;
  const auto view = [&record](std::vector<std::int64_t> shape) {
    record.shape = std::move(shape);
    const RowsCols result = rows_cols(record);
    return std::pair(result.rows, result.cols);
  };
  EXPECT_EQ(view({}), std::pair(std::uint64_t{1}, std::uint64_t{1}));
  EXPECT_EQ(view({7}), std::pair(std::uint64_t{7}, std::uint64_t{1}));
  EXPECT_EQ(view({2, 3, 4}), std::pair(std::uint64_t{2}, std::uint64_t{12}));
  EXPECT_EQ(view({0, 4}), std::pair(std::uint64_t{0}, std::uint64_t{4}));
}

}  // namespace
}  // namespace tpsync::model
