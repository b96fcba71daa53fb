// What a simulated world is made of, as plain values. Every member is part of the run's identity:
// equal configurations, programs and harness calls give equal traces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/draws.h"
#include "sim/trace.h"

namespace tpsync::sim {

enum class Policy : std::uint8_t {
  kFirstReady,  // who has been ready longest: a switch at almost every operation
  kLastReady,   // who became ready last: a thread runs until it blocks
  kSeeded,      // a keyed draw
  // Whoever has the highest priority; priorities are drawn, and at some choices, drawn as well, the
  // thread that would run falls below all others (probabilistic concurrency testing).
  kPriority,
};

// Overrides the policy at one choice. A candidate that does not exist means the last one.
struct Deviation {
  std::uint64_t choice = 0;
  std::uint32_t candidate = 0;
};

struct DeviceConfig {
  std::string uuid;
  std::uint64_t budget_bytes = 0;
  std::uint64_t reserved_bytes = 0;  // used by others from the start
};

// How unkind the world is. Each cruelty can be switched off, to show that it is what catches a bug.
struct Cruelty {
  bool short_io = true;        // reads and writes move less than they could
  bool partial_groups = true;  // contributions of a dying rank may reach only some peers
  bool late_copies = true;     // copies land later, in pieces
  bool address_reuse = true;   // freed addresses are used again: a stale handle opens them
  bool shuffled_times = true;  // equal times are ordered by the seed, not by creation
  bool latency = true;         // messages take time
  bool lost_copies = true;     // pending copies of a killed process may vanish
  bool children_die_with_parent = true;  // as production's parent-death signal does
};

struct SimConfig {
  std::uint64_t seed = 0;
  std::vector<DeviceConfig> devices;
  bool phantom = false;

  Policy policy = Policy::kSeeded;
  std::uint64_t schedule = 0;           // with the seed, the key of kSeeded's and kPriority's draws
  std::uint32_t priority_changes = 0;   // of kPriority: how many threads fall; one below the depth
  std::uint64_t priority_choices = 64;  // of kPriority: among how many choices, from the first
  std::vector<Deviation> deviations;    // ascending by choice
  // Not empty: every choice must be one of these, in order; the first that has other candidates
  // ends the run as kReplayMismatch.
  std::vector<Choice> replay;

  Cruelty cruelty;
  std::uint64_t pipe_capacity = 64 * 1024;  // bytes; from 1
  std::uint32_t short_io_per_mille = 60;

  Range op_cost_ns{50, 100};
  Range channel_latency_ns{500, 20'000};
  Range group_latency_ns{500, 20'000};
  Range death_notice_ns{1'000, 200'000};
  Range parent_death_ns{1'000, 200'000};
  Range landing_delay_ns{0, 20'000};
  std::uint64_t copy_bytes_per_us = 3'900'000;    // within a device
  std::uint64_t gather_bytes_per_us = 300'000;    // between devices
  std::uint64_t host_copy_bytes_per_us = 50'000;  // upload and download

  std::uint64_t step_limit = 20'000'000;  // operations; then the run is a hang
  std::uint64_t dead_operation_limit = 10'000;
  bool log_debug = true;  // whether Log wants debug records
  std::string host_name = "sim-host";
  std::string boot_id = "00000000-0000-0000-0000-00000000510f";
};

}  // namespace tpsync::sim
