#include "conformance/scenarios/sequence_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace tpsync::conformance {

namespace {

using C = SequenceCommand;

SequenceStep stay(const SequenceState& state, Expected expected) { return {expected, state}; }

SequenceStep breaks(SequenceState state) {
  state.broken = true;
  return {Expected::kBreaks, state};
}

SequenceStep sleep(SequenceState state, int level) {
  if (state.pending != Pending::kNone) return stay(state, Expected::kRefused);
  if (state.memory == Memory::kAsleep) return stay(state, Expected::kOk);
  state.memory = Memory::kAsleep;
  if (level == 2) state.lost = true;
  return {Expected::kOk, state};
}

SequenceStep wake(SequenceState state, bool all) {
  if (all && state.pending != Pending::kNone) return stay(state, Expected::kRefused);
  if (all) {
    state.memory = Memory::kAwake;
  } else if (state.memory == Memory::kAsleep) {
    state.memory = Memory::kWeightsOnly;
  }
  return {Expected::kOk, state};
}

SequenceStep start(SequenceState state) {
  if (state.pending != Pending::kNone || state.memory == Memory::kAsleep) {
    return stay(state, Expected::kRefused);
  }
  state.pending = Pending::kStarted;
  state.lost = true;
  return {Expected::kOk, state};
}

SequenceStep update(SequenceState state) {
  if (state.pending == Pending::kNone) return stay(state, Expected::kRefused);
  if (state.pending == Pending::kLoaded) return breaks(state);  // the chunks came already
  state.pending = Pending::kLoaded;
  return {Expected::kOk, state};
}

SequenceStep finish(SequenceState state) {
  if (state.pending == Pending::kNone) return stay(state, Expected::kRefused);
  if (state.pending == Pending::kStarted) return breaks(state);  // nothing was loaded
  state.pending = Pending::kNone;
  state.lost = false;
  state.version += 1;
  return {Expected::kOk, state};
}

SequenceStep generate(const SequenceState& state) {
  const bool accepted =
      state.pending == Pending::kNone && state.memory == Memory::kAwake && !state.lost;
  return stay(state, accepted ? Expected::kOk : Expected::kRefused);
}

}  // namespace

SequenceStep next_step(const SequenceState& state, SequenceCommand command) {
  if (state.broken) return stay(state, Expected::kBroken);
  switch (command) {
    case C::kSleep1:
      return sleep(state, 1);
    case C::kSleep2:
      return sleep(state, 2);
    case C::kWakeWeights:
      return wake(state, false);
    case C::kWakeAll:
      return wake(state, true);
    case C::kStart:
      return start(state);
    case C::kUpdate:
      return update(state);
    case C::kFinish:
      return finish(state);
    case C::kGenerate:
      return generate(state);
  }
  return stay(state, Expected::kRefused);
}

std::string_view to_string(SequenceCommand command) {
  switch (command) {
    case C::kSleep1:
      return "sleep 1";
    case C::kSleep2:
      return "sleep 2";
    case C::kWakeWeights:
      return "wake weights";
    case C::kWakeAll:
      return "wake all";
    case C::kStart:
      return "start";
    case C::kUpdate:
      return "update";
    case C::kFinish:
      return "finish";
    case C::kGenerate:
      return "generate";
  }
  return "unknown";
}

std::string_view to_string(Expected expected) {
  switch (expected) {
    case Expected::kOk:
      return "ok";
    case Expected::kRefused:
      return "refused";
    case Expected::kBreaks:
      return "breaks";
    case Expected::kBroken:
      return "broken";
  }
  return "unknown";
}

std::string to_text(const SequenceState& state) {
  if (state.broken) return "BROKEN";
  std::string text = state.memory == Memory::kAwake    ? "AWAKE"
                     : state.memory == Memory::kAsleep ? "ASLEEP"
                                                       : "WEIGHTS_ONLY";
  if (state.pending == Pending::kStarted) text += ", started";
  if (state.pending == Pending::kLoaded) text += ", loaded";
  if (state.pending == Pending::kNone && state.lost) text += ", weights lost";
  return text;
}

std::string sequence_table() {
  std::vector<SequenceState> reached = {{}};
  for (std::size_t i = 0; i < reached.size(); ++i) {
    for (const C command : kSequenceCommands) {
      SequenceState next = next_step(reached[i], command).next;
      next.version = 0;  // rows do not depend on it
      if (next.broken) next = SequenceState{.broken = true};
      if (std::find(reached.begin(), reached.end(), next) == reached.end()) reached.push_back(next);
    }
  }
  std::string table = "| state |";
  for (const C command : kSequenceCommands) table += fmt::format(" {} |", to_string(command));
  table += "\n|---|";
  for (std::size_t i = 0; i < kSequenceCommands.size(); ++i) table += "---|";
  for (const SequenceState& state : reached) {
    table += fmt::format("\n| {} |", to_text(state));
    for (const C command : kSequenceCommands) {
      const SequenceStep step = next_step(state, command);
      const bool moves = to_text(step.next) != to_text(state);
      table += moves ? fmt::format(" {} → {} |", to_string(step.expected), to_text(step.next))
                     : fmt::format(" {} |", to_string(step.expected));
    }
  }
  return table + "\n";
}

}  // namespace tpsync::conformance
