#include "conformance/scenarios/scenario.h"

#include <fmt/format.h>

#include <algorithm>

#include "conformance/judge/content.h"
#include "conformance/scenarios/scripts.h"
#include "conformance/world/operations.h"
#include "sim/trace_file.h"

namespace tpsync::conformance {

Run ScenarioContext::run(const std::string& label, const WorldSpec& spec, const SimOptions& options,
                         const Script& script) {
  Run run = runner_.run(spec, options, script);
  take(label, run, options.judge);
  return run;
}

void ScenarioContext::run_all(const std::vector<WorldJob>& jobs,
                              const std::function<void(std::size_t job)>& after) {
  const std::size_t most = worlds_of_batch_ == 0 ? jobs.size() : worlds_of_batch_;
  if (jobs.size() <= most) return run_whole(jobs, after);
  const auto chosen = [&](std::size_t i) {
    return most == 1 ? 0 : i * (jobs.size() - 1) / (most - 1);
  };
  std::vector<WorldJob> some;
  for (std::size_t i = 0; i < most; ++i) some.push_back(jobs[chosen(i)]);
  left_out_ += jobs.size() - most;
  run_whole(some, [&](std::size_t i) {
    if (after) after(chosen(i));
  });
}

void ScenarioContext::run_whole(const std::vector<WorldJob>& jobs,
                                const std::function<void(std::size_t job)>& after) {
  runner_.run_all(jobs, [&](std::size_t job, const Run& run) {
    take(jobs[job].label, run, jobs[job].options.judge);
    if (after) after(job);
  });
}

void ScenarioContext::take(const std::string& label, const Run& run, bool judged) {
  situations_.add(run.judgement.situations);
  label_ = label;
  log_ = run.log;
  ++worlds_;
  combined_hash_ = judge::mix(combined_hash_ ^ run.hash.low) + run.hash.high;
  last_world_ = KeptWorld{label, worlds_, sim::to_text(run.hash), {}, run.judgement};
  if (worlds_ == keep_number_) {
    kept_world_ = last_world_;
    kept_world_->trace = sim::write_trace(runner_.trace());
  }
  harness_failed_ |= is_harness_failure(run.end.kind);
  if (run.end.kind != sim::RunResult::Kind::kFinished) {
    check(false, "the world did not end by itself: " + run.end.detail);
  }
  for (const std::string& failure : run.log.failed_checks) check(false, failure);
  if (judged) {
    for (const judge::Verdict& verdict : run.judgement.verdicts) {
      if (verdict.status == judge::Status::kViolation ||
          verdict.status == judge::Status::kInconclusive) {
        check(false, fmt::format("{} {}: {}", verdict.id, to_string(verdict.status), verdict.text));
      }
    }
  }
}

const std::vector<faults::Operation>& ScenarioContext::operations() {
  if (operations_.empty()) {
    runner_.run(spec_, {}, publish_and_recover());
    operations_ = publication_operations(runner_.trace(), spec_);
    // How often a real process polls depends on how long it waits: whether it asks for a lost peer
    // or an alarm at all, and how often more than once it waits for something to read. A fault at
    // such a moment may never strike.
    if (!simulated()) {
      std::erase_if(operations_, [](const faults::Operation& operation) {
        return operation.op == "control.lost_peer" || operation.op == "control.alarm" ||
               (operation.op == "channel.wait_readable" && operation.occurrence > 0);
      });
    }
  }
  return operations_;
}

void ScenarioContext::check(bool condition, const std::string& what) {
  if (condition) return;
  failures_.push_back(label_.empty() ? what : label_ + ": " + what);
  if (failed_world_ || worlds_ == 0) return;
  failed_world_ = last_world_;
  failed_world_->trace = sim::write_trace(runner_.trace());
}

void ScenarioContext::expect_committed(std::int64_t version) {
  for (std::size_t rank = 0; rank < log_.by_rank.size(); ++rank) {
    const auto& outcomes = log_.by_rank[rank];
    if (outcomes.empty()) {
      check(false, fmt::format("rank {} returned nothing", rank));
      continue;
    }
    const Outcome& outcome = outcomes.back();
    check(outcome.ok() && outcome.version == version,
          fmt::format("rank {} should have published version {}: {}", rank, version,
                      outcome.ok() ? fmt::format("it published {}", outcome.version)
                                   : to_text(*outcome.error)));
  }
}

void ScenarioContext::expect_failed(const Failure& failure, const std::vector<int>& except) {
  const ErrorRecord* first = nullptr;
  for (std::size_t rank = 0; rank < log_.by_rank.size(); ++rank) {
    if (std::find(except.begin(), except.end(), static_cast<int>(rank)) != except.end()) continue;
    const auto& outcomes = log_.by_rank[rank];
    if (outcomes.empty() || outcomes.back().ok()) {
      check(false, fmt::format("rank {} should have failed with {} in {}", rank,
                               to_string(failure.kind), failure.phase));
      continue;
    }
    const ErrorRecord& record = *outcomes.back().error;
    const bool fits = record.kind == failure.kind &&
                      (failure.phase.empty() || record.phase == failure.phase) &&
                      (failure.rank == -2 || record.rank == failure.rank) &&
                      record.subject.find(failure.subject) != std::string::npos &&
                      record.detail.find(failure.detail) != std::string::npos;
    check(fits,
          fmt::format("rank {} should have failed with {} in {} (rank {}, \"{}\", \"{}\"): {}",
                      rank, to_string(failure.kind), failure.phase, failure.rank, failure.subject,
                      failure.detail, to_text(record)));
    if (first == nullptr) first = &record;
    check(*first == record || record.kind == ErrorKind::kPeerLost,
          fmt::format("rank {} reports another record than its peers: {}", rank, to_text(record)));
  }
}

void Batch::add(std::string label, const WorldSpec& spec, SimOptions options, Script script,
                std::function<void()> after) {
  jobs_.push_back({std::move(label), spec, std::move(options), std::move(script)});
  after_.push_back(std::move(after));
}

void Batch::run() {
  context_.run_all(jobs_, [this](std::size_t job) { after_[job](); });
}

void Batch::run_whole() {
  context_.run_whole(jobs_, [this](std::size_t job) { after_[job](); });
}

std::string not_applicable(const Scenario& scenario, std::string_view world,
                           const WorldSpec& spec) {
  if (world != "sim" && !scenario.only_simulated.empty()) return scenario.only_simulated;
  return scenario.not_applicable(spec);
}

std::string needs_ranks(const WorldSpec& spec, int ranks) {
  return spec.actors >= ranks && spec.tp >= ranks ? ""
                                                  : fmt::format("needs at least {} ranks", ranks);
}

std::string needs_bytes(const WorldSpec& spec) {
  return spec.phantom ? "needs bytes; phantom worlds have none" : "";
}

std::string needs_equal_worlds(const WorldSpec& spec) {
  return spec.actors == spec.tp ? "" : "needs as many actors as TP ranks";
}

std::string needs_two_equal_ranks(const WorldSpec& spec) {
  const std::string equal = needs_equal_worlds(spec);
  return equal.empty() ? needs_ranks(spec, 2) : equal;
}

std::string needs_a_gather(const WorldSpec& spec) {
  if (spec.sync.route != wire::Route::kGather) return "needs a gather; the reshard route has none";
  return needs_equal_worlds(spec);
}

std::vector<Scenario> all_scenarios() {
  std::vector<Scenario> all;
  for (auto make : {publication_scenarios, channel_scenarios, process_scenarios, receipt_scenarios,
                    expert_scenarios, rank_scenarios, memory_scenarios, reshard_scenarios,
                    fault_scenarios, sequence_scenarios}) {
    for (Scenario& scenario : make()) all.push_back(std::move(scenario));
  }
  return all;
}

std::optional<Scenario> scenario_named(const std::string& id) {
  std::vector<Scenario> all = all_scenarios();
  all.push_back(publication_only());
  for (Scenario& scenario : all) {
    if (scenario.id == id) return std::move(scenario);
  }
  return std::nullopt;
}

}  // namespace tpsync::conformance
