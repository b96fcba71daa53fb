#include "tpsync/rollout/engine_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "tpsync/base/errors.h"
#include "tpsync/rollout/environment.h"

namespace tpsync::rollout {

namespace {

void require_layout(std::string_view name, std::int64_t found, std::int64_t wanted,
                    std::string_view remedy) {
  if (found == wanted) return;
  throw_invalid(ErrorKind::kMismatch, fmt::format("placement.{}", name),
                fmt::format("is {}, the engine needs {}; {}", found, wanted, remedy));
}

std::optional<std::string> value_of(const Environment& variables, std::string_view name) {
  const auto found = std::find_if(variables.begin(), variables.end(),
                                  [name](const auto& variable) { return variable.first == name; });
  if (found == variables.end()) return std::nullopt;
  return found->second;
}

}  // namespace

EngineOptions engine_options(const EngineConfig& config,
                             const std::optional<RankPlacement>& placement,
                             const RuntimeProgram& program, const Environment& parent) {
  EngineOptions options;
  options.tp_size = config.tp_size;
  options.timeouts = command_timeouts(config);
  options.runtime_version = program.version;
  if (placement) {
    const RankLayout& layout = placement->layout;
    require_layout("tp_size", layout.tp_size, config.tp_size,
                   "place the role with rollout.tp_size");
    require_layout("pp_size", layout.pp_size, 1, "pipeline stages are not supported");
    require_layout("ep_size", layout.ep_size, 1, "experts placed apart are not supported");
    options.tp_rank = layout.tp_rank;
  }
  if (options.tp_rank != 0) return options;

  const std::vector<std::string> devices = runtime_devices(
      placement ? &*placement : nullptr, value_of(parent, "CUDA_VISIBLE_DEVICES"), config.tp_size);
  if (program.path.empty()) {
    throw_invalid(ErrorKind::kInvalidConfig, "runtime.program",
                  "is empty; name the runtime's program");
  }
  RuntimeEnvironment own;
  own.runtime = config.runtime;
  own.devices = devices;
  own.extras = program.extra_environment;
  options.runtime.program = program.path;
  options.runtime.arguments = program.arguments;
  options.runtime.environment = runtime_environment(parent, own);
  options.runtime.log_path = program.log_path;
  return options;
}

}  // namespace tpsync::rollout
