// A process of a world is killed or stopped, whichever and whenever.
#include <fmt/format.h>

#include <set>
#include <tuple>

#include "conformance/scenarios/scripts.h"
#include "faults/catalogue.h"

namespace tpsync::conformance {

namespace {

// `fault` at the first operation of every process in every phase of a publication.
std::vector<WorldJob> at_every_phase(ScenarioContext& context, const std::string& fault) {
  const faults::FaultKind& kind = *faults::find_kind(fault);
  std::set<std::tuple<std::string, int, std::string, std::int64_t>> seen;
  std::vector<WorldJob> jobs;
  for (const faults::Operation& operation : context.operations()) {
    if (operation.op == faults::kSourceBegin) continue;
    if (!seen.emplace(operation.role, operation.rank, operation.phase, operation.chunk).second)
      continue;
    WorldJob job{fmt::format("{} {}, {}, {}#{}", operation.role, operation.rank,
                             phase_text(operation.phase, operation.chunk), operation.op,
                             operation.occurrence),
                 context.spec(),
                 {},
                 publish_and_recover()};
    job.options.plan.faults.push_back({fault, faults::moment_of(operation), {}});
    job.options.facts.push_back({kind.demand(operation), kind.kinds(operation)});
    if (operation.role == "actor") job.options.recovery = "other-world";
    jobs.push_back(std::move(job));
  }
  return jobs;
}

void at_any_phase(ScenarioContext& context, const std::string& fault) {
  const std::vector<WorldJob> jobs = at_every_phase(context, fault);
  context.check(!jobs.empty(), "a publication should have phases");
  context.run_all(jobs, [&](std::size_t job) {
    const faults::Moment& moment = jobs[job].options.plan.faults.front().moment;
    for (int rank = 0; rank < context.spec().actors; ++rank) {
      if (moment.role == "actor" && moment.rank == rank) continue;
      context.check(!context.log().by_rank[static_cast<std::size_t>(rank)].empty(),
                    fmt::format("rank {} should have returned", rank));
    }
  });
}

void killed_at_any_phase(ScenarioContext& context) { at_any_phase(context, "process.kill"); }
void stopped_at_any_phase(ScenarioContext& context) { at_any_phase(context, "process.stop"); }

// What rank 0 has done when it is killed while it does nothing.
struct Idle {
  const char* name;
  std::vector<Outcome (Actor::*)()> calls;
};

const std::vector<Idle>& idle_states() {
  static const std::vector<Idle> states = {
      {"started", {}},
      {"set up", {&Actor::setup}},
      {"asleep with its weights", {&Actor::setup, &Actor::sleep}},
      {"awake again", {&Actor::setup, &Actor::sleep, &Actor::wake_all}},
      {"asleep without its weights",
       {&Actor::setup, &Actor::sleep, &Actor::wake_all, &Actor::sleep}},
      {"weights awake",
       {&Actor::setup, &Actor::sleep, &Actor::wake_all, &Actor::sleep, &Actor::wake_weights}},
      {"after a generation", {&Actor::setup, &Actor::generate}},
  };
  return states;
}

// A kill at each command of rank 0 to its runtime between two publications. The commands are
// numbered within the phase that the first one ended in.
std::vector<WorldJob> after_a_publication(ScenarioContext& context) {
  std::vector<WorldJob> jobs;
  context.run("two publications", {}, publish_and_recover());
  const sim::Trace& trace = context.trace();
  bool between = false;
  for (const sim::Event& event : trace.events) {
    if (event.process != 0) continue;
    const bool begins = event.kind == static_cast<std::uint16_t>(judge::Record::kCallBegin);
    const bool ends = event.kind == static_cast<std::uint16_t>(judge::Record::kCallEnd);
    if ((begins || ends) && event.a == static_cast<std::uint64_t>(judge::Call::kSync)) {
      if (begins && between) return jobs;
      between = ends;
    }
    if (!between || event.kind != static_cast<std::uint16_t>(sim::EventKind::kOp) ||
        event.op != static_cast<std::uint16_t>(sim::Op::kChannelRead))
      continue;
    const std::string phase(trace.texts.at(event.phase));
    WorldJob job{fmt::format("rank 0 is killed at read {} after a publication", event.occurrence),
                 context.spec(),
                 {},
                 publish_and_recover()};
    job.options.plan.faults.push_back(
        {"process.kill", {"actor", 0, phase, event.chunk, "channel.read", event.occurrence}, {}});
    // Peers may still be in the publication's last agreement, or already in the next publication.
    job.options.facts.push_back(
        {faults::Demand::kEither, {ErrorKind::kPeerLost, ErrorKind::kOutcomeUnknown}});
    job.options.recovery = "other-world";
    jobs.push_back(std::move(job));
  }
  return jobs;
}

void trainer_killed(ScenarioContext& context) {
  std::vector<WorldJob> jobs;
  for (const Idle& state : idle_states()) {
    jobs.push_back({fmt::format("rank 0 is killed when {}", state.name),
                    context.spec(),
                    {},
                    [&state](Actor& actor) {
                      actor.start_engine();
                      for (const auto call : state.calls) (actor.*call)();
                      if (actor.rank() == 0) actor.die();
                      actor.cleanup();
                      actor.shutdown();
                    }});
  }
  // Its runtime is gone already; nothing else may stay either.
  jobs.push_back(
      {"rank 0 is killed after a publication that failed", context.spec(), {}, [](Actor& actor) {
         actor.start_engine();
         actor.setup();
         actor.step();
         if (actor.rank() == 0 && actor.engine() != nullptr)
           actor.engine()->poison("injected by the scenario");
         actor.publish();
         if (actor.rank() == 0) actor.die();
         actor.cleanup();
         actor.shutdown();
       }});
  jobs.back().options.expect_failure = true;
  jobs.back().options.recovery = "other-world";
  // Every operation of rank 0 after a publication that committed: asleep, waking, generating.
  const std::vector<WorldJob> later = after_a_publication(context);
  jobs.insert(jobs.end(), later.begin(), later.end());
  context.run_all(jobs);
}

}  // namespace

std::vector<Scenario> process_scenarios() {
  return {
      {"process.killed",
       "Whatever process is killed in whatever phase: every survivor returns at once with the "
       "error that names the cause, and a touched runtime goes",
       {"TPS-PROC-04", "TPS-CONS-04"},
       needs_equal_worlds,
       killed_at_any_phase},
      {"process.stopped",
       "Whatever process is stopped in whatever phase: every survivor returns by its deadline, and "
       "a touched runtime goes",
       {"TPS-PROC-05", "TPS-CONS-04"},
       needs_equal_worlds,
       stopped_at_any_phase},
      {"process.trainer-killed",
       "A trainer that is killed in whatever state of its engine leaves no process behind",
       {"TPS-PROC-06"},
       needs_equal_worlds,
       trainer_killed},
  };
}

}  // namespace tpsync::conformance
