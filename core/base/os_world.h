// The world of a real process: every seam over the operating system, bundled for main().
#pragma once

#include "tpsync/base/os_channel.h"
#include "tpsync/base/os_clock.h"
#include "tpsync/base/os_host.h"
#include "tpsync/base/os_process.h"
#include "tpsync/base/os_threads.h"
#include "tpsync/base/world.h"

namespace tpsync {

// Lives in main() and outlives everything that is given world(). Children that were spawned through
// it end with it.
class OsWorld {
 public:
  explicit OsWorld(Log& log) : log_(log) {}
  OsWorld(const OsWorld&) = delete;
  OsWorld& operator=(const OsWorld&) = delete;

  World world() { return {clock_, channels_, processes_, host_, random_, log_, threads_}; }
  OsChannelFactory& channels() { return channels_; }

 private:
  OsClock clock_;
  OsChannelFactory channels_;
  OsProcessLauncher processes_;
  OsHost host_;
  OsRandom random_;
  OsThreads threads_;
  Log& log_;
};

}  // namespace tpsync
