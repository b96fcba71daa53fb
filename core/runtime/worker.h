// One TP rank of a runtime: resident memory, the loader, and an inference engine, served over a
// channel to the runtime.
//
// A worker trusts nothing: it validates the header against its own world and device, checks each
// record against its own plan, computes its receipt from what it received, and refuses on its own
// what its state does not allow. After a failed native command it is unusable and only ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tpsync/base/world.h"
#include "tpsync/device/device.h"
#include "tpsync/model/config.h"
#include "tpsync/runtime/inference_engine.h"
#include "tpsync/wire/publication.h"

namespace tpsync::runtime {

struct WorkerOptions {
  int tp_rank = 0;
  int tp_size = 1;
  model::ModelConfig config;
  std::vector<wire::Route> routes = {wire::Route::kGather, wire::Route::kReshard};  // that it takes
  std::string version;  // of the runtime's software, as capability
  std::uint64_t kv_cache_bytes = 0;
  std::int64_t committed_version = 0;                    // of the checkpoint
  Duration command_timeout = std::chrono::seconds(300);  // for device waits inside one command
};

// Serves until the runtime closes the channel. Blocks. The device is this process's own.
void run_worker(World world, Channel& channel, device::Device& device, const EngineFactory& factory,
                const WorkerOptions& options);

}  // namespace tpsync::runtime
