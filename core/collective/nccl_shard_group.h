// The group that moves weights between GPUs, over NCCL.
//
// Rules:
// 1. The communicator is non-blocking: whoever waits polls its asynchronous error until it is no
//    longer in progress, and the stream only then. Each wait has a deadline and watches the control
//    group, since NCCL never notices a dead process of its own host.
// 2. A gather is work of the caller's stream: it begins after what was launched before it, and what
//    is launched behind it is done after it. All connections are made when the group is, so that
//    all_gather() waits for no peer.
// 3. abort() runs ncclCommAbort on a thread of its own and returns. The destructor gives that
//    thread kNcclAbortLimit, then leaves it behind and says so in the log. Until it has ended,
//    kernels may still use the buffer: only the device's synchronize() tells that they don't.
// 4. NVLink multicast and the zero-CTA policy stay off. The communicator's configuration can't
//    switch multicast off, the environment alone can, and core changes no environment: creation is
//    refused unless NCCL_NVLS_ENABLE is 0 and NCCL_CTA_POLICY is unset or 0.
// 5. No call synchronizes a device, and none uses the default stream.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "tpsync/base/world.h"
#include "tpsync/collective/shard_group.h"
#include "tpsync/device/cuda_access.h"

namespace tpsync::collective {

// For ncclCommAbort, which waits until the communicator's kernels have seen that they are to end.
inline constexpr Duration kNcclAbortLimit = std::chrono::seconds(10);
// For what all_gather does before its work is in the stream; it waits for this process alone.
inline constexpr Duration kNcclLaunchLimit = std::chrono::seconds(10);
// How long after NCCL reports an error the control group may name its cause.
inline constexpr Duration kNcclExplanation = std::chrono::seconds(1);

// Used by one thread at a time, whose current CUDA device becomes this group's. Destroyed before
// its device, and before the group that takes its place is made. One rank per process: NCCL ends
// communicators of one process together, so that an abort may wait for the other rank's.
class NcclShardGroup final : public ShardGroup {
 public:
  // Connects to the ranks of `control`, which is not kept; collective. `cuda` speaks of `device`.
  // Blocks until all have connected, at most until the deadline. Throws InvalidInput kInvalidConfig
  // if the environment is not as rule 4 says, kMismatch (the same on all ranks) if the ranks have
  // loaded different versions of NCCL; RuntimeBroken kPeerLost, kPeerFailed (a rank that could not
  // begin, or has an alarm), kTimeout, kDevice; what the calls of `control` throw. After a throw
  // nothing is left, but what rule 3 leaves behind, and on rank 0 the thread that introduces the
  // ranks to one another where one never came.
  NcclShardGroup(ControlGroup& control, device::Device& device, device::CudaAccess& cuda,
                 const World& world, Deadline deadline);
  ~NcclShardGroup() override;

  int rank() const override;
  int size() const override;
  // Equal parts that follow one another are one ncclAllGather, others one group of broadcasts of
  // exactly their sizes. Throws RuntimeBroken kDevice or kTimeout if the work could not be
  // enqueued; the group is aborted then. Lists of parts that differ between ranks are undefined.
  void all_gather(device::StreamId stream, device::RegionId buffer,
                  std::span<const GatherPart> parts) override;
  void wait(device::StreamId stream, Deadline deadline, ControlGroup& watch) override;
  void abort() noexcept override;
  bool usable() const noexcept override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The loaded library's version, "2.28.9".
std::string nccl_version();

}  // namespace tpsync::collective
