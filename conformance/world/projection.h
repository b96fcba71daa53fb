// What a run of a scenario's world was, apart from whatever its kind of world adds: for every
// process the sequence of what it did, as far as it alone determines the order, and between
// processes what must come before what. A simulated and a real run of one script have equal
// projections, except for the accepted differences (accepted_differences.h).
//
// The order of a run is that of its processes plus its edges, so two runs whose projections are
// equal are the same partial order. A trace that contradicts an edge is a difference too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/trace.h"

namespace tpsync::conformance {

struct Step {
  std::string what;  // "send 3 to worker 0"; unique within its process where an edge begins or ends
  std::string value;  // "120 bytes"
  friend bool operator==(const Step&, const Step&) = default;
};

// One process.
struct Strand {
  std::string process;  // "worker 1"; "worker 1, start 2" for a later one of that role and rank
  std::vector<Step> steps;
};

// A step of one process that comes before a step of another one.
struct Edge {
  std::string before;  // "actor 0: send 3 to runtime 0"
  std::string after;
  bool held = true;  // the trace has them in this order
};

struct Projection {
  std::vector<Strand> strands;  // actors, runtimes, workers, each by rank and start
  std::vector<Edge> edges;      // sorted by their ends
};

// All that both kinds of world determine.
Projection project(const sim::Trace& trace);

// Of a world with faults, where survivors race against the news: per process how it ended, per
// actor that ended by itself what came of its calls, and the phases that had been entered in the
// past of each fault, as messages, agreements and spawns order it.
Projection project_failures(const sim::Trace& trace);

// What differs, one line each; empty for equal projections all of whose edges held.
std::vector<std::string> differences(const Projection& simulated, const Projection& real);

}  // namespace tpsync::conformance
