// Who holds the devices' memory when: the trainer's model and optimizer, or the rollout. One object
// per actor, over a train backend, a rollout and, unless trainer and rollout share their weights, a
// weight sync.
//
// The constructor is the bootstrap; run_phase then takes one phase after the other. Its orders, and
// in brackets what follows a failure of the step:
//
//   order      streaming                    staged               plain               unsynced
//   chosen if  the phase publishes and      it does not stream,  neither             the phase does
//              the sync streams             offload and tagged                       not publish
//                                           wake are there
//   steps      offload optimizer,           wake weights [sleep] wake        [sleep] offload all*
//                clear gradients [sleep]    sync         [sleep] sync        [sleep]       [onload]
//              wake weights      [leave]    offload all [onload] offload all*        wake [leave]**
//              sync              [leave]    wake         [leave]            [onload]
//              offload model     [leave]
//              wake              [leave]
//   then       preserve, where the rule below asks for it; the phase's work; sleep; onload, if
//              anything was offloaded
//
//   *  only with enable_fsdp_offload and a weight sync
//   ** [sleep] where nothing was offloaded
//
// - [sleep]: the rollout is put to sleep. [onload]: likewise, and then the train state is loaded,
//   but only if the sleep succeeded: both do not fit. [leave]: nothing is called, since the rollout
//   may hold memory that it cannot be made to give back.
// - A failure of the preserve call or of the work is followed by sleep, and then, if anything was
//   offloaded and the sleep succeeded, by onload.
// - The first error is the one that is thrown; what fails while it is handled is logged.
// - Preserve rule: a streaming sync lets later sleeps discard the rollout's weights, so if the next
//   phase does not publish, preserve_weights_for_next_sleep is called just before the work.
// - After a failure that left the schedule ready, the same phase is due again, and publishes if the
//   sync streams: the sleep may have discarded the weights.
//
// Source: UniRL's autoregressive trainer. On purpose otherwise: what would fail at the first
// publication is refused by the constructor, and a schedule whose failure left memory as it was
// refuses to go on.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/base/log.h"
#include "tpsync/trainer/phases.h"
#include "tpsync/transfer/sender.h"
#include "tpsync/wire/messages.h"

namespace tpsync::trainer {

// A bool that nothing else turns into: a number or a pointer in its place does not compile.
class StrictBool {
 public:
  template <std::same_as<bool> T>
  constexpr StrictBool(T value) : value_(value) {}  // implicit: `return true;`
  constexpr bool value() const { return value_; }

 private:
  bool value_;
};

// The defaults are everything but the gradients.
struct Offload {
  bool model = true;
  bool optimizer = true;
  bool clear_gradients = false;
  friend bool operator==(const Offload&, const Offload&) = default;
};

class TrainBackend {
 public:
  virtual ~TrainBackend() = default;
  // In this order: gradients are dropped; the model's shards, then the optimizer's state go to host
  // memory; cached device memory is given back to the driver, whose free figure the preflight of a
  // publication reads. What is not named, or is offloaded already, stays as it is. After a failure
  // it may be called again.
  virtual void offload(const Offload& what) = 0;
  // Brings back all that is offloaded, also after an offload that failed half way.
  virtual void onload() = 0;
};

struct Generated {
  std::vector<wire::GeneratedRow> rows;
  std::int64_t version = 0;  // of the weights that they come from
};

struct RolloutAbilities {
  bool tagged_wake = false;  // wake_up takes tags; else it is only called with none
  bool preserve = false;     // preserve_weights_for_next_sleep may be called
};

// Of rollout/engine.h by rollout/schedule_adapters.h. Calls that the rollout's state makes
// needless (sleep while asleep, wake_up while awake) return at once.
class Rollout {
 public:
  virtual ~Rollout() = default;
  virtual RolloutAbilities abilities() const = 0;
  virtual void sleep() = 0;
  virtual void wake_up(const std::vector<std::string>& tags) = 0;  // none: everything
  // The next sleep keeps the weights, whatever level is set.
  virtual void preserve_weights_for_next_sleep() = 0;
  // nullopt on ranks that hold no runtime.
  virtual std::optional<Generated> generate(const wire::GenerateRequest& request) = 0;
  // Blocks for a bounded time.
  virtual void shutdown() = 0;
};

class WeightSync {
 public:
  virtual ~WeightSync() = default;
  // Whether sync reads the trainer's shards on the device, while the rollout's weights are awake,
  // and later sleeps of the rollout discard its weights. Asked once.
  virtual StrictBool uses_gpu_streaming() = 0;
  // Collective. Publishes the trainer's weights into the rollout. Throws on every rank or on none.
  virtual void sync() = 0;
};

struct Builders {
  std::function<std::unique_ptr<Rollout>()> rollout;
  // Makes the sync for that rollout and sets it up. Empty: there is none, the rollout samples from
  // the trainer's own weights.
  std::function<std::unique_ptr<WeightSync>(Rollout&)> sync;
};

struct ScheduleOptions {
  TrainingPlan plan;
  // Whether train state leaves the device while the rollout works; without a sync it never does.
  bool enable_fsdp_offload = true;
  // The one device that holds the rollout, in layouts that are not one actor per TP rank. Nothing
  // changes without a sync; with one it is refused.
  std::optional<int> rollout_anchor_device;
};

enum class ScheduleState : std::uint8_t {
  // Between phases: rollout asleep and train state on the device, unless the rollout was not used
  // yet and there is no sync, or the last failure was that of an optimizer's offload.
  kReady,
  kInPhase,  // run_phase has not returned
  kStopped,  // shut down, or a failure left memory as it was: refuses further phases
};
std::string_view to_string(ScheduleState state);

class MemorySchedule {
 public:
  using Generate = std::function<std::optional<Generated>(const wire::GenerateRequest&)>;
  // What a phase is for: generates once or, for an evaluation, batch by batch. Not called unless
  // the rollout is awake.
  using Work = std::function<void(const Generate& generate)>;

  // The bootstrap: with a sync and offload enabled, offload all; build the rollout; build the sync;
  // ask it whether it streams; put the rollout to sleep (with a sync only); onload. Log, backend
  // and gates outlive the schedule; it owns what is built and destroys the sync first.
  //
  // `gates` makes the ranks fail together (null: there is one rank, or a controller that drives all
  // of them). Each step but sync, which agrees by itself, then ends with an agreement, so that no
  // rank enters a publication that another one cannot reach. All ranks then run the same phases in
  // the same order, and their work ends within one control timeout: where rank 0 alone generates
  // for longer, the others' work waits for its rows. Ranks whose syncs answer differently stand at
  // different gates, which is a PeerViolation.
  //
  // Throws InvalidInput before anything is called: what check_plan throws; kInvalidConfig, subject
  // rollout_anchor_device, for device 0 with a sync; kUnsupported for another device with one. Once
  // the sync has said that it streams: kInvalidConfig, subject enable_fsdp_offload, without
  // offload; kUnsupported, subject wake_up, without tagged wake; kUnsupported, subject
  // preserve_weights_for_next_sleep, for a weight_sync_interval above 1 and no such call. Throws
  // what a step throws otherwise. If a failure comes
  // - from the offload: onload.
  // - from building the rollout: the train state stays offloaded, since what that start left on the
  //   device is not known.
  // - from building the sync, or as one of the refusals: sleep, and onload only if that worked.
  // - from sleep or onload: nothing more is done.
  // Then what was built is destroyed. Without offload nothing but that is done.
  MemorySchedule(Log& log, TrainBackend& backend, const Builders& builders,
                 const ScheduleOptions& options, transfer::Gates* gates = nullptr);
  MemorySchedule(const MemorySchedule&) = delete;
  MemorySchedule& operator=(const MemorySchedule&) = delete;

  // The phase that run_phase runs next; nullopt once all are done.
  std::optional<Phase> next_phase() const { return next_; }
  bool next_phase_syncs() const { return next_ && syncs(*next_); }

  // Runs the next phase in one of the orders above. Afterwards the rollout is asleep and the train
  // state loaded. Throws
  // - InvalidInput kInvalidState, and calls nothing: no phase is left, the schedule is stopped, or
  //   this is called by a phase's work.
  // - InvalidInput kUnsupported, subject preserve_weights_for_next_sleep, and calls nothing: the
  //   preserve rule asks for a call that the rollout does not have.
  // - what a step throws, as record_of reads it; what the work throws, as it is or, with gates, as
  //   record_of reads it. The phase is then due again, unless the schedule is stopped: by a failure
  //   with [leave], or of sleep or onload. What to do then: end the rollout, load the train state,
  //   and go on with a new schedule.
  void run_phase(const Work& work);

  // Ends the rollout; idempotent. What fails is logged.
  void shutdown() noexcept;

  ScheduleState state() const { return state_; }
  bool streams() const { return streams_; }
  // From the begin of the first offload until everything was loaded again.
  bool train_state_offloaded() const { return offloaded_; }

 private:
  enum class Step : std::uint8_t;
  enum class AfterFailure : std::uint8_t;
  struct PlannedStep {
    Step step;
    AfterFailure after_failure;
  };

  void bootstrap(const Builders& builders);
  void build_sync(const Builders& builders);
  void check_streaming() const;
  bool syncs(const Phase& phase) const;
  bool must_preserve() const;
  std::span<const PlannedStep> order_of(const Phase& phase) const;
  void prepare(std::span<const PlannedStep> order);
  void run(Step step);
  void run_work(const Work& work, bool preserve);

  template <typename Call>
  void agreed(std::string_view name, Call&& call);
  template <typename Call>
  bool succeeds(Call&& call);
  void recover(AfterFailure rule);
  void offload(std::string_view name, const Offload& what);
  void sleep();
  void onload();
  void change(ScheduleState state);

  Log& log_;
  TrainBackend& backend_;
  ScheduleOptions options_;
  transfer::Gates* gates_;
  std::unique_ptr<Rollout> rollout_;
  std::unique_ptr<WeightSync> sync_;
  RolloutAbilities abilities_;
  bool offloads_ = false;  // train state leaves the device around the rollout
  bool streams_ = false;
  bool offloaded_ = false;
  bool failed_ = false;  // the due phase failed before
  bool shut_down_ = false;
  ScheduleState state_ = ScheduleState::kReady;
  std::optional<Phase> next_;
};

}  // namespace tpsync::trainer
