#include "conformance/explore/exploration.h"

#include <fmt/format.h>

#include <algorithm>

#include "conformance/explore/divergence.h"
#include "conformance/explore/symptoms.h"
#include "conformance/judge/content.h"
#include "conformance/scenarios/scripts.h"
#include "conformance/world/operations.h"
#include "sim/trace_file.h"

namespace tpsync::conformance {

namespace {

constexpr std::size_t kFindingsPerId = 3;
constexpr std::uint64_t kRepeatedOneIn = 20;

// Ids of findings that no single run shows by itself.
constexpr std::string_view kDemandId = "demand";
constexpr std::string_view kNoEffectId = "no effect";
constexpr std::string_view kRecoveryId = "recovery";
constexpr std::string_view kDivergenceId = "determinism";
constexpr std::string_view kInconclusiveId = "inconclusive";

std::string faults_text(const faults::Plan& plan) {
  std::string text;
  for (const faults::Fault& fault : plan.faults) {
    text += (text.empty() ? "" : ", ") + to_text(fault);
  }
  return text;
}

}  // namespace

Exploration::Exploration(SimRunner& runner, const WorldSpec& spec, const ExploreOptions& options,
                         std::string schedule)
    : runner_(runner), spec_(spec), options_(options) {
  report_.schedule = std::move(schedule);
}

double Exploration::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

SimOptions Exploration::scheduled() const {
  SimOptions options;
  options.policy = options_.policy;
  options.schedule = options_.schedule;
  options.priority_changes = options_.priority_changes;
  options.priority_choices = options_.priority_choices;
  return options;
}

bool Exploration::left_out(std::uint64_t number) const {
  return std::find(options_.left_out.begin(), options_.left_out.end(), number) !=
         options_.left_out.end();
}

bool Exploration::wanted(std::uint64_t number) const {
  return of_shard(number) && !left_out(number);
}

bool Exploration::run_twin() {
  SimOptions options = scheduled();
  const Run run = look(kTwinNumber, spec_, options, publish_and_recover());
  twin_ = runner_.trace();
  report_.fault_free = {kTwinNumber, "", "", spec_, options, sim::to_text(run.hash)};
  if (!run.passed()) {
    const auto symptoms = symptoms_of(run);
    Attempt attempt;
    attempt.number = kTwinNumber;
    attempt.name = "the fault-free world";
    attempt.spec = &spec_;
    attempt.options = options;
    fail(attempt, symptoms.empty() ? std::string(kInconclusiveId) : symptoms.front().id,
         symptoms.empty() ? run.judgement.text() : symptoms.front().text);
    return false;
  }
  operations_ = publication_operations(twin_, spec_);
  singles_ = faults::enumerate(operations_);
  report_.operations = operations_.size();
  report_.pairs = singles_.size();
  report_.coverage.add_world(operations_, singles_);
  std::vector<std::string_view> kinds;
  for (const faults::Pair& single : singles_) kinds.push_back(single.kind->name);
  std::sort(kinds.begin(), kinds.end());
  report_.kinds = static_cast<std::uint64_t>(
      std::distance(kinds.begin(), std::unique(kinds.begin(), kinds.end())));
  return true;
}

Run Exploration::look(std::uint64_t number, const WorldSpec& spec, const SimOptions& options,
                      const Script& script) {
  if (options_.before) options_.before(number, spec, options);
  return runner_.run(spec, options, script);
}

Run Exploration::attempt(const Attempt& attempt) {
  const Script script = attempt.script ? attempt.script : publish_and_recover();
  const Run run = look(attempt.number, *attempt.spec, attempt.options, script);
  log_ = run.log;
  ++report_.runs;
  report_.situations.add(run.judgement.situations);
  // Order-free, so that shards and reversed runs add up to the same.
  report_.combined_hash += judge::mix(run.hash.low ^ judge::mix(run.hash.high));
  if (options_.each) options_.each(attempt.name, run.hash);
  if (run.faults_applied > 0) {
    for (const sim::Event& event : runner_.trace().events) {
      if (event.kind != static_cast<std::uint16_t>(judge::Record::kFault)) continue;
      report_.coverage.count(attempt.options.plan.faults.at(event.a));
    }
  }
  report_.unreached += attempt.options.plan.faults.size() - run.faults_applied;
  const auto symptoms = symptoms_of(run);
  bool good = symptoms.empty();
  if (!good) {
    report_.harness_errors += is_harness_failure(run.end.kind) ? 1 : 0;
    fail(attempt, symptoms.front().id,
         run.end.kind == sim::RunResult::Kind::kFinished ? run.judgement.text()
                                                         : symptoms.front().text);
  } else if (attempt.rule == Attempt::Rule::kMixed) {
    // Faults that struck nowhere, or so early that there was nothing to recover.
    good = run.judgement.ok();
    report_.ineffective += good ? 0 : 1;
  } else if (!run.judgement.ok()) {
    good = false;
    fail(attempt, std::string(kInconclusiveId), run.judgement.text());
  } else if (attempt.rule == Attempt::Rule::kSingle) {
    const std::string problem = held_against_demand(attempt.options);
    if (!problem.empty()) {
      good = false;
      fail(attempt, std::string(kDemandId), problem);
    } else if (run.faults_applied == 0 || same_events(runner_.trace(), twin_)) {
      ++report_.ineffective;
      add_finding(attempt.number, std::string(kNoEffectId), attempt.name + ": had no effect",
                  *attempt.spec, attempt.options);
    }
  }
  if (repeats(attempt, script) && good && !attempt.options.recovery.empty()) {
    recover_elsewhere(attempt);
  }
  if (options_.after) options_.after(report_);
  return run;
}

bool Exploration::repeats(const Attempt& attempt, const Script& script) {
  // Not by what a shard is chosen by.
  const bool chosen = judge::mix(~attempt.number) % kRepeatedOneIn == 0;
  if (!options_.repeat_all && !(chosen && options_.repeat_some)) return true;
  const sim::Trace first = runner_.trace();
  look(attempt.number, *attempt.spec, attempt.options, script);
  ++report_.repeated;
  const std::string difference = first_divergence(first, runner_.trace());
  if (difference.empty()) return true;
  ++report_.diverged;
  add_finding(attempt.number, std::string(kDivergenceId),
              attempt.name + ": the same run twice gave two traces: " + difference, *attempt.spec,
              attempt.options);
  return false;
}

// What every surviving actor's publication came to. A killed actor returned nothing.
std::string Exploration::held_against_demand(const SimOptions& options) const {
  const FaultFacts& facts = options.facts.front();
  for (std::size_t rank = 0; rank < log_.by_rank.size(); ++rank) {
    const auto& outcomes = log_.by_rank[rank];
    if (outcomes.empty()) continue;
    const Outcome& outcome = outcomes.front();
    if (outcome.ok()) {
      if (facts.demand == faults::Demand::kFail) {
        return fmt::format("actor {} should have failed, it published version {}", rank,
                           outcome.version);
      }
      continue;
    }
    if (facts.demand == faults::Demand::kSurvive) {
      return fmt::format("actor {} should have published: {}", rank, to_text(*outcome.error));
    }
    const ErrorKind kind = outcome.error->kind;
    if (std::find(facts.kinds.begin(), facts.kinds.end(), kind) == facts.kinds.end()) {
      return fmt::format("actor {} reports what this fault does not explain: {}", rank,
                         to_text(*outcome.error));
    }
  }
  return "";
}

// A new world, given the highest version that any actor returned, publishes the next.
void Exploration::recover_elsewhere(const Attempt& attempt) {
  std::int64_t highest = attempt.spec->base_version;
  for (const auto& outcomes : log_.by_rank) {
    for (const Outcome& outcome : outcomes) {
      if (outcome.ok()) highest = std::max(highest, outcome.version);
    }
  }
  const auto [entry, fresh] =
      recovered_.emplace(std::pair(attempt.spec->tp, highest), std::string());
  if (fresh) {
    WorldSpec spec = attempt.spec->tp == spec_.tp ? spec_ : *attempt.spec;
    spec.base_version = highest;
    // Shared by all that need it, and no part of any run's identity.
    const Run run = look(attempt.number, spec, scheduled(), publish_and_recover());
    if (!run.passed()) {
      entry->second = run.end.detail + run.judgement.text();
    } else if (!run.log.by_rank[0].front().ok() || run.log.by_rank[0].front().version <= highest) {
      entry->second = "the new world did not publish a higher version";
    }
  }
  if (entry->second.empty()) return;
  fail(attempt, std::string(kRecoveryId), "recovery in a new world: " + entry->second);
}

void Exploration::fail(const Attempt& attempt, const std::string& id, const std::string& text) {
  ++report_.violations;
  const std::string faults =
      attempt.rule == Attempt::Rule::kSingle ? std::string() : faults_text(attempt.options.plan);
  add_finding(attempt.number, id,
              attempt.name + (faults.empty() ? "" : " (" + faults + ")") + ": " + text,
              *attempt.spec, attempt.options);
}

void Exploration::add_finding(std::uint64_t number, std::string id, std::string what,
                              const WorldSpec& spec, const SimOptions& options) {
  ++report_.findings_by_id[id];
  report_.findings.push_back({number, std::move(id), std::move(what), spec, options,
                              sim::to_text(sim::hash_of(runner_.trace()))});
  keep_first_findings(report_.findings);
}

ExploreReport Exploration::finish() {
  report_.seconds = seconds();
  return std::move(report_);
}

void keep_first_findings(std::vector<Finding>& findings) {
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.number < b.number; });
  std::map<std::string, std::size_t> kept;
  std::erase_if(findings,
                [&](const Finding& finding) { return ++kept[finding.id] > kFindingsPerId; });
}

}  // namespace tpsync::conformance
