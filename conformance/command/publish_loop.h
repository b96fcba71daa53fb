// The loop of a trainer as a script: start and bootstrap sleep, generate, then per version sleep,
// wake the weights, publish, wake everything, generate.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "conformance/world/sim_run.h"

namespace tpsync::conformance {

struct PublishLoop {
  std::uint64_t versions = 2;
  // Faults are planned: a call that fails is no failed check. The first publication that fails is
  // followed by a new engine, healed of them, and a publication in its place; one more publication
  // than asked for closes the loop, so that every rank learns of what struck rank 0 alone.
  bool faulted = false;
  Duration train{0};  // that passes between sleep and wake-up
  // Called on rank 0, in its process, with a line on what was just done; empty: nobody listens.
  std::function<void(const std::string& line)> progress;
};

Script publish_loop(PublishLoop loop);

}  // namespace tpsync::conformance
