// The flags that say what world a command works on, the same for run and explore.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/world/spec.h"

namespace CLI {
class App;
}

namespace tpsync::conformance {

struct WorldFlags {
  std::vector<std::string> worlds = {"sim"};  // that the command can run in
  std::string world = "sim";
  std::optional<std::uint64_t> seed;    // 1
  std::optional<std::uint64_t> tp;      // 4
  std::optional<std::uint64_t> actors;  // as tp
  std::optional<std::string> config;
  std::optional<std::uint64_t> bucket_bytes;
  std::optional<std::uint64_t> bucket_mib;  // the same in MiB
  bool phantom = false;
  bool no_overlap = false;
  bool fp32 = false;
  bool vmm_exports = false;
  bool separate_experts = false;
  std::string gather;  // "collective", "copies"; empty: what is faster there
  std::string route = "gather";
  bool gloo_only = false;
  bool lane = false;
  std::vector<std::string> without;  // cruelties

  // Flags that have a meaning in none of the worlds are left out.
  void add_to(CLI::App& app);

  // Loads the configuration and checks the world (world_check.h). Throws UsageError that begins
  // with the flag.
  WorldSpec spec() const;

  // The flags that give this world again, for a shell; `spec` as spec() returned it.
  std::string text(const WorldSpec& spec) const;
};

// A path that is a file or a directory with a config.json; UsageError with the loader's own line.
model::ModelConfig load_config_or_refuse(const std::string& path);

}  // namespace tpsync::conformance
