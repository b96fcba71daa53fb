// Seams: what a process knows of itself, and system entropy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tpsync/base/bytes.h"

namespace tpsync {

// Names and values.
using Environment = std::vector<std::pair<std::string, std::string>>;

class Host {
 public:
  virtual ~Host() = default;
  // Both throw RuntimeBroken kIo if the system does not tell. Equal on all processes of one host
  // until it is started anew.
  virtual std::string host_name() = 0;
  virtual std::string boot_id() = 0;
  virtual std::int64_t pid() = 0;
  // A copy; nullopt where the variable is not set. Not while another thread changes the
  // environment.
  virtual std::optional<std::string> environment(std::string_view name) = 0;
  // A copy of all variables, ascending by name (bytewise), each name once and with the value that
  // the query by name gives. Names are not empty and hold no '='; what the system holds besides is
  // left out. Not while another thread changes the environment.
  virtual Environment environment() = 0;
};

// The order and the uniqueness that Host::environment() promises: of a name that stands in the list
// twice, the first counts.
inline Environment by_name(Environment variables) {
  std::stable_sort(variables.begin(), variables.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto end = std::unique(variables.begin(), variables.end(),
                               [](const auto& a, const auto& b) { return a.first == b.first; });
  variables.erase(end, variables.end());
  return variables;
}

class Random {
 public:
  virtual ~Random() = default;
  // Fills with unpredictable bytes; throws RuntimeBroken kIo if the system has none. Used for
  // publication ids alone.
  virtual void fill(MutableByteView into) = 0;
};

}  // namespace tpsync
