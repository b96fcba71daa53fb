// Where in a worker's memory a fault strikes.
#pragma once

#include <string_view>
#include <vector>

#include "conformance/world/spec.h"
#include "faults/injector.h"

namespace tpsync::conformance {

// The resident places of the tensors of `expert` (their names begin with it and a dot) on this TP
// rank, in bytes from the beginning of its weights.
std::vector<faults::ByteRange> resident_places(const WorldSpec& spec, int tp_rank,
                                               std::string_view expert);

}  // namespace tpsync::conformance
