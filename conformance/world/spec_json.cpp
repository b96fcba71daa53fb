#include "conformance/world/spec_json.h"

#include "conformance/world/json_fields.h"

namespace tpsync::conformance {

using json::get;
using json::get_integer;
using json::Json;
using json::optional_of;
using json::refuse;

namespace {

Json model_json(const model::ModelConfig& c) {
  return {{"model_type", c.model_type},
          {"tie_word_embeddings", c.tie_word_embeddings},
          {"num_hidden_layers", c.num_hidden_layers},
          {"num_experts", c.num_experts},
          {"hidden_size", c.hidden_size},
          {"moe_intermediate_size", c.moe_intermediate_size},
          {"vocab_size", c.vocab_size},
          {"num_attention_heads", c.num_attention_heads},
          {"num_key_value_heads", c.num_key_value_heads},
          {"head_dim", c.head_dim},
          {"torch_dtype", std::string(bare_name(c.dtype))}};
}

DType dtype_of(const Json& json, const std::string& field) {
  const auto dtype = dtype_from_bare(get<std::string>(json, field));
  if (!dtype) refuse(field, "is no known dtype");
  return *dtype;
}

}  // namespace

void add_spec(Json& json, const WorldSpec& s) {
  json["model"] = model_json(s.config);
  json["tp"] = s.tp;
  json["actors"] = s.actors;
  json["seed"] = s.seed;
  json["phantom"] = s.phantom;
  json["fused_experts"] = s.storage == Storage::kFusedExperts;
  json["stored"] = std::string(bare_name(s.stored));
  json["uneven_shards"] = s.uneven_shards;
  json["lost_tensor"] = s.lost_tensor ? Json(*s.lost_tensor) : Json(nullptr);
  json["bucket_bytes"] = s.sync.bucket_bytes;
  json["headroom_bytes"] = s.sync.gpu_memory_headroom_bytes;
  json["control_timeout_ns"] = s.sync.control_timeout.count();
  for (const auto& [name, timeout] : kCommandTimeouts) json[name] = (s.timeouts.*timeout).count();
  json["content_digest"] = s.sync.content_digest;
  json["layout"] = s.sync.layout ? Json(std::string(name_of(*s.sync.layout))) : Json(nullptr);
  json["overlap"] = s.sync.overlap;
  json["base_version"] = s.base_version;
  json["shared_lane"] = s.shared_lane;
  if (s.gather == Gather::kCopies) json["gather_by_copies"] = true;
  if (s.sync.route == wire::Route::kReshard) json["reshard"] = true;
  if (!s.runtime_reshards) json["runtime_reshards"] = false;
  json["device_bytes"] = s.device_bytes;
  json["kv_cache_bytes"] = s.kv_cache_bytes;
  json["actor_uuids"] = s.actor_uuids;
  if (s.vmm_exports) json["vmm_exports"] = true;
  if (s.lane_bytes != 0) json["lane_bytes"] = s.lane_bytes;
  if (s.simulated_lane) json["simulated_lane"] = true;
  const std::vector<std::string> without = switched_off(s.cruelty);
  if (!without.empty()) json["without"] = without;
}

WorldSpec spec_from_json(const Json& json) {
  const Json model = get<Json>(json, "model");
  WorldSpec s = small_world(model::parse_model_config(model.dump(), "model"),
                            get_integer<int>(json, "tp", 1, static_cast<int>(kRanksMax)));
  s.actors = get_integer<int>(json, "actors", 1, static_cast<int>(kRanksMax));
  s.seed = get_integer<std::uint64_t>(json, "seed");
  s.phantom = get<bool>(json, "phantom");
  s.storage = get<bool>(json, "fused_experts") ? Storage::kFusedExperts : Storage::kSeparateExperts;
  s.stored = dtype_of(json, "stored");
  s.uneven_shards = get<bool>(json, "uneven_shards");
  s.lost_tensor = optional_of<std::string>(json, "lost_tensor");
  s.sync.bucket_bytes = get_integer<std::uint64_t>(json, "bucket_bytes");
  s.sync.gpu_memory_headroom_bytes = get_integer<std::uint64_t>(json, "headroom_bytes");
  s.sync.control_timeout = Duration(get_integer<std::int64_t>(json, "control_timeout_ns"));
  for (const auto& [name, timeout] : kCommandTimeouts)
    s.timeouts.*timeout = Duration(get_integer<std::int64_t>(json, name));
  s.sync.content_digest = get<bool>(json, "content_digest");
  if (const auto layout = optional_of<std::string>(json, "layout")) {
    s.sync.layout = wire::layout_from(*layout);
    if (!s.sync.layout) refuse("layout", "must be compact or rank_major");
  }
  s.sync.overlap = optional_of<bool>(json, "overlap").value_or(true);
  s.base_version = get_integer<std::int64_t>(json, "base_version");
  s.shared_lane = get<bool>(json, "shared_lane");
  s.gather = optional_of<bool>(json, "gather_by_copies").value_or(false) ? Gather::kCopies
                                                                         : Gather::kCollective;
  if (optional_of<bool>(json, "reshard").value_or(false)) s.sync.route = wire::Route::kReshard;
  s.runtime_reshards = optional_of<bool>(json, "runtime_reshards").value_or(true);
  s.simulated_lane = optional_of<bool>(json, "simulated_lane").value_or(false);
  s.device_bytes = get_integer<std::uint64_t>(json, "device_bytes");
  s.kv_cache_bytes = get_integer<std::uint64_t>(json, "kv_cache_bytes");
  s.vmm_exports = optional_of<bool>(json, "vmm_exports").value_or(false);
  if (json.contains("lane_bytes")) {
    s.lane_bytes = get_integer<std::uint64_t>(json, "lane_bytes");
  }
  s.actor_uuids = get<std::vector<std::string>>(json, "actor_uuids");
  const auto without = optional_of<std::vector<std::string>>(json, "without");
  for (const std::string& name : without.value_or(std::vector<std::string>())) {
    if (!switch_off(s.cruelty, name)) refuse("without", "holds \"" + name + "\", no cruelty");
  }
  return s;
}

}  // namespace tpsync::conformance
