// Worlds that are drawn: the model's shape, its dtypes, tied or fused, uneven shards, TP size, the
// bucket from the largest tensor up, the pipes' capacity from one byte up, latencies and deadlines.
#pragma once

#include <cstdint>
#include <string>

#include "conformance/world/sim_run.h"
#include "conformance/world/spec.h"

namespace tpsync::conformance {

struct DrawnWorld {
  WorldSpec spec;
  std::uint64_t pipe_capacity = 0;
  std::uint32_t latency_percent = 0;
};

// The same number gives the same world.
DrawnWorld drawn_world(std::uint64_t number);

// One line of what was drawn.
std::string to_text(const DrawnWorld& world);

}  // namespace tpsync::conformance
