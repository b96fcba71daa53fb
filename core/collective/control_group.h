// Seam: small agreement among the actors (trainer ranks). Gloo in production; never the group that
// moves weights, so that an error can be agreed on while a weight collective is stuck.
//
// Every call is collective: all ranks make the same calls in the same order. A rank that dies,
// leaves or misses the deadline breaks the group for every rank that still needs something from it:
// that call, and every later one, throws RuntimeBroken kPeerLost (record.rank names the lost rank
// where it is known, else -1). Because contributions travel one by one, a call may succeed on one
// rank and throw on another.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tpsync/base/bytes.h"
#include "tpsync/base/clock.h"

namespace tpsync::collective {

class ControlGroup {
 public:
  virtual ~ControlGroup() = default;  // leaves the group

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // One fixed word per rank. On success words[r] is rank r's word; words.size() must be size().
  virtual void all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                               Deadline deadline) = 0;
  // A buffer per rank; lengths may differ, and any may be empty. Returns them in rank order.
  virtual std::vector<ByteBuffer> all_gather(ByteView bytes, Deadline deadline) = 0;
  // On the root `bytes` is the input, which may be empty; on the others the output.
  virtual void broadcast(ByteBuffer& bytes, int root, Deadline deadline) = 0;

  // Not collective and never blocks: a rank that is known to be dead or to have left, if any.
  virtual std::optional<int> lost_peer() = 0;

  // Not collective and never blocks: tells every peer that this rank has failed and will report it
  // at the next agreement, so that peers inside a weight collective stop waiting and come to that
  // agreement too. Concerns the group's next collective call on this rank; once that call completed
  // on a peer, the alarm is over there.
  virtual void raise_alarm() noexcept = 0;
  // Not collective and never blocks: the rank whose alarm concerns the next collective call here,
  // if any (the lowest, if several).
  virtual std::optional<int> alarm() = 0;

  // Leaves the group: peers that still need this rank see it as lost. Idempotent; later calls throw
  // kInvalidState.
  virtual void leave() noexcept = 0;
};

}  // namespace tpsync::collective
