#include "conformance/explore/random_plans.h"

#include "conformance/explore/explorer.h"
#include "conformance/judge/content.h"
#include "conformance/scenarios/scripts.h"
#include "conformance/world/operations.h"

namespace tpsync::conformance {

RandomPlans::RandomPlans(SimRunner& runner, const WorldSpec& spec) : spec_(spec) {
  runner.run(spec, {}, publish_and_recover());
  const auto operations = publication_operations(runner.trace(), spec);
  operations_ = operations.size();
  pairs_ = faults::enumerate(operations);
}

RandomPlan RandomPlans::draw(std::uint64_t number) const {
  const std::uint64_t key = judge::mix(number + 1);
  RandomPlan plan{spec_, {}};
  plan.spec.seed = 1 + judge::mix(key + 3) % 1000;
  SimOptions& options = plan.options;
  options.policy = static_cast<sim::Policy>(key % 3);
  options.pipe_capacity = std::uint64_t{1} << (judge::mix(key + 1) % 17);
  options.plan.seed = number;
  const std::uint64_t count = 1 + judge::mix(key + 2) % 3;
  for (std::uint64_t f = 0; f < count; ++f) {
    const faults::Pair& pair = pairs_[judge::mix(key + 10 + f) % pairs_.size()];
    options.plan.faults.push_back(pair.fault);
    options.facts.push_back({pair.demand, pair.kinds});
    if (breaks_world(pair.fault)) options.recovery = "other-world";
  }
  return plan;
}

}  // namespace tpsync::conformance
