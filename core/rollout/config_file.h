// A configuration file: the rollout engine, the weight sync and the trainer's schedule in one YAML
// or JSON document with the sections `rollout`, `sync` and `trainer`. Field names, units and
// defaults are UniRL's: times in seconds, sizes in MiB.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tpsync/rollout/config.h"
#include "tpsync/sync/options.h"

namespace tpsync::rollout {

struct TrainerConfig {
  std::int64_t weight_sync_interval = 1;  // rollouts per publication
  bool enable_fsdp_offload = false;
  // What the trainer allows the engine for its shutdown: request, join and kill.
  Duration rollout_shutdown_timeout = std::chrono::seconds(90);
};

struct ConfigFile {
  EngineConfig rollout;
  sync::SyncOptions sync;
  TrainerConfig trainer;
};

// Parses, and takes defaults for what is not given. Checks types and ranges of single values only.
// `origin` (a path) begins every message's detail, with the line. Throws InvalidInput
// kInvalidConfig, subject the key path ("rollout.tp_size"; "config" for the document as a whole):
// text that is neither YAML nor JSON, an unknown or repeated key, a value of another type, numbers
// out of range, text above 1 MiB. Numbers and truth values must not be quoted, and only `true` and
// `false` are truth values.
ConfigFile parse_config(std::string_view text, std::string_view origin);

// Reads the file, parses it and checks everything: check_config, check_options, check_budgets.
// Throws InvalidInput kInvalidConfig, subject the key path and the file's path in the detail, also
// if the file can't be read (subject "config").
ConfigFile load_config(const std::string& path);

// Outer budgets exceed inner ones. Throws InvalidInput kInvalidConfig, in order:
//   sync.control_timeout_s > weight update timeout + kKillAllowance (rank 0 ends a hung runtime
//     before it joins the agreement that its peers wait in)
//   trainer.rollout_shutdown_timeout_s >= 2 * shutdown timeout + kKillAllowance (request, join,
//   kill) trainer.weight_sync_interval >= 1
void check_budgets(const ConfigFile& config);

}  // namespace tpsync::rollout
