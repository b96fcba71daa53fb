// What may differ between a simulated and a real run of one script, each with its reason.
// sim/README.md has the same list.
#pragma once

#include <span>
#include <string_view>

#include "sim/trace.h"

namespace tpsync::conformance {

struct AcceptedDifference {
  std::string_view name;
  std::string_view reason;
};
std::span<const AcceptedDifference> accepted_differences();

// The event, or the operation whose event it is, is left out by one of them. Every event that is
// not is compared, whatever its kind.
bool is_left_out(const sim::Event& event);

}  // namespace tpsync::conformance
