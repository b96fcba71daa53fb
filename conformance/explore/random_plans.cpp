#include "conformance/explore/random_plans.h"

#include <algorithm>
#include <set>

#include "conformance/explore/drawn_worlds.h"
#include "conformance/explore/explorer.h"
#include "conformance/judge/content.h"
#include "conformance/scenarios/scripts.h"
#include "conformance/world/operations.h"

namespace tpsync::conformance {

RandomPlans::RandomPlans(SimRunner& runner, const WorldSpec& spec, RandomOptions options)
    : runner_(runner), options_(options), spec_(spec) {
  runner.run(spec, {}, publish_and_recover());
  const auto operations = publication_operations(runner.trace(), spec);
  operations_ = operations.size();
  pairs_ = faults::enumerate(operations);
}

void RandomPlans::enter_world(std::uint64_t number) {
  const std::uint64_t block = number / kPlansPerWorld;
  if (block == block_) return;
  block_ = block;
  const DrawnWorld world = drawn_world(block);
  spec_ = world.spec;
  pipe_capacity_ = world.pipe_capacity;
  latency_percent_ = world.latency_percent;
  world_ = to_text(world);
  SimOptions options;
  options.pipe_capacity = pipe_capacity_;
  options.latency_percent = latency_percent_;
  works_ = runner_.run(spec_, options, publish_and_recover()).passed();
  pairs_.clear();
  if (works_) pairs_ = faults::enumerate(publication_operations(runner_.trace(), spec_));
}

RandomPlan RandomPlans::draw(std::uint64_t number) {
  if (options_.draw_worlds) enter_world(number);
  const std::uint64_t key = judge::mix(number + 1);
  RandomPlan plan{spec_, {}, world_, works_};
  SimOptions& options = plan.options;
  options.plan.seed = number;
  if (options_.draw_worlds) {
    options.pipe_capacity = pipe_capacity_;
    options.latency_percent = latency_percent_;
    if (!works_) return plan;
  } else {
    plan.spec.seed = 1 + judge::mix(key + 3) % 1000;
    options.pipe_capacity = std::uint64_t{1} << (judge::mix(key + 1) % 17);
  }
  options.policy = static_cast<sim::Policy>(key % 3);
  std::vector<const faults::Pair*> offered;
  std::set<std::string_view> off;
  if (options_.swarm) {
    for (const faults::FaultKind& kind : faults::catalogue()) {
      if ((judge::mix(key ^ judge::name_hash(kind.family)) & 1) != 0) off.insert(kind.family);
    }
  }
  for (const faults::Pair& pair : pairs_) {
    if (!off.contains(pair.kind->family)) offered.push_back(&pair);
  }
  if (offered.empty()) {
    for (const faults::Pair& pair : pairs_) offered.push_back(&pair);
  }
  const std::uint64_t count = 1 + judge::mix(key + 2) % kPlanFaultsMax;
  for (std::uint64_t f = 0; f < count; ++f) {
    const faults::Pair& pair = *offered[judge::mix(key + 10 + f) % offered.size()];
    options.plan.faults.push_back(pair.fault);
    options.facts.push_back({pair.demand, pair.kinds});
    if (breaks_world(pair.fault)) options.recovery = "other-world";
  }
  return plan;
}

}  // namespace tpsync::conformance
