// The configuration of a rollout engine, with the field names, defaults and checks of UniRL's
// VLLMEngineConfig. What exists only because of vLLM is checked only where the runtime is vLLM.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tpsync/base/clock.h"
#include "tpsync/rollout/engine.h"
#include "tpsync/wire/messages.h"

namespace tpsync::rollout {

// What the runtime is made of; decides which checks apply.
enum class RuntimeKind : std::uint8_t { kNative, kVllm };
std::string_view to_string(RuntimeKind kind);  // "native", "vllm"

// Free-form arguments that are handed on: name and value as JSON text, in the order given.
using JsonFields = std::vector<std::pair<std::string, std::string>>;

struct EngineConfig {
  RuntimeKind runtime = RuntimeKind::kNative;
  std::string pretrained_model_ckpt_path;  // a directory, or a name that model_revision pins
  std::optional<std::string> model_revision;
  std::optional<std::string> tokenizer_revision;  // else the model's
  std::int64_t tp_size = 1;
  bool trust_remote_code = false;
  std::string dtype = "bfloat16";
  std::string moe_backend = "triton";
  std::optional<std::string> quantization;
  bool enforce_eager = true;
  bool enable_prefix_caching = false;
  bool enable_chunked_prefill = false;
  std::string logprobs_mode = "processed_logprobs";
  std::int64_t max_prompt_length = 4096;  // tokens
  std::int64_t max_new_tokens = 512;
  double temperature = 0.7;
  double top_p = 0.9;
  std::int64_t top_k = 0;  // 0: all
  bool ignore_eos = false;
  // For every command whose own timeout is not set, and for commands that have none.
  Duration request_timeout = std::chrono::seconds(1800);
  std::optional<Duration> startup_timeout = std::chrono::seconds(600);
  std::optional<Duration> generate_timeout = std::chrono::seconds(1800);
  std::optional<Duration> weight_update_timeout = std::chrono::seconds(300);
  std::optional<Duration> health_timeout = std::chrono::seconds(30);
  std::optional<Duration> sleep_timeout = std::chrono::seconds(120);
  std::optional<Duration> wake_up_timeout = std::chrono::seconds(120);
  std::optional<Duration> shutdown_timeout = std::chrono::seconds(30);
  std::optional<std::string> system_instruction;
  JsonFields chat_template_kwargs;
  JsonFields engine_kwargs;  // for the runtime's own engine
};

// The tokenizer's revision: its own, or the model's.
const std::optional<std::string>& tokenizer_revision(const EngineConfig& config);

// The command's own timeout, else request_timeout. The five native commands and probe_ipc share
// weight_update_timeout.
Duration timeout_for(const EngineConfig& config, wire::Command command);

// The same for the engine.
CommandTimeouts command_timeouts(const EngineConfig& config);

// `checkpoint_is_local`: pretrained_model_ckpt_path names something on this host. Throws
// InvalidInput kInvalidConfig, subject "rollout.<field>", in the order of the fields above, save
// that timeouts come last: path not empty; revisions not blank; a checkpoint that is not local
// needs model_revision; tp_size >= 1; for vLLM dtype bfloat16, moe_backend triton, no quantization,
// enforce_eager, no prefix caching, no chunked prefill, logprobs_mode processed_logprobs, no
// reserved key in engine_kwargs; lengths >= 1; temperature > 0; 0 < top_p <= 1; top_k >= 0;
// timeouts > 0.
void check_config(const EngineConfig& config, bool checkpoint_is_local);

}  // namespace tpsync::rollout
