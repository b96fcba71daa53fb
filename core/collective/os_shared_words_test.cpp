// Words that processes share: what a second opening sees, when waits end, and which handles are
// refused.
#include "tpsync/collective/os_shared_words.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_clock.h"
#include "tpsync/base/os_threads.h"

namespace tpsync::collective {
namespace {

class SharedWordsOfTheSystem : public testing::Test {
 protected:
  Deadline in_an_hour() { return Deadline::after(clock_, std::chrono::hours(1)); }

  ErrorKind refusal_of(ByteView handle) {
    try {
      factory_.open(handle);
    } catch (const RuntimeBroken& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  }

  static std::size_t mappings() {
    std::ifstream maps("/proc/self/maps");
    std::size_t found = 0;
    for (std::string line; std::getline(maps, line);)
      found += line.find("tpsync-words") != std::string::npos ? 1 : 0;
    return found;
  }
  static std::size_t descriptors() {
    std::size_t found = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      ++found;
    return found;
  }

  OsClock clock_;
  OsThreads threads_;
  OsSharedWordsFactory factory_;
};

TEST_F(SharedWordsOfTheSystem, AreZeroAtFirstAndTheSameForWhoeverOpensThem) {
  const auto made = factory_.make(9);
  const auto opened = factory_.open(made.handle);
  ASSERT_EQ(made.words->size(), 9U);
  ASSERT_EQ(opened->size(), 9U);
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(opened->load(i), 0U);
  made.words->store(8, UINT64_MAX - 1);
  EXPECT_EQ(opened->load(8), UINT64_MAX - 1);
  EXPECT_EQ(opened->add(8, 3), 1U);
  EXPECT_EQ(made.words->load(8), 1U);
  EXPECT_EQ(made.words->load(7), 0U);
}

TEST_F(SharedWordsOfTheSystem, StayWithWhoeverOpenedThemWhenTheirMakerIsGone) {
  auto made = factory_.make(1);
  const auto opened = factory_.open(made.handle);
  made.words->store(0, 5);
  made.words.reset();
  EXPECT_EQ(opened->load(0), 5U);
  EXPECT_EQ(refusal_of(made.handle), ErrorKind::kIo);
}

TEST_F(SharedWordsOfTheSystem, AWaitForAWordThatHasChangedEndsAtOnce) {
  const auto made = factory_.make(1);
  made.words->store(0, 1);
  EXPECT_TRUE(made.words->wait(0, 0, Deadline::never()));
}

TEST_F(SharedWordsOfTheSystem, AWaitForAWordThatNobodyChangesEndsAtTheDeadline) {
  const auto made = factory_.make(1);
  EXPECT_FALSE(made.words->wait(0, 0, Deadline::at(TimePoint{0})));
  const Deadline soon = Deadline::after(clock_, std::chrono::milliseconds(1));
  while (made.words->wait(0, 0, soon)) continue;
  EXPECT_TRUE(soon.passed(clock_.now()));
}

TEST_F(SharedWordsOfTheSystem, SleepersAndSpinnersAreAllReachedByAChangeAndAWake) {
  for (const auto spin : {std::chrono::microseconds(0), std::chrono::microseconds(200)}) {
    OsSharedWordsFactory factory({.spin = spin, .processors_to_spin = 1});
    const auto made = factory.make(2);
    std::vector<std::unique_ptr<Thread>> waiters;
    for (int i = 0; i < 3; ++i)
      waiters.push_back(threads_.spawn("waiter", [&] {
        const auto mine = factory.open(made.handle);
        for (std::uint64_t round = 0; round < 300; ++round) {
          mine->add(1, 1);
          while (mine->load(0) == round) EXPECT_TRUE(mine->wait(0, round, in_an_hour()));
        }
      }));
    for (std::uint64_t round = 0; round < 300; ++round) {
      while (made.words->load(1) < 3 * (round + 1)) clock_.sleep_until(TimePoint{0});
      made.words->store(0, round + 1);
      made.words->wake(0);
    }
    for (const auto& waiter : waiters) waiter->join();
  }
}

TEST_F(SharedWordsOfTheSystem, AHandleThatLeadsElsewhereIsRefused) {
  const auto made = factory_.make(4);
  EXPECT_EQ(refusal_of({}), ErrorKind::kIo);
  for (std::size_t i = 0; i < made.handle.size(); ++i) {
    ByteBuffer other = made.handle;
    other[i] ^= std::byte{1};
    EXPECT_EQ(refusal_of(other), ErrorKind::kIo) << "byte " << i;
  }
}

TEST_F(SharedWordsOfTheSystem, LeaveNoMappingAndNoDescriptor) {
  const std::size_t before = descriptors();
  {
    const auto made = factory_.make(1000);
    const auto opened = factory_.open(made.handle);
    EXPECT_EQ(mappings(), 2U);
  }
  EXPECT_EQ(mappings(), 0U);
  EXPECT_EQ(descriptors(), before);
}

}  // namespace
}  // namespace tpsync::collective
