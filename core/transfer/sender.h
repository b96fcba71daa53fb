// The actors' side of the data plane: one packed buffer, allocated and exported once per
// publication, filled chunk by chunk.
//
// Exactly one agreement stands before each declared group of collectives, and one after each
// transfer; what is agreed on is also that every actor's buffer is complete, so that no worker is
// sent to a slot that is still being filled, and that every worker is done with the slot that is
// filled next.
//
// With one slot a chunk is gathered, agreed on, transferred and agreed on. With overlap, chunk
// k + 1 is gathered, and each actor's part of chunk k + 2 packed, while the workers load chunk k:
// one agreement then carries transfer k and gather k + 1, under the name of the transfer, and the
// gather of chunk k + 2 begins behind it.
//
// By the reshard route nothing is gathered: each actor packs its own part alone, which all workers
// read where it lies. Phases and agreements are the same, and two slots are enough for the overlap.
//
// The sender knows nothing of TP slicing. It does not free the exported buffer by itself while a
// worker may still have it open: release() does, once the caller knows that nobody has.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/base/log.h"
#include "tpsync/collective/control_group.h"
#include "tpsync/device/handles.h"
#include "tpsync/transfer/weight_source.h"
#include "tpsync/wire/messages.h"

namespace tpsync::transfer {

// Agreement among the actors, phase by phase; implemented by sync/consensus.h. All ranks enter the
// same phases in the same order. Every collective call throws RuntimeBroken kPeerLost if the group
// broke; errors carry the phase.
class Gates {
 public:
  virtual ~Gates() = default;
  // Not collective: what follows, up to and including the next agreement, belongs to this phase.
  virtual void enter(std::string_view phase, std::int64_t index) = 0;
  // Collective: the gate of the present phase. Throws the first failing rank's error, the same on
  // every rank. `local` is this rank's own failure, if any.
  virtual void agree(const std::optional<ErrorRecord>& local) = 0;
  // Collective: every rank's bytes, not empty, in rank order; to be followed by an agreement on
  // what each rank made of them. A rank with an `error` gives nothing; where a peer gave nothing,
  // `error` becomes kPeerFailed, and the parts must not be looked at.
  virtual std::vector<ByteBuffer> exchange(ByteView own, std::optional<ErrorRecord>& error) = 0;
  // Not collective. A wait on the weight group, or on this rank's own device, begins now: returns
  // its deadline. The agreement after a wait that was given up reckons from it.
  virtual Deadline begin_wait() = 0;
  // What waits on the weight group watch.
  virtual collective::ControlGroup& group() = 0;
};

// Reads, in rank order, what an exchange gathered, if it left no error. Throws what `read` throws;
// an Error that names no rank gets that of the rank whose part was read, so that details may say
// "this rank".
template <typename Read>
void for_each_rank(std::span<const ByteBuffer> parts, Read&& read) {
  for (std::size_t r = 0; r < parts.size(); ++r) {
    try {
      read(ByteView(parts[r]));
    } catch (const Error& error) {
      ErrorRecord record = error.record();
      if (record.rank < 0) record.rank = static_cast<int>(r);
      throw_record(record);
    }
  }
}

// Rank 0's way to the runtime: one update command, in two halves. Throws any Error; where await()
// is not called, because the publication failed meanwhile, the runtime is given up by the caller.
class UpdateSink {
 public:
  virtual ~UpdateSink() = default;
  // Returns once the runtime has been told; it works from then on.
  virtual void send(const wire::EncodedUpdate& update, const wire::HandleMap& handles) = 0;
  // Returns once every worker acknowledged.
  virtual void await() = 0;
  // A gather failed, so the publication will: ends the runtime before the agreement on it, which a
  // silent peer may delay by its whole deadline. Blocks for at most the kill routine; idempotent.
  virtual void give_up(const ErrorRecord& cause) noexcept = 0;
};

struct SenderOptions {
  std::uint64_t bucket_bytes = 0;
  wire::Layout layout = wire::Layout::kCompact;
  bool content_digest = false;
  // As many slots as there are chunks, up to kSlotsMax (kReshardSlotsMax), in rank_major.
  bool overlap = false;
  wire::Route route = wire::Route::kGather;  // the reshard route is rank_major
};

// The updates of a plan, encoded once and resent in every publication.
class UpdatePlan {
 public:
  UpdatePlan(std::span<const wire::TensorRecord> tensors, std::span<const Chunk> chunks);
  const wire::EncodedUpdate& update(std::uint64_t chunk) const { return updates_[chunk]; }

 private:
  std::vector<wire::EncodedUpdate> updates_;
};

class Sender {
 public:
  // `sink` is null on all ranks but 0. Everything outlives the sender. `expected` are the planned
  // tensors that `chunks` and `updates` were made from.
  Sender(device::Device& device, WeightSource& source, Gates& gates, Log& log, UpdateSink* sink,
         std::span<const wire::TensorRecord> expected, std::vector<Chunk> chunks,
         const UpdatePlan* updates, const SenderOptions& options);
  // Leaks the exported buffer if release() was not called: freeing it under an open import is
  // undefined.
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // Collective. Allocates and exports the buffer, and merges the handles of all ranks by device
  // UUID, which must be exactly `device_uuids` in rank order. Throws what the gates throw, and
  // PeerViolation: merge_handles' kMismatch, or kProtocol for malformed handles; agreed on as well.
  // The buffer then stays until release() or the destructor.
  void open(std::span<const std::string> device_uuids);

  // Collective. All chunks. Throws what the gates throw; every rank throws at the same gate.
  void send();

  // Collective. What every rank's source emitted are the expected tensors, all of them, and it is
  // exhausted. Returns the agreed content digest (empty if off). Throws what the gates throw, and
  // PeerViolation kMismatch, subject "manifest", "source" or "digest"; agreed on as well.
  wire::ExpectedDigest verify_source();

  // Frees the buffer, which nobody may still have open; first waits until this rank's own work no
  // longer touches it, and keeps the buffer if the deadline passes or the source throws. Throws no
  // std::exception.
  void release(Deadline deadline);
  // True from the buffer's allocation in open() until release() freed it: as long as it is, a
  // worker may have it open.
  bool holds_buffer() const { return static_cast<bool>(buffer_); }

  // Of the buffer, as the runtime is told.
  std::uint64_t buffer_bytes() const { return buffer_bytes_; }
  std::uint64_t slots() const { return slots_; }

 private:
  std::optional<ErrorRecord> prepare(std::uint64_t chunk, std::uint64_t group);
  void gather(std::uint64_t chunk, std::optional<ErrorRecord>& error);
  void transfer(std::uint64_t chunk);
  // How many chunks the gathers are ahead of the transfers.
  std::uint64_t ahead() const { return slots_ > 1 ? 1 : 0; }
  void check_emitted(const Chunk& chunk);
  wire::ExpectedDigest add_sums(std::span<const ByteBuffer> gathered) const;

  device::Device& device_;
  WeightSource& source_;
  Gates& gates_;
  Log& log_;
  UpdateSink* sink_;
  std::span<const wire::TensorRecord> expected_;
  std::vector<Chunk> chunks_;
  const UpdatePlan* updates_;
  SenderOptions options_;
  std::uint64_t slots_ = 1;
  std::uint64_t buffer_bytes_ = 0;
  device::Region buffer_;
  device::Export export_;
  wire::HandleMap handles_;
  std::unique_ptr<WeightPass> pass_;
  std::uint64_t groups_ = 0;  // of the chunk that was prepared last
};

// Merges one handle per rank by device UUID. `uuids` are the expected ones in rank order,
// gathered[r] what rank r contributed. Throws PeerViolation kMismatch, subject the UUID, rank the
// contributor: missing, foreign or duplicate.
wire::HandleMap merge_handles(std::span<const std::string> uuids,
                              std::vector<wire::HandleMap> gathered);

}  // namespace tpsync::transfer
