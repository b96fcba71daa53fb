// The list of all rows, and what is made from them: pages, checks, counts. The rows stand in
// rows_*.h, by family.
#include "faults/catalogue.h"

#include <algorithm>
#include <array>

#include "faults/rows_channel.h"
#include "faults/rows_collective.h"
#include "faults/rows_data.h"
#include "faults/rows_device.h"
#include "faults/rows_engine.h"
#include "faults/rows_process.h"
#include "faults/rules.h"

namespace tpsync::faults {
namespace {

template <std::size_t... Sizes>
constexpr auto joined(const std::array<FaultKind, Sizes>&... parts) {
  std::array<FaultKind, (Sizes + ...)> all;
  std::size_t at = 0;
  const auto add = [&](const auto& part) {
    for (const FaultKind& kind : part) all[at++] = kind;
  };
  (add(parts), ...);
  return all;
}

constexpr auto kCatalogue = joined(rows::kChannel, rows::kProcess, rows::kCollective, rows::kDevice,
                                   rows::kData, rows::kEngine);

bool is_one_of(std::string_view value, std::string_view values) {
  while (true) {
    const std::size_t bar = values.find('|');
    if (value == values.substr(0, bar)) return true;
    if (bar == std::string_view::npos) return false;
    values.remove_prefix(bar + 1);
  }
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

[[noreturn]] void refuse(const std::string& path, std::string_view field,
                         const std::string& detail) {
  throw_invalid(ErrorKind::kInvalidConfig, path + "." + std::string(field), detail);
}

void check_arguments(const FaultKind& kind, const Fault& fault, const std::string& path) {
  for (const auto& given : fault.arguments) {
    const std::string& name = given.first;  // a lambda captures no structured binding
    const std::string& value = given.second;
    const auto found = std::find_if(kind.arguments.begin(), kind.arguments.end(),
                                    [&](const Argument& a) { return a.name == name; });
    if (found == kind.arguments.end()) {
      refuse(path, "arguments." + name, "is no argument of " + fault.name + "; remove it");
    }
    if (!found->values.empty() && !is_one_of(value, found->values)) {
      refuse(path, "arguments." + name,
             "must be one of " + std::string(found->values) + ", not " + value);
    }
    if (name == "receipt" && !is_number(value)) {
      refuse(path, "arguments.receipt", "must be an index from 0, not " + value);
    }
  }
  for (const Argument& argument : kind.arguments) {
    if (argument.required &&
        fault.arguments.find(std::string(argument.name)) == fault.arguments.end()) {
      refuse(path, "arguments." + std::string(argument.name),
             "is missing; give one of " + std::string(argument.values));
    }
  }
}

// The moment as an operation of which everything is known that a plan cannot say.
Operation best_case(const Moment& moment) {
  Operation operation;
  operation.role = moment.role;
  operation.rank = moment.rank;
  operation.phase = moment.phase;
  operation.chunk = moment.chunk;
  operation.op = moment.op;
  operation.occurrence = moment.occurrence;
  operation.is_first_to_peer = true;
  operation.ends_gather = true;
  operation.carries_expert = true;
  operation.workers = 2;
  return operation;
}

void append(std::string& page, std::string_view label, std::string_view text) {
  page += "  ";
  page += label;
  page.append(label.size() < 12 ? 12 - label.size() : 1, ' ');
  page += text;
  page += "\n";
}

}  // namespace

Moment moment_of(const Operation& operation) {
  return {operation.role,  operation.rank, operation.phase,
          operation.chunk, operation.op,   operation.occurrence};
}

std::string_view to_string(Demand demand) {
  switch (demand) {
    case Demand::kFail:
      return "fail";
    case Demand::kSurvive:
      return "survive";
    case Demand::kEither:
      return "either";
  }
  return "unknown";
}

std::string_view to_string(Visibility visibility) {
  return visibility == Visibility::kVisible ? "visible" : "silent";
}

std::string_view to_string(Severity severity) {
  switch (severity) {
    case Severity::kDelay:
      return "delay";
    case Severity::kData:
      return "data";
    case Severity::kRefusal:
      return "refusal";
    case Severity::kLoss:
      return "loss";
  }
  return "unknown";
}

std::span<const FaultKind> catalogue() { return kCatalogue; }

const FaultKind* find_kind(std::string_view name) {
  const auto found = std::find_if(kCatalogue.begin(), kCatalogue.end(),
                                  [&](const FaultKind& kind) { return kind.name == name; });
  return found == kCatalogue.end() ? nullptr : &*found;
}

std::string_view mechanism_of(const FaultKind& kind) {
  return kind.mechanism.empty() ? kind.name : kind.mechanism;
}

bool needs_another_world(const Fault& fault) {
  const FaultKind* kind = find_kind(fault.name);
  if (kind == nullptr || fault.moment.role != rules::kActor) return false;
  const bool in_agreement = rules::is_group_call(fault.moment.op);
  return kind->action == Action::kKill || kind->action == Action::kStop ||
         kind->action == Action::kHangGroup ||
         (in_agreement && kind->action == Action::kBreakGroup);
}

std::string page_of(const FaultKind& kind) {
  std::string page(kind.name);
  page += ": ";
  page += kind.summary;
  page += "\n";
  append(page, "effect", kind.effect);
  append(page, "moment", kind.moment);
  append(page, "shows", to_string(kind.visibility));
  append(page, "severity", to_string(kind.severity));
  if (!kind.mechanism.empty()) append(page, "mechanism", kind.mechanism);
  append(page, "may", kind.legal);
  append(page, "must not", kind.illegal);
  append(page, "proof", kind.proof);
  append(page, "worlds", kind.worlds);
  append(page, "in reality", kind.counterpart);
  for (const Argument& argument : kind.arguments) {
    std::string text(argument.text);
    if (!argument.values.empty()) text += " [" + std::string(argument.values) + "]";
    append(page, std::string(argument.name) + "=", text);
  }
  return page;
}

void check_fault(const Fault& fault, const std::string& path) {
  const FaultKind* kind = find_kind(fault.name);
  if (kind == nullptr) {
    refuse(path, "name", "is not in the catalogue: " + fault.name + "; see the list of faults");
  }
  if (!is_role(fault.moment.role)) {
    refuse(path, "moment.role", "must be actor, runtime or worker, not " + fault.moment.role);
  }
  check_arguments(*kind, fault, path);
  const auto where = fault.arguments.find(std::string(kWhere));
  if (where != fault.arguments.end() && where->second == "trainer") return;
  // A channel's peer is not part of a moment: whichever channel enters the operation then.
  Operation operation = best_case(fault.moment);
  for (const std::string_view peer : {rules::kActor, rules::kRuntime, rules::kWorker}) {
    operation.peer_role = peer;
    if (kind->applies(operation, fault.arguments)) return;
  }
  refuse(path, "moment",
         fault.name + " does not apply to " + to_text(fault.moment) + "; it applies to " +
             std::string(kind->moment));
}

std::string_view default_expert() { return "model.layers.0.mlp.experts.0"; }

std::string expert_of(const Fault& fault) {
  const auto found = fault.arguments.find("expert");
  return found == fault.arguments.end() ? std::string(default_expert()) : found->second;
}

}  // namespace tpsync::faults
