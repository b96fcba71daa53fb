// From a checked configuration and a rank's placement to the options of its engine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tpsync/base/host.h"
#include "tpsync/rollout/config.h"
#include "tpsync/rollout/engine.h"
#include "tpsync/rollout/placement.h"

namespace tpsync::rollout {

// How the runtime is started: what neither the configuration nor the placement says.
struct RuntimeProgram {
  std::string path;
  std::vector<std::string> arguments;  // handed on as they are
  std::string log_path;                // of its output; empty inherits the trainer's
  std::string version;                 // required of the runtime and its workers; empty: any
  Environment extra_environment;       // see environment.h
};

// The options of one rank's engine: TP size and rank, command timeouts, and on TP rank 0 how the
// runtime is spawned, with its clean environment made from `parent` (Host::environment() of this
// process). On other ranks the spawn request stays empty, and program, devices and environment are
// not looked at. `placement` is nullopt where the engine's process is placed by nobody: then it is
// TP rank 0, on the devices that it sees.
//
// It does not check the configuration (check_config does, as load_config calls it), nor the
// budgets; it does not look at the file system, so that a program that is missing shows when it is
// spawned; and it does not compose the runtime's own command line: what the runtime must know of
// the configuration (checkpoint, dtype, engine_kwargs, its own timeouts) is for whoever knows that
// program to put into `arguments`. Nothing is spawned, and no channel made.
//
// Throws InvalidInput, in this order:
//   kMismatch      "placement.tp_size"   is not the configured one
//   kMismatch      "placement.pp_size"   the placement has PP
//   kMismatch      "placement.ep_size"   the placement has EP
//   (here the ranks above 0 are done)
//   what runtime_devices() refuses
//   kInvalidConfig "runtime.program"     the path is empty
//   what runtime_environment() refuses
EngineOptions engine_options(const EngineConfig& config,
                             const std::optional<RankPlacement>& placement,
                             const RuntimeProgram& program, const Environment& parent);

}  // namespace tpsync::rollout
