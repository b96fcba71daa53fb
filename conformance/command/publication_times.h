// What rank 0 spent its time on in a world's loop of publications, read from the world's trace, and
// the tables that show it.
//
// A phase lasts from its entry to the next one's, so the phases of a publication add up to it; the
// phases that each chunk has are summed under one name. A call is over when the last operation that
// it recorded is, so that the harness's own bookkeeping after it does not count. Times are the
// trace's: real ones, or virtual ones in a simulated world.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/judge/records.h"
#include "sim/trace.h"

namespace tpsync::conformance {

struct PhaseTime {
  std::string phase;
  std::uint64_t count = 0;  // entries
  std::int64_t ns = 0;
};

struct CallTime {
  std::int64_t ns = 0;
  bool returned = false;
  bool ok = false;
};

// From one publication's sleep to the generation after it; the first is the engine's start up to
// its first generation, or up to the first publication if there is none before.
struct Round {
  std::map<judge::Call, CallTime> calls;  // the first of each kind
  std::int64_t version = 0;               // of a publication that returned one
  std::string error;                      // of one that failed, as recorded (error_from_json)
  std::vector<PhaseTime> phases;          // in the order of their first entries

  const CallTime* find(judge::Call call) const;
  const CallTime* publication() const { return find(judge::Call::kSync); }
};

// Of the trace's first process, which is the actor of rank 0. What is called on an engine after its
// publication failed belongs to no round, until another engine is started.
std::vector<Round> read_rounds(const sim::Trace& trace);

// Gigabytes per second, in units of 10^9 bytes; 0 without a time.
double gigabytes_per_second(std::uint64_t bytes, std::int64_t ns);
// Of `ns` within `total`, in percent; 0 if there is no total.
double percent_of(std::int64_t ns, std::int64_t total);

struct Transfer {
  std::uint64_t bytes = 0;   // that one publication moves
  std::uint64_t chunks = 0;  // in which it does
  bool real_time = false;    // a rate may be formed
};

// A row per round: the calls of the loop, bytes and rate.
std::string loop_table(const std::vector<Round>& rounds, const Transfer& transfer);
// A row per phase of a round's publication, and its sum.
std::string phase_table(const Round& round, const Transfer& transfer);

}  // namespace tpsync::conformance
