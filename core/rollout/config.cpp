#include "tpsync/rollout/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tpsync/base/errors.h"

namespace tpsync::rollout {

namespace {

// Arguments that the host of a vLLM engine sets by itself.
constexpr std::array<std::string_view, 14> kReservedEngineKwargs = {"distributed_executor_backend",
                                                                    "enable_sleep_mode",
                                                                    "worker_extension_cls",
                                                                    "weight_transfer_config",
                                                                    "trust_remote_code",
                                                                    "revision",
                                                                    "tokenizer_revision",
                                                                    "dtype",
                                                                    "quantization",
                                                                    "moe_backend",
                                                                    "enforce_eager",
                                                                    "enable_prefix_caching",
                                                                    "enable_chunked_prefill",
                                                                    "logprobs_mode"};

[[noreturn]] void refuse(std::string_view field, std::string_view detail) {
  throw_invalid(ErrorKind::kInvalidConfig, fmt::format("rollout.{}", field), detail);
}

bool blank(const std::optional<std::string>& text) {
  return text && text->find_first_not_of(" \t\r\n\v\f") == std::string::npos;
}

void require_text(std::string_view field, const std::string& value, std::string_view only) {
  if (value != only)
    refuse(field, fmt::format("is \"{}\"; with vLLM it must be \"{}\"", value, only));
}

void require_flag(std::string_view field, bool value, bool only) {
  if (value != only) refuse(field, fmt::format("must be {} with vLLM", only));
}

void check_vllm(const EngineConfig& config) {
  require_text("dtype", config.dtype, "bfloat16");
  require_text("moe_backend", config.moe_backend, "triton");
  if (config.quantization) refuse("quantization", "must be null with vLLM");
  require_flag("enforce_eager", config.enforce_eager, true);
  require_flag("enable_prefix_caching", config.enable_prefix_caching, false);
  require_flag("enable_chunked_prefill", config.enable_chunked_prefill, false);
  require_text("logprobs_mode", config.logprobs_mode, "processed_logprobs");
  for (const auto& [key, value] : config.engine_kwargs) {
    if (std::find(kReservedEngineKwargs.begin(), kReservedEngineKwargs.end(), key) !=
        kReservedEngineKwargs.end())
      refuse("engine_kwargs." + key, "is set by the engine itself; remove it");
  }
}

void check_timeout(std::string_view field, const std::optional<Duration>& timeout) {
  if (timeout && *timeout <= Duration::zero()) refuse(field, "must be greater than 0");
}

}  // namespace

std::string_view to_string(RuntimeKind kind) {
  return kind == RuntimeKind::kVllm ? "vllm" : "native";
}

const std::optional<std::string>& tokenizer_revision(const EngineConfig& config) {
  return config.tokenizer_revision ? config.tokenizer_revision : config.model_revision;
}

Duration timeout_for(const EngineConfig& config, wire::Command command) {
  const auto own = [&]() -> const std::optional<Duration>& {
    switch (command) {
      case wire::Command::kStartup:
        return config.startup_timeout;
      case wire::Command::kGenerate:
        return config.generate_timeout;
      case wire::Command::kSleep:
        return config.sleep_timeout;
      case wire::Command::kWakeUp:
        return config.wake_up_timeout;
      case wire::Command::kHealth:
        return config.health_timeout;
      case wire::Command::kShutdown:
        return config.shutdown_timeout;
      case wire::Command::kProbeIpc:
      case wire::Command::kInit:
      case wire::Command::kStart:
      case wire::Command::kUpdate:
      case wire::Command::kFinish:
      case wire::Command::kRelease:
        break;
    }
    return config.weight_update_timeout;
  };
  return own().value_or(config.request_timeout);
}

CommandTimeouts command_timeouts(const EngineConfig& config) {
  CommandTimeouts timeouts;
  timeouts.startup = timeout_for(config, wire::Command::kStartup);
  timeouts.generate = timeout_for(config, wire::Command::kGenerate);
  timeouts.weight_update = timeout_for(config, wire::Command::kUpdate);
  timeouts.health = timeout_for(config, wire::Command::kHealth);
  timeouts.sleep = timeout_for(config, wire::Command::kSleep);
  timeouts.wake_up = timeout_for(config, wire::Command::kWakeUp);
  timeouts.shutdown = timeout_for(config, wire::Command::kShutdown);
  return timeouts;
}

void check_config(const EngineConfig& config, bool checkpoint_is_local) {
  if (config.pretrained_model_ckpt_path.empty())
    refuse("pretrained_model_ckpt_path", "is empty; name a checkpoint directory");
  if (blank(config.model_revision)) refuse("model_revision", "is blank; use null or a revision");
  if (blank(config.tokenizer_revision))
    refuse("tokenizer_revision", "is blank; use null or a revision");
  if (!checkpoint_is_local && !config.model_revision)
    refuse("model_revision", fmt::format("must be set, because \"{}\" is not on this host: a name "
                                         "without a revision may mean other weights tomorrow",
                                         config.pretrained_model_ckpt_path));
  if (config.tp_size < 1)
    refuse("tp_size", fmt::format("is {}; must be at least 1", config.tp_size));
  if (config.runtime == RuntimeKind::kVllm) check_vllm(config);
  if (config.max_prompt_length < 1)
    refuse("max_prompt_length", fmt::format("is {}; must be at least 1", config.max_prompt_length));
  if (config.max_new_tokens < 1)
    refuse("max_new_tokens", fmt::format("is {}; must be at least 1", config.max_new_tokens));
  if (!std::isfinite(config.temperature) || config.temperature <= 0)
    refuse("temperature", fmt::format("is {}; must be greater than 0 (there is no greedy decoding)",
                                      config.temperature));
  if (!(config.top_p > 0 && config.top_p <= 1))
    refuse("top_p", fmt::format("is {}; must be greater than 0 and at most 1", config.top_p));
  if (config.top_k < 0)
    refuse("top_k", fmt::format("is {}; must be at least 0 (0: all)", config.top_k));
  check_timeout("request_timeout_s", config.request_timeout);
  check_timeout("startup_timeout_s", config.startup_timeout);
  check_timeout("generate_timeout_s", config.generate_timeout);
  check_timeout("weight_update_timeout_s", config.weight_update_timeout);
  check_timeout("health_timeout_s", config.health_timeout);
  check_timeout("sleep_timeout_s", config.sleep_timeout);
  check_timeout("wake_up_timeout_s", config.wake_up_timeout);
  check_timeout("shutdown_timeout_s", config.shutdown_timeout);
}

}  // namespace tpsync::rollout
