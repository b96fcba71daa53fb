#include "conformance/command/explore_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "conformance/command/integer.h"
#include "conformance/command/usage.h"
#include "conformance/explore/schedules.h"

namespace tpsync::conformance {

namespace {

constexpr std::uint64_t kSeedsMax = 1'000'000'000;
constexpr std::uint64_t kJobsMax = 1024;
constexpr std::uint64_t kDepthMax = 16;
constexpr std::uint64_t kPlans = 1000;
constexpr std::uint64_t kSchedules = 10;

bool is_one_of(const std::string& value, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return value == name; });
}

}  // namespace

void ExploreFlags::add_to(CLI::App& app) {
  world.add_to(app);
  app.add_option("--faults", faults,
                 "single: every fault at every operation; pairs: all pairs of them; random: plans "
                 "of one to three; none: schedules alone")
      ->capture_default_str();
  app.add_option(
         "--schedules", schedules,
         "default: three plain ones, or a drawn one per random plan; random: drawn choices; "
         "pct: drawn priorities; bounded: all with few preemptions (--faults none)")
      ->capture_default_str();
  add_integer(app, "--depth", depth, {1, kDepthMax}, "Of --schedules pct (default 3)");
  add_integer(app, "--preemptions", preemptions, {0, kPreemptionsMax},
              "Of --schedules bounded (default 2)");
  add_integer(app, "--seeds", seeds, {1, kSeedsMax},
              "How many random plans (default 1000), or drawn schedules (default 10)");
  add_integer(app, "--first", first, {0, kSeedsMax}, "Number of the first of them (default 0)");
  add_integer(app, "--budget-s", budget_s, {1, 86400}, "Ends random plans after so many seconds");
  app.add_flag("--swarm", swarm, "Random plans: whole families of faults off, by each plan's draw");
  app.add_flag("--draw-worlds", draw_worlds, "Random plans: the world is drawn as well");
  app.add_option("--shard", shard, "I/N: only part I of N")->capture_default_str();
  add_integer(app, "--jobs", jobs, {1, kJobsMax}, "Processes that share the work (default 1)");
  app.add_flag("--check-determinism", check_determinism,
               "Make every run twice and compare (else one in 20)");
  add_integer(app, "--shrink-runs", shrink_runs, {0, kSeedsMax},
              "Runs to reduce the first failure of each kind with (default 2000; 0: none)");
  app.add_flag("--coverage", coverage, "Print phase x fault x rank role");
  app.add_flag("--json", json, "JSON on standard output");
  app.add_option("--out", out, "Folder for traces, replay files and result.json");
}

void ExploreFlags::check() const {
  if (!is_one_of(faults, {"single", "pairs", "random", "none"})) {
    throw UsageError{"--faults: \"" + faults + "\" is none of single, pairs, random and none"};
  }
  if (!is_one_of(schedules, {"default", "random", "pct", "bounded"})) {
    throw UsageError{"--schedules: \"" + schedules +
                     "\" is none of default, random, pct and bounded"};
  }
  const bool drawn = schedules == "random" || schedules == "pct";
  const auto only = [](bool given, bool right, const char* flag, const char* where) {
    if (given && !right) throw UsageError{fmt::format("{}: only for {}", flag, where)};
  };
  only(depth.has_value(), schedules == "pct", "--depth", "--schedules pct");
  only(preemptions.has_value(), schedules == "bounded", "--preemptions", "--schedules bounded");
  only(schedules == "bounded", faults == "none", "--schedules bounded", "--faults none");
  only(drawn, faults == "none" || faults == "single", "--schedules",
       "--faults single and none; random plans draw their own, pairs are made in one");
  only(faults == "none", schedules != "default", "--faults none", "--schedules other than default");
  only(seeds.has_value(), random() || drawn, "--seeds", "--faults random and drawn schedules");
  only(first.has_value(), random() || drawn, "--first", "--faults random and drawn schedules");
  only(budget_s.has_value(), random(), "--budget-s", "--faults random");
  only(swarm, random(), "--swarm", "--faults random");
  only(draw_worlds, random(), "--draw-worlds", "--faults random");
}

std::string ExploreFlags::parameters(const WorldSpec& spec) const {
  std::string text = "--faults " + faults + " " + world.text(spec);
  if (schedules != "default") text += " --schedules " + schedules;
  if (depth) text += fmt::format(" --depth {}", *depth);
  if (preemptions) text += fmt::format(" --preemptions {}", *preemptions);
  if (seeds) text += fmt::format(" --seeds {}", *seeds);
  if (first) text += fmt::format(" --first {}", *first);
  if (budget_s) text += fmt::format(" --budget-s {}", *budget_s);
  if (swarm) text += " --swarm";
  if (draw_worlds) text += " --draw-worlds";
  if (check_determinism) text += " --check-determinism";
  return text;
}

std::string ExploreFlags::text(const WorldSpec& spec) const {
  std::string text = parameters(spec);
  if (shard != "0/1") text += " --shard " + shard;
  if (jobs) text += fmt::format(" --jobs {}", *jobs);
  return text;
}

std::vector<Exploring> explorations(const ExploreFlags& flags, const WorldSpec& spec) {
  if (flags.random()) {
    const RandomRange range{flags.first.value_or(0), flags.seeds.value_or(kPlans),
                            std::chrono::seconds(flags.budget_s.value_or(0)), flags.plans()};
    return {[=](SimRunner& runner, const ExploreOptions& options) {
      return explore_random(runner, spec, range, options);
    }};
  }
  if (flags.faults == "pairs") {
    return {[=](SimRunner& runner, const ExploreOptions& options) {
      return explore_pairs(runner, spec, options);
    }};
  }
  if (flags.schedules == "bounded") {
    const auto preemptions = static_cast<std::uint32_t>(flags.preemptions.value_or(2));
    return {[=](SimRunner& runner, const ExploreOptions& options) {
      return explore_bounded(runner, spec, preemptions, options);
    }};
  }
  if (flags.schedules != "default") {
    const ScheduleRange range{
        flags.schedules == "pct" ? DrawnSchedule::kPriority : DrawnSchedule::kRandom,
        static_cast<std::uint32_t>(flags.depth.value_or(3)), flags.first.value_or(0),
        flags.seeds.value_or(kSchedules), flags.faults == "single"};
    return {[=](SimRunner& runner, const ExploreOptions& options) {
      return explore_schedules(runner, spec, range, options);
    }};
  }
  std::vector<Exploring> all;
  for (const sim::Policy policy :
       {sim::Policy::kFirstReady, sim::Policy::kLastReady, sim::Policy::kSeeded}) {
    all.emplace_back([=](SimRunner& runner, const ExploreOptions& options) {
      ExploreOptions own = options;
      own.policy = policy;
      return explore_single(runner, spec, own);
    });
  }
  return all;
}

}  // namespace tpsync::conformance
