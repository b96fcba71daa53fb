#include "conformance/command/situation_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "conformance/world/json_fields.h"

namespace tpsync::conformance {

nlohmann::ordered_json situations_json(const judge::SituationCount& count) {
  auto json = nlohmann::ordered_json::object();
  for (const judge::SituationRow& row : judge::all_situations()) {
    json[std::string(row.id)] = count.runs(row.situation);
  }
  return json;
}

judge::SituationCount situations_from_json(const nlohmann::ordered_json& json) {
  constexpr const char* kField = "situations";
  if (!json.is_object()) json::refuse(kField, "must be an object of counts");
  judge::SituationCount count;
  std::size_t known = 0;
  for (const judge::SituationRow& row : judge::all_situations()) {
    const auto found = json.find(std::string(row.id));
    if (found == json.end()) continue;
    ++known;
    count.runs(row.situation) = json::integer<std::uint64_t>(*found, kField, 0, UINT64_MAX);
  }
  if (known != json.size()) json::refuse(kField, "holds one that this version does not know");
  return count;
}

std::string situations_text(const judge::SituationCount& count) {
  std::string missed;
  std::string rare;
  for (const judge::SituationRow& row : judge::all_situations()) {
    if (count.runs(row.situation) != 0) continue;
    std::string& list = row.rare ? rare : missed;
    list += (list.empty() ? "" : ", ") + std::string(row.id);
  }
  std::string text =
      fmt::format("{} of {} situations reached", count.reached(), judge::kSituationCount);
  if (!missed.empty()) text += "; missed: " + missed;
  if (!rare.empty()) text += "; missed, and rare: " + rare;
  return text;
}

}  // namespace tpsync::conformance
