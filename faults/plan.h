// Fault plans as data: which faults, where, when. A plan is a small JSON file; equal plans do the
// same in every world.
//
// A moment is never a global count: it names a process, a phase with its chunk, an operation of a
// seam, and how often that process entered the operation in that phase and chunk before. So it
// keeps its meaning when other faults are removed from the plan or the world gets smaller.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tpsync::faults {

struct Moment {
  std::string role;  // "actor", "runtime", "worker"
  int rank = 0;      // of the actor, the worker; 0 for the runtime
  std::string phase;
  std::int64_t chunk = 0;
  std::string op;                // one of operation_names()
  std::uint64_t occurrence = 0;  // from 0
  friend bool operator==(const Moment&, const Moment&) = default;
};

using Arguments = std::map<std::string, std::string>;

struct Fault {
  std::string name;  // of the catalogue: "channel.eof"
  Moment moment;
  Arguments arguments;
  friend bool operator==(const Fault&, const Fault&) = default;
};

struct Plan {
  std::uint64_t seed = 0;
  std::vector<Fault> faults;
  friend bool operator==(const Plan&, const Plan&) = default;
};

// What a weight source does is no operation of a seam, yet has its moments: the start of a pass.
// Its occurrence counts the passes of its process in any phase.
inline constexpr std::string_view kSourceBegin = "source.begin";

// Neither are the calls that a worker makes on its inference engine. Their occurrences count in the
// process's phase and chunk.
inline constexpr std::string_view kEngineLoad = "engine.load";
inline constexpr std::string_view kEngineLayer = "engine.layer";
inline constexpr std::string_view kEngineGenerate = "engine.generate";
inline constexpr std::string_view kEngineReset = "engine.reset_cache";

// Every operation that a moment may name.
std::span<const std::string_view> operation_names();
bool is_operation(std::string_view name);
// One that is no operation of a seam, and in no trace.
bool is_own_moment(std::string_view name);
bool is_role(std::string_view name);

// Reads {"seed": .., "faults": [{"name": .., "moment": {"role": .., "rank": .., "phase": ..,
// "chunk": .., "op": .., "occurrence": ..}, "arguments": {..}}]}. rank, chunk and occurrence are 0
// where they are absent, phase and arguments empty, seed 0; every other field must be there, and
// unknown or repeated fields are refused. Throws InvalidInput kInvalidConfig, the subject being the
// place in the file ("faults[1].moment.op"), the detail one line that says what to change. Checked
// as well against the catalogue (check_fault).
Plan plan_from_json(std::string_view text);

// The whole file, with all fields, in a fixed order; plan_from_json gives an equal plan.
std::string to_json(const Plan& plan);

// "channel.eof at worker 2: channel.read#3 in update_native_weights/1 (hop=worker)"
std::string to_text(const Moment& moment);
std::string to_text(const Fault& fault);

}  // namespace tpsync::faults
