#include "conformance/command/replay_file.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "conformance/command/output.h"
#include "conformance/command/world_check.h"
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
    // Numbers are converted by integer(): here they would be cut or wrapped.
    static_assert(!std::is_integral_v<T> || std::is_same_v<T, bool>);
    return at->get<T>();
  } catch (const Json::exception&) {
    refuse(field, "has the wrong type");
  }
}

template <typename T>
T integer(const Json& value, const std::string& field, std::type_identity_t<T> first,
          std::type_identity_t<T> last) {
  const bool is_whole = value.is_number_integer();
  const bool fits =
      is_whole && (value.is_number_unsigned() ? std::in_range<T>(value.get<std::uint64_t>())
                                              : std::in_range<T>(value.get<std::int64_t>()));
  if (!fits || value.get<T>() < first || value.get<T>() > last) {
    refuse(field, fmt::format("must be a whole number from {} to {}", first, last));
  }
  return value.get<T>();
}

// A whole number, of the range of its type unless the caller checks another.
template <typename T>
T get_integer(const Json& json, const std::string& field,
              std::type_identity_t<T> first = std::numeric_limits<T>::min(),
              std::type_identity_t<T> last = std::numeric_limits<T>::max()) {
  return integer<T>(get<Json>(json, field), field, first, last);
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
  auto value = static_cast<std::uint64_t>(ErrorKind::kInvalidConfig);  // the first
  for (; const auto kind = error_kind_from(value); ++value) {
    if (to_string(*kind) == name) return *kind;
  }
  refuse("facts.kinds", "holds \"" + name + "\", which is no kind of error");
}

SimOptions options_from(const Json& json) {
  SimOptions options;
  options.policy = static_cast<sim::Policy>(get_integer<int>(json, "policy", 0, 2));
  options.pipe_capacity = get_integer<std::uint64_t>(json, "pipe_capacity", 1, kGiB);
  options.recovery = get<std::string>(json, "recovery");
  for (const Json& pair : get<std::vector<Json>>(json, "deviations")) {
    if (!pair.is_array() || pair.size() != 2) {
      refuse("deviations", "must hold pairs of a choice and a candidate");
    }
    options.deviations.push_back({integer<std::uint64_t>(pair[0], "deviations", 0, UINT64_MAX),
                                  integer<std::uint32_t>(pair[1], "deviations", 0, UINT32_MAX)});
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
  if (!replay.scenario.empty()) return dumped(json);
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
  return dumped(json);
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
  static_cast<void>(get_integer<int>(json, "tpsync_replay", kFormat, kFormat));
  const Json model = get<Json>(json, "model");
  Replay replay;
  WorldSpec& s = replay.spec;
  s = small_world(model::parse_model_config(model.dump(), "model"),
                  get_integer<int>(json, "tp", 1, kRanksMax));
  s.actors = get_integer<int>(json, "actors", 1, kRanksMax);
  s.seed = get_integer<std::uint64_t>(json, "seed");
  s.phantom = get<bool>(json, "phantom");
  s.storage = get<bool>(json, "fused_experts") ? Storage::kFusedExperts : Storage::kSeparateExperts;
  s.stored = dtype_of(json, "stored");
  s.uneven_shards = get<bool>(json, "uneven_shards");
  s.lost_tensor = optional_of<std::string>(json, "lost_tensor");
  s.sync.bucket_bytes = get_integer<std::uint64_t>(json, "bucket_bytes");
  s.sync.gpu_memory_headroom_bytes = get_integer<std::uint64_t>(json, "headroom_bytes");
  s.sync.control_timeout = Duration(get_integer<std::int64_t>(json, "control_timeout_ns"));
  s.timeouts.weight_update = Duration(get_integer<std::int64_t>(json, "weight_update_timeout_ns"));
  s.sync.content_digest = get<bool>(json, "content_digest");
  if (const auto layout = optional_of<std::string>(json, "layout")) {
    s.sync.layout = wire::layout_from(*layout);
    if (!s.sync.layout) refuse("layout", "must be compact or rank_major");
  }
  s.base_version = get_integer<std::int64_t>(json, "base_version");
  s.device_bytes = get_integer<std::uint64_t>(json, "device_bytes");
  s.kv_cache_bytes = get_integer<std::uint64_t>(json, "kv_cache_bytes");
  s.actor_uuids = get<std::vector<std::string>>(json, "actor_uuids");
  check_world(s);
  replay.trace_hash = get<std::string>(json, "trace_hash");
  if (const auto scenario = optional_of<std::string>(json, "scenario")) {
    if (!scenario_named(*scenario)) refuse("scenario", "is none of this version");
    replay.scenario = *scenario;
    replay.world = get_integer<std::uint64_t>(json, "world", 1);
  } else {
    if (s.actors != s.tp)
      refuse("actors", "must be as many as TP ranks, since this is no scenario");
    replay.options = options_from(json);
  }
  return replay;
}

}  // namespace tpsync::conformance
