// The runtime's command server: owns one worker process per TP rank and stands between them and the
// parent.
//
// It forwards each command's bytes unchanged to every worker, judges their replies, and keeps its
// own state, so that what must not happen is refused here even if parent or workers would let it
// pass. It never outlives its purpose: it ends on end of file from the parent, after a failed
// native command, when a worker died, broke the protocol or did not reply in time (its reply to
// another command could come later, and be taken for the next one's), and when a publication is
// pending and no command comes for the control timeout; its workers end with it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tpsync/base/world.h"
#include "tpsync/wire/messages.h"

namespace tpsync::runtime {

struct RuntimeOptions {
  int tp_size = 1;
  std::string version;  // of this software, as announced
  std::string model_type = "qwen3_moe";
  std::int64_t committed_version = 0;  // of the checkpoint that the workers load
  // How long a pending publication may wait for its next command, and a worker take to reply to a
  // native one.
  Duration control_timeout = std::chrono::seconds(900);
  // How long a worker may take to reply to any other. Not below the longest of the parent's command
  // timeouts: a worker that is late is given up, and the runtime with it.
  Duration worker_timeout = std::chrono::seconds(1800);
  std::vector<wire::Layout> layouts = {wire::Layout::kRankMajor, wire::Layout::kCompact};
  std::vector<wire::Route> routes = {wire::Route::kGather, wire::Route::kReshard};
  // How to start the worker of a rank; the channel is made by the server.
  std::function<SpawnRequest(int tp_rank)> worker;
  // Makes the answer to a generate from all ranks' parts, in rank order. Default: rank 0's.
  std::function<wire::GenerateResult(std::vector<wire::GenerateResult>)> combine;
};

// Serves until the loop ends (see above); all workers are gone when it returns. Blocks.
void run_runtime(World world, Channel& parent, const RuntimeOptions& options);

}  // namespace tpsync::runtime
