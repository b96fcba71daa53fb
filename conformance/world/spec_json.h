// A world's description as JSON, for replay files and for processes that are started.
#pragma once

#include <nlohmann/json.hpp>

#include "conformance/world/spec.h"

namespace tpsync::conformance {

// Adds the fields of `spec` to `json`. What replay files do not hold is as small_world gives it.
void add_spec(nlohmann::ordered_json& json, const WorldSpec& spec);

// Throws InvalidInput kInvalidConfig, subject the field. Types and ranges of single fields only.
WorldSpec spec_from_json(const nlohmann::ordered_json& json);

}  // namespace tpsync::conformance
