#include "conformance/command/world_flags.h"

#include <CLI/CLI.hpp>

#include "conformance/command/usage.h"
#include "tpsync/base/errors.h"
#include "tpsync/model/tp_layout.h"

namespace tpsync::conformance {

void WorldFlags::add_to(CLI::App& app) {
  app.add_option("--world", world, "The world to run in: sim")->capture_default_str();
  app.add_option("--seed", seed, "Seed of every draw")->capture_default_str();
  app.add_option("--tp", tp, "Tensor-parallel size (default 4)");
  app.add_option("--actors", actors, "Trainer ranks (default: as --tp)");
  app.add_option("--config", config,
                 "Hugging Face config.json, or its directory (default: tiny-tp4)");
  app.add_option("--bucket-bytes", bucket_bytes,
                 "Packed buffer (default 1024 for models below 1 MiB, else 640 MiB)");
  app.add_flag("--phantom", phantom, "Track extents and content tags instead of bytes");
}

model::ModelConfig tiny_tp4() {
  model::ModelConfig config;
  config.model_type = "qwen3_moe";
  config.num_hidden_layers = 1;
  config.num_experts = 4;
  config.hidden_size = 8;
  config.moe_intermediate_size = 8;
  config.vocab_size = 16;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 4;
  return config;
}

model::ModelConfig load_config_or_refuse(const std::string& path) {
  try {
    return model::load_model_config(path);
  } catch (const Error& error) {
    throw UsageError{"--config: " + to_text(error.record())};
  }
}

WorldSpec WorldFlags::spec() const {
  if (world != "sim") {
    throw UsageError{"--world: \"" + world + "\" is not a world of this version; use sim"};
  }
  const int tp_size = tp.value_or(4);
  if (tp_size < 1 || tp_size > 64) {
    throw UsageError{"--tp: " + std::to_string(tp_size) + " is out of range; use 1 to 64"};
  }
  const int ranks = actors.value_or(tp_size);
  if (ranks < 1 || ranks > 64) {
    throw UsageError{"--actors: " + std::to_string(ranks) + " is out of range; use 1 to 64"};
  }
  if (bucket_bytes && *bucket_bytes == 0) {
    throw UsageError{"--bucket-bytes: must be greater than 0"};
  }
  WorldSpec spec = small_world(config ? load_config_or_refuse(*config) : tiny_tp4(), tp_size);
  spec.actors = ranks;
  spec.seed = seed;
  spec.phantom = phantom;
  try {
    const model::CanonicalPlan plan = model::plan_canonical(spec.config);
    static_cast<void>(model::plan_tp_layout(spec.config, plan, tp_size, 0));
    spec.sync.bucket_bytes = bucket_bytes.value_or(default_bucket_bytes(plan));
    if (plan.largest_tensor_bytes > spec.sync.bucket_bytes) {
      throw UsageError{"--bucket-bytes: the largest tensor has " +
                       std::to_string(plan.largest_tensor_bytes) + " bytes; give at least that"};
    }
    if (plan.byte_count >= kMiB) {
      spec.sync.gpu_memory_headroom_bytes = 2048 * kMiB;
      spec.kv_cache_bytes = kGiB;
      if (!phantom && plan.byte_count > kGiB) {
        throw UsageError{"--config: this model has " + std::to_string(plan.byte_count) +
                         " bytes; simulate it with --phantom"};
      }
    }
  } catch (const Error& error) {
    throw UsageError{(config ? "--config: " : "--tp: ") + to_text(error.record())};
  }
  if (phantom) spec.sync.content_digest = false;
  return spec;
}

}  // namespace tpsync::conformance
