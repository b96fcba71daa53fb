// Seams: what a process knows of itself, and system entropy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tpsync/base/bytes.h"

namespace tpsync {

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
};

class Random {
 public:
  virtual ~Random() = default;
  // Fills with unpredictable bytes; throws RuntimeBroken kIo if the system has none. Used for
  // publication ids alone.
  virtual void fill(MutableByteView into) = 0;
};

}  // namespace tpsync
