// Every sequence of commands up to the world's length, against the table of sequence_model.h.
#include <fmt/format.h>

#include "conformance/scenarios/scripts.h"
#include "conformance/scenarios/sequence_model.h"

namespace tpsync::conformance {

namespace {

constexpr std::size_t kLengthInSim = 5;
constexpr std::size_t kLengthInProcesses = 3;
constexpr std::size_t kLengthOnGpus = 2;

Outcome execute(Actor& actor, SequenceCommand command) {
  switch (command) {
    case SequenceCommand::kSleep1:
    case SequenceCommand::kSleep2:
      actor.engine()->set_weight_sync_sleep_level(
          {.level = command == SequenceCommand::kSleep1 ? 1 : 2});
      return actor.sleep();
    case SequenceCommand::kWakeWeights:
      return actor.wake_weights();
    case SequenceCommand::kWakeAll:
      return actor.wake_all();
    case SequenceCommand::kStart:
      return actor.init_and_start();
    case SequenceCommand::kUpdate:
      return actor.update();
    case SequenceCommand::kFinish:
      return actor.finish();
    case SequenceCommand::kGenerate:
      return actor.generate();
  }
  return {};
}

bool fits(const Outcome& outcome, Expected expected) {
  switch (expected) {
    case Expected::kOk:
      return outcome.ok();
    case Expected::kRefused:
      return !outcome.ok() && outcome.error->remedy == Remedy::kTryLater &&
             outcome.error->kind == ErrorKind::kInvalidState;
    case Expected::kBreaks:
      return !outcome.ok() && outcome.error->remedy == Remedy::kRebuildRuntime &&
             outcome.error->kind == ErrorKind::kRemote;
    case Expected::kBroken:
      return !outcome.ok() && outcome.error->remedy == Remedy::kRebuildRuntime &&
             outcome.error->kind == ErrorKind::kInvalidState;
  }
  return false;
}

SequenceState observed(Actor& actor, const SequenceState& model) {
  SequenceState state;
  const rollout::RolloutEngine& engine = *actor.engine();
  state.broken = engine.connection_state() == rollout::ConnectionState::kBroken;
  state.memory = engine.sleep_state() == rollout::SleepState::kAwake    ? Memory::kAwake
                 : engine.sleep_state() == rollout::SleepState::kAsleep ? Memory::kAsleep
                                                                        : Memory::kWeightsOnly;
  // How many chunks were loaded is the runtime's knowledge; that a publication is pending is the
  // engine's.
  state.pending = engine.publication_pending()
                      ? (model.pending == Pending::kNone ? Pending::kStarted : model.pending)
                      : Pending::kNone;
  state.lost = engine.weights_lost();
  state.version = engine.version();
  return state;
}

WorldJob job_of(const WorldSpec& spec, std::vector<SequenceCommand> sequence) {
  WorldJob job;
  for (const SequenceCommand command : sequence)
    job.label += fmt::format("{}{}", job.label.empty() ? "" : ", ", to_string(command));
  job.spec = spec;
  job.script = [sequence = std::move(sequence)](Actor& actor) {
    actor.check(actor.start_engine().ok() && actor.setup().ok(), "the world should start");
    SequenceState state;
    for (std::size_t i = 0; i < sequence.size(); ++i) {
      const SequenceStep step = next_step(state, sequence[i]);
      const Outcome outcome = execute(actor, sequence[i]);
      actor.check(fits(outcome, step.expected),
                  fmt::format("command {} ({}) in {} should be {}, it was {}", i + 1,
                              to_string(sequence[i]), to_text(state), to_string(step.expected),
                              outcome.ok() ? "ok" : to_text(*outcome.error)));
      const SequenceState found = observed(actor, step.next);
      actor.check(step.next.broken ? found.broken : found == step.next,
                  fmt::format("after command {} the state should be {}, it is {}", i + 1,
                              to_text(step.next), to_text(found)));
      state = step.next;
    }
    actor.cleanup();
    actor.shutdown();
  };
  return job;
}

std::size_t length_in(const ScenarioContext& context) {
  if (context.simulated()) return kLengthInSim;
  return context.world() == "gpu" ? kLengthOnGpus : kLengthInProcesses;
}

// Longer sequences begin with all the shorter ones, so only the full length is run. Those that
// begin alike are run together.
void all_sequences(ScenarioContext& context) {
  std::vector<std::size_t> digits(length_in(context), 0);
  std::vector<WorldJob> jobs;
  for (bool more = true; more && context.failures().empty();) {
    std::vector<SequenceCommand> sequence;
    for (const std::size_t digit : digits) sequence.push_back(kSequenceCommands[digit]);
    jobs.push_back(job_of(context.spec(), std::move(sequence)));
    std::size_t at = digits.size();
    while (at > 0 && ++digits[at - 1] == kSequenceCommands.size()) digits[--at] = 0;
    more = at != 0;
    if (at > 1) continue;
    context.run_all(jobs);
    jobs.clear();
  }
}

std::string at_one_rank(const WorldSpec& spec) {
  if (spec.phantom) return needs_bytes(spec);
  return spec.tp == 1 && spec.actors == 1 ? "" : "fixes TP 1; run it with --tp 1";
}

}  // namespace

std::vector<Scenario> sequence_scenarios() {
  return {
      {"sequence.all",
       "Every sequence of engine commands (five; three in real processes, two on GPUs) does what "
       "the table of states and commands says",
       {"TPS-STATE-01", "TPS-SLEEP-04"},
       at_one_rank,
       all_sequences},
  };
}

}  // namespace tpsync::conformance
