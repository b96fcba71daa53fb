// Keeps SIGPIPE from a thread that calls a library which writes to sockets without caring for it.
// The signal's disposition belongs to the program and stays as it is.
#pragma once

#include <csignal>

namespace tpsync::collective {

// While it lives, writing to a closed connection does not signal this thread. Threads that are
// started meanwhile inherit that for good.
class BlockedSigpipe {
 public:
  BlockedSigpipe() noexcept;
  ~BlockedSigpipe();
  BlockedSigpipe(const BlockedSigpipe&) = delete;
  BlockedSigpipe& operator=(const BlockedSigpipe&) = delete;

 private:
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace tpsync::collective
