// A closed pipe that is written to: the thread is not signalled, neither then nor later.
#include "tpsync/collective/os_sigpipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace tpsync::collective {
namespace {

// The writing end of a pipe that nobody reads.
int unread_pipe() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  return ends[1];
}

bool is_blocked() {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigprocmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, SIGPIPE) == 1;
}

bool is_pending() {
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

TEST(BlockedSigpipe, AWriteToAClosedPipeFailsAndSignalsNothing) {
  const int pipe = unread_pipe();
  {
    const BlockedSigpipe no_sigpipe;
    EXPECT_EQ(write(pipe, "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
    EXPECT_TRUE(is_pending());
  }
  EXPECT_FALSE(is_pending());
  EXPECT_FALSE(is_blocked());
  close(pipe);
}

TEST(BlockedSigpipe, BlocksNestAndOnlyTheOutermostUnblocks) {
  const BlockedSigpipe outer;
  {
    const BlockedSigpipe inner;
    EXPECT_TRUE(is_blocked());
  }
  EXPECT_TRUE(is_blocked());
}

}  // namespace
}  // namespace tpsync::collective
