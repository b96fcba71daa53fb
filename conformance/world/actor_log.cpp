#include "conformance/world/actor_log.h"

#include <nlohmann/json.hpp>

#include "conformance/judge/records.h"

namespace tpsync::conformance {

std::string to_json(const ErrorRecord& record) {
  nlohmann::ordered_json json;
  json["kind"] = to_string(record.kind);
  json["remedy"] = to_string(record.remedy);
  json["phase"] = record.phase;
  json["rank"] = record.rank;
  json["subject"] = record.subject;
  json["detail"] = record.detail;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

namespace {

// The enumerator whose text this is; `from` gives them by number, from 1.
template <typename Value>
Value named(const std::string& text, std::optional<Value> (*from)(std::uint64_t)) {
  for (std::uint64_t number = 1; const auto value = from(number); ++number) {
    if (to_string(*value) == text) return *value;
  }
  throw_invalid(ErrorKind::kInvalidConfig, "error", "names \"" + text + "\", which is unknown");
}

}  // namespace

ErrorRecord error_from_json(std::string_view text) {
  ErrorRecord record;
  try {
    const auto json = nlohmann::json::parse(text);
    record.kind = named<ErrorKind>(json.at("kind").get<std::string>(), error_kind_from);
    record.remedy = named<Remedy>(json.at("remedy").get<std::string>(), remedy_from);
    record.phase = json.at("phase").get<std::string>();
    record.rank = json.at("rank").get<int>();
    record.subject = json.at("subject").get<std::string>();
    record.detail = json.at("detail").get<std::string>();
  } catch (const nlohmann::json::exception&) {
    throw_invalid(ErrorKind::kInvalidConfig, "error", "is no error record");
  }
  return record;
}

ActorLog read_actor_log(const sim::Trace& trace, int actors) {
  ActorLog log;
  log.by_rank.resize(static_cast<std::size_t>(actors));
  for (const sim::Event& event : trace.events) {
    if (event.kind == static_cast<std::uint16_t>(judge::Record::kCheckFailed)) {
      log.failed_checks.emplace_back(trace.texts.at(event.text));
    }
    if (event.kind != static_cast<std::uint16_t>(judge::Record::kKept) ||
        event.process >= log.by_rank.size())
      continue;
    Outcome outcome;
    outcome.version = static_cast<std::int64_t>(event.c);
    if (event.b == 0) outcome.error = error_from_json(trace.texts.at(event.text));
    log.by_rank[event.process].push_back(std::move(outcome));
  }
  return log;
}

}  // namespace tpsync::conformance
