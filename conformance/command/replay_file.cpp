#include "conformance/command/replay_file.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "conformance/command/output.h"
#include "conformance/command/world_check.h"
#include "conformance/scenarios/scenario.h"
#include "conformance/world/json_fields.h"
#include "conformance/world/spec_json.h"
#include "faults/json_document.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

using json::get;
using json::get_integer;
using json::integer;
using json::Json;
using json::optional_of;
using json::refuse;

constexpr int kFormat = 1;
constexpr std::uint32_t kLatencyPercentMax = 1'000'000;

// A field that files of before have not.
template <typename T>
T optional_integer(const Json& json, const std::string& field, T absent,
                   T first = std::numeric_limits<T>::min(),
                   T last = std::numeric_limits<T>::max()) {
  return json.contains(field) ? get_integer<T>(json, field, first, last) : absent;
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
  options.policy = static_cast<sim::Policy>(get_integer<int>(json, "policy", 0, 3));
  options.schedule = optional_integer<std::uint64_t>(json, "schedule", options.schedule);
  options.priority_changes =
      optional_integer<std::uint32_t>(json, "priority_changes", options.priority_changes);
  options.priority_choices =
      optional_integer<std::uint64_t>(json, "priority_choices", options.priority_choices, 1);
  options.latency_percent = optional_integer<std::uint32_t>(
      json, "latency_percent", options.latency_percent, 0, kLatencyPercentMax);
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
  add_spec(json, s);
  if (!replay.scenario.empty()) return dumped(json);
  json["policy"] = static_cast<int>(replay.options.policy);
  json["schedule"] = replay.options.schedule;
  json["priority_changes"] = replay.options.priority_changes;
  json["priority_choices"] = replay.options.priority_choices;
  json["pipe_capacity"] = replay.options.pipe_capacity;
  json["latency_percent"] = replay.options.latency_percent;
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
  const Json json = faults::parse_document(text, "replay");
  if (!json.is_object() || json.find("tpsync_replay") == json.end()) {
    refuse("tpsync_replay", "is missing: this is no replay file");
  }
  static_cast<void>(get_integer<int>(json, "tpsync_replay", kFormat, kFormat));
  Replay replay;
  WorldSpec& s = replay.spec;
  s = spec_from_json(json);
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
