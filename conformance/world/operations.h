// The operations of a fault-free publication, read from its trace: what single faults are
// enumerated over.
#pragma once

#include <vector>

#include "conformance/world/spec.h"
#include "faults/catalogue.h"
#include "sim/trace.h"

namespace tpsync::conformance {

// Every seam operation of every process from the first actor's first sync call to the last actor's
// return from it, in the order of the trace, annotated for the catalogue's rules.
//
// Of a run with faults: where the first actor never returns, the runtime and its workers are still
// of the publication until faults are healed or the world ends. `events`, where given, receives the
// index of each operation's event in the trace (of a moment that has none, the event after it).
std::vector<faults::Operation> publication_operations(const sim::Trace& trace,
                                                      const WorldSpec& spec,
                                                      std::vector<std::size_t>* events = nullptr);

}  // namespace tpsync::conformance
