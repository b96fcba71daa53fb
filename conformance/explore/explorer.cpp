#include "conformance/explore/explorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "conformance/explore/random_plans.h"
#include "conformance/judge/content.h"
#include "conformance/scenarios/scripts.h"
#include "conformance/world/operations.h"
#include "sim/trace_file.h"

namespace tpsync::conformance {

namespace {

constexpr std::size_t kFindingsMax = 10;

bool is_mark(const sim::Event& event) {
  return event.kind == static_cast<std::uint16_t>(judge::Record::kFault) ||
         event.kind == static_cast<std::uint16_t>(judge::Record::kHealed);
}

class Explorer {
 public:
  Explorer(SimRunner& runner, const WorldSpec& spec, const ExploreOptions& options)
      : runner_(runner), spec_(spec), options_(options) {
    report_.schedule = name_of(options.policy);
  }

  ExploreReport run() {
    if (!run_twin()) return report_;
    const auto operations = publication_operations(twin_, spec_);
    const auto pairs = faults::enumerate(operations);
    report_.operations = operations.size();
    report_.pairs = pairs.size();
    std::set<std::string> kinds;
    for (const faults::Pair& pair : pairs) kinds.insert(pair.fault.name);
    report_.kinds = kinds.size();
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const std::size_t index = options_.reverse ? pairs.size() - 1 - i : i;
      if (index % options_.shard_count != options_.shard_index) continue;
      try_pair(pairs[index]);
    }
    report_.seconds = seconds();
    return report_;
  }

  ExploreReport run(const RandomRange& range) {
    report_.schedule = "random";
    if (!run_twin()) return report_;
    const RandomPlans plans(runner_, spec_);
    report_.operations = plans.operations();
    report_.pairs = plans.pairs().size();
    std::set<std::string> kinds;
    for (const faults::Pair& pair : plans.pairs()) kinds.insert(pair.fault.name);
    report_.kinds = kinds.size();
    for (std::uint64_t i = 0; i < range.count; ++i) {
      const std::uint64_t number = range.first + (options_.reverse ? range.count - 1 - i : i);
      if (number % options_.shard_count != options_.shard_index) continue;
      if (range.budget.count() != 0 && seconds() > static_cast<double>(range.budget.count())) break;
      try_plan(number, plans.draw(number));
    }
    report_.seconds = seconds();
    return report_;
  }

 private:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  // False if the world does not even work without faults.
  bool run_twin() {
    const Run twin = run_world(spec_, scheduled({}));
    report_.runs = 0;
    report_.combined_hash = 0;
    twin_ = runner_.trace();
    report_.fault_free = finding("", scheduled({}));
    if (twin.passed()) return true;
    ++report_.violations;
    report_.harness_errors += is_harness_failure(twin.end.kind) ? 1 : 0;
    add_finding("the fault-free world: " + twin.end.detail + twin.judgement.text(), scheduled({}));
    return false;
  }

  SimOptions scheduled(SimOptions options) const {
    options.policy = options_.policy;
    return options;
  }

  Run run_world(const WorldSpec& spec, const SimOptions& options) {
    const Run run = runner_.run(spec, options, publish_and_recover());
    log_ = run.log;
    ++report_.runs;
    // Order-free, so that shards and reversed runs add up to the same.
    report_.combined_hash += judge::mix(run.hash.low ^ judge::mix(run.hash.high));
    return run;
  }

  void try_plan(std::uint64_t number, const RandomPlan& plan) {
    const Run run = run_world(plan.spec, plan.options);
    const std::string name = fmt::format("plan {}", number);
    if (options_.each) options_.each(name, run.hash);
    const bool ended = run.end.kind == sim::RunResult::Kind::kFinished;
    if (!ended || run.judgement.worst() == judge::Status::kViolation) {
      ++report_.violations;
      report_.harness_errors += is_harness_failure(run.end.kind) ? 1 : 0;
      std::string faults;
      for (const faults::Fault& fault : plan.options.plan.faults)
        faults += (faults.empty() ? "" : ", ") + to_text(fault);
      add_finding(fmt::format("{} ({}): {}", name, faults,
                              ended ? run.judgement.text()
                                    : "the world did not end by itself: " + run.end.detail),
                  plan.spec, plan.options);
      return;
    }
    // Faults that struck nowhere, or so early that there was nothing to recover.
    if (!run.judgement.ok()) {
      ++report_.ineffective;
      return;
    }
    if (!plan.options.recovery.empty()) recover_elsewhere(name, plan.spec, plan.options);
  }

  void try_pair(const faults::Pair& pair) {
    SimOptions options = scheduled({});
    options.plan.seed = spec_.seed;
    options.plan.faults.push_back(pair.fault);
    options.facts.push_back({pair.demand, pair.kinds});
    if (breaks_world(pair.fault)) options.recovery = "other-world";
    const Run run = run_world(spec_, options);
    if (options_.each) options_.each(to_text(pair.fault), run.hash);
    std::string problem;
    if (run.end.kind != sim::RunResult::Kind::kFinished) {
      problem = "the world did not end by itself: " + run.end.detail;
      report_.harness_errors += is_harness_failure(run.end.kind) ? 1 : 0;
    } else if (!run.judgement.ok()) {
      problem = run.judgement.text();
    } else {
      problem = held_against_demand(pair);
    }
    if (!problem.empty()) {
      ++report_.violations;
      add_finding(to_text(pair.fault) + ": " + problem, options);
      return;
    }
    if (run.faults_applied == 0 || same_events(runner_.trace(), twin_)) {
      ++report_.ineffective;
      add_finding(to_text(pair.fault) + ": had no effect", options);
    }
    if (!options.recovery.empty()) recover_elsewhere(to_text(pair.fault), spec_, options);
  }

  // What every surviving actor's publication came to. A killed actor returned nothing.
  std::string held_against_demand(const faults::Pair& pair) const {
    for (std::size_t rank = 0; rank < log_.by_rank.size(); ++rank) {
      const auto& outcomes = log_.by_rank[rank];
      if (outcomes.empty()) continue;
      const Outcome& outcome = outcomes.front();
      if (outcome.ok()) {
        if (pair.demand == faults::Demand::kFail) {
          return fmt::format("actor {} should have failed, it published version {}", rank,
                             outcome.version);
        }
        continue;
      }
      if (pair.demand == faults::Demand::kSurvive) {
        return fmt::format("actor {} should have published: {}", rank, to_text(*outcome.error));
      }
      const ErrorKind kind = outcome.error->kind;
      if (std::find(pair.kinds.begin(), pair.kinds.end(), kind) == pair.kinds.end()) {
        return fmt::format("actor {} reports what this fault does not explain: {}", rank,
                           to_text(*outcome.error));
      }
    }
    return "";
  }

  // A new world, given the highest version that any actor returned, publishes the next.
  void recover_elsewhere(const std::string& name, const WorldSpec& broken,
                         const SimOptions& options) {
    std::int64_t highest = broken.base_version;
    for (const auto& outcomes : log_.by_rank) {
      for (const Outcome& outcome : outcomes) {
        if (outcome.ok()) highest = std::max(highest, outcome.version);
      }
    }
    const auto [entry, fresh] = recovered_.emplace(highest, std::string());
    if (fresh) {
      WorldSpec spec = spec_;
      spec.base_version = highest;
      const std::uint64_t hash = report_.combined_hash;
      const Run run = run_world(spec, scheduled({}));
      --report_.runs;  // shared by all that need it, and no part of any pair's identity
      report_.combined_hash = hash;
      if (!run.passed()) {
        entry->second = run.end.detail + run.judgement.text();
      } else if (!log_.by_rank[0].front().ok() || log_.by_rank[0].front().version <= highest) {
        entry->second = "the new world did not publish a higher version";
      }
    }
    if (entry->second.empty()) return;
    ++report_.violations;
    add_finding(name + ": recovery in a new world: " + entry->second, broken, options);
  }

  void add_finding(std::string what, const SimOptions& options) {
    add_finding(std::move(what), spec_, options);
  }
  void add_finding(std::string what, const WorldSpec& spec, const SimOptions& options) {
    if (report_.findings.size() >= kFindingsMax) return;
    report_.findings.push_back(finding(std::move(what), spec, options));
  }

  // Of the last run.
  Finding finding(std::string what, const SimOptions& options) const {
    return finding(std::move(what), spec_, options);
  }
  Finding finding(std::string what, const WorldSpec& spec, const SimOptions& options) const {
    const sim::Trace& trace = runner_.trace();
    return {std::move(what), spec, options, sim::write_trace(trace),
            sim::to_text(sim::hash_of(trace))};
  }

  SimRunner& runner_;
  const WorldSpec& spec_;
  const ExploreOptions& options_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  ExploreReport report_;
  sim::Trace twin_;
  ActorLog log_;
  std::map<std::int64_t, std::string> recovered_;  // by base version: what went wrong, or nothing
};

}  // namespace

bool breaks_world(const faults::Fault& fault) { return faults::needs_another_world(fault); }

std::string_view name_of(sim::Policy policy) {
  switch (policy) {
    case sim::Policy::kFirstReady:
      return "first-ready";
    case sim::Policy::kLastReady:
      return "last-ready";
    case sim::Policy::kSeeded:
      return "seeded";
  }
  return "unknown";
}

bool same_events(const sim::Trace& run, const sim::Trace& twin) {
  std::size_t at = 0;
  for (const sim::Event& event : run.events) {
    if (is_mark(event)) continue;
    if (at == twin.events.size()) return false;
    const sim::Event& other = twin.events[at++];
    if (run.texts.at(event.text) != twin.texts.at(other.text) ||
        run.texts.at(event.phase) != twin.texts.at(other.phase)) {
      return false;
    }
    sim::Event left = event;
    sim::Event right = other;
    left.text = right.text = left.phase = right.phase = 0;
    if (left != right) return false;
  }
  return at == twin.events.size();
}

ExploreReport explore_single(SimRunner& runner, const WorldSpec& spec,
                             const ExploreOptions& options) {
  return Explorer(runner, spec, options).run();
}

ExploreReport explore_random(SimRunner& runner, const WorldSpec& spec, const RandomRange& range,
                             const ExploreOptions& options) {
  return Explorer(runner, spec, options).run(range);
}

}  // namespace tpsync::conformance
