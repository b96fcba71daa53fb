// What a process is given by its main(): every way to touch the outside, by reference. Device and
// groups are handed over beside it, since not every process has them. All of it outlives whoever
// received the World.
#pragma once

#include "tpsync/base/channel.h"
#include "tpsync/base/clock.h"
#include "tpsync/base/host.h"
#include "tpsync/base/log.h"
#include "tpsync/base/process.h"
#include "tpsync/base/threads.h"

namespace tpsync {

struct World {
  Clock& clock;
  ChannelFactory& channels;
  ProcessLauncher& processes;
  Host& host;
  Random& random;
  Log& log;
  Threads& threads;
};

}  // namespace tpsync
