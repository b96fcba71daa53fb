// result.json of an exploration, written and read: what jobs and shards hand over, and what is
// joined again. Of a result all but the times is the same however the exploration was split.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "conformance/command/shard.h"
#include "conformance/explore/explorer.h"

namespace tpsync::conformance {

struct ExploreResult {
  std::string version;     // of the command
  std::string parameters;  // the flags, but for how the exploration is split and shown
  std::uint64_t seed = 0;
  int tp = 0;
  Shard shard;
  std::vector<ExploreReport> reports;  // one per schedule
};

nlohmann::ordered_json to_json(const ExploreResult& result);

// Throws InvalidInput kInvalidConfig, subject the field.
ExploreResult result_from_json(const std::string& text);

// One result of all shards. Throws InvalidInput kInvalidConfig, subject the name of a part, for
// parts of different explorations, for a shard that is there twice, and for one that is missing.
ExploreResult merged(const std::vector<std::pair<std::string, ExploreResult>>& parts);

}  // namespace tpsync::conformance
