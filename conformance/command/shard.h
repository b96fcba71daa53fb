// --shard I/N: a command that makes many runs makes only part I of N of them.
#pragma once

#include <cstdint>
#include <string>

namespace tpsync::conformance {

struct Shard {
  std::uint64_t index = 0;
  std::uint64_t count = 1;
};

// Throws UsageError for anything but "I/N" with I from 0 to N - 1.
Shard parse_shard(const std::string& text);

}  // namespace tpsync::conformance
