// The control group over Gloo: every contribution is a message to each peer over a connection of
// its own, so that a call is over for a rank as soon as it has what it needs, whatever becomes of
// the others.
//
// Rules:
// 1. A thread per peer takes what that peer sends, whether or not this rank is in a call. Messages
//    of one peer arrive in order; an alarm, a leave and the end of the connection are known at
//    once.
// 2. A rank is lost when its connection ended, it left or gave up, or (on this host) its process
//    ended. What it had sent before still counts.
// 3. A rank that gives up says so to all peers, so a lost rank or a passed deadline frees everyone.
// 4. leave() stays until the peers have what was sent to them, at most kGlooFarewell and the time
//    that the payloads among it take at kGlooFarewellBytesPerSecond: the last contribution of a
//    rank that leaves is not lost to a slower peer.
// 5. Waits end by a message or by their deadline, which the Clock measures; Gloo's own timeouts
//    play no part once the ranks have met.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tpsync/base/world.h"
#include "tpsync/collective/control_group.h"
#include "tpsync/collective/gloo_mesh.h"
#include "tpsync/collective/os_rendezvous.h"
#include "tpsync/collective/rank_identity.h"

namespace tpsync::collective {

inline constexpr Duration kGlooFarewell = std::chrono::milliseconds(250);
// Far below what a busy host moves.
inline constexpr std::uint64_t kGlooFarewellBytesPerSecond = 16 << 20;

struct GlooControlOptions {
  RendezvousOptions meeting;  // rank, size and name of the group too
  GlooAddress address;
  Duration timeout = std::chrono::seconds(60);  // until all ranks have met
};

// The calls of ControlGroup are made by one thread at a time.
class GlooControlGroup final : public ControlGroup {
 public:
  // Meets the other ranks; collective. Blocks until all of them came, at most until about
  // options.timeout. Throws InvalidInput kInvalidConfig for the options; RuntimeBroken kPeerLost
  // (rank: who did not come, where known), kPeerFailed (a rank that came and could not go on), kIo.
  // Nothing is left after a throw.
  GlooControlGroup(const GlooControlOptions& options, const World& world);
  ~GlooControlGroup() override;

  int rank() const override;
  int size() const override;
  void all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                       Deadline deadline) override;
  std::vector<ByteBuffer> all_gather(ByteView bytes, Deadline deadline) override;
  void broadcast(ByteBuffer& bytes, int root, Deadline deadline) override;
  std::optional<int> lost_peer() override;
  void raise_alarm() noexcept override;
  std::optional<int> alarm() override;
  void leave() noexcept override;

  // Of all ranks in rank order, as they said it when they met.
  std::span<const RankIdentity> identities() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tpsync::collective
