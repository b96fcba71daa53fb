// What the engine must do with any command in any state, as one table: the oracle for sequences of
// commands.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace tpsync::conformance {

enum class SequenceCommand : std::uint8_t {
  kSleep1,
  kSleep2,
  kWakeWeights,
  kWakeAll,
  kStart,   // with its init
  kUpdate,  // all chunks
  kFinish,
  kGenerate,
};
inline constexpr std::array kSequenceCommands = {
    SequenceCommand::kSleep1,  SequenceCommand::kSleep2,  SequenceCommand::kWakeWeights,
    SequenceCommand::kWakeAll, SequenceCommand::kStart,   SequenceCommand::kUpdate,
    SequenceCommand::kFinish,  SequenceCommand::kGenerate};

enum class Memory : std::uint8_t { kAwake, kAsleep, kWeightsOnly };
enum class Pending : std::uint8_t { kNone, kStarted, kLoaded };

struct SequenceState {
  Memory memory = Memory::kAwake;
  Pending pending = Pending::kNone;
  bool lost = false;    // the weights are of no version
  bool broken = false;  // terminal
  std::int64_t version = 0;
  friend bool operator==(const SequenceState&, const SequenceState&) = default;
};

enum class Expected : std::uint8_t {
  kOk,       // done, or nothing to do
  kRefused,  // locally: nothing sent, nothing changed
  kBreaks,   // fails, and the runtime is gone
  kBroken,   // refused because the runtime is gone
};

struct SequenceStep {
  Expected expected = Expected::kOk;
  SequenceState next;
};

// The table's row for a command in a state.
SequenceStep next_step(const SequenceState& state, SequenceCommand command);

std::string_view to_string(SequenceCommand command);
std::string_view to_string(Expected expected);
std::string to_text(const SequenceState& state);

// The whole table over all reachable states, as Markdown; conformance/README.md shows it.
std::string sequence_table();

}  // namespace tpsync::conformance
