// A world that publishes again and again, looked at from outside after an early and after the last
// publication: what its processes hold must be the same.
//
// Whoever looks is a process of its own, forked before the world is made, since the harness is busy
// running it. Actors come to a barrier between two publications and wait there until it has looked;
// the runtime and its workers have replied to everything then, and it looks when they all sleep.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "conformance/process/process_run.h"

namespace tpsync::conformance {

// What a process has, or what all of the world has.
struct Holdings {
  std::string who;  // "worker 1"; never a pid
  std::int64_t descriptors = 0;
  std::int64_t threads = 0;
  std::int64_t mappings = 0;
  std::int64_t resident_bytes = 0;

  std::string counts() const;
};

struct Look {
  std::vector<Holdings> processes;
  std::int64_t world_files = 0;
  std::vector<std::uint64_t> free_device_bytes;  // by rank, as the driver says; 0 on hosts
};

struct Endured {
  Run run;
  Look early;
  Look late;
  int observer_status = -1;  // 0: it looked twice
  // Of rank 0's publications.
  std::int64_t p50_ns = 0;
  std::int64_t p99_ns = 0;
};

struct Endurance {
  ProcessOptions options;
  WorldSpec spec;
  int publications = 0;
  int early = 0;  // the publication after which the first look is taken
  // Of the rank's GPU, asked in its process; empty on hosts.
  std::function<std::uint64_t(int rank)> free_device_bytes;
};

Endured endure(const Endurance& endurance);

// As failures of the running test: whatever grew, and what did not hold.
void expect_the_same(const Endured& endured, std::int64_t resident_growth_bytes_max);

}  // namespace tpsync::conformance
