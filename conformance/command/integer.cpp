#include "conformance/command/integer.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <system_error>

#include "conformance/command/usage.h"

namespace tpsync::conformance {

std::optional<std::uint64_t> digits_of(std::string_view text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || stop != end || error != std::errc()) return std::nullopt;
  return value;
}

CLI::Option* add_integer(CLI::App& app, const std::string& flag,
                         std::optional<std::uint64_t>& target, IntegerRange range,
                         const std::string& description) {
  const auto take = [flag, &target, range](const std::string& text) {
    const auto value = digits_of(text);
    if (!value || *value < range.first || *value > range.last) {
      throw UsageError{fmt::format("{}: \"{}\" is no whole number from {} to {}", flag, text,
                                   range.first, range.last)};
    }
    target = value;
  };
  return app.add_option_function<std::string>(flag, take, description)->type_name("NUMBER");
}

}  // namespace tpsync::conformance
