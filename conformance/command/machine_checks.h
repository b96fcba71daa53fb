// What this machine has of what the worlds need: one check each, made by trying the thing itself
// where that is possible. Knows Linux only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tpsync::conformance {

enum class MachineState : std::uint8_t {
  kOk,
  kMissing,  // a world that needs it cannot run
  kLimited,  // it can, within limits
};
std::string_view to_string(MachineState state);

struct MachineCheck {
  std::string what;
  MachineState state = MachineState::kOk;
  std::string found;                   // what was seen
  std::string why;                     // what it is for
  std::string mend;                    // a command; empty where nothing is to be mended
  std::vector<std::string> needed_by;  // worlds that cannot run without it
};

// The check that is ok where the machine has a GPU.
inline constexpr std::string_view kGpuDriver = "GPU driver";

// What the build was made with.
struct BuildParts {
  bool gloo = false;
  bool cuda = false;
  bool gpu_world = false;    // with NCCL too: what GPUs need is worth mending
  std::string sanitizer;     // "address", "thread" or empty
  std::string test_runtime;  // the program's path
  std::string temporary;     // the folder for temporary files, as the worlds take it
};

// May fork a child for a moment, so this process must have one thread.
std::vector<MachineCheck> check_machine(const BuildParts& parts);

// Empty if no check that `world` needs is missing; else the first such as "what: found".
std::string what_stops(const std::vector<MachineCheck>& checks, std::string_view world);

}  // namespace tpsync::conformance
