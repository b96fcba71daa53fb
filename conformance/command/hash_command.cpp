// tpsync hash: the identity of many runs, for comparing builds, machines and orders: all scenarios,
// all TP2 single faults and random plans. Lines are independent of the order in which runs are
// made.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "conformance/command/commands.h"
#include "conformance/command/integer.h"
#include "conformance/command/shard.h"
#include "conformance/command/usage.h"
#include "conformance/command/world_flags.h"
#include "conformance/explore/explorer.h"
#include "conformance/explore/random_plans.h"
#include "conformance/judge/content.h"
#include "conformance/scenarios/scripts.h"

namespace tpsync::conformance {

namespace {

constexpr std::uint64_t kPlansMax = 10'000'000;

struct HashFlags {
  bool lines = false;
  bool reverse = false;
  std::optional<std::uint64_t> plans;  // 1000
  std::string shard = "0/1";
};

class Hasher {
 public:
  Hasher(const HashFlags& flags, Shard shard) : flags_(flags), shard_(shard) {}

  int run() {
    std::vector<std::function<void()>> jobs;
    const std::vector<Scenario> scenarios = all_scenarios();
    for (const int tp : {1, 2, 4}) {
      for (const Scenario& scenario : scenarios) {
        jobs.push_back([this, tp, &scenario] { run_scenario(tp, scenario); });
      }
    }
    jobs.push_back([this] { run_faults(); });
    for (std::uint64_t plan = 0; plan < flags_.plans.value_or(1000); ++plan) {
      jobs.push_back([this, plan] { run_plan(plan); });
    }
    if (flags_.reverse) std::reverse(jobs.begin(), jobs.end());
    for (const auto& job : jobs) job();
    std::sort(lines_.begin(), lines_.end());
    std::uint64_t combined = 0;
    for (const std::string& line : lines_) {
      if (flags_.lines) fmt::print("{}\n", line);
      combined = judge::mix(combined ^ judge::name_hash(line));
    }
    if (!flags_.lines) fmt::print("{:016x} over {} runs\n", combined, lines_.size());
    return kExitPassed;
  }

 private:
  // By name, so that a shard is the same set in any order.
  bool mine(const std::string& name) const {
    return judge::name_hash(name) % shard_.count == shard_.index;
  }
  static WorldSpec spec_at(int tp) { return small_world(tiny_tp4(), tp); }

  void run_scenario(int tp, const Scenario& scenario) {
    const std::string name = fmt::format("scenario/tp{}/{}", tp, scenario.id);
    const WorldSpec spec = spec_at(tp);
    if (!mine(name) || !scenario.not_applicable(spec).empty()) return;
    ScenarioContext context(runner_, spec);
    scenario.body(context);
    lines_.push_back(fmt::format("{} {:016x}", name, context.combined_hash()));
  }

  void run_faults() {
    ExploreOptions options;
    options.reverse = flags_.reverse;
    options.shard_index = shard_.index;
    options.shard_count = shard_.count;
    options.each = [this](const std::string& name, const sim::TraceHash& hash) {
      lines_.push_back(fmt::format("fault/{} {}", name, to_text(hash)));
    };
    const WorldSpec spec = spec_at(2);
    explore_single(runner_, spec, options);
  }

  void run_plan(std::uint64_t number) {
    const std::string name = fmt::format("plan/{}", number);
    if (!mine(name)) return;
    if (!plans_) plans_.emplace(runner_, spec_at(2));
    RandomPlan plan = plans_->draw(number);
    plan.options.judge = false;
    const Run run = runner_.run(plan.spec, plan.options, publish_and_recover());
    lines_.push_back(fmt::format("{} {}", name, to_text(run.hash)));
  }

  const HashFlags& flags_;
  Shard shard_;
  SimRunner runner_;
  std::optional<RandomPlans> plans_;
  std::vector<std::string> lines_;
};

}  // namespace

void add_hash_command(CLI::App& app, Command& command) {
  auto flags = std::make_shared<HashFlags>();
  CLI::App* hash = app.add_subcommand("hash", "Hash many runs, to compare builds");
  hash->add_flag("--lines", flags->lines, "One line per run instead of one combined hash");
  hash->add_flag("--reverse", flags->reverse, "Run everything in reverse order");
  add_integer(*hash, "--plans", flags->plans, {0, kPlansMax}, "Random fault plans (default 1000)");
  hash->add_option("--shard", flags->shard, "I/N: only part I of N")->capture_default_str();
  hash->callback([flags, &command] {
    command = [flags] { return Hasher(*flags, parse_shard(flags->shard)).run(); };
  });
}

}  // namespace tpsync::conformance
