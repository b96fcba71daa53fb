// What the sender asks of a trainer: ordered metadata without materialization, and lazy passes that
// put one chunk after the other into the packed buffer. Implemented by trainer/exporter.h; a test
// or another trainer may bring its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tpsync/base/bytes.h"
#include "tpsync/base/clock.h"
#include "tpsync/collective/control_group.h"
#include "tpsync/device/device.h"
#include "tpsync/transfer/chunk_plan.h"
#include "tpsync/wire/messages.h"

namespace tpsync::transfer {

// Where a pass writes: the packed buffer of the publication, in its layout, chunk by chunk into its
// slots in turn (chunk_layout.h). Of three slots, that of chunk c + 1 is free when chunk c's first
// group is entered: this rank's own part of it may be packed from then on. By the reshard route
// only this rank's own part is written, and its groups have no collectives.
struct PassTarget {
  device::RegionId buffer = device::RegionId::kNone;
  ByteBuffer handle;  // of its export, for weight groups that read their peers'
  std::uint64_t buffer_bytes = 0;
  std::uint64_t slots = 1;
  wire::Layout layout = wire::Layout::kCompact;
  wire::Route route = wire::Route::kGather;
  std::uint64_t bucket_bytes = 0;
  bool content_digest = false;
  std::vector<Chunk> chunks;  // of the source's own metadata
};

// One traversal. For each chunk in order: prepare(chunk, group) and then gather(chunk, group) for
// each of its groups. A pass is used by one thread; destroying it releases what it holds without
// waiting.
class WeightPass {
 public:
  virtual ~WeightPass() = default;

  // How many groups of collectives the chunk needs; the same on every rank, at least one, normally
  // one, never one per tensor.
  virtual std::uint64_t group_count(std::uint64_t chunk) = 0;

  // What can fail locally before the group, without touching the buffer: finds and checks what the
  // group will carry, and records it as emitted. Not collective. Throws any Error; then no rank
  // must enter the group.
  virtual void prepare(std::uint64_t chunk, std::uint64_t group) = 0;

  // Packs this rank's pieces with the cast and enters the group, after all ranks agreed that
  // prepare succeeded and that the chunk's slot is free. Collective: every rank enters it. Returns
  // when the chunk's bytes of this group are complete in this rank's buffer; a peer's may still be
  // incomplete. Throws RuntimeBroken kPeerLost, kPeerFailed, kTimeout, kDevice. By the reshard
  // route only this rank's part is due: it waits for its own device, and for no peer.
  virtual void gather(std::uint64_t chunk, std::uint64_t group, Deadline deadline,
                      collective::ControlGroup& watch) = 0;

  // The records of all tensors of the groups prepared so far, in the order of emission: what the
  // source says it emits. What it really packed shows in the digest's sums.
  virtual std::span<const wire::TensorRecord> emitted() const = 0;

  // True if the source has nothing more to give. Asked after the last chunk.
  virtual bool exhausted() = 0;

  // Blocks until nothing that this pass enqueued touches the buffer any more, and no peer has it
  // open; false at the deadline.
  virtual bool quiesce(Deadline deadline) = 0;

  // This rank's part of the content digest, one sum per tensor emitted, over the rows that this
  // rank holds, taken after the cast and before the gather. Empty if the digest is off.
  virtual std::span<const std::uint64_t> digest_sums() const = 0;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // All canonical tensors in canonical order, in the dtype in which they travel; no payload byte is
  // read. The same on every rank. Throws any Error.
  virtual std::span<const wire::TensorRecord> metadata() = 0;

  // How the actors' shards cut each tensor.
  virtual const wire::SourceLayout& layout() = 0;

  // A fresh pass; at most one at a time. Allocates what it needs beside the buffer.
  virtual std::unique_ptr<WeightPass> begin(const PassTarget& target) = 0;

  // False if no pass of this route can begin: the gather needs a weight group, and another one once
  // a gather was aborted. The reshard route needs none.
  virtual bool usable(wire::Route route) const noexcept = 0;
};

}  // namespace tpsync::transfer
