// The group that moves weights among devices of one host by copies alone: every rank packs its part
// into its own buffer, and pulls the others' parts from where they lie, by copy engines where there
// are some. Written over the Device seam, so that it runs over every device.
//
// Rules:
// 1. The work of a gather is done in wait(), which calls no collective: ranks say in shared words
//    that their part is complete, that they have pulled, and which buffers of whom they have open.
//    So a rank that never comes is an alarm, a lost peer or a deadline here, as in any weight
//    group.
// 2. A rank says that its part is complete once its stream is. It returns from wait() once all
//    ranks have pulled, so that its part may be overwritten then.
// 3. A buffer's export is opened once, when its first bytes are pulled, and closed by the opener's
//    detach(). What a rank has open it says before it opens and after it has closed; detach()
//    returns true when no living peer says so. A rank that died has nothing open.
// 4. The device behind an opened buffer is compared with the one that its rank named at the start.
// 5. No stream ever waits for another process.
#pragma once

#include <memory>
#include <span>

#include "tpsync/base/world.h"
#include "tpsync/collective/shard_group.h"
#include "tpsync/collective/shared_words.h"

namespace tpsync::collective {

inline constexpr int kPeerCopyRanksMax = 64;
// How long after a rank has left this group the control group may say why.
inline constexpr Duration kPeerCopyExplanation = std::chrono::seconds(1);

// Used by one thread at a time. Destroyed before its device, and after the buffers that were
// attached are detached: what is not is left open, and said in the log, where copies may still run.
class PeerCopyShardGroup final : public ShardGroup {
 public:
  // Meets the ranks of `control`, which is not kept; collective: three of its calls, with one
  // deadline. `factory` is not kept; device, clock and log outlive the group. Throws what these
  // calls throw; InvalidInput kUnsupported (the same on all ranks) if the ranks are not on one host
  // or too many; RuntimeBroken kPeerFailed with a rank that could not take part, kIo, kOutOfMemory.
  // Nothing is left after a throw.
  PeerCopyShardGroup(ControlGroup& control, device::Device& device, SharedWordsFactory& factory,
                     const World& world, Deadline deadline);
  ~PeerCopyShardGroup() override;

  int rank() const override;
  int size() const override;
  // Throws what exporting a buffer throws that was not attached; it is attached with that export,
  // which detach() revokes.
  void all_gather(device::StreamId stream, device::RegionId buffer,
                  std::span<const GatherPart> parts) override;
  // Throws also PeerViolation kMismatch if a rank's list of parts differs, or its buffer lies on
  // another device than it named or is too small; RuntimeBroken kIpc if it can't be opened,
  // which names the buffer's rank in its detail.
  void wait(device::StreamId stream, Deadline deadline, ControlGroup& watch) override;
  bool reads_peers() const override { return true; }
  void attach(device::RegionId buffer, ByteView handle) override;
  // Aborts the group if a gather of the buffer was not waited for.
  bool detach(device::RegionId buffer, Deadline deadline) override;
  void abort() noexcept override;
  bool usable() const noexcept override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tpsync::collective
