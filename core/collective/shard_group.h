// Seam: the group that moves weights among the actors. NCCL in production, Gloo on host memory.
//
// Stream-ordered: a call enqueues and returns; errors and partial results show when the stream is
// waited for. A dead peer means silence until someone aborts, so waiting also watches the control
// group. An aborted group is never used again: the owner builds a new one.
#pragma once

#include <cstdint>
#include <span>

#include "tpsync/base/clock.h"
#include "tpsync/collective/control_group.h"
#include "tpsync/device/device.h"

namespace tpsync::collective {

// One rank's contribution, as a byte range of the buffer; the same list on every rank.
struct GatherPart {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

class ShardGroup {
 public:
  virtual ~ShardGroup() = default;  // releases without waiting; aborts what is pending

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Enqueues an in-place gather: part r of `buffer` holds rank r's bytes on every rank afterwards;
  // this rank's own part must be complete in stream order before. Parts must not overlap; empty
  // parts are allowed. Collective.
  virtual void all_gather(device::StreamId stream, device::RegionId buffer,
                          std::span<const GatherPart> parts) = 0;

  // Blocks until all work of `stream`, gathers included, is complete. Throws RuntimeBroken:
  // kPeerLost as soon as `watch` knows of a lost rank, kPeerFailed as soon as it has an alarm,
  // kTimeout at the deadline, kDevice if the work failed. After a throw the group is aborted and
  // the buffer's content is undefined.
  virtual void wait(device::StreamId stream, Deadline deadline, ControlGroup& watch) = 0;

  // True if ranks read the parts where they lie, out of one another's buffers, and do so in wait().
  // Buffers are then allocated as exportable, and a gather is complete only once it was waited for:
  // what was launched behind it on its stream may be done before it.
  virtual bool reads_peers() const { return false; }

  // Tells that this rank's `buffer`, allocated as exportable, is exported as `handle`; groups
  // that don't read peers ignore it. Before the buffer's first gather, on every
  // rank; does not block. Throws RuntimeBroken kIpc.
  virtual void attach(device::RegionId buffer, ByteView handle) {
    static_cast<void>(buffer), static_cast<void>(handle);
  }
  // Ends the use of `buffer`, before it is freed: called by every rank once its own work on the
  // buffer is complete, in any order, after abort() too. Blocks until no living peer has it open,
  // at most until the deadline: false; then the memory must be kept until the process ends.
  virtual bool detach(device::RegionId buffer, Deadline deadline) {
    static_cast<void>(buffer), static_cast<void>(deadline);
    return true;
  }

  // Ends pending gathers with an error on this rank, without waiting. The group is unusable
  // afterwards. Idempotent.
  virtual void abort() noexcept = 0;
  virtual bool usable() const noexcept = 0;
};

}  // namespace tpsync::collective
