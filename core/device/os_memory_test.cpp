// Mappings, memory files, the life of processes, and the lock between them, on the real system.
#include "tpsync/device/os_memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <new>
#include <vector>

#include "tpsync/base/errors.h"

namespace tpsync::device::os_memory {
namespace {

constexpr std::uint64_t kPage = 4096;

std::size_t resident_pages(const Mapping& mapping) {
  std::vector<unsigned char> pages((mapping.bytes() + kPage - 1) / kPage);
  EXPECT_EQ(mincore(mapping.data(), mapping.bytes(), pages.data()), 0);
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](auto page) { return (page & 1) != 0; }));
}

// A child of this process that runs `body` and then waits to be killed; it has run when this
// returns.
template <typename Body>
pid_t child_that(Body body) {
  std::array<int, 2> pipe_ends{};
  EXPECT_EQ(pipe(pipe_ends.data()), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    body();
    if (write(pipe_ends[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char done = 0;
  EXPECT_EQ(read(pipe_ends[0], &done, 1), 1);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  return pid;
}

void kill_and_reap(pid_t pid) {
  EXPECT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
}

TEST(OsMemory, SleepingMappingHasNoPagesAndComesBackAtItsAddress) {
  Mapping mapping = Mapping::anonymous(16 * kPage + 1, "test");
  std::ranges::fill(mapping.view(), std::byte{1});
  const std::byte* address = mapping.data();
  EXPECT_EQ(resident_pages(mapping), 17u);
  for (int i = 0; i < 2; ++i) mapping.give_back("test");
  EXPECT_EQ(resident_pages(mapping), 0u);
  for (int i = 0; i < 2; ++i) mapping.bring_back("test");
  EXPECT_EQ(mapping.data(), address);
  EXPECT_EQ(std::ranges::count(mapping.view(), std::byte{0}), 16 * 4096 + 1);
}

TEST(OsMemoryDeathTest, SleepingMappingMayNotBeTouched) {
  Mapping mapping = Mapping::anonymous(kPage, "test");
  mapping.give_back("test");
  EXPECT_DEATH({ *static_cast<volatile std::byte*>(mapping.data()) = std::byte{1}; }, "");
}

TEST(OsMemory, MappingBeyondWhatTheSystemHasIsOutOfMemory) {
  for (const std::uint64_t bytes : {UINT64_MAX, std::uint64_t{INT64_MAX}}) {
    try {
      Mapping::anonymous(bytes, "weights");
      ADD_FAILURE() << "mapped " << bytes;
    } catch (const RuntimeBroken& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
      EXPECT_EQ(error.record().subject, "weights");
    }
  }
}

TEST(OsMemory, MemoryFileIsReservedSealedAndSharedByItsMappings) {
  const Descriptor file = make_memory_file(2 * kPage, "test");
  struct stat found {};
  ASSERT_EQ(fstat(file.number(), &found), 0);
  EXPECT_EQ(found.st_size, 2 * 4096);
  EXPECT_GE(found.st_blocks * 512, 2 * 4096);
  EXPECT_NE(ftruncate(file.number(), 1), 0);
  EXPECT_NE(ftruncate(file.number(), 3 * 4096), 0);
  const Mapping one = Mapping::of_file(file, 2 * kPage, "test");
  const Opened again = open_file(path_of_descriptor(getpid(), file.number()));
  ASSERT_TRUE(again.file);
  EXPECT_EQ(identity(again.file), identity(file));
  const Mapping other = Mapping::of_file(again.file, 2 * kPage, "test");
  one.data()[kPage] = std::byte{7};
  EXPECT_EQ(other.data()[kPage], std::byte{7});
}

TEST(OsMemory, EmptyMappingsAndFilesAreAllowed) {
  Mapping mapping = Mapping::anonymous(0, "test");
  mapping.give_back("test");
  mapping.bring_back("test");
  const Descriptor file = make_memory_file(0, "test");
  EXPECT_EQ(Mapping::of_file(file, 0, "test").bytes(), 0u);
}

TEST(OsMemory, ProcessIsAliveUntilItEndsAndByItsStartTimeOnly) {
  const ProcessId own = own_process();
  EXPECT_EQ(own.pid, getpid());
  EXPECT_TRUE(is_alive(own));
  EXPECT_FALSE(is_alive({own.pid, own.start + 1})) << "a pid that is used again";
  const Mapping shared = Mapping::of_file(make_memory_file(kPage, "test"), kPage, "test");
  auto* id = new (shared.data()) ProcessId;
  const pid_t pid = child_that([&] { *id = own_process(); });
  EXPECT_EQ(id->pid, pid);
  EXPECT_TRUE(is_alive(*id));
  EXPECT_EQ(kill(pid, SIGSTOP), 0);
  EXPECT_TRUE(is_alive(*id)) << "a stopped process keeps what it has";
  EXPECT_EQ(kill(pid, SIGKILL), 0);
  siginfo_t information{};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid), &information, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(is_alive(*id)) << "not reaped yet";
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
  EXPECT_FALSE(is_alive(*id));
}

TEST(OsMemory, LockOfAStoppedProcessIsNotWaitedForEver) {
  const Mapping shared = Mapping::of_file(make_memory_file(kPage, "test"), kPage, "test");
  auto* lock = new (shared.data()) ProcessLock;
  lock->make();
  const pid_t pid = child_that([&] { lock->lock(std::chrono::seconds(60)); });
  EXPECT_FALSE(lock->lock(std::chrono::milliseconds(1)));
  EXPECT_FALSE(lock->lock(std::chrono::milliseconds(-1)));
  kill_and_reap(pid);
  EXPECT_TRUE(lock->lock(std::chrono::seconds(60))) << "a process that ended passes it on";
  lock->unlock();
  EXPECT_TRUE(lock->lock(std::chrono::seconds(60)));
  lock->unlock();
}

TEST(OsMemory, ErrorsAreNamedByTheirSymbol) {
  EXPECT_EQ(symbol(EACCES), "EACCES");
  EXPECT_EQ(symbol(-1), "unknown");
}

}  // namespace
}  // namespace tpsync::device::os_memory
