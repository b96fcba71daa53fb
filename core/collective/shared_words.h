// Seam: a fixed array of 64-bit words that ranks of one host share, with atomic access, waiting and
// waking. The operating system's memory in production; the simulator makes each access a point at
// which another rank may go on.
//
// Accesses are totally ordered, as if they were made one after the other, and a word that was read
// orders what its writer did before: whoever sees a store sees everything older than it. A rank
// that dies leaves the words as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tpsync/base/bytes.h"
#include "tpsync/base/clock.h"

namespace tpsync::collective {

// May be used from any thread.
class SharedWords {
 public:
  virtual ~SharedWords() = default;  // the others keep theirs

  virtual std::size_t size() const noexcept = 0;
  // An index is below size(); others assert.
  virtual std::uint64_t load(std::size_t index) = 0;
  virtual void store(std::size_t index, std::uint64_t value) noexcept = 0;
  // Returns the sum.
  virtual std::uint64_t add(std::size_t index, std::uint64_t amount) noexcept = 0;

  // Blocks while the word holds `seen`, until a wake() of it or the deadline: false at the
  // deadline. Returns early at times, so that the caller looks again. Changes must differ in the
  // lower 32 bits, which is what the operating system compares.
  virtual bool wait(std::size_t index, std::uint64_t seen, Deadline deadline) = 0;
  // Ends the waits for the word. A wait that begins later and finds the word changed does not
  // block: so whoever changes a word and then wakes has reached everyone.
  virtual void wake(std::size_t index) noexcept = 0;
};

// Makes arrays, and opens those that another rank made.
class SharedWordsFactory {
 public:
  struct Made {
    std::unique_ptr<SharedWords> words;  // all zero
    ByteBuffer handle;                   // for open(), while `words` lives
  };

  virtual ~SharedWordsFactory() = default;
  // Throws RuntimeBroken kOutOfMemory or kIo; nothing is left then.
  virtual Made make(std::size_t count) = 0;
  // The same words; at most this process's threads and processes of the same user on this host can
  // open them. Throws RuntimeBroken kIo if the handle leads to no words, or to others than it
  // describes; kOutOfMemory.
  virtual std::unique_ptr<SharedWords> open(ByteView handle) = 0;
};

}  // namespace tpsync::collective
