// The run that a job is making, in memory that it shares with its parent: all of its options, as
// plain bytes, so that writing them costs nothing beside the run.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "conformance/world/sim_run.h"

namespace tpsync::conformance {

struct RunSlot {
  std::atomic<std::uint64_t> begun{0};  // runs, also those that are not counted
  std::atomic<std::uint64_t> exploration{0};
  std::atomic<std::uint64_t> number{0};
  std::atomic<std::uint64_t> runs{0};
  std::atomic<std::uint64_t> violations{0};
  std::atomic<std::uint64_t> covered{0};
  std::atomic<std::uint64_t> applicable{0};
  std::uint64_t length = 0;
  std::array<char, 64 * 1024> bytes{};

  void write(const SimOptions& options);
  // What was written; what did not fit (deviations beyond some thousand) is missing.
  SimOptions read() const;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace tpsync::conformance
