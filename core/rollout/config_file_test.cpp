#include "tpsync/rollout/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "tpsync/base/errors.h"
#include "tpsync/base/process.h"

namespace tpsync::rollout {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

ErrorRecord refusal(const std::string& text) {
  try {
    parse_config(text, "file.yaml");
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidConfig);
    EXPECT_THAT(error.record().detail, StartsWith("file.yaml"));
    return error.record();
  }
  ADD_FAILURE() << "nothing was refused in:\n" << text;
  return {};
}

TEST(ConfigFile, AnEmptyDocumentGivesTheDefaults) {
  for (const char* text : {"", "---\n", "{}", "rollout:\n", "rollout: {}\nsync: {}\n"}) {
    const ConfigFile config = parse_config(text, "file.yaml");
    EXPECT_EQ(config.rollout.max_new_tokens, 512) << text;
    EXPECT_EQ(config.sync.bucket_bytes, 2048 * kMiB);
    EXPECT_EQ(config.trainer.weight_sync_interval, 1);
  }
}

TEST(ConfigFile, EveryKeyIsReadFromYaml) {
  const ConfigFile config = parse_config(R"(
rollout:
  runtime: vllm
  pretrained_model_ckpt_path: /m
  model_revision: abc
  tokenizer_revision: "def"
  tp_size: 4
  trust_remote_code: true
  dtype: float16
  moe_backend: x
  quantization: fp8
  enforce_eager: false
  enable_prefix_caching: true
  enable_chunked_prefill: true
  logprobs_mode: raw
  max_prompt_length: 1
  max_new_tokens: 2
  temperature: 0.25
  top_p: 5e-1
  top_k: 3
  ignore_eos: true
  request_timeout_s: 0.5
  startup_timeout_s: null
  generate_timeout_s: 1
  weight_update_timeout_s: 2
  health_timeout_s: 3
  sleep_timeout_s: 4
  wake_up_timeout_s: 5
  shutdown_timeout_s: ~
  system_instruction: "Be brief."
  chat_template_kwargs: {enable_thinking: false}
  engine_kwargs: {a: 1, b: [x, 2.5, null], c: {d: "1"}}
sync:
  bucket_size_mb: 640
  flush_cache: false
  lora_merged: true
  adapter_name: other
  name_remap: {"a.*": "b.*", "c.*": null, "*": "*"}
  wire_dtype: FP16
  gpu_memory_headroom_mb: 0
  control_timeout_s: 960
  last_committed_version: 7
  content_digest: true
  layout: compact
trainer:
  weight_sync_interval: 2
  enable_fsdp_offload: true
  rollout_shutdown_timeout_s: 100
)",
                                         "file.yaml");
  const EngineConfig& r = config.rollout;
  EXPECT_EQ(r.runtime, RuntimeKind::kVllm);
  EXPECT_EQ(r.pretrained_model_ckpt_path, "/m");
  EXPECT_EQ(r.model_revision, "abc");
  EXPECT_EQ(r.tokenizer_revision, "def");
  EXPECT_EQ(r.tp_size, 4);
  EXPECT_TRUE(r.trust_remote_code);
  EXPECT_EQ(r.dtype, "float16");
  EXPECT_EQ(r.moe_backend, "x");
  EXPECT_EQ(r.quantization, "fp8");
  EXPECT_FALSE(r.enforce_eager);
  EXPECT_TRUE(r.enable_prefix_caching);
  EXPECT_TRUE(r.enable_chunked_prefill);
  EXPECT_EQ(r.logprobs_mode, "raw");
  EXPECT_EQ(r.max_prompt_length, 1);
  EXPECT_EQ(r.max_new_tokens, 2);
  EXPECT_EQ(r.temperature, 0.25);
  EXPECT_EQ(r.top_p, 0.5);
  EXPECT_EQ(r.top_k, 3);
  EXPECT_TRUE(r.ignore_eos);
  EXPECT_EQ(r.request_timeout, milliseconds(500));
  EXPECT_FALSE(r.startup_timeout);
  EXPECT_EQ(r.generate_timeout, seconds(1));
  EXPECT_EQ(r.weight_update_timeout, seconds(2));
  EXPECT_EQ(r.health_timeout, seconds(3));
  EXPECT_EQ(r.sleep_timeout, seconds(4));
  EXPECT_EQ(r.wake_up_timeout, seconds(5));
  EXPECT_FALSE(r.shutdown_timeout);
  EXPECT_EQ(r.system_instruction, "Be brief.");
  EXPECT_THAT(r.chat_template_kwargs, ElementsAre(Pair("enable_thinking", "false")));
  EXPECT_THAT(r.engine_kwargs, ElementsAre(Pair("a", "1"), Pair("b", R"(["x",2.5,null])"),
                                           Pair("c", R"({"d":"1"})")));
  const sync::SyncOptions& s = config.sync;
  EXPECT_EQ(s.bucket_bytes, 640 * kMiB);
  EXPECT_FALSE(s.flush_cache);
  EXPECT_TRUE(s.lora_merged);
  EXPECT_EQ(s.adapter_name, "other");
  EXPECT_THAT(s.name_remap,
              ElementsAre(Pair("a.*", std::optional<std::string>("b.*")), Pair("c.*", std::nullopt),
                          Pair("*", std::optional<std::string>("*"))));
  EXPECT_EQ(s.wire_dtype, DType::kFloat16);
  EXPECT_EQ(s.gpu_memory_headroom_bytes, 0u);
  EXPECT_EQ(s.control_timeout, seconds(960));
  EXPECT_EQ(s.last_committed_version, 7);
  EXPECT_TRUE(s.content_digest);
  EXPECT_EQ(s.layout, wire::Layout::kCompact);
  EXPECT_EQ(config.trainer.weight_sync_interval, 2);
  EXPECT_TRUE(config.trainer.enable_fsdp_offload);
  EXPECT_EQ(config.trainer.rollout_shutdown_timeout, seconds(100));
}

TEST(ConfigFile, JsonIsReadAsWell) {
  const ConfigFile config = parse_config(
      R"({"rollout": {"tp_size": 2, "model_revision": "\u00e9\/x", "quantization": null},
          "sync": {"bucket_size_mb": 1}})",
      "file.json");
  EXPECT_EQ(config.rollout.tp_size, 2);
  EXPECT_EQ(config.rollout.model_revision, "\xc3\xa9/x");
  EXPECT_FALSE(config.rollout.quantization);
  EXPECT_EQ(config.sync.bucket_bytes, kMiB);
}

TEST(ConfigFile, AnErrorNamesTheKeyPathAndTheLine) {
  const ErrorRecord record = refusal("rollout:\n  tp_size: four\n");
  EXPECT_EQ(record.subject, "rollout.tp_size");
  EXPECT_EQ(record.detail, "file.yaml:2: is \"four\"; must be an integer");
}

TEST(ConfigFile, TextOfWhichDocumentsNeverEndIsRefused) {
  EXPECT_THAT(refusal("--- &*a, !x b [*a]\n").detail, HasSubstr("several documents"));
  EXPECT_THAT(refusal("{}\n---\n{}\n").detail, HasSubstr("several documents"));
}

TEST(ConfigFile, UnknownAndRepeatedKeysAreRefused) {
  ErrorRecord record = refusal("rollout:\n  tp_sise: 4\n");
  EXPECT_EQ(record.subject, "rollout.tp_sise");
  EXPECT_THAT(record.detail, HasSubstr("tp_size"));
  EXPECT_EQ(refusal("rolout: {}\n").subject, "rolout");
  EXPECT_EQ(refusal("sync:\n  bucket: 1\n").subject, "sync.bucket");
  record = refusal("rollout:\n  tp_size: 4\n  top_k: 1\n  tp_size: 4\n");
  EXPECT_EQ(record.subject, "rollout.tp_size");
  EXPECT_THAT(record.detail, HasSubstr(":4: stands twice"));
  EXPECT_EQ(refusal("\"\": 1\n").subject, "\"\"");
  EXPECT_EQ(refusal("rollout:\n  ? !a\n  : b\n").subject, "rollout.\"\"");
  EXPECT_EQ(refusal("rollout:\n  engine_kwargs: {a: {b: 1, b: 2}}\n").subject,
            "rollout.engine_kwargs.a.b");
}

TEST(ConfigFile, AValueOfAnotherTypeIsRefused) {
  const auto subject = [](const std::string& line) {
    return refusal("rollout:\n  " + line + "\n").subject;
  };
  for (const char* line :
       {"tp_size: \"4\"", "tp_size: 4.0", "tp_size: 4x", "tp_size:", "tp_size: null",
        "tp_size: [4]", "tp_size: {a: 4}", "tp_size: true", "tp_size: 99999999999999999999"})
    EXPECT_EQ(subject(line), "rollout.tp_size") << line;
  for (const char* line : {"enforce_eager: yes", "enforce_eager: 1", "enforce_eager: \"true\"",
                           "enforce_eager: True", "enforce_eager: null"})
    EXPECT_EQ(subject(line), "rollout.enforce_eager") << line;
  for (const char* line : {"temperature: .inf", "temperature: inf", "temperature: nan",
                           "temperature: \"1\"", "temperature: 1e999", "temperature: warm"})
    EXPECT_EQ(subject(line), "rollout.temperature") << line;
  for (const char* line : {"request_timeout_s: null", "request_timeout_s: 1e9",
                           "request_timeout_s: -1e9", "request_timeout_s: 30s"})
    EXPECT_EQ(subject(line), "rollout.request_timeout_s") << line;
  EXPECT_EQ(subject("dtype: null"), "rollout.dtype");
  EXPECT_EQ(subject("dtype: [a]"), "rollout.dtype");
  EXPECT_EQ(subject("engine_kwargs: 4"), "rollout.engine_kwargs");
  EXPECT_EQ(subject("runtime: sglang"), "rollout.runtime");
  EXPECT_EQ(refusal("sync:\n  bucket_size_mb: -1\n").subject, "sync.bucket_size_mb");
  EXPECT_EQ(refusal("sync:\n  bucket_size_mb: 1073741825\n").subject, "sync.bucket_size_mb");
  EXPECT_EQ(refusal("sync:\n  wire_dtype: int8\n").subject, "sync.wire_dtype");
  EXPECT_EQ(refusal("sync:\n  layout: rows\n").subject, "sync.layout");
  EXPECT_EQ(refusal("sync:\n  route: scenic\n").subject, "sync.route");
  EXPECT_EQ(refusal("sync:\n  name_remap: [a]\n").subject, "sync.name_remap");
  EXPECT_EQ(refusal("rollout: 4\n").subject, "rollout");
}

TEST(ConfigFile, WhatIsNoDocumentIsRefusedAsAWhole) {
  for (const std::string text :
       {"rollout: {", "a: b: c", "- 1\n- 2\n", "4", "\"text\"", "a: 1\n---\na: 2\n", "? [a]\n: b\n",
        "rollout: {engine_kwargs: {a: \"\\xff\\xfe\"}}x", "rollout: *unknown\n", "\t- x"})
    EXPECT_EQ(refusal(text).subject, "config") << text;
  EXPECT_EQ(refusal(std::string(kMiB + 1, '#')).subject, "config");
}

TEST(ConfigFile, ASmallDocumentCannotUnfoldIntoAHugeOne) {
  std::string text = "rollout:\n  engine_kwargs:\n    a0: &a0 [x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 8; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    text += "    a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + last;
    for (int k = 0; k < 7; ++k) text += ", " + last;
    text += "]\n";
  }
  EXPECT_THAT(refusal(text).detail, HasSubstr("too large"));
}

TEST(ConfigFile, OuterBudgetsMustExceedInnerOnes) {
  const auto refused = [](const ConfigFile& config) -> std::string {
    try {
      check_budgets(config);
    } catch (const InvalidInput& error) {
      return error.record().subject;
    }
    return "";
  };
  ConfigFile config;
  config.rollout.weight_update_timeout = seconds(930);
  config.sync.control_timeout = seconds(930) + kKillAllowance;
  EXPECT_EQ(refused(config), "sync.control_timeout_s");
  config.sync.control_timeout += milliseconds(1);
  EXPECT_EQ(refused(config), "");
  config.rollout.shutdown_timeout = seconds(30);
  config.trainer.rollout_shutdown_timeout = seconds(60) + kKillAllowance;
  EXPECT_EQ(refused(config), "");
  config.trainer.rollout_shutdown_timeout -= milliseconds(1);
  EXPECT_EQ(refused(config), "trainer.rollout_shutdown_timeout_s");
  config.trainer.rollout_shutdown_timeout = seconds(100);
  config.trainer.weight_sync_interval = 0;
  EXPECT_EQ(refused(config), "trainer.weight_sync_interval");
}

TEST(ConfigFile, TheFourGpuRecipeIsWithinItsBudgets) {
  const ConfigFile config =
      load_config(TPSYNC_SOURCE_DIR "/conformance/configs/qwen3-30b-a3b-4gpu.yaml");
  EXPECT_EQ(config.rollout.tp_size, 4);
  EXPECT_EQ(config.rollout.weight_update_timeout, seconds(930));
  EXPECT_EQ(config.sync.control_timeout, seconds(960));
  EXPECT_EQ(config.sync.bucket_bytes, 640 * kMiB);
  EXPECT_EQ(config.rollout.max_prompt_length + config.rollout.max_new_tokens, 4352);
  EXPECT_THAT(config.rollout.engine_kwargs,
              ElementsAre(Pair("max_model_len", "4352"), Pair("max_num_batched_tokens", "4352"),
                          Pair("max_num_seqs", "16"), Pair("gpu_memory_utilization", "0.6")));
}

TEST(ConfigFile, AFileThatCannotBeReadIsNamed) {
  try {
    load_config("/nowhere/config.yaml");
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.record().subject, "config");
    EXPECT_THAT(error.record().detail, HasSubstr("/nowhere/config.yaml"));
  }
}

TEST(ConfigFile, ALoadedFileIsCheckedAsAWhole) {
  const std::string path = ::testing::TempDir() + "config_file_test.yaml";
  const auto refused = [&](const std::string& text) -> std::string {
    std::ofstream(path, std::ios::trunc) << text;
    try {
      load_config(path);
    } catch (const InvalidInput& error) {
      EXPECT_THAT(error.record().detail, HasSubstr(path));
      return error.record().subject;
    }
    return "";
  };
  EXPECT_EQ(refused("rollout: {pretrained_model_ckpt_path: /no/such/model}"),
            "rollout.model_revision");
  EXPECT_EQ(refused("rollout: {pretrained_model_ckpt_path: /}"), "");
  EXPECT_EQ(refused("rollout: {pretrained_model_ckpt_path: /}\nsync: {bucket_size_mb: 0}"),
            "sync.bucket_size_mb");
  EXPECT_EQ(refused("rollout: {pretrained_model_ckpt_path: /}\nsync: {control_timeout_s: 0}"),
            "sync.control_timeout_s");
  EXPECT_EQ(refused("rollout: {pretrained_model_ckpt_path: /}\nsync: {last_committed_version: -1}"),
            "sync.last_committed_version");
  EXPECT_EQ(refused("rollout: {pretrained_model_ckpt_path: /}\nsync: {control_timeout_s: 310}"),
            "sync.control_timeout_s");
  std::remove(path.c_str());
}

}  // namespace
}  // namespace tpsync::rollout
