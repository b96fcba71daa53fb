#include "tpsync/base/os_clock.h"

#include <gtest/gtest.h>

namespace tpsync {
namespace {

TEST(OsClock, NeverRunsBackwards) {
  OsClock clock;
  TimePoint last = clock.now();
  for (int i = 0; i < 1000; ++i) {
    const TimePoint next = clock.now();
    ASSERT_GE(next, last);
    last = next;
  }
}

TEST(OsClock, SleepEndsNoEarlierThanAsked) {
  OsClock clock;
  const TimePoint until = clock.now() + std::chrono::milliseconds(2);
  clock.sleep_until(until);
  EXPECT_GE(clock.now(), until);
}

TEST(OsClock, SleepUntilAPassedTimeReturns) {
  OsClock clock;
  clock.sleep_until(TimePoint{0});
  clock.sleep_until(TimePoint{-1});
  clock.sleep_until(clock.now());
}

}  // namespace
}  // namespace tpsync
