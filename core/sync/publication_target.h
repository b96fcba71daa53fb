// What a publication needs of the rollout engine: implemented by rollout/engine.h. Only rank 0
// calls it; the engines of other ranks hold no runtime.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tpsync/base/clock.h"
#include "tpsync/wire/messages.h"

namespace tpsync::sync {

// A runtime or checkpoint with a higher version leaves none to publish.
inline constexpr std::int64_t kCommittedVersionMax = INT64_MAX - 1;

struct TargetTopology {
  std::int64_t tp_size = 0;
  std::vector<std::string> device_uuids;  // by TP rank
  std::vector<std::int64_t> worker_pids;  // by TP rank
  std::int64_t committed_version = 0;
  std::vector<wire::Layout> layouts;  // chunk layouts that the runtime takes; not empty
  std::vector<wire::Route> routes = {wire::Route::kGather};  // that it takes
  bool weights_awake = false;
};

struct SleepPolicy {
  int level = 1;               // of later sleeps: 1 keeps the weights, 2 discards them
  bool preserve_next = false;  // the next sleep keeps them all the same
};

class PublicationTarget {
 public:
  virtual ~PublicationTarget() = default;

  // Throws RuntimeBroken kInvalidState if the runtime is broken or gone.
  virtual TargetTopology topology() = 0;
  // Of the five native commands.
  virtual Duration weight_update_timeout() const = 0;

  // Throws InvalidInput kInvalidConfig for another level than 1 and 2; then nothing is changed.
  virtual void set_weight_sync_sleep_level(const SleepPolicy& policy) = 0;

  // Each worker opens the probe exports that the request gives it to read, and closes them again.
  // Has no effect in the runtime: NothingHappened kRemote or kIpc leaves it usable.
  virtual void probe_ipc(const wire::ProbeIpcRequest& request) = 0;

  // The native commands, in this order. Each blocks until the reply or its deadline. After any
  // failure but a local refusal (NothingHappened kInvalidState: nothing was sent) the runtime is
  // gone before the call returns.
  virtual void init_publication() = 0;
  virtual void start_publication(const wire::StartRequest& request) = 0;
  // An update in two halves, so that the caller can work while the runtime does: nothing else but
  // poison is called between them. The timeout runs from the first half on.
  virtual void send_update(const wire::EncodedUpdate& update, const wire::HandleMap& handles) = 0;
  virtual void await_update() = 0;
  virtual wire::CommitResult finish_publication(const wire::FinishRequest& request) = 0;
  virtual void release_publication() = 0;

  void update_publication(const wire::EncodedUpdate& update, const wire::HandleMap& handles) {
    send_update(update, handles);
    await_update();
  }

  // Destroys the runtime, in the middle of an update too; idempotent, blocks for at most the kill
  // routine.
  virtual void poison(std::string_view reason) noexcept = 0;
};

}  // namespace tpsync::sync
