// tpsync list and describe: scenarios and faults.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "conformance/command/commands.h"
#include "conformance/command/output.h"
#include "conformance/command/usage.h"
#include "conformance/judge/situations.h"
#include "conformance/scenarios/scenario.h"
#include "faults/catalogue.h"

namespace tpsync::conformance {

namespace {

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : " ") + part;
  return text;
}

std::string runs_text(const Scenario& scenario, std::string_view world) {
  if (world == "sim" || scenario.only_simulated.empty()) return "runs";
  return "no meaning: " + scenario.only_simulated;
}

int list_worlds() {
  std::vector<std::vector<std::string>> rows = {{"scenario"}};
  for (const char* world : kWorlds) rows.front().push_back(world);
  for (const Scenario& s : all_scenarios()) {
    rows.push_back({s.id});
    for (const char* world : kWorlds) rows.back().push_back(runs_text(s, world));
  }
  fmt::print("{}", table(rows));
  return kExitPassed;
}

int list_scenarios(bool json) {
  const std::vector<Scenario> scenarios = all_scenarios();
  if (json) {
    auto array = nlohmann::ordered_json::array();
    for (const Scenario& s : scenarios) {
      auto runs_in = nlohmann::ordered_json::object();
      for (const char* world : kWorlds) runs_in[world] = runs_text(s, world);
      array.push_back({{"id", s.id},
                       {"title", s.title},
                       {"requirements", s.requirements},
                       {"worlds", std::move(runs_in)}});
    }
    fmt::print("{}", dumped(array));
    return kExitPassed;
  }
  std::vector<std::vector<std::string>> rows = {{"scenario", "situation"}};
  for (const Scenario& s : scenarios) rows.push_back({s.id, s.title});
  fmt::print("{}", table(rows));
  return kExitPassed;
}

int list_faults(bool json) {
  if (json) {
    auto array = nlohmann::ordered_json::array();
    for (const faults::FaultKind& kind : faults::catalogue()) {
      array.push_back({{"name", std::string(kind.name)},
                       {"family", std::string(kind.family)},
                       {"mechanism", std::string(mechanism_of(kind))},
                       {"visibility", std::string(to_string(kind.visibility))},
                       {"severity", std::string(to_string(kind.severity))},
                       {"summary", std::string(kind.summary)},
                       {"worlds", std::string(kind.worlds)}});
    }
    fmt::print("{}", dumped(array));
    return kExitPassed;
  }
  std::vector<std::vector<std::string>> rows = {{"fault", "shows as", "summary"}};
  for (const faults::FaultKind& kind : faults::catalogue()) {
    rows.push_back({std::string(kind.name), std::string(to_string(kind.visibility)),
                    std::string(kind.summary)});
  }
  fmt::print("{}", table(rows));
  return kExitPassed;
}

int list_situations(bool json) {
  if (json) {
    auto array = nlohmann::ordered_json::array();
    for (const judge::SituationRow& row : judge::all_situations()) {
      array.push_back(
          {{"id", std::string(row.id)}, {"what", std::string(row.what)}, {"rare", row.rare}});
    }
    fmt::print("{}", dumped(array));
    return kExitPassed;
  }
  std::vector<std::vector<std::string>> rows = {{"situation", "a run that reaches it"}};
  for (const judge::SituationRow& row : judge::all_situations()) {
    rows.push_back({std::string(row.id), std::string(row.what) + (row.rare ? " (rare)" : "")});
  }
  fmt::print("{}", table(rows));
  return kExitPassed;
}

void print_scenario(const Scenario& s) {
  fmt::print("{}\n  {}\n  requirements: {}\n  run it: tpsync run {} --world sim\n", s.id, s.title,
             joined(s.requirements), s.id);
}

int describe(const std::string& id) {
  if (const faults::FaultKind* kind = faults::find_kind(id)) {
    fmt::print("{}\n", faults::page_of(*kind));
    return kExitPassed;
  }
  bool found = false;
  for (const Scenario& s : all_scenarios()) {
    if (!s.id.starts_with(id)) continue;
    found = true;
    print_scenario(s);
  }
  for (const faults::FaultKind& kind : faults::catalogue()) {
    if (!kind.name.starts_with(id)) continue;
    found = true;
    fmt::print("{}\n", faults::page_of(kind));
  }
  if (found) return kExitPassed;
  const std::optional<Scenario> unlisted = scenario_named(id);
  if (!unlisted) {
    throw UsageError{"describe: nothing begins with \"" + id +
                     "\"; tpsync list and tpsync list --faults show all"};
  }
  print_scenario(*unlisted);
  return kExitPassed;
}

}  // namespace

void add_list_commands(CLI::App& app, Command& command) {
  struct ListFlags {
    bool faults = false;
    bool worlds = false;
    bool situations = false;
    bool json = false;
    std::string id;
  };
  auto flags = std::make_shared<ListFlags>();
  CLI::App* list = app.add_subcommand("list", "List scenarios, faults, or situations");
  CLI::Option* faults = list->add_flag("--faults", flags->faults, "List the fault catalogue");
  CLI::Option* worlds =
      list->add_flag("--worlds", flags->worlds, "Which scenario runs in which kind of world");
  faults->excludes(worlds);
  list->add_flag("--situations", flags->situations, "List the situations that runs can be in")
      ->excludes(worlds)
      ->excludes(faults);
  list->add_flag("--json", flags->json, "JSON on standard output")->excludes(worlds);
  list->callback([flags, &command] {
    command = [flags] {
      if (flags->worlds) return list_worlds();
      if (flags->situations) return list_situations(flags->json);
      return flags->faults ? list_faults(flags->json) : list_scenarios(flags->json);
    };
  });
  CLI::App* describe_app = app.add_subcommand("describe", "Describe a scenario or a fault");
  describe_app->add_option("id", flags->id, "Id or prefix")->required();
  describe_app->callback([flags, &command] { command = [flags] { return describe(flags->id); }; });
}

}  // namespace tpsync::conformance
