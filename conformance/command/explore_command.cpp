// tpsync explore: all single faults of a publication, under three schedules.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "conformance/command/commands.h"
#include "conformance/command/output.h"
#include "conformance/command/replay_file.h"
#include "conformance/command/usage.h"
#include "conformance/command/world_flags.h"
#include "conformance/explore/explorer.h"

namespace tpsync::conformance {

namespace {

// Holds the longest name of a schedule, and counts.
constexpr std::size_t kColumnMin = 11;

struct ExploreFlags {
  WorldFlags world;
  std::string faults = "single";
  bool json = false;
  std::string out;
};

void write_finding(const Finding& finding, OutFolder& folder, const std::string& name) {
  Replay replay;
  replay.spec = finding.spec;
  replay.options = finding.options;
  replay.trace_hash = finding.hash;
  folder.write(name + ".trace.ndjson", finding.trace);
  folder.write(name + ".replay.json", to_json(replay));
}

int explore(const ExploreFlags& flags) {
  if (flags.faults != "single") {
    throw UsageError{"--faults: \"" + flags.faults +
                     "\" is not explored by this version; use single"};
  }
  const WorldSpec spec = flags.world.spec();
  if (spec.actors != spec.tp) {
    throw UsageError{"--actors: exploration needs as many actors as TP ranks; leave it out"};
  }
  OutFolder folder(flags.out);
  const std::string flags_text = "--faults single " + flags.world.text(spec);
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
  for (const sim::Policy policy :
       {sim::Policy::kFirstReady, sim::Policy::kLastReady, sim::Policy::kSeeded}) {
    ExploreOptions options;
    options.policy = policy;
    const ExploreReport report = explore_single(runner, spec, options);
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
  const bool complete = violations == 0 && ineffective == 0;
  say(complete ? "no violation, every fault took effect" : "tpsync explore " + flags_text);
  if (harness_errors > 0 || folder.lost()) return kExitHarness;
  if (violations > 0) return kExitFailed;
  return complete ? kExitPassed : kExitInconclusive;
}

}  // namespace

void add_explore_command(CLI::App& app, Command& command) {
  auto flags = std::make_shared<ExploreFlags>();
  CLI::App* explore_app = app.add_subcommand("explore", "Try every fault at every operation");
  flags->world.add_to(*explore_app);
  explore_app->add_option("--faults", flags->faults, "What to enumerate: single")
      ->capture_default_str();
  explore_app->add_flag("--json", flags->json, "JSON on standard output");
  explore_app->add_option("--out", flags->out, "Folder for traces, replay files and result.json");
  explore_app->callback([flags, &command] { command = [flags] { return explore(*flags); }; });
}

}  // namespace tpsync::conformance
