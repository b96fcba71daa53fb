// Every field that the configuration reads, and every one that it refuses.
#include "tpsync/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

#include "core/model/testing/models.h"
#include "tpsync/base/errors.h"

namespace tpsync::model {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

// The tiny model with one field replaced.
json tiny_with(const std::string& field, const json& value) {
  json document = document_named("tiny");
  document[field] = value;
  return document;
}

json tiny_without(const std::string& field) {
  json document = document_named("tiny");
  document.erase(field);
  return document;
}

void expect_refused(const std::string& text, ErrorKind kind, const std::string& subject) {
  try {
    parse_model_config(text, "dir/config.json");
    FAIL() << "accepted: " << text;
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_EQ(error.record().subject, subject) << error.what();
    EXPECT_THAT(error.record().detail, StartsWith("dir/config.json: "));
  }
}

void expect_refused(const json& document, ErrorKind kind, const std::string& subject) {
  expect_refused(document.dump(), kind, subject);
}

TEST(ModelConfig, ReadsEveryFieldOfQwen3) {
  ModelConfig expected;
  expected.model_type = "qwen3_moe";
  expected.num_hidden_layers = 48;
  expected.num_experts = 128;
  expected.hidden_size = 2048;
  expected.moe_intermediate_size = 768;
  expected.vocab_size = 151936;
  expected.num_attention_heads = 32;
  expected.num_key_value_heads = 4;
  expected.head_dim = 128;
  EXPECT_EQ(model_named("qwen3-30b-a3b"), expected);
}

TEST(ModelConfig, ReadsADirectoryByItsConfigFile) {
  const std::string directory = testing::TempDir() + "/tpsync_model_config";
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/config.json") << document_named("tiny-tied").dump();
  EXPECT_EQ(load_model_config(directory), model_named("tiny-tied"));
  std::filesystem::remove_all(directory);
}

TEST(ModelConfig, AFileThatIsNotThereIsNamed) {
  try {
    load_model_config("/nowhere/config.json");
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidConfig);
    EXPECT_EQ(error.record().subject, "config");
    EXPECT_THAT(error.record().detail, StartsWith("/nowhere/config.json: "));
  }
}

TEST(ModelConfig, TextThatIsNoObjectIsRefused) {
  for (const std::string text : {"", "{", "[]", "3", "null", "{\"a\":1} x", "\xff"}) {
    expect_refused(text, ErrorKind::kInvalidConfig, "config");
  }
}

TEST(ModelConfig, TextThatStopsBeingJsonIsRefusedWithTheByte) {
  const std::pair<std::string, int> cases[] = {
      {"", 1}, {"{", 2}, {"{\"a\":1} x", 9}, {"{\"a\":NaN}", 6}, {"{\"a\":\"\xff\"}", 7},
  };
  for (const auto& [text, byte] : cases) {
    try {
      parse_model_config(text, "x");
      FAIL() << "accepted: " << text;
    } catch (const InvalidInput& error) {
      EXPECT_EQ(error.record().subject, "config");
      EXPECT_THAT(error.record().detail, HasSubstr("at byte " + std::to_string(byte) + " of " +
                                                   std::to_string(text.size())))
          << text;
    }
  }
  expect_refused(std::string("{\"a\":1e999}"), ErrorKind::kInvalidConfig, "config");
}

TEST(ModelConfig, AFieldThatStandsTwiceInOneObjectIsRefusedByName) {
  std::string text = document_named("tiny").dump();
  text.insert(1, "\"hidden_size\":16,");
  expect_refused(text, ErrorKind::kInvalidConfig, "hidden_size");
  json document = document_named("tiny");
  document["rope_scaling"] = "HERE";
  text = document.dump();
  text.replace(text.find("\"HERE\""), 6, "{\"factor\":1,\"factor\":1}");
  expect_refused(text, ErrorKind::kInvalidConfig, "factor");
}

TEST(ModelConfig, OneFieldInTwoObjectsIsNoRepetition) {
  json document = document_named("tiny");
  document["rope_scaling"] = {{"hidden_size", 1}, {"inner", {{"hidden_size", 1}}}};
  EXPECT_EQ(parse_model_config(document.dump(), "x"), model_named("tiny"));
}

TEST(ModelConfig, AFileThatCannotBeReadIsNamed) {
  // Its first byte is never mapped.
  EXPECT_THAT([] { load_model_config("/proc/self/mem"); },
              testing::ThrowsMessage<InvalidInput>(HasSubstr("/proc/self/mem: cannot be read")));
}

TEST(ModelConfig, OptionalFieldsHaveTheDefaultsOfTheField) {
  json document = document_named("tiny");
  for (const char* field : {"tie_word_embeddings", "attention_bias", "mlp_only_layers",
                            "decoder_sparse_step", "head_dim"}) {
    document.erase(field);
  }
  EXPECT_EQ(parse_model_config(document.dump(), "x"), model_named("tiny"));
}

TEST(ModelConfig, TheDtypeHasTwoFieldsAndTwoSpellings) {
  for (const std::string spelling : {"float16", "torch.float16"}) {
    EXPECT_EQ(parse_model_config(tiny_with("torch_dtype", spelling).dump(), "x").dtype,
              DType::kFloat16);
    json renamed = tiny_without("torch_dtype");
    renamed["dtype"] = spelling;
    EXPECT_EQ(parse_model_config(renamed.dump(), "x").dtype, DType::kFloat16);
  }
  expect_refused(tiny_with("dtype", "float32"), ErrorKind::kInvalidConfig, "dtype");
  expect_refused(tiny_with("torch_dtype", "int64"), ErrorKind::kInvalidConfig, "torch_dtype");
  expect_refused(tiny_with("torch_dtype", "float8"), ErrorKind::kInvalidConfig, "torch_dtype");
  expect_refused(tiny_without("torch_dtype"), ErrorKind::kInvalidConfig, "torch_dtype");
}

TEST(ModelConfig, ASizeMustBeThereAndAPositiveIntegerInBounds) {
  for (const char* field :
       {"num_hidden_layers", "num_experts", "hidden_size", "moe_intermediate_size", "vocab_size",
        "num_attention_heads", "num_key_value_heads"}) {
    expect_refused(tiny_without(field), ErrorKind::kInvalidConfig, field);
    for (const json& value :
         {json(0), json(-1), json(8.0), json("8"), json(true), json::array(), json(1ULL << 41)}) {
      expect_refused(tiny_with(field, value), ErrorKind::kInvalidConfig, field);
    }
  }
  expect_refused(tiny_with("head_dim", 0), ErrorKind::kInvalidConfig, "head_dim");
}

TEST(ModelConfig, AFlagMustBeABoolean) {
  expect_refused(tiny_with("tie_word_embeddings", 1), ErrorKind::kInvalidConfig,
                 "tie_word_embeddings");
  expect_refused(tiny_with("attention_bias", "no"), ErrorKind::kInvalidConfig, "attention_bias");
}

TEST(ModelConfig, AModelOfMoreThan2To63BytesIsRefused) {
  json document = tiny_with("hidden_size", 1ULL << 40);
  document["vocab_size"] = 1ULL << 39;
  expect_refused(document, ErrorKind::kInvalidConfig, "hidden_size");
}

TEST(ModelConfig, AModelOfTooManyTensorsIsRefused) {
  expect_refused(tiny_with("num_hidden_layers", 1ULL << 30), ErrorKind::kInvalidConfig,
                 "num_hidden_layers");
}

TEST(ModelConfig, HeadsThatKvHeadsDoNotDivideAreRefused) {
  expect_refused(tiny_with("num_key_value_heads", 3), ErrorKind::kInvalidConfig,
                 "num_key_value_heads");
}

TEST(ModelConfig, AMissingHeadDimNeedsAHiddenSizeThatHeadsDivide) {
  json document = tiny_without("head_dim");
  document["num_attention_heads"] = 3;
  expect_refused(document, ErrorKind::kInvalidConfig, "head_dim");
}

TEST(ModelConfig, WhatWouldChangeShapesIsUnsupported) {
  const std::tuple<const char*, json> cases[] = {
      {"model_type", "llama"},
      {"attention_bias", true},
      {"mlp_only_layers", json::array({0})},
      {"decoder_sparse_step", 2},
      {"decoder_sparse_step", 0},
      {"shared_expert_intermediate_size", 16},
      {"moe_shared_expert_intermediate_size", 16},
      {"n_shared_experts", 1},
      {"num_shared_experts", 2},
      {"quantization_config", json::object({{"quant_method", "fp8"}})},
      {"compression_config", json::object()},
  };
  for (const auto& [field, value] : cases) {
    expect_refused(tiny_with(field, value), ErrorKind::kUnsupported, field);
  }
  expect_refused(tiny_without("model_type"), ErrorKind::kInvalidConfig, "model_type");
  expect_refused(tiny_with("mlp_only_layers", 3), ErrorKind::kInvalidConfig, "mlp_only_layers");
}

TEST(ModelConfig, FieldsThatSayNoAreAccepted) {
  json document = document_named("tiny");
  document["shared_expert_intermediate_size"] = 0;
  document["n_shared_experts"] = nullptr;
  document["quantization_config"] = nullptr;
  EXPECT_EQ(parse_model_config(document.dump(), "x"), model_named("tiny"));
}

TEST(ModelConfig, AnUnsupportedModelIsNamedBeforeTheFieldsThatItLacks) {
  json document = tiny_without("num_experts");
  document["model_type"] = "llama";
  document["attention_bias"] = true;
  expect_refused(document, ErrorKind::kUnsupported, "model_type");
}

}  // namespace
}  // namespace tpsync::model
