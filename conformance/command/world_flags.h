// The flags that say what world a command works on, the same for run and explore.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "conformance/world/spec.h"

namespace CLI {
class App;
}

namespace tpsync::conformance {

struct WorldFlags {
  std::string world = "sim";
  std::uint64_t seed = 1;
  std::optional<int> tp;
  std::optional<int> actors;
  std::optional<std::string> config;
  std::optional<std::uint64_t> bucket_bytes;
  bool phantom = false;

  void add_to(CLI::App& app);

  // Checks the flags together and loads the configuration. Throws UsageError.
  WorldSpec spec() const;
};

// The model of worlds without --config: 1 layer, 4 experts, 4 heads over 2 KV heads, hidden 8.
model::ModelConfig tiny_tp4();

// A path that is a file or a directory with a config.json; UsageError with the loader's own line.
model::ModelConfig load_config_or_refuse(const std::string& path);

}  // namespace tpsync::conformance
