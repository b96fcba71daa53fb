// Reading typed fields of JSON documents: each failure is an InvalidInput kInvalidConfig whose
// subject is the field.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "tpsync/base/errors.h"

namespace tpsync::conformance::json {

using Json = nlohmann::ordered_json;

[[noreturn]] inline void refuse(const std::string& field, const std::string& what) {
  throw_invalid(ErrorKind::kInvalidConfig, field, what);
}

template <typename T>
T get(const Json& json, const std::string& field) {
  const auto at = json.find(field);
  if (at == json.end()) refuse(field, "is missing");
  try {
    // Numbers are converted by integer(): here they would be cut or wrapped.
    static_assert(!std::is_integral_v<T> || std::is_same_v<T, bool>);
    return at->get<T>();
  } catch (const Json::exception&) {
    refuse(field, "has the wrong type");
  }
}

template <typename T>
T integer(const Json& value, const std::string& field, std::type_identity_t<T> first,
          std::type_identity_t<T> last) {
  const bool is_whole = value.is_number_integer();
  const bool fits =
      is_whole && (value.is_number_unsigned() ? std::in_range<T>(value.get<std::uint64_t>())
                                              : std::in_range<T>(value.get<std::int64_t>()));
  if (!fits || value.get<T>() < first || value.get<T>() > last) {
    refuse(field, fmt::format("must be a whole number from {} to {}", first, last));
  }
  return value.get<T>();
}

// A whole number, of the range of its type unless the caller checks another.
template <typename T>
T get_integer(const Json& json, const std::string& field,
              std::type_identity_t<T> first = std::numeric_limits<T>::min(),
              std::type_identity_t<T> last = std::numeric_limits<T>::max()) {
  return integer<T>(get<Json>(json, field), field, first, last);
}

template <typename T>
std::optional<T> optional_of(const Json& json, const std::string& field) {
  const auto at = json.find(field);
  if (at == json.end() || at->is_null()) return std::nullopt;
  return get<T>(json, field);
}

}  // namespace tpsync::conformance::json
