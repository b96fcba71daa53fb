// Simulated shared words: memory that processes of a world share, word by word. Each access is an
// operation, before which another process may be chosen; accesses take effect one after the other,
// in the order of their records, and a word that is read orders what its writer did before.
//
// A process that dies leaves the words as they are and wakes nobody. Kinder than reality: none of
// the processor's reordering, which the accesses of the seam exclude.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/vector_clock.h"
#include "sim/world.h"
#include "tpsync/collective/shared_words.h"

namespace tpsync::sim {

// What the processes share. Outlives the world in their hands, but does nothing then.
struct WordsHub {
  struct Word {
    std::uint64_t value = 0;
    VectorClock clock;
    WaitQueue waiters;
  };

  WordsHub(SimWorld& of, std::uint64_t number, std::size_t count)
      : world(&of), id(number), words(count) {}

  SimWorld* world;
  std::uint64_t id;
  std::vector<Word> words;
  SimProcess* maker =
      nullptr;  // null once it has closed its words or ended: nobody opens them then
};

// What a process makes and opens shared words by. Lives as long as the process needs it.
class SimSharedWordsFactory final : public collective::SharedWordsFactory {
 public:
  explicit SimSharedWordsFactory(SimProcess& process) : process_(process) {}
  Made make(std::size_t count) override;
  std::unique_ptr<collective::SharedWords> open(ByteView handle) override;

 private:
  SimProcess& process_;
};

}  // namespace tpsync::sim
