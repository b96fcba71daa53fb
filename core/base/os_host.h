// What the operating system says of this process and its host, and its entropy.
#pragma once

#include "tpsync/base/host.h"

namespace tpsync {

// May be used from any thread, as long as nobody changes the environment.
class OsHost final : public Host {
 public:
  std::string host_name() override;
  // Throws RuntimeBroken kIo where the process file system is not mounted.
  std::string boot_id() override;
  std::int64_t pid() override;
  std::optional<std::string> environment(std::string_view name) override;
  Environment environment() override;
};

// Blocks only early in boot, until the system's pool is ready.
class OsRandom final : public Random {
 public:
  void fill(MutableByteView into) override;
};

}  // namespace tpsync
