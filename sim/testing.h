// A vocabulary for tests of the simulated world.
#pragma once

#include <functional>
#include <string>

#include "sim/world.h"

namespace tpsync::sim::testing {

inline SimConfig config_of(std::uint64_t seed, std::size_t devices = 2,
                           std::uint64_t budget = 1 << 20) {
  SimConfig config;
  config.seed = seed;
  for (std::size_t i = 0; i < devices; ++i)
    config.devices.push_back({"gpu-" + std::to_string(i), budget, 0});
  return config;
}

// kInternal where nothing was thrown: no seam throws that on purpose.
inline ErrorKind kind_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::kInternal;
}

inline std::size_t count(const Trace& trace, EventKind kind) {
  std::size_t found = 0;
  for (const Event& event : trace.events)
    found += event.kind == static_cast<std::uint16_t>(kind) ? 1 : 0;
  return found;
}

}  // namespace tpsync::sim::testing
