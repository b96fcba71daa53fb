#include "conformance/judge/facts.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace tpsync::judge {
namespace {

template <typename Number>
std::optional<Number> number(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Far above any model and any budget, and small enough that no product or sum of them wraps.
constexpr std::uint64_t kDimensionMax = std::uint64_t{1} << 20;
constexpr std::uint64_t kTensorsMax = std::uint64_t{1} << 22;
constexpr std::uint64_t kElementsMax = std::uint64_t{1} << 40;
constexpr std::int64_t kTimeMax = std::int64_t{1} << 60;
constexpr int kRanksMax = 64;

std::optional<std::int64_t> time_of(std::string_view text) {
  const auto value = number<std::int64_t>(text);
  return value && *value >= 0 && *value <= kTimeMax ? value : std::nullopt;
}

int ranks_of(std::string_view text) {
  const int value = number<int>(text).value_or(0);
  return value >= 0 && value <= kRanksMax ? value : 0;
}

bool within_bounds(const Shape& shape) {
  for (const std::uint64_t dimension : {shape.layers, shape.experts, shape.hidden, shape.moe,
                                        shape.vocab, shape.heads, shape.kv_heads, shape.head_dim}) {
    if (dimension == 0 || dimension > kDimensionMax) return false;
  }
  return shape.layers * (shape.experts * 3 + 16) <= kTensorsMax &&
         shape.hidden * std::max({shape.vocab, shape.moe * 2, shape.heads * shape.head_dim}) <=
             kElementsMax;
}

std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t at = text.find(separator);
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
  return part;
}

std::optional<PlannedFault> parse_fault(std::string_view text) {
  PlannedFault fault;
  fault.name = take_until(text, '|');
  const std::string_view visibility = take_until(text, '|');
  const std::string_view demand = take_until(text, '|');
  std::string_view kinds = take_until(text, '|');
  fault.role = take_until(text, '|');
  fault.rank = number<int>(take_until(text, '|')).value_or(0);
  fault.phase = take_until(text, '|');
  fault.chunk = number<std::int64_t>(take_until(text, '|')).value_or(0);
  if (fault.name.empty() || (visibility != "visible" && visibility != "silent")) {
    return std::nullopt;
  }
  fault.visible = visibility == "visible";
  if (demand == "fail") {
    fault.demand = FaultDemand::kFail;
  } else if (demand == "survive") {
    fault.demand = FaultDemand::kSurvive;
  } else if (demand != "either") {
    return std::nullopt;
  }
  while (!kinds.empty()) fault.kinds.push_back(normalized_kind(take_until(kinds, ',')));
  return fault;
}

void add_fault(Facts& facts, std::string_view index_text, std::string_view value) {
  constexpr std::size_t kMaxFaults = 4096;
  const auto index = number<std::size_t>(index_text);
  if (!index || *index >= kMaxFaults) return;
  if (facts.faults.size() <= *index) facts.faults.resize(*index + 1);
  facts.faults[*index] = parse_fault(value);
}

}  // namespace

std::string normalized_kind(std::string_view kind) {
  std::string normal;
  for (const char c : kind) {
    const bool upper = c >= 'A' && c <= 'Z';
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (upper || plain) {
      normal += upper ? static_cast<char>(c - 'A' + 'a') : c;
    } else if (!normal.empty() && normal.back() != '_') {
      normal += '_';
    }
  }
  if (normal == "input_output") return "io";
  if (normal == "remote_failure") return "remote";
  if (normal == "invalid_configuration") return "invalid_config";
  return normal;
}

Facts parse_facts(std::string_view parameters) {
  Facts facts;
  Shape shape;
  const std::array<std::pair<std::string_view, std::uint64_t*>, 8> dimensions = {
      {{"layers", &shape.layers},
       {"experts", &shape.experts},
       {"hidden", &shape.hidden},
       {"moe", &shape.moe},
       {"vocab", &shape.vocab},
       {"heads", &shape.heads},
       {"kv_heads", &shape.kv_heads},
       {"head_dim", &shape.head_dim}}};
  while (!parameters.empty()) {
    std::string_view value = take_until(parameters, '\n');
    const std::string_view key = take_until(value, '=');
    for (const auto& [name, into] : dimensions) {
      if (key == name) *into = number<std::uint64_t>(value).value_or(0);
    }
    if (key == "tied") shape.tied = value == "1";
    if (key == "tp") facts.tp = ranks_of(value);
    if (key == "actors") facts.actors = ranks_of(value);
    if (key == "overlap") facts.overlap = value == "1";
    if (key == "phantom") facts.phantom = value == "1";
    if (key == "dtype" && value == "float16") facts.element = ElementType::kFloat16;
    if (key == "dtype" && value == "float32") facts.element = ElementType::kFloat32;
    if (key == "content_seed") facts.content_seed = number<std::uint64_t>(value).value_or(0);
    if (key == "lane_bytes") facts.lane_bytes = number<std::uint64_t>(value).value_or(0);
    if (key == "base_version") facts.base_version = number<std::int64_t>(value).value_or(0);
    if (key == "control_timeout_ns") facts.control_timeout_ns = time_of(value);
    if (key == "update_timeout_ns") facts.update_timeout_ns = time_of(value);
    if (key == "command_timeout_ns") facts.command_timeout_ns = time_of(value);
    if (key == "kill_ns") facts.kill_ns = time_of(value).value_or(facts.kill_ns);
    if (key == "notice_ns") facts.notice_ns = time_of(value).value_or(facts.notice_ns);
    if (key == "slack_ns") facts.slack_ns = time_of(value).value_or(facts.slack_ns);
    if (key == "device_baseline") {
      facts.device_baseline_bytes = number<std::uint64_t>(value).value_or(0);
    }
    if (key == "expect") facts.expects_failure = value.starts_with("failure");
    if (key == "recovery") facts.recovers_elsewhere = value == "other-world";
    if (key.starts_with("fault.")) add_fault(facts, key.substr(6), value);
  }
  if (facts.tp > 0 && within_bounds(shape)) facts.shape = shape;
  return facts;
}

}  // namespace tpsync::judge
