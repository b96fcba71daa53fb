#include "tpsync/base/os_clock.h"

#include <time.h>

#include <cerrno>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_detail.h"

namespace tpsync {

TimePoint OsClock::now() noexcept { return os_detail::monotonic_now(); }

void OsClock::sleep_until(TimePoint until) noexcept {
  if (until.ns <= 0) return;
  timespec time{};
  time.tv_sec = until.ns / 1'000'000'000;
  time.tv_nsec = until.ns % 1'000'000'000;
  int error = EINTR;
  while (error == EINTR) {
    error = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr);
  }
  TPSYNC_ASSERT(error == 0);
}

}  // namespace tpsync
