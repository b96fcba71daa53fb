#include "conformance/command/result_file.h"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "conformance/command/replay_file.h"
#include "conformance/command/situation_text.h"
#include "conformance/command/usage.h"
#include "conformance/world/json_fields.h"
#include "faults/json_document.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

using json::get;
using json::get_integer;
using json::Json;
using json::refuse;

constexpr int kResultFormat = 1;

// Counts of a report by their names in files.
constexpr std::pair<const char*, std::uint64_t ExploreReport::*> kCounts[] = {
    {"operations", &ExploreReport::operations},
    {"faults", &ExploreReport::kinds},
    {"applicable_pairs", &ExploreReport::pairs},
    {"runs", &ExploreReport::runs},
    {"equal", &ExploreReport::equal},
    {"violations", &ExploreReport::violations},
    {"harness_errors", &ExploreReport::harness_errors},
    {"ineffective", &ExploreReport::ineffective},
    {"unreached", &ExploreReport::unreached},
    {"repeated", &ExploreReport::repeated},
    {"diverged", &ExploreReport::diverged}};

Json finding_json(const Finding& finding) {
  Replay replay;
  replay.spec = finding.spec;
  replay.options = finding.options;
  replay.trace_hash = finding.hash;
  return {{"number", finding.number},
          {"id", finding.id},
          {"what", finding.what},
          {"replay", Json::parse(to_json(replay))}};
}

Finding finding_from(const Json& json) {
  const Replay replay = replay_from_json(get<Json>(json, "replay").dump());
  return {get_integer<std::uint64_t>(json, "number"),
          get<std::string>(json, "id"),
          get<std::string>(json, "what"),
          replay.spec,
          replay.options,
          replay.trace_hash};
}

Json coverage_json(const Coverage& coverage) {
  Json rows = Json::array();
  for (const auto& [row, cells] : coverage.rows()) {
    Json counts = Json::object();
    for (const faults::FaultKind& kind : faults::catalogue()) {
      const auto cell = cells.find(std::string(kind.name));
      if (cell == cells.end()) {
        counts[std::string(kind.name)] = coverage.text(row, kind);
      } else {
        counts[std::string(kind.name)] = {{"applicable", cell->second.applicable},
                                          {"runs", cell->second.runs}};
      }
    }
    rows.push_back({{"rank_role", row.first}, {"phase", row.second}, {"faults", counts}});
  }
  return rows;
}

Coverage coverage_from(const Json& rows) {
  Coverage coverage;
  for (const Json& entry : rows) {
    const Coverage::Row row{get<std::string>(entry, "rank_role"), get<std::string>(entry, "phase")};
    coverage.add_row(row);
    const Json counts = get<Json>(entry, "faults");
    for (const auto& [fault, count] : counts.items()) {
      if (!count.is_object()) continue;
      coverage.cell(row, fault) = {get_integer<std::uint64_t>(count, "applicable"),
                                   get_integer<std::uint64_t>(count, "runs")};
    }
  }
  return coverage;
}

Json report_json(const ExploreReport& report) {
  Json json;
  json["schedule"] = report.schedule;
  for (const auto& [name, member] : kCounts) json[name] = report.*member;
  json["complete"] = report.complete;
  json["seconds"] = report.seconds;
  json["trace_hash"] = fmt::format("{:016x}", report.combined_hash);
  json["findings_by_id"] = report.findings_by_id;
  json["findings"] = Json::array();
  for (const Finding& finding : report.findings) json["findings"].push_back(finding_json(finding));
  json["fault_free"] = finding_json(report.fault_free);
  json["situations"] = situations_json(report.situations);
  json["coverage"] = coverage_json(report.coverage);
  return json;
}

ExploreReport report_from(const Json& json) {
  ExploreReport report;
  report.schedule = get<std::string>(json, "schedule");
  for (const auto& [name, member] : kCounts) {
    report.*member = get_integer<std::uint64_t>(json, name);
  }
  report.complete = get<bool>(json, "complete");
  report.seconds = get<double>(json, "seconds");
  const std::string hash = get<std::string>(json, "trace_hash");
  char* end = nullptr;
  report.combined_hash = std::strtoull(hash.c_str(), &end, 16);
  if (hash.size() != 16 || *end != '\0') refuse("trace_hash", "must be 16 hexadecimal digits");
  const Json by_id = get<Json>(json, "findings_by_id");
  for (const auto& [id, count] : by_id.items()) {
    report.findings_by_id[id] =
        json::integer<std::uint64_t>(count, "findings_by_id", 0, UINT64_MAX);
  }
  for (const Json& finding : get<std::vector<Json>>(json, "findings")) {
    report.findings.push_back(finding_from(finding));
  }
  report.fault_free = finding_from(get<Json>(json, "fault_free"));
  report.situations = situations_from_json(get<Json>(json, "situations"));
  report.coverage = coverage_from(get<Json>(json, "coverage"));
  return report;
}

[[noreturn]] void refuse_part(const std::string& name, const std::string& what) {
  throw_invalid(ErrorKind::kInvalidConfig, name, what);
}

}  // namespace

Json to_json(const ExploreResult& result) {
  Json json;
  json["tpsync_exploration"] = kResultFormat;
  json["version"] = result.version;
  json["parameters"] = result.parameters;
  json["world"] = "sim";
  json["seed"] = result.seed;
  json["tp"] = result.tp;
  json["shard"] = fmt::format("{}/{}", result.shard.index, result.shard.count);
  json["schedules"] = Json::array();
  for (const ExploreReport& report : result.reports) {
    json["schedules"].push_back(report_json(report));
  }
  return json;
}

ExploreResult result_from_json(const std::string& text) {
  const Json json = faults::parse_document(text, "result");
  if (!json.is_object() || !json.contains("tpsync_exploration")) {
    refuse("tpsync_exploration", "is missing: this is no result of an exploration");
  }
  static_cast<void>(get_integer<int>(json, "tpsync_exploration", kResultFormat, kResultFormat));
  ExploreResult result;
  result.version = get<std::string>(json, "version");
  result.parameters = get<std::string>(json, "parameters");
  result.seed = get_integer<std::uint64_t>(json, "seed");
  result.tp = get_integer<int>(json, "tp", 1);
  try {
    result.shard = parse_shard(get<std::string>(json, "shard"));
  } catch (const UsageError&) {  // speaks of a flag
    refuse("shard", "must be I/N with I from 0 to N - 1");
  }
  for (const Json& report : get<std::vector<Json>>(json, "schedules")) {
    result.reports.push_back(report_from(report));
  }
  return result;
}

ExploreResult merged(const std::vector<std::pair<std::string, ExploreResult>>& parts) {
  const ExploreResult& first = parts.front().second;
  std::map<std::uint64_t, const std::pair<std::string, ExploreResult>*> by_index;
  for (const auto& part : parts) {
    const std::string& name = part.first;
    const ExploreResult& result = part.second;
    const auto same = [&](const std::string& what, const auto& own, const auto& other) {
      if (own != other) {
        refuse_part(name, fmt::format("has {} \"{}\", {} has \"{}\"", what, own,
                                      parts.front().first, other));
      }
    };
    same("version", result.version, first.version);
    same("parameters", result.parameters, first.parameters);
    same("seed", result.seed, first.seed);
    same("schedules", result.reports.size(), first.reports.size());
    same("shards", result.shard.count, first.shard.count);
    const auto [entry, fresh] = by_index.emplace(result.shard.index, &part);
    if (!fresh) {
      refuse_part(name, fmt::format("is shard {} of {}, as is {}", result.shard.index,
                                    result.shard.count, entry->second->first));
    }
  }
  for (std::uint64_t index = 0; index < first.shard.count; ++index) {
    if (by_index.contains(index)) continue;
    refuse_part("shard", fmt::format("{} of {} is missing", index, first.shard.count));
  }
  ExploreResult whole = by_index.begin()->second->second;
  whole.shard = {};
  for (auto part = std::next(by_index.begin()); part != by_index.end(); ++part) {
    const auto& reports = part->second->second.reports;
    for (std::size_t i = 0; i < whole.reports.size(); ++i) {
      if (reports[i].schedule != whole.reports[i].schedule ||
          reports[i].fault_free.hash != whole.reports[i].fault_free.hash) {
        refuse_part(part->second->first,
                    "ran another world than " + by_index.begin()->second->first);
      }
      merge(whole.reports[i], reports[i]);
    }
  }
  return whole;
}

}  // namespace tpsync::conformance
