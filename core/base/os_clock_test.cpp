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

TEST(TimePoint, ASumThatDoesNotFitIsTheFurthestPointInTime) {
  EXPECT_EQ(TimePoint{5} + Duration(INT64_MAX - 5), TimePoint{INT64_MAX});
  EXPECT_EQ(TimePoint{6} + Duration(INT64_MAX - 5), TimePoint{INT64_MAX});
  EXPECT_EQ(TimePoint{-6} + Duration(INT64_MIN), TimePoint{INT64_MIN});
  OsClock clock;
  EXPECT_TRUE(Deadline::after(clock, Duration::max()).is_never());
}

}  // namespace
}  // namespace tpsync
