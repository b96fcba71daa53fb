// Whole numbers from the command line: digits alone, in a stated range. CLI11's own conversion
// would wrap a sign and saturate what is too large.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tpsync::conformance {

struct IntegerRange {
  std::uint64_t first = 0;
  std::uint64_t last = UINT64_MAX;  // included
};

// Of sizes in MiB: as many bytes are still a 64-bit number.
inline constexpr std::uint64_t kMibMax = UINT64_MAX >> 20;

// nullopt for anything but decimal digits, and above 64 bits.
std::optional<std::uint64_t> digits_of(std::string_view text);

// A flag with a number; parsing the command line throws UsageError that names flag and range, and
// leaves `target` unset if the flag is not given.
CLI::Option* add_integer(CLI::App& app, const std::string& flag,
                         std::optional<std::uint64_t>& target, IntegerRange range,
                         const std::string& description);

}  // namespace tpsync::conformance
