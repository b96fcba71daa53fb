// JSON files that people write: read as a whole, and without the silent choice that a parser makes
// between two fields of one name.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace tpsync::faults {

// Throws InvalidInput kInvalidConfig: subject the place ("faults[1].moment.op") of a field that
// stands twice in one object; subject `what` for text that is no JSON, the detail says at which
// byte, from 1, it stops being that.
nlohmann::ordered_json parse_document(std::string_view text, std::string_view what);

}  // namespace tpsync::faults
