// tpsync explore: all single faults of a publication, under three schedules.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
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

struct ExploreFlags {
  WorldFlags world;
  std::string faults = "single";
  bool json = false;
  std::string out;
};

void write_finding(const Finding& finding, const std::string& folder, const std::string& name,
                   std::vector<std::string>& files) {
  Replay replay;
  replay.spec = finding.spec;
  replay.options = finding.options;
  replay.trace_hash = finding.hash;
  files.push_back(write_file(folder, name + ".trace.ndjson", finding.trace));
  files.push_back(write_file(folder, name + ".replay.json", to_json(replay)));
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
  const std::string flags_text =
      fmt::format("--world sim --faults single --seed {} --tp {}{} --bucket-bytes {}{}", spec.seed,
                  spec.tp, flags.world.config ? " --config " + *flags.world.config : "",
                  spec.sync.bucket_bytes, spec.phantom ? " --phantom" : "");
  say(fmt::format("tpsync {} seed {} {}", TPSYNC_VERSION, spec.seed, flags_text));
  SimRunner runner;
  std::vector<std::vector<std::string>> rows = {{"schedule", "operations", "faults", "pairs",
                                                 "runs", "violations", "ineffective", "seconds"}};
  nlohmann::ordered_json json;
  json["world"] = "sim";
  json["seed"] = spec.seed;
  json["tp"] = spec.tp;
  json["schedules"] = nlohmann::ordered_json::array();
  std::uint64_t violations = 0;
  std::uint64_t harness_errors = 0;
  std::uint64_t ineffective = 0;
  std::string folder = flags.out.empty() ? "tpsync-out" : flags.out;
  std::vector<std::string> files;
  for (const sim::Policy policy :
       {sim::Policy::kFirstReady, sim::Policy::kLastReady, sim::Policy::kSeeded}) {
    ExploreOptions options;
    options.policy = policy;
    const ExploreReport report = explore_single(runner, spec, options);
    rows.push_back({report.schedule, std::to_string(report.operations),
                    std::to_string(report.kinds), std::to_string(report.pairs),
                    std::to_string(report.runs), std::to_string(report.violations),
                    std::to_string(report.ineffective), fmt::format("{:.1f}", report.seconds)});
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
      say(report.schedule + ": " + report.findings[i].what);
      write_finding(report.findings[i], folder, fmt::format("{}-{}", report.schedule, i), files);
    }
    if (!flags.out.empty()) {
      write_finding(report.fault_free, folder, report.schedule + "-fault-free", files);
    }
  }
  say(table(rows));
  for (const std::string& file : files) say("wrote " + file);
  if (!flags.out.empty()) write_file(folder, "result.json", json.dump(2) + "\n");
  if (flags.json) fmt::print("{}\n", json.dump(2));
  if (violations == 0 && ineffective == 0) {
    say("no violation, every fault took effect");
    return kExitPassed;
  }
  say("tpsync explore " + flags_text);
  if (harness_errors > 0) return kExitHarness;
  return violations > 0 ? kExitFailed : kExitInconclusive;
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
