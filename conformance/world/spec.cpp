#include "conformance/world/spec.h"

#include <fmt/format.h>

#include "tpsync/base/process.h"

namespace tpsync::conformance {

std::string device_uuid(int index) {
  return fmt::format("5117d0e5-0000-4000-8000-{:012x}", index + 1);
}

std::vector<wire::Route> runtime_routes(const WorldSpec& spec) {
  std::vector<wire::Route> routes = {wire::Route::kGather};
  if (spec.runtime_reshards) routes.push_back(wire::Route::kReshard);
  return routes;
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

WorldSpec small_world(model::ModelConfig config, int tp) {
  WorldSpec spec;
  spec.config = std::move(config);
  spec.tp = tp;
  spec.actors = tp;
  spec.sync.bucket_bytes = 1024;
  spec.sync.gpu_memory_headroom_bytes = 1024;
  spec.sync.control_timeout = std::chrono::seconds(60);
  spec.sync.content_digest = true;
  spec.timeouts.startup = std::chrono::seconds(60);
  spec.timeouts.generate = std::chrono::seconds(30);
  spec.timeouts.weight_update = std::chrono::seconds(30);
  spec.timeouts.health = std::chrono::seconds(10);
  spec.timeouts.sleep = std::chrono::seconds(10);
  spec.timeouts.wake_up = std::chrono::seconds(10);
  spec.timeouts.shutdown = std::chrono::seconds(10);
  return spec;
}

void set_real_timeouts(WorldSpec& spec, std::uint64_t worker_bytes) {
  // Host memory for saved weights is allocated at about 2 GB/s.
  const auto per_worker = std::chrono::seconds(worker_bytes / (512 * kMiB));
  const Duration each = std::chrono::seconds(10) + per_worker;
  spec.timeouts = {.startup = 12 * each,
                   .generate = each,
                   .weight_update = each,
                   .health = each,
                   .sleep = each,
                   .wake_up = each,
                   .shutdown = each};
  spec.sync.control_timeout = spec.timeouts.weight_update + kKillAllowance + each;
}

bool switch_off(sim::Cruelty& cruelty, const std::string& name) {
  for (const auto& [known, member] : kCruelties) {
    if (name != known) continue;
    cruelty.*member = false;
    return true;
  }
  return false;
}

std::vector<std::string> switched_off(const sim::Cruelty& cruelty) {
  std::vector<std::string> names;
  for (const auto& [name, member] : kCruelties) {
    if (!(cruelty.*member)) names.emplace_back(name);
  }
  return names;
}

std::uint64_t default_bucket_bytes(const model::CanonicalPlan& plan) {
  return plan.byte_count < kMiB ? 1024 : 640 * kMiB;
}

}  // namespace tpsync::conformance
