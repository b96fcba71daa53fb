#include "tpsync/rollout/config.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tpsync/base/errors.h"

namespace tpsync::rollout {
namespace {

using std::chrono::seconds;

EngineConfig good(RuntimeKind runtime = RuntimeKind::kVllm) {
  EngineConfig config;
  config.runtime = runtime;
  config.pretrained_model_ckpt_path = "/models/qwen3";
  return config;
}

// What is refused: the subject, or "" if nothing is.
std::string refused(const EngineConfig& config, bool local = true) {
  try {
    check_config(config, local);
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidConfig);
    EXPECT_FALSE(error.record().detail.empty());
    return error.record().subject;
  }
  return "";
}

struct Fault {
  std::string subject;
  std::function<void(EngineConfig&)> make;
};

// In the order of the checks.
std::vector<Fault> faults() {
  return {
      {"rollout.pretrained_model_ckpt_path", [](auto& c) { c.pretrained_model_ckpt_path = ""; }},
      {"rollout.model_revision", [](auto& c) { c.model_revision = " \t"; }},
      {"rollout.tokenizer_revision", [](auto& c) { c.tokenizer_revision = ""; }},
      {"rollout.tp_size", [](auto& c) { c.tp_size = 0; }},
      {"rollout.dtype", [](auto& c) { c.dtype = "float16"; }},
      {"rollout.moe_backend", [](auto& c) { c.moe_backend = "cutlass"; }},
      {"rollout.quantization", [](auto& c) { c.quantization = "fp8"; }},
      {"rollout.enforce_eager", [](auto& c) { c.enforce_eager = false; }},
      {"rollout.enable_prefix_caching", [](auto& c) { c.enable_prefix_caching = true; }},
      {"rollout.enable_chunked_prefill", [](auto& c) { c.enable_chunked_prefill = true; }},
      {"rollout.logprobs_mode", [](auto& c) { c.logprobs_mode = "raw_logprobs"; }},
      {"rollout.engine_kwargs.dtype",
       [](auto& c) {
         c.engine_kwargs = {{"dtype", "\"x\""}};
       }},
      {"rollout.max_prompt_length", [](auto& c) { c.max_prompt_length = 0; }},
      {"rollout.max_new_tokens", [](auto& c) { c.max_new_tokens = -1; }},
      {"rollout.temperature", [](auto& c) { c.temperature = 0; }},
      {"rollout.top_p", [](auto& c) { c.top_p = 1.5; }},
      {"rollout.top_k", [](auto& c) { c.top_k = -1; }},
      {"rollout.request_timeout_s", [](auto& c) { c.request_timeout = seconds(0); }},
      {"rollout.startup_timeout_s", [](auto& c) { c.startup_timeout = seconds(0); }},
      {"rollout.generate_timeout_s", [](auto& c) { c.generate_timeout = seconds(-1); }},
      {"rollout.weight_update_timeout_s", [](auto& c) { c.weight_update_timeout = seconds(0); }},
      {"rollout.health_timeout_s", [](auto& c) { c.health_timeout = seconds(0); }},
      {"rollout.sleep_timeout_s", [](auto& c) { c.sleep_timeout = seconds(0); }},
      {"rollout.wake_up_timeout_s", [](auto& c) { c.wake_up_timeout = seconds(0); }},
      {"rollout.shutdown_timeout_s", [](auto& c) { c.shutdown_timeout = seconds(0); }},
  };
}

TEST(EngineConfig, DefaultsPassOnceACheckpointIsNamed) {
  EXPECT_EQ(refused(good(RuntimeKind::kVllm)), "");
  EXPECT_EQ(refused(good(RuntimeKind::kNative)), "");
  EXPECT_EQ(refused(EngineConfig{}), "rollout.pretrained_model_ckpt_path");
}

TEST(EngineConfig, EachFieldIsRefusedByName) {
  for (const Fault& fault : faults()) {
    EngineConfig config = good();
    fault.make(config);
    EXPECT_EQ(refused(config), fault.subject);
  }
}

// Of two faults the one whose check comes first is named.
TEST(EngineConfig, ChecksKeepTheirOrder) {
  const std::vector<Fault> all = faults();
  for (std::size_t first = 0; first < all.size(); ++first) {
    for (std::size_t second = first + 1; second < all.size(); ++second) {
      EngineConfig config = good();
      all[second].make(config);
      all[first].make(config);
      EXPECT_EQ(refused(config), all[first].subject) << "with " << all[second].subject;
    }
  }
}

TEST(EngineConfig, ACheckpointThatIsNotLocalNeedsARevision) {
  EngineConfig config = good();
  EXPECT_EQ(refused(config, false), "rollout.model_revision");
  config.model_revision = "main";
  EXPECT_EQ(refused(config, false), "");
}

TEST(EngineConfig, WhatOnlyVllmRequiresIsFreeForOtherRuntimes) {
  EngineConfig config = good(RuntimeKind::kNative);
  config.dtype = "float32";
  config.moe_backend = "grouped";
  config.quantization = "none";
  config.enforce_eager = false;
  config.enable_prefix_caching = true;
  config.enable_chunked_prefill = true;
  config.logprobs_mode = "raw_logprobs";
  config.engine_kwargs = {{"dtype", "\"float32\""}};
  EXPECT_EQ(refused(config), "");
}

TEST(EngineConfig, EdgesOfRangesPass) {
  EngineConfig config = good();
  config.top_p = 1;
  config.top_k = 0;
  config.max_prompt_length = 1;
  config.max_new_tokens = 1;
  config.temperature = 1e-6;
  EXPECT_EQ(refused(config), "");
  config.top_p = 0;
  EXPECT_EQ(refused(config), "rollout.top_p");
}

TEST(EngineConfig, ACommandWithoutATimeoutTakesTheRequests) {
  EngineConfig config = good();
  config.request_timeout = seconds(7);
  EXPECT_EQ(timeout_for(config, wire::Command::kHealth), seconds(30));
  config.health_timeout.reset();
  EXPECT_EQ(timeout_for(config, wire::Command::kHealth), seconds(7));
  config.weight_update_timeout = seconds(930);
  for (const wire::Command command :
       {wire::Command::kProbeIpc, wire::Command::kInit, wire::Command::kStart,
        wire::Command::kUpdate, wire::Command::kFinish, wire::Command::kRelease})
    EXPECT_EQ(timeout_for(config, command), seconds(930)) << wire::name_of(command);
  config.shutdown_timeout = seconds(1);
  config.startup_timeout = seconds(2);
  config.generate_timeout = seconds(3);
  config.sleep_timeout = seconds(4);
  config.wake_up_timeout = seconds(5);
  const CommandTimeouts timeouts = command_timeouts(config);
  EXPECT_EQ(timeouts.shutdown, seconds(1));
  EXPECT_EQ(timeouts.startup, seconds(2));
  EXPECT_EQ(timeouts.generate, seconds(3));
  EXPECT_EQ(timeouts.sleep, seconds(4));
  EXPECT_EQ(timeouts.wake_up, seconds(5));
  EXPECT_EQ(timeouts.health, seconds(7));
  EXPECT_EQ(timeouts.weight_update, seconds(930));
}

TEST(EngineConfig, TheTokenizerFollowsTheModelsRevision) {
  EngineConfig config = good();
  EXPECT_FALSE(tokenizer_revision(config));
  config.model_revision = "a";
  EXPECT_EQ(tokenizer_revision(config), "a");
  config.tokenizer_revision = "b";
  EXPECT_EQ(tokenizer_revision(config), "b");
}

}  // namespace
}  // namespace tpsync::rollout
