#include "tpsync/collective/os_sigpipe.h"

#include <pthread.h>

#include <ctime>

namespace tpsync::collective {

namespace {

sigset_t sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

BlockedSigpipe::BlockedSigpipe() noexcept {
  const sigset_t pipe = sigpipe();
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  was_pending_ = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe, &before_);
}

BlockedSigpipe::~BlockedSigpipe() {
  if (sigismember(&before_, SIGPIPE) == 1) return;
  if (!was_pending_) {
    // What a write of this thread has raised meanwhile is not delivered to the caller.
    const sigset_t pipe = sigpipe();
    const timespec at_once{};
    sigtimedwait(&pipe, nullptr, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace tpsync::collective
