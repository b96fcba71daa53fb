// The group that moves weights between host devices, over Gloo and connections of its own.
//
// Rules:
// 1. One thread moves what was enqueued, gather by gather in the order of the calls; wait() watches
//    it and the control group by turns. A gather begins when the stream's earlier work is complete,
//    which all_gather() sees to: behind a gather of the same stream it waits for that one. What is
//    launched behind a gather is done after it, by the time wait() returns.
// 2. A dead, late or aborted peer means silence. If a connection ends, the control group is given
//    kGlooExplanation to name the cause, then it is a failure of the work.
// 3. After abort(), and after a throw of wait(), nothing writes into the buffer any more: it may be
//    freed. For that, both stay until the thread has let go of it, which takes about 10 ms per peer
//    and waits for no peer.
#pragma once

#include <memory>
#include <span>

#include "tpsync/base/world.h"
#include "tpsync/collective/gloo_mesh.h"
#include "tpsync/collective/shard_group.h"
#include "tpsync/device/host_device.h"

namespace tpsync::collective {

inline constexpr Duration kGlooExplanation = std::chrono::seconds(1);

// Used by one thread at a time. Destroyed before its device.
class GlooShardGroup final : public ShardGroup {
 public:
  // Connects to the ranks of `control` with the help of its all_gather; collective. Blocks until
  // all have connected, at most until about the deadline. `control` is not kept. Throws what
  // all_gather throws; InvalidInput kInvalidConfig if the address is not this host's; RuntimeBroken
  // kPeerLost or kPeerFailed with the rank that did not connect. Nothing is left after a throw.
  GlooShardGroup(ControlGroup& control, device::HostDevice& device, const GlooAddress& address,
                 const World& world, Deadline deadline);
  ~GlooShardGroup() override;

  int rank() const override;
  int size() const override;
  // Lists of parts that differ between ranks never meet: that is a silence too. Throws what the
  // device says of the stream's earlier work; the group is aborted then.
  void all_gather(device::StreamId stream, device::RegionId buffer,
                  std::span<const GatherPart> parts) override;
  void wait(device::StreamId stream, Deadline deadline, ControlGroup& watch) override;
  void abort() noexcept override;
  bool usable() const noexcept override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tpsync::collective
