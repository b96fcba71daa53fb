// Where two traces part. Marks of faults, which the harness itself writes, can be left out of the
// comparison.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "sim/trace.h"

namespace tpsync::conformance {

// The index in `run` of the first event that differs from its counterpart in `twin`, marks left
// out; run.events.size() if `run` only ends earlier; nullopt if none differs.
std::optional<std::size_t> first_effect(const sim::Trace& run, const sim::Trace& twin);

// True if no event of `run` differs from `twin`'s, the harness's own fault marks left out.
bool same_events(const sim::Trace& run, const sim::Trace& twin);

// Two runs of one seed: empty if they are equal, else the first event or choice that differs, with
// what stands there in each.
std::string first_divergence(const sim::Trace& first, const sim::Trace& second);

// "3 1.000002300 s  worker 1 in update_native_weights/0: channel.read (4, 9, 77)"
std::string event_line(const sim::Trace& trace, std::size_t index);

}  // namespace tpsync::conformance
