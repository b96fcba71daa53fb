// Publishes a trainer's weights into a tensor-parallel runtime on the same devices: one object per
// actor, the same calls on every actor in the same order.
//
// Life: construct, setup, sync any number of times, cleanup. A failure before the runtime is
// touched (up to the publication id) leaves the runtime as usable as it was, and sync may be called
// again. Any later failure poisons: the runtime is destroyed, this object refuses further syncs,
// and a new runtime with a new object takes over, given the last committed version. Nothing is ever
// retried on another path.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tpsync/base/world.h"
#include "tpsync/collective/control_group.h"
#include "tpsync/device/handles.h"
#include "tpsync/model/plan.h"
#include "tpsync/sync/consensus.h"
#include "tpsync/sync/options.h"
#include "tpsync/sync/publication_state.h"
#include "tpsync/sync/publication_target.h"
#include "tpsync/transfer/sender.h"
#include "tpsync/transfer/weight_source.h"

namespace tpsync::sync {

struct PublicationResult {
  std::string publication_id;
  std::int64_t model_version = 0;
  bool prefix_cache_reset = false;
  std::vector<wire::WorkerReceipt> receipts;
};

class IpcWeightSync {
 public:
  // `group` is owned: cleanup leaves it. Everything else outlives this object. `target` is used on
  // rank 0 alone. Throws InvalidInput: bad options; on rank 0 also a control timeout that does not
  // exceed the target's update timeout by more than kKillAllowance.
  IpcWeightSync(World world, std::unique_ptr<collective::ControlGroup> group,
                device::Device& device, transfer::WeightSource& source, PublicationTarget& target,
                model::ModelConfig config, SyncOptions options);
  ~IpcWeightSync();
  IpcWeightSync(const IpcWeightSync&) = delete;
  IpcWeightSync& operator=(const IpcWeightSync&) = delete;

  // Collective, once. Later sleeps of the runtime discard weights, except the next one; the next
  // version is above the runtime's and every actor's options.last_committed_version. Throws
  // InvalidInput kInvalidState, without calling anything, once it has succeeded or after cleanup;
  // on every actor what `target` throws on rank 0, PeerViolation kMismatch if no version is left
  // above the runtime's, or kProtocol if a rank sent no version; RuntimeBroken kPeerLost if the
  // group broke. Nothing is set up then, the sleep level apart, and setup may be called again while
  // the group is whole.
  void setup();

  // Collective. Publishes the next version. Blocks for as long as the transfer takes, each wait
  // bounded by the control timeout. Throws the same record on every actor while the control group
  // is whole:
  // - InvalidInput, NothingHappened: the runtime was not touched.
  // - RuntimeBroken: it was, and is gone; kPeerLost if the control group broke, also before that;
  //   kOutcomeUnknown if it broke in the very last agreement, so that other actors may have
  //   returned the version.
  // - InvalidInput kInvalidState before setup, after cleanup, after a poisoned or broken sync, and
  //   once version 2^63 - 1 was published: nothing was called.
  // What the source, the target or the device throws is reported as such; an exception that is no
  // tpsync::Error as kInternal, or kOutOfMemory for a failed allocation.
  PublicationResult sync();

  // Not collective; idempotent; never throws. Leaves the control group. A later sync is refused.
  void cleanup() noexcept;
  // The same under the name that it has in UniRL.
  void shutdown() noexcept { cleanup(); }

  PublicationState state() const { return state_; }
  std::int64_t next_version() const { return next_version_; }

 private:
  struct Plan;  // what depends on the model and the options alone; made once

  const Plan& plan();
  void check_source();
  void check_schema();
  wire::TopologyReport describe_target();
  wire::TopologyReport discover_topology();
  void preflight(const wire::TopologyReport& topology);
  void probe_ipc(const wire::TopologyReport& topology);
  wire::StartRequest prepare_publication(const wire::TopologyReport& topology);
  void plan_chunks();
  PublicationResult publish();
  wire::ExpectedDigest transfer_weights(const wire::PublicationHeader& header);
  void release();
  PublicationResult finish(const wire::PublicationHeader& header,
                           const wire::ExpectedDigest& digest);
  template <typename Call>
  void rank_zero_step(std::string_view phase, Call&& call);
  [[noreturn]] void fail(const ErrorRecord& record);
  // When a worker that still lives is not going to die any more.
  Deadline worker_deadline();
  bool workers_gone(Deadline deadline);
  void apply(PublicationEvent event);

  World world_;
  std::unique_ptr<collective::ControlGroup> group_;
  device::Device& device_;
  transfer::WeightSource& source_;
  PublicationTarget& target_;
  model::ModelConfig config_;
  SyncOptions options_;
  Consensus consensus_;
  int rank_ = 0;
  bool is_set_up_ = false;
  bool is_cleaned_up_ = false;
  bool broken_ = false;  // poisoned, or the control group broke
  bool last_agreement_ = false;
  PublicationState state_ = PublicationState::kIdle;
  std::int64_t next_version_ = 1;  // the same on every rank
  bool version_left_ = true;       // false once the highest version was published
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<transfer::UpdateSink> updates_to_target_;  // rank 0 only
  std::vector<std::unique_ptr<Process>> workers_;
  std::unique_ptr<transfer::Sender> sender_;
};

}  // namespace tpsync::sync
