// Shared words of the operating system: a memory file that has no name and that other processes map
// through the process file system, and a futex to wait on a word.
//
// Rules: the file's size is sealed, so that nobody can cut it short under a reader. Before a wait
// sleeps it spins a little, since a peer that is about to answer does so sooner than the system
// wakes a thread. Words that nobody sleeps on cost no system call to wake; a process that is killed
// in its sleep is counted as a sleeper for ever, which costs its peers such calls and nothing else.
#pragma once

#include <chrono>

#include "tpsync/collective/shared_words.h"

namespace tpsync::collective {

struct OsSharedWordsOptions {
  // At most; not at all where this process may use one processor only.
  Duration spin = std::chrono::microseconds(20);
};

// May be used from any thread. What it made may outlive it.
class OsSharedWordsFactory final : public SharedWordsFactory {
 public:
  explicit OsSharedWordsFactory(const OsSharedWordsOptions& options = {});
  Made make(std::size_t count) override;
  std::unique_ptr<SharedWords> open(ByteView handle) override;

 private:
  Duration spin_;
};

}  // namespace tpsync::collective
