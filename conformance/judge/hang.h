// A world that hangs: who waits for whom, since when, in which phase, and who is likely to blame.
// Tells deadlocks, in which nobody can go on, from livelocks, in which somebody always does.
#pragma once

#include <string>

#include "sim/trace.h"

namespace tpsync::judge {

// Of a trace whose world did not end by itself. One line per thread that waits, then the verdict:
// "deadlock: ..." with the ring of waiting processes or the one that all wait for, or "livelock:
// ..." with what goes round. Empty for a trace in which every process ended.
std::string explain_hang(const sim::Trace& trace);

}  // namespace tpsync::judge
