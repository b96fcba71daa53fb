// Shared words of the operating system: a memory file that has no name and that other processes map
// through the process file system, and a futex to wait on a word.
//
// Rules: the file's size is sealed, so that nobody can cut it short under a reader. Before a wait
// sleeps it spins a little where there are processors enough, since a peer that is about to answer
// does so sooner than the system wakes a thread. Words that nobody sleeps on cost no system call to
// wake; a process that is killed in its sleep is counted as a sleeper for ever, which costs its
// peers such calls and nothing else.
#pragma once

#include <chrono>

#include "tpsync/collective/shared_words.h"

namespace tpsync::collective {

struct OsSharedWordsOptions {
  Duration spin = std::chrono::microseconds(20);  // at most
  // Nobody spins where this process may use fewer processors: a rank that spins would keep the one
  // that it waits for from running. On 2 processors spinning makes an agreement 3 times slower.
  int processors_to_spin = 8;
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
