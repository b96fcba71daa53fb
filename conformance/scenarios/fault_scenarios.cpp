// Every kind of fault once, and the faults that strike outside of publications: while a runtime
// starts, while it generates, while it is ended.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "conformance/scenarios/scripts.h"
#include "faults/catalogue.h"
#include "faults/enumerate.h"

namespace tpsync::conformance {

namespace {

std::string label_of(const faults::Fault& fault) { return to_text(fault); }

// In the simulator all rows with all their variants; where a world takes real time, one row of each
// mechanism with all of its variants.
bool is_left_out(ScenarioContext& context, const faults::FaultKind& kind,
                 std::set<std::string_view>& seen) {
  if (kind.worlds.find(context.world()) == std::string_view::npos) return true;
  return !seen.insert(mechanism_of(kind)).second && !context.simulated();
}

// What every surviving actor's first publication came to, against what the fault demands.
void check_demand(ScenarioContext& context, const faults::Demand demand,
                  const std::vector<ErrorKind>& kinds) {
  for (std::size_t rank = 0; rank < context.log().by_rank.size(); ++rank) {
    const auto& outcomes = context.log().by_rank[rank];
    if (outcomes.empty()) continue;
    const Outcome& outcome = outcomes.front();
    if (outcome.ok()) {
      context.check(demand != faults::Demand::kFail,
                    fmt::format("rank {} should have failed, it published version {}", rank,
                                outcome.version));
      continue;
    }
    context.check(demand != faults::Demand::kSurvive,
                  fmt::format("rank {} should have published: {}", rank, to_text(*outcome.error)));
    const bool is_explained =
        std::find(kinds.begin(), kinds.end(), outcome.error->kind) != kinds.end();
    context.check(is_explained || demand == faults::Demand::kSurvive,
                  fmt::format("rank {} reports what this fault does not explain: {}", rank,
                              to_text(*outcome.error)));
  }
}

// At the middle one of the moments at which it applies.
void every_mechanism(ScenarioContext& context) {
  const std::vector<faults::Pair> pairs = faults::enumerate(context.operations());
  Batch batch(context);
  std::set<std::string_view> seen;
  for (const faults::FaultKind& kind : faults::catalogue()) {
    if (is_left_out(context, kind, seen)) continue;
    for (const faults::Arguments& arguments : kind.variants()) {
      std::vector<const faults::Pair*> places;
      for (const faults::Pair& pair : pairs) {
        if (pair.kind == &kind && pair.fault.arguments == arguments) places.push_back(&pair);
      }
      if (places.empty()) continue;
      const faults::Pair& pair = *places[places.size() / 2];
      SimOptions options;
      options.plan.faults.push_back(pair.fault);
      options.facts.push_back({pair.demand, pair.kinds});
      if (faults::needs_another_world(pair.fault)) options.recovery = "other-world";
      batch.add(label_of(pair.fault), std::move(options), publish_and_recover(),
                [&context, demand = pair.demand, kinds = pair.kinds] {
                  check_demand(context, demand, kinds);
                });
    }
  }
  batch.run();
}

// A start that may fail on rank 0, then another.
Script start_again_and_publish() {
  return [](Actor& actor) {
    const Outcome first = actor.start_engine();
    actor.check(first.ok() == (actor.rank() != 0), "the first start should fail on rank 0 alone");
    const Outcome ready = first.ok() ? actor.setup() : actor.rebuild();
    actor.check(ready.ok(), "the second start should succeed");
    actor.step();
    actor.keep(actor.publish());
    actor.generate();
    actor.cleanup();
    actor.shutdown();
  };
}

void at_the_start(ScenarioContext& context) {
  const int last = context.spec().tp - 1;
  struct Start {
    const char* fault;
    At at;
  };
  const Start starts[] = {
      {"process.spawn_fail", {.op = "process.spawn"}},
      {"process.spawn_fail",
       {.role = "runtime",
        .phase = "startup",
        .op = "process.spawn",
        .occurrence = static_cast<std::uint64_t>(last)}},
      {"engine.load_fail",
       {.role = "worker", .rank = last, .phase = "startup", .op = "engine.load"}},
      {"memory.alloc_fail",
       {.role = "worker", .rank = last, .phase = "startup", .op = "device.allocate"}},
      {"process.kill",
       {.role = "worker", .rank = last, .phase = "startup", .op = "device.allocate"}},
  };
  Batch batch(context);
  for (const Start& start : starts) {
    const SimOptions options = with_fault(start.fault, start.at);
    const std::int64_t version = context.spec().base_version + 1;
    batch.add(label_of(options.plan.faults.front()), options, start_again_and_publish(),
              [&context, version] { context.expect_committed(version); });
  }
  batch.run();
}

void in_a_generation(ScenarioContext& context) {
  Batch batch(context);
  for (int rank = 0; rank < context.spec().tp; ++rank) {
    const SimOptions options =
        with_fault("engine.generate_fail",
                   {.role = "worker", .rank = rank, .phase = "generate", .op = "engine.generate"});
    const auto script = [](Actor& actor) {
      actor.start_engine();
      actor.setup();
      actor.step();
      actor.keep(actor.publish());
      const Outcome failed = actor.generate();
      const bool speaks = actor.rank() == 0;
      actor.check(!speaks || (failed.error && failed.error->remedy == Remedy::kTryLater),
                  "the first generation should fail and leave the runtime usable");
      actor.check(actor.generate().ok(), "the second generation should succeed");
      actor.step();
      actor.keep(actor.publish());
      actor.cleanup();
      actor.shutdown();
    };
    const std::int64_t version = context.spec().base_version + 2;
    batch.add(label_of(options.plan.faults.front()), options, script,
              [&context, version] { context.expect_committed(version); });
  }
  batch.run();
}

// A runtime that is ended and does not heed the first signal. It is gone all the same before the
// call returns, which the judge sees in the process table.
void deaf_to_termination(ScenarioContext& context) {
  SimOptions options =
      with_fault("channel.timeout", {.phase = "native-start", .op = "channel.read"});
  faults::Fault deaf;
  deaf.name = "process.ignores_sigterm";
  deaf.moment = {"actor", 0, "native-start", 0, "process.signal_group", 0};
  options.plan.faults.push_back(deaf);
  context.run("a runtime that is silent, and deaf to SIGTERM", options, publish_and_recover());
  context.expect_failed({.kind = ErrorKind::kTimeout, .phase = "native-start", .rank = 0});
  const auto& events = context.trace().events;
  const bool applied = std::any_of(events.begin(), events.end(), [&](const sim::Event& event) {
    return event.kind == static_cast<std::uint16_t>(judge::Record::kFault) && event.a == 1;
  });
  context.check(applied, "the runtime's process should have been sent a SIGTERM");
}

}  // namespace

std::vector<Scenario> fault_scenarios() {
  return {
      {"fault.every-mechanism",
       "Each kind of fault, in the middle of a publication, comes to what its page says",
       {"TPS-FAULT-01"},
       needs_equal_worlds,
       every_mechanism},
      {"fault.start",
       "A start that fails names its cause and leaves nothing behind, and the next one succeeds",
       {"TPS-START-01"},
       needs_equal_worlds,
       at_the_start},
      {"fault.generation",
       "A generation that fails leaves the runtime as it was",
       {"TPS-GEN-01"},
       needs_equal_worlds,
       in_a_generation},
      {"fault.deaf-runtime",
       "A runtime that ignores SIGTERM is gone before the failed call returns",
       {"TPS-PROC-07"},
       needs_equal_worlds,
       deaf_to_termination,
       "real processes do not count their signals"},
  };
}

}  // namespace tpsync::conformance
