// tpsync run: scenarios in a world, a table of verdicts, an exit status.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "conformance/command/commands.h"
#include "conformance/command/integer.h"
#include "conformance/command/output.h"
#include "conformance/command/replay_file.h"
#include "conformance/command/situation_text.h"
#include "conformance/command/usage.h"
#include "conformance/command/world_flags.h"
#include "conformance/command/world_runner.h"
#include "conformance/scenarios/scripts.h"
#include "sim/trace_file.h"

namespace tpsync::conformance {

namespace {

struct RunFlags {
  WorldFlags world;
  std::vector<std::string> prefixes;
  std::optional<std::uint64_t> at_most;  // worlds of a batch
  bool json = false;
  std::string out;
};

struct ScenarioResult {
  std::string id;
  std::string verdict;  // "passed", "failed", "harness error", "not applicable"
  std::string reason;
  std::uint64_t worlds = 0;
  std::uint64_t left_out = 0;  // worlds that --at-most did not choose
  std::string trace_hash;      // of all its worlds
  std::vector<std::string> files;
};

void write_world(ScenarioResult& result, const ScenarioContext& context,
                 const ScenarioContext::KeptWorld& world, const std::string& trace,
                 OutFolder& folder) {
  Replay replay;
  replay.spec = context.spec();
  replay.scenario = result.id;
  replay.world = world.number;
  replay.trace_hash = world.hash;
  std::vector<std::pair<std::string, std::string>> files = {{result.id + ".trace.ndjson", trace}};
  // Real processes do nothing twice in the same way.
  if (context.simulated()) files.emplace_back(result.id + ".replay.json", to_json(replay));
  for (const auto& [name, content] : files) {
    if (folder.write(name, content)) result.files.push_back(folder.files().back());
  }
}

ScenarioResult run_one(WorldRunner& runner, const Scenario& scenario, const WorldSpec& spec,
                       std::size_t at_most, OutFolder& folder, std::vector<std::string>& failures,
                       judge::SituationCount& situations) {
  ScenarioResult result;
  result.id = scenario.id;
  result.reason = not_applicable(scenario, runner.world(), spec);
  if (!result.reason.empty()) {
    result.verdict = "not applicable";
    return result;
  }
  ScenarioContext context(runner, spec);
  context.limit_batches(at_most);
  scenario.body(context);
  situations.merge(context.situations());
  result.worlds = context.worlds();
  result.left_out = context.left_out();
  if (result.left_out != 0) result.reason = fmt::format("{} worlds left out", result.left_out);
  result.trace_hash = fmt::format("{:016x}", context.combined_hash());
  result.verdict = context.failures().empty() ? "passed" : "failed";
  if (context.harness_failed()) result.verdict = "harness error";
  if (!context.failures().empty()) {
    result.reason = context.failures().front();
    for (const std::string& failure : context.failures()) {
      failures.push_back(scenario.id + ": " + failure);
    }
    if (const auto& world = context.failed_world()) {
      write_world(result, context, *world, world->trace, folder);
    }
  } else if (folder.given()) {
    write_world(result, context, context.last_world(), sim::write_trace(context.trace()), folder);
  }
  return result;
}

nlohmann::ordered_json to_json(const std::vector<ScenarioResult>& results, const WorldSpec& spec,
                               std::string_view world, const judge::SituationCount& situations) {
  nlohmann::ordered_json json;
  json["world"] = world;
  json["seed"] = spec.seed;
  json["tp"] = spec.tp;
  json["actors"] = spec.actors;
  json["bucket_bytes"] = spec.sync.bucket_bytes;
  json["phantom"] = spec.phantom;
  json["situations"] = situations_json(situations);
  json["scenarios"] = nlohmann::ordered_json::array();
  for (const ScenarioResult& result : results) {
    nlohmann::ordered_json entry;
    entry["id"] = result.id;
    entry["verdict"] = result.verdict;
    entry["reason"] = result.reason;
    entry["worlds"] = result.worlds;
    entry["worlds_left_out"] = result.left_out;
    entry["trace_hash"] = result.trace_hash;
    entry["files"] = result.files;
    json["scenarios"].push_back(std::move(entry));
  }
  return json;
}

std::vector<Scenario> chosen_scenarios(const RunFlags& flags) {
  if (flags.world.phantom && flags.prefixes.empty()) return {publication_only()};
  std::vector<Scenario> chosen;
  for (Scenario& scenario : all_scenarios()) {
    bool wanted = flags.prefixes.empty();
    for (const std::string& prefix : flags.prefixes) wanted |= scenario.id.starts_with(prefix);
    if (wanted) chosen.push_back(std::move(scenario));
  }
  for (const std::string& prefix : flags.prefixes) {
    bool found = false;
    for (const Scenario& scenario : chosen) found |= scenario.id.starts_with(prefix);
    if (found) continue;
    std::optional<Scenario> unlisted = scenario_named(prefix);
    if (!unlisted) {
      throw UsageError{"run: no scenario begins with \"" + prefix +
                       "\"; tpsync list shows them, and there is publish.once"};
    }
    chosen.push_back(std::move(*unlisted));
  }
  return chosen;
}

void say_failures(const std::vector<std::string>& failures) {
  constexpr std::size_t kShown = 40;
  for (std::size_t i = 0; i < failures.size() && i < kShown; ++i) say(failures[i]);
  if (failures.size() > kShown) say(fmt::format("and {} more", failures.size() - kShown));
}

int run(const RunFlags& flags) {
  const WorldSpec spec = flags.world.spec();
  if (flags.at_most && flags.world.world == "sim") {
    throw UsageError{
        "--at-most: simulated worlds are quick and have numbers: run them all, or give --world "
        "process or gpu"};
  }
  const std::vector<Scenario> chosen = chosen_scenarios(flags);
  OutFolder folder(flags.out);
  const std::unique_ptr<WorldRunner> runner = make_runner(flags.world.world, spec);
  say(fmt::format("tpsync {} seed {} {}", TPSYNC_VERSION, spec.seed, flags.world.text(spec)));
  std::vector<std::size_t> widths = {0, std::string_view("not applicable").size(),
                                     std::string_view("worlds").size()};
  for (const Scenario& scenario : chosen) widths[0] = std::max(widths[0], scenario.id.size());
  say(table_row({"scenario", "verdict", "worlds", "reason"}, widths));
  std::vector<ScenarioResult> results;
  std::vector<std::string> failures;
  judge::SituationCount situations;
  std::uint64_t passed = 0;
  std::uint64_t failed = 0;
  std::uint64_t harness_errors = 0;
  std::string first_failed;
  for (const Scenario& scenario : chosen) {
    results.push_back(
        run_one(*runner, scenario, spec, flags.at_most.value_or(0), folder, failures, situations));
    const ScenarioResult& result = results.back();
    say(table_row({result.id, result.verdict, std::to_string(result.worlds), result.reason},
                  widths));
    passed += result.verdict == "passed" ? 1 : 0;
    const bool harness_error = result.verdict == "harness error";
    harness_errors += harness_error ? 1 : 0;
    failed += harness_error || result.verdict == "failed" ? 1 : 0;
    if (failed > 0 && first_failed.empty()) first_failed = result.id;
  }
  say_failures(failures);
  for (const std::string& file : folder.files()) say("wrote " + file);
  const std::string json = dumped(to_json(results, spec, flags.world.world, situations));
  if (folder.given()) folder.write("result.json", json);
  if (flags.json) fmt::print("{}", json);
  if (flags.world.world == "sim") say(situations_text(situations));
  say(fmt::format("{} passed, {} failed, {} not applicable", passed, failed,
                  results.size() - passed - failed));
  if (flags.world.phantom && chosen.size() == 1 && chosen[0].id == publication_only().id) {
    say(fmt::format("{} chunks", chunk_count(spec)));
  }
  if (failed > 0) say(fmt::format("tpsync run {} {}", first_failed, flags.world.text(spec)));
  if (harness_errors > 0 || folder.lost()) return kExitHarness;
  return failed > 0 ? kExitFailed : kExitPassed;
}

}  // namespace

void add_run_command(CLI::App& app, Command& command) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* run_app = app.add_subcommand("run", "Run scenarios and judge them");
  run_app->add_option("id", flags->prefixes, "Ids or their prefixes (default: all)");
  flags->world.worlds = built_worlds();
  flags->world.add_to(*run_app);
  add_integer(*run_app, "--at-most", flags->at_most, {1, 1'000'000},
              "Of a scenario's worlds of one kind so many, evenly chosen (default: all)");
  run_app->add_flag("--json", flags->json, "JSON on standard output");
  run_app->add_option("--out", flags->out, "Folder for traces, replay files and result.json");
  run_app->callback([flags, &command] { command = [flags] { return run(*flags); }; });
}

}  // namespace tpsync::conformance
