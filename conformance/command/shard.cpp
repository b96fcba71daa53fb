#include "conformance/command/shard.h"

#include "conformance/command/integer.h"
#include "conformance/command/usage.h"

namespace tpsync::conformance {

Shard parse_shard(const std::string& text) {
  const std::size_t slash = text.find('/');
  const auto index = digits_of(text.substr(0, slash));
  const auto count = slash == std::string::npos ? std::nullopt : digits_of(text.substr(slash + 1));
  if (!index || !count || *index >= *count) {
    throw UsageError{"--shard: \"" + text + "\" is no shard; use I/N with I from 0 to N - 1"};
  }
  return {*index, *count};
}

}  // namespace tpsync::conformance
