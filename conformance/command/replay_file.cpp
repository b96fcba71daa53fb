#include "conformance/command/replay_file.h"

#include <nlohmann/json.hpp>

#include "conformance/scenarios/scenario.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

[[noreturn]] void refuse(const std::string& field, const std::string& what) {
  throw_invalid(ErrorKind::kInvalidConfig, field, what);
}

template <typename T>
T get(const Json& json, const std::string& field) {
  const auto at = json.find(field);
  if (at == json.end()) refuse(field, "is missing from the replay file");
  try {
    return at->get<T>();
  } catch (const Json::exception&) {
    refuse(field, "has the wrong type");
  }
}

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

template <typename T>
std::optional<T> optional_of(const Json& json, const std::string& field) {
  const auto at = json.find(field);
  if (at == json.end() || at->is_null()) return std::nullopt;
  return get<T>(json, field);
}

DType dtype_of(const Json& json, const std::string& field) {
  const auto dtype = dtype_from_bare(get<std::string>(json, field));
  if (!dtype) refuse(field, "is no known dtype");
  return *dtype;
}

faults::Demand demand_of(const std::string& name) {
  using faults::Demand;
  for (const Demand demand : {Demand::kFail, Demand::kSurvive, Demand::kEither}) {
    if (to_string(demand) == name) return demand;
  }
  refuse("facts.demand", "must be fail, survive or either");
}

ErrorKind kind_of(const std::string& name) {
  for (std::uint64_t value = 0; const auto kind = error_kind_from(value); ++value) {
    if (to_string(*kind) == name) return *kind;
  }
  refuse("facts.kinds", "holds \"" + name + "\", which is no kind of error");
}

SimOptions options_from(const Json& json) {
  SimOptions options;
  const int policy = get<int>(json, "policy");
  if (policy < 0 || policy > 2) refuse("policy", "must be 0, 1 or 2");
  options.policy = static_cast<sim::Policy>(policy);
  options.pipe_capacity = get<std::uint64_t>(json, "pipe_capacity");
  if (options.pipe_capacity == 0) refuse("pipe_capacity", "must be at least 1");
  options.recovery = get<std::string>(json, "recovery");
  using Pairs = std::vector<std::pair<std::uint64_t, std::uint32_t>>;
  for (const auto& [choice, candidate] : get<Pairs>(json, "deviations")) {
    options.deviations.push_back({choice, candidate});
  }
  options.plan = faults::plan_from_json(get<Json>(json, "plan").dump());
  const auto facts = get<std::vector<Json>>(json, "facts");
  if (facts.size() > options.plan.faults.size()) {
    refuse("facts", "must be at most one per fault of the plan");
  }
  for (const Json& entry : facts) {
    FaultFacts& fact = options.facts.emplace_back();
    fact.demand = demand_of(get<std::string>(entry, "demand"));
    for (const auto& kind : get<std::vector<std::string>>(entry, "kinds")) {
      fact.kinds.push_back(kind_of(kind));
    }
  }
  return options;
}

}  // namespace

std::string to_json(const Replay& replay) {
  const WorldSpec& s = replay.spec;
  Json json;
  json["tpsync_replay"] = kFormat;
  if (!replay.scenario.empty()) {
    json["scenario"] = replay.scenario;
    json["world"] = replay.world;
  }
  json["trace_hash"] = replay.trace_hash;
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
  json["weight_update_timeout_ns"] = s.timeouts.weight_update.count();
  json["content_digest"] = s.sync.content_digest;
  json["layout"] = s.sync.layout ? Json(std::string(name_of(*s.sync.layout))) : Json(nullptr);
  json["base_version"] = s.base_version;
  json["device_bytes"] = s.device_bytes;
  json["kv_cache_bytes"] = s.kv_cache_bytes;
  json["actor_uuids"] = s.actor_uuids;
  if (!replay.scenario.empty()) return json.dump(2) + "\n";
  json["policy"] = static_cast<int>(replay.options.policy);
  json["pipe_capacity"] = replay.options.pipe_capacity;
  json["recovery"] = replay.options.recovery;
  json["deviations"] = Json::array();
  for (const sim::Deviation& d : replay.options.deviations) {
    json["deviations"].push_back({d.choice, d.candidate});
  }
  json["plan"] = Json::parse(faults::to_json(replay.options.plan));
  json["facts"] = Json::array();
  for (const FaultFacts& facts : replay.options.facts) {
    Json kinds = Json::array();
    for (const ErrorKind kind : facts.kinds) kinds.push_back(std::string(to_string(kind)));
    json["facts"].push_back(
        {{"demand", std::string(to_string(facts.demand))}, {"kinds", std::move(kinds)}});
  }
  return json.dump(2) + "\n";
}

Replay replay_from_json(const std::string& text) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception&) {
    refuse("replay", "is not JSON");
  }
  if (!json.is_object() || json.find("tpsync_replay") == json.end()) {
    refuse("tpsync_replay", "is missing: this is no replay file");
  }
  if (get<int>(json, "tpsync_replay") != kFormat) refuse("tpsync_replay", "must be 1");
  const Json model = get<Json>(json, "model");
  Replay replay;
  WorldSpec& s = replay.spec;
  s = small_world(model::parse_model_config(model.dump(), "model"), get<int>(json, "tp"));
  if (s.tp < 1 || s.tp > 64) refuse("tp", "must be 1 to 64");
  s.actors = get<int>(json, "actors");
  if (s.actors < 1 || s.actors > 64) refuse("actors", "must be 1 to 64");
  s.seed = get<std::uint64_t>(json, "seed");
  s.phantom = get<bool>(json, "phantom");
  s.storage = get<bool>(json, "fused_experts") ? Storage::kFusedExperts : Storage::kSeparateExperts;
  s.stored = dtype_of(json, "stored");
  s.uneven_shards = get<bool>(json, "uneven_shards");
  s.lost_tensor = optional_of<std::string>(json, "lost_tensor");
  s.sync.bucket_bytes = get<std::uint64_t>(json, "bucket_bytes");
  s.sync.gpu_memory_headroom_bytes = get<std::uint64_t>(json, "headroom_bytes");
  s.sync.control_timeout = Duration(get<std::int64_t>(json, "control_timeout_ns"));
  s.timeouts.weight_update = Duration(get<std::int64_t>(json, "weight_update_timeout_ns"));
  s.sync.content_digest = get<bool>(json, "content_digest");
  if (const auto layout = optional_of<std::string>(json, "layout")) {
    s.sync.layout = wire::layout_from(*layout);
    if (!s.sync.layout) refuse("layout", "must be compact or rank_major");
  }
  s.base_version = get<std::int64_t>(json, "base_version");
  s.device_bytes = get<std::uint64_t>(json, "device_bytes");
  s.kv_cache_bytes = get<std::uint64_t>(json, "kv_cache_bytes");
  s.actor_uuids = get<std::vector<std::string>>(json, "actor_uuids");
  if (!s.actor_uuids.empty() && s.actor_uuids.size() != static_cast<std::size_t>(s.actors)) {
    refuse("actor_uuids", "must be empty or one per actor");
  }
  replay.trace_hash = get<std::string>(json, "trace_hash");
  if (const auto scenario = optional_of<std::string>(json, "scenario")) {
    if (!scenario_named(*scenario)) refuse("scenario", "is none of this version");
    replay.scenario = *scenario;
    replay.world = get<std::uint64_t>(json, "world");
  } else {
    replay.options = options_from(json);
  }
  return replay;
}

}  // namespace tpsync::conformance
