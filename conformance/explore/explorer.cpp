#include "conformance/explore/explorer.h"

#include <fmt/format.h>

#include <algorithm>

#include "conformance/explore/exploration.h"

namespace tpsync::conformance {

bool breaks_world(const faults::Fault& fault) { return faults::needs_another_world(fault); }

std::string_view name_of(sim::Policy policy) {
  switch (policy) {
    case sim::Policy::kFirstReady:
      return "first-ready";
    case sim::Policy::kLastReady:
      return "last-ready";
    case sim::Policy::kSeeded:
      return "seeded";
    case sim::Policy::kPriority:
      return "priority";
  }
  return "unknown";
}

ExploreReport explore_single(SimRunner& runner, const WorldSpec& spec,
                             const ExploreOptions& options) {
  Exploration exploration(runner, spec, options, std::string(name_of(options.policy)));
  if (!exploration.run_twin()) return exploration.finish();
  const auto& singles = exploration.singles();
  for (std::size_t i = 0; i < singles.size(); ++i) {
    const std::size_t index = options.reverse ? singles.size() - 1 - i : i;
    if (!exploration.wanted(index)) continue;
    const faults::Pair& single = singles[index];
    Attempt attempt;
    attempt.number = index;
    attempt.name = to_text(single.fault);
    attempt.spec = &spec;
    attempt.options = exploration.scheduled();
    attempt.options.plan.seed = spec.seed;
    attempt.options.plan.faults.push_back(single.fault);
    attempt.options.facts.push_back({single.demand, single.kinds});
    if (breaks_world(single.fault)) attempt.options.recovery = "other-world";
    exploration.attempt(attempt);
  }
  return exploration.finish();
}

ExploreReport explore_random(SimRunner& runner, const WorldSpec& spec, const RandomRange& range,
                             const ExploreOptions& options) {
  Exploration exploration(runner, spec, options, "random");
  if (!exploration.run_twin()) return exploration.finish();
  RandomPlans plans(runner, spec, range.plans);
  for (std::uint64_t i = 0; i < range.count; ++i) {
    const std::uint64_t number = range.first + (options.reverse ? range.count - 1 - i : i);
    if (!exploration.wanted(number)) continue;
    if (range.budget.count() != 0 &&
        exploration.seconds() > static_cast<double>(range.budget.count())) {
      exploration.report().complete = false;
      break;
    }
    const RandomPlan plan = plans.draw(number);
    Attempt attempt;
    attempt.number = number;
    attempt.name = fmt::format("plan {}", number);
    if (!plan.world.empty()) attempt.name += " in " + plan.world;
    attempt.rule = plan.works ? Attempt::Rule::kMixed : Attempt::Rule::kFaultFree;
    attempt.spec = &plan.spec;
    attempt.options = plan.options;
    exploration.attempt(attempt);
  }
  return exploration.finish();
}

void merge(ExploreReport& into, const ExploreReport& from) {
  into.operations = std::max(into.operations, from.operations);
  into.kinds = std::max(into.kinds, from.kinds);
  into.pairs = std::max(into.pairs, from.pairs);
  into.runs += from.runs;
  into.equal += from.equal;
  into.violations += from.violations;
  into.harness_errors += from.harness_errors;
  into.ineffective += from.ineffective;
  into.unreached += from.unreached;
  into.repeated += from.repeated;
  into.diverged += from.diverged;
  into.complete &= from.complete;
  into.seconds += from.seconds;
  into.combined_hash += from.combined_hash;
  into.coverage.merge(from.coverage);
  into.situations.merge(from.situations);
  into.findings.insert(into.findings.end(), from.findings.begin(), from.findings.end());
  keep_first_findings(into.findings);
  for (const auto& [id, count] : from.findings_by_id) into.findings_by_id[id] += count;
}

}  // namespace tpsync::conformance
