// The monotonic clock of the operating system (CLOCK_MONOTONIC). It stands still while the machine
// sleeps and doesn't jump when the time of day is set.
#pragma once

#include "tpsync/base/clock.h"

namespace tpsync {

// May be used from any thread.
class OsClock final : public Clock {
 public:
  TimePoint now() noexcept override;
  void sleep_until(TimePoint until) noexcept override;
};

}  // namespace tpsync
