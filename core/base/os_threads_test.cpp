#include "tpsync/base/os_threads.h"

#include <gtest/gtest.h>

#include "tpsync/base/os_clock.h"

namespace tpsync {
namespace {

TEST(OsThreads, MutexMakesIncrementsOfManyThreadsAddUp) {
  OsThreads threads;
  const auto mutex = threads.make_mutex();
  int count = 0;
  std::vector<std::unique_ptr<Thread>> running;
  for (int i = 0; i < 4; ++i) {
    running.push_back(threads.spawn("counter with a long name", [&] {
      for (int k = 0; k < 10000; ++k) {
        const MutexLock lock(*mutex);
        ++count;
      }
    }));
  }
  for (const auto& thread : running) thread->join();
  EXPECT_EQ(count, 40000);
}

TEST(OsThreads, ConditionWakesAllWaiters) {
  OsThreads threads;
  const auto mutex = threads.make_mutex();
  const auto condition = threads.make_condition();
  bool go = false;
  int arrived = 0;
  std::vector<std::unique_ptr<Thread>> running;
  for (int i = 0; i < 3; ++i) {
    running.push_back(threads.spawn("waiter", [&] {
      const MutexLock lock(*mutex);
      while (!go) condition->wait(*mutex, Deadline::never());
      ++arrived;
    }));
  }
  {
    const MutexLock lock(*mutex);
    go = true;
  }
  condition->notify_all();
  for (const auto& thread : running) thread->join();
  EXPECT_EQ(arrived, 3);
}

TEST(OsThreads, WaitReturnsFalseAtTheDeadlineAndHoldsTheMutexAgain) {
  OsThreads threads;
  OsClock clock;
  const auto mutex = threads.make_mutex();
  const auto condition = threads.make_condition();
  const Deadline deadline = Deadline::after(clock, std::chrono::milliseconds(2));
  mutex->lock();
  while (condition->wait(*mutex, deadline)) {
  }
  EXPECT_TRUE(deadline.passed(clock.now()));
  mutex->unlock();
  const MutexLock lock(*mutex);  // would hang if the wait had left it locked twice
}

TEST(OsThreads, JoinMayBeRepeated) {
  OsThreads threads;
  const auto thread = threads.spawn("short", [] {});
  thread->join();
  thread->join();
}

TEST(OsThreadsDeathTest, ThreadThatWasNotJoinedIsABug) {
  OsThreads threads;
  EXPECT_DEATH(threads.spawn("forgotten", [] {}).reset(), "joinable");
}

}  // namespace
}  // namespace tpsync
