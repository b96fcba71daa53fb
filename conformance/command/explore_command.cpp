// tpsync explore: all single faults of a publication, all pairs of them, random plans, schedules.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "conformance/command/commands.h"
#include "conformance/command/explore_flags.h"
#include "conformance/command/findings.h"
#include "conformance/command/output.h"
#include "conformance/command/usage.h"

namespace tpsync::conformance {

namespace {

// Over itself, on a terminal.
void show(const Progress& progress) {
  const std::string covered =
      progress.applicable == 0
          ? ""
          : fmt::format(", {} of {} cells covered", progress.covered, progress.applicable);
  fmt::print(stderr, "\r{} runs, {:.0f} runs/s, {} violations{}   ", progress.runs,
             static_cast<double>(progress.runs) / std::max(progress.seconds, 0.001),
             progress.violations, covered);
  std::fflush(stderr);
}

JobOptions job_options(const ExploreFlags& flags, const WorldSpec& spec) {
  JobOptions options;
  options.jobs = flags.jobs.value_or(1);
  options.shard = parse_shard(flags.shard);
  options.spec = &spec;
  options.explore.repeat_all = flags.check_determinism;
  options.explore.repeat_some = true;
  if (flags.random()) {
    options.world = [&flags, &spec](std::uint64_t, std::uint64_t number) {
      SimRunner runner;
      return RandomPlans(runner, spec, flags.plans()).draw(number).spec;
    };
  }
  if (isatty(STDERR_FILENO) != 0) options.progress = show;
  return options;
}

int explore(const ExploreFlags& flags) {
  flags.check();
  const WorldSpec spec = flags.world.spec();
  if (spec.actors != spec.tp) {
    throw UsageError{"--actors: exploration needs as many actors as TP ranks; leave it out"};
  }
  const JobOptions options = job_options(flags, spec);
  OutFolder folder(flags.out);
  const std::string flags_text = flags.text(spec);
  say(fmt::format("tpsync {} seed {} {}", TPSYNC_VERSION, spec.seed, flags_text));
  JobsResult jobs = run_jobs(explorations(flags, spec), options);
  if (options.progress) fmt::print(stderr, "\r{:70}\r", "");
  ExploreResult result{TPSYNC_VERSION, flags.parameters(spec), spec.seed,
                       spec.tp,        options.shard,          std::move(jobs.reports)};
  say(report_head());
  for (const ExploreReport& report : result.reports) say(report_row(report));
  say(situations_report(result));
  if (flags.coverage) {
    for (const ExploreReport& report : result.reports) {
      say(report.schedule + ":\n" + coverage_text(report.coverage));
    }
  }
  tell_findings(result, {flags.shrink_runs.value_or(2000), folder.given()}, folder);
  const std::string json = dumped(to_json(result));
  if (folder.given()) folder.write("result.json", json);
  if (flags.json) fmt::print("{}", json);
  const int exit_code = exit_code_of(result, flags.sampled());
  if (exit_code != kExitPassed) {
    say("tpsync explore " + flags_text);
  } else {
    say(flags.sampled() ? "no violation" : "no violation, every fault took effect");
  }
  return jobs.failed || folder.lost() ? kExitHarness : exit_code;
}

}  // namespace

void add_explore_command(CLI::App& app, Command& command) {
  auto flags = std::make_shared<ExploreFlags>();
  CLI::App* explore_app = app.add_subcommand("explore", "Try every fault at every operation");
  flags->add_to(*explore_app);
  explore_app->callback([flags, &command] { command = [flags] { return explore(*flags); }; });
}

}  // namespace tpsync::conformance
