#include "conformance/explore/pair_plans.h"

#include <fmt/format.h>

#include <set>

#include "conformance/explore/divergence.h"
#include "conformance/explore/exploration.h"
#include "conformance/judge/content.h"
#include "conformance/judge/records.h"
#include "conformance/scenarios/scripts.h"
#include "conformance/world/operations.h"

namespace tpsync::conformance {

namespace {

using judge::mix;

// What happened before each event, as one number: all fields of all events but marks, texts by
// their content, and the choices. The process that runs an operation is in its event.
class Prefixes {
 public:
  explicit Prefixes(const sim::Trace& trace) {
    hashes_.reserve(trace.events.size() + 1);
    std::vector<std::uint64_t> texts;
    for (std::uint32_t id = 0; id < trace.texts.size(); ++id) {
      texts.push_back(judge::name_hash(trace.texts.at(id)));
    }
    std::uint64_t hash = 0;
    std::size_t choice = 0;
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
      for (; choice < trace.choices.size() && trace.choices[choice].at_event <= i; ++choice) {
        const sim::Choice& c = trace.choices[choice];
        add(hash, c.candidates);
        add(hash, (std::uint64_t{c.count} << 16) | c.chosen);
      }
      hashes_.push_back(hash);
      const sim::Event& e = trace.events[i];
      if (e.kind == static_cast<std::uint16_t>(judge::Record::kFault)) continue;
      for (const std::uint64_t word :
           {static_cast<std::uint64_t>(e.time), static_cast<std::uint64_t>(e.end), e.a, e.b, e.c,
            (std::uint64_t{e.process} << 32) | e.occurrence,
            static_cast<std::uint64_t>(static_cast<std::uint32_t>(e.chunk)), texts[e.text],
            texts[e.phase],
            (std::uint64_t{e.kind} << 48) | (std::uint64_t{e.op} << 32) |
                (std::uint64_t{e.result} << 16) | e.thread}) {
        add(hash, word);
      }
    }
    hashes_.push_back(hash);
  }

  std::uint64_t before(std::size_t event) const { return hashes_[event]; }

 private:
  static void add(std::uint64_t& hash, std::uint64_t word) { hash = mix(hash ^ word); }

  std::vector<std::uint64_t> hashes_;
};

// A fault whose effect goes on where no event shows it: its process keeps something back.
std::uint64_t hidden_state(const faults::Fault& fault) {
  const faults::FaultKind* kind = faults::find_kind(fault.name);
  if (kind == nullptr || kind->visibility == faults::Visibility::kVisible) return 0;
  return judge::name_hash(to_text(fault));
}

}  // namespace

std::vector<SecondFault> second_faults(const sim::Trace& run, const sim::Trace& twin,
                                       const WorldSpec& spec, const faults::Fault& first) {
  std::vector<SecondFault> seconds;
  const auto effect = first_effect(run, twin);
  if (!effect) return seconds;
  std::vector<std::size_t> events;
  const auto operations = publication_operations(run, spec, &events);
  const Prefixes prefixes(run);
  const std::uint64_t hidden = hidden_state(first);
  for (faults::Pair& pair : faults::enumerate(operations)) {
    const std::size_t event = events[pair.operation];
    if (event <= *effect || pair.fault == first) continue;
    const std::uint64_t key =
        mix(mix(prefixes.before(event) ^ judge::name_hash(to_text(pair.fault))) ^ hidden);
    seconds.push_back({std::move(pair), key});
  }
  return seconds;
}

ExploreReport explore_pairs(SimRunner& runner, const WorldSpec& spec,
                            const ExploreOptions& options) {
  Exploration exploration(runner, spec, options, std::string(name_of(options.policy)));
  if (!exploration.run_twin()) return exploration.finish();
  ExploreReport& report = exploration.report();
  report.pairs = 0;
  std::set<std::uint64_t> made;
  const auto& singles = exploration.singles();
  for (std::size_t i = 0; i < singles.size(); ++i) {
    const faults::Pair& first = singles[i];
    const std::uint64_t number = std::uint64_t{i} << 32;  // of the run with the first alone
    if (exploration.left_out(number)) continue;
    SimOptions alone = exploration.scheduled();
    alone.judge = false;
    alone.plan.seed = spec.seed;
    alone.plan.faults.push_back(first.fault);
    exploration.look(number, spec, alone, publish_and_recover());
    const auto seconds = second_faults(runner.trace(), exploration.twin(), spec, first.fault);
    report.pairs += seconds.size();
    for (std::size_t j = 0; j < seconds.size(); ++j) {
      const SecondFault& second = seconds[j];
      if (!exploration.of_shard(second.key)) continue;
      const std::uint64_t pair_number = number + j + 1;
      if (exploration.left_out(pair_number)) continue;
      if (!made.insert(second.key).second) {
        ++report.equal;
        continue;
      }
      Attempt attempt;
      attempt.number = pair_number;
      attempt.name = fmt::format("pair {}.{}", i, j);
      attempt.rule = Attempt::Rule::kMixed;
      attempt.spec = &spec;
      attempt.options = exploration.scheduled();
      attempt.options.plan.seed = spec.seed;
      attempt.options.plan.faults = {first.fault, second.pair.fault};
      attempt.options.facts = {{first.demand, first.kinds},
                               {second.pair.demand, second.pair.kinds}};
      if (breaks_world(first.fault) || breaks_world(second.pair.fault)) {
        attempt.options.recovery = "other-world";
      }
      exploration.attempt(attempt);
    }
  }
  return exploration.finish();
}

}  // namespace tpsync::conformance
