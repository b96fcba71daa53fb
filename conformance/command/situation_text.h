// Situations that runs reached or missed, as text and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "conformance/judge/situation_count.h"

namespace tpsync::conformance {

// {"channel.full": 12, ...}, every situation.
nlohmann::ordered_json situations_json(const judge::SituationCount& count);
// Throws InvalidInput kInvalidConfig for anything but counts of known situations; those that are
// absent were reached by no run.
judge::SituationCount situations_from_json(const nlohmann::ordered_json& json);

// One line: how many were reached, and which were missed. Simulated worlds alone reach all.
std::string situations_text(const judge::SituationCount& count);

}  // namespace tpsync::conformance
