// tpsync explore: all single faults of a publication under three schedules, or random plans.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "conformance/command/commands.h"
#include "conformance/command/integer.h"
#include "conformance/command/output.h"
#include "conformance/command/replay_file.h"
#include "conformance/command/shard.h"
#include "conformance/command/usage.h"
#include "conformance/command/world_flags.h"
#include "conformance/explore/explorer.h"

namespace tpsync::conformance {

namespace {

// Holds the longest name of a schedule, and counts.
constexpr std::size_t kColumnMin = 11;

constexpr std::uint64_t kSeedsMax = 1'000'000'000;

struct ExploreFlags {
  WorldFlags world;
  std::string faults = "single";
  std::optional<std::uint64_t> seeds;     // 1000
  std::optional<std::uint64_t> first;     // 0
  std::optional<std::uint64_t> budget_s;  // no limit
  std::string shard = "0/1";
  bool json = false;
  std::string out;

  bool random() const { return faults == "random"; }
  // As they were given, for a shell.
  std::string text(const WorldSpec& spec) const {
    std::string text = "--faults " + faults + " " + world.text(spec);
    if (seeds) text += fmt::format(" --seeds {}", *seeds);
    if (first) text += fmt::format(" --first {}", *first);
    if (budget_s) text += fmt::format(" --budget-s {}", *budget_s);
    if (shard != "0/1") text += " --shard " + shard;
    return text;
  }
};

void check_flags(const ExploreFlags& flags) {
  if (flags.faults != "single" && !flags.random()) {
    throw UsageError{"--faults: \"" + flags.faults +
                     "\" is not explored by this version; use single or random"};
  }
  if (flags.random()) return;
  for (const auto& [given, name] : {std::pair(flags.seeds.has_value(), "--seeds"),
                                    std::pair(flags.first.has_value(), "--first"),
                                    std::pair(flags.budget_s.has_value(), "--budget-s")}) {
    if (given) throw UsageError{std::string(name) + ": only for --faults random"};
  }
}

// A report per schedule, or one of all random plans.
std::vector<std::function<ExploreReport(SimRunner&)>> explorations(const ExploreFlags& flags,
                                                                   const WorldSpec& spec) {
  ExploreOptions options;
  const Shard shard = parse_shard(flags.shard);
  options.shard_index = shard.index;
  options.shard_count = shard.count;
  if (flags.random()) {
    const RandomRange range{flags.first.value_or(0), flags.seeds.value_or(1000),
                            std::chrono::seconds(flags.budget_s.value_or(0))};
    return {[=](SimRunner& runner) { return explore_random(runner, spec, range, options); }};
  }
  std::vector<std::function<ExploreReport(SimRunner&)>> all;
  for (const sim::Policy policy :
       {sim::Policy::kFirstReady, sim::Policy::kLastReady, sim::Policy::kSeeded}) {
    options.policy = policy;
    all.emplace_back([=](SimRunner& runner) { return explore_single(runner, spec, options); });
  }
  return all;
}

void write_finding(const Finding& finding, OutFolder& folder, const std::string& name) {
  Replay replay;
  replay.spec = finding.spec;
  replay.options = finding.options;
  replay.trace_hash = finding.hash;
  folder.write(name + ".trace.ndjson", finding.trace);
  folder.write(name + ".replay.json", to_json(replay));
}

int explore(const ExploreFlags& flags) {
  check_flags(flags);
  const WorldSpec spec = flags.world.spec();
  if (spec.actors != spec.tp) {
    throw UsageError{"--actors: exploration needs as many actors as TP ranks; leave it out"};
  }
  OutFolder folder(flags.out);
  const auto explore_each = explorations(flags, spec);
  const std::string flags_text = flags.text(spec);
  say(fmt::format("tpsync {} seed {} {}", TPSYNC_VERSION, spec.seed, flags_text));
  const std::vector<std::string> head = {"schedule", "operations", "faults",      "pairs",
                                         "runs",     "violations", "ineffective", "seconds"};
  std::vector<std::size_t> widths;
  for (const std::string& name : head) widths.push_back(std::max(name.size(), kColumnMin));
  say(table_row(head, widths));
  SimRunner runner;
  nlohmann::ordered_json json;
  json["world"] = "sim";
  json["seed"] = spec.seed;
  json["tp"] = spec.tp;
  json["schedules"] = nlohmann::ordered_json::array();
  std::uint64_t violations = 0;
  std::uint64_t harness_errors = 0;
  std::uint64_t ineffective = 0;
  std::vector<std::string> findings;
  for (const auto& explore_one : explore_each) {
    const ExploreReport report = explore_one(runner);
    say(table_row({report.schedule, std::to_string(report.operations), std::to_string(report.kinds),
                   std::to_string(report.pairs), std::to_string(report.runs),
                   std::to_string(report.violations), std::to_string(report.ineffective),
                   fmt::format("{:.1f}", report.seconds)},
                  widths));
    json["schedules"].push_back({{"schedule", report.schedule},
                                 {"operations", report.operations},
                                 {"faults", report.kinds},
                                 {"applicable_pairs", report.pairs},
                                 {"runs", report.runs},
                                 {"violations", report.violations},
                                 {"ineffective", report.ineffective},
                                 {"seconds", report.seconds},
                                 {"trace_hash", fmt::format("{:016x}", report.combined_hash)}});
    violations += report.violations;
    harness_errors += report.harness_errors;
    ineffective += report.ineffective;
    for (std::size_t i = 0; i < report.findings.size(); ++i) {
      findings.push_back(report.schedule + ": " + report.findings[i].what);
      write_finding(report.findings[i], folder, fmt::format("{}-{}", report.schedule, i));
    }
    if (folder.given()) {
      write_finding(report.fault_free, folder, report.schedule + "-fault-free");
    }
  }
  for (const std::string& finding : findings) say(finding);
  for (const std::string& file : folder.files()) say("wrote " + file);
  if (folder.given()) folder.write("result.json", dumped(json));
  if (flags.json) fmt::print("{}", dumped(json));
  const bool complete = violations == 0 && (flags.random() || ineffective == 0);
  if (!complete) {
    say("tpsync explore " + flags_text);
  } else {
    say(flags.random() ? "no violation" : "no violation, every fault took effect");
  }
  if (harness_errors > 0 || folder.lost()) return kExitHarness;
  if (violations > 0) return kExitFailed;
  return complete ? kExitPassed : kExitInconclusive;
}

}  // namespace

void add_explore_command(CLI::App& app, Command& command) {
  auto flags = std::make_shared<ExploreFlags>();
  CLI::App* explore_app = app.add_subcommand("explore", "Try every fault at every operation");
  flags->world.add_to(*explore_app);
  explore_app
      ->add_option("--faults", flags->faults,
                   "single: every fault at every operation; random: plans of "
                   "one to three of them, with schedules")
      ->capture_default_str();
  add_integer(*explore_app, "--seeds", flags->seeds, {1, kSeedsMax},
              "How many random plans (default 1000)");
  add_integer(*explore_app, "--first", flags->first, {0, kSeedsMax},
              "Number of the first of them (default 0)");
  add_integer(*explore_app, "--budget-s", flags->budget_s, {1, 86400},
              "Ends random plans after so many seconds");
  explore_app->add_option("--shard", flags->shard, "I/N: only part I of N")->capture_default_str();
  explore_app->add_flag("--json", flags->json, "JSON on standard output");
  explore_app->add_option("--out", flags->out, "Folder for traces, replay files and result.json");
  explore_app->callback([flags, &command] { command = [flags] { return explore(*flags); }; });
}

}  // namespace tpsync::conformance
