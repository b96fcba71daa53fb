// The orders are tables of steps, each with the rule for its failure; one loop runs them. What
// happens while a failure is handled never replaces that failure.
#include "tpsync/trainer/memory_schedule.h"

#include <array>
#include <exception>
#include <utility>

namespace tpsync::trainer {

enum class MemorySchedule::Step : std::uint8_t {
  kOffloadOptimizer,
  kOffloadModel,
  kOffloadAll,
  kWakeWeights,
  kWake,
  kSync,
};

enum class MemorySchedule::AfterFailure : std::uint8_t { kLeave, kSleep, kSleepAndOnload };

namespace {

void check_options(const ScheduleOptions& options, bool has_sync) {
  check_plan(options.plan);
  if (!has_sync || !options.rollout_anchor_device) return;
  constexpr std::string_view kField = "rollout_anchor_device";
  if (*options.rollout_anchor_device == 0) {
    throw_invalid(ErrorKind::kInvalidConfig, kField,
                  "0 puts the rollout onto the device that rank 0 publishes from");
  }
  throw_invalid(ErrorKind::kUnsupported, kField,
                "a weight sync needs the layout of one actor per TP rank, with no anchor device");
}

}  // namespace

std::string_view to_string(ScheduleState state) {
  switch (state) {
    case ScheduleState::kReady:
      return "ready";
    case ScheduleState::kInPhase:
      return "in a phase";
    case ScheduleState::kStopped:
      return "stopped";
  }
  return "unknown state";
}

MemorySchedule::MemorySchedule(Log& log, TrainBackend& backend, const Builders& builders,
                               const ScheduleOptions& options, transfer::Gates* gates)
    : log_(log),
      backend_(backend),
      options_(options),
      gates_(gates),
      offloads_(options.enable_fsdp_offload && builders.sync != nullptr) {
  check_options(options_, builders.sync != nullptr);
  bootstrap(builders);
  next_ = first_phase(options_.plan);
}

void MemorySchedule::bootstrap(const Builders& builders) {
  if (offloads_) {
    try {
      offload("memory-offload", Offload{});
    } catch (const std::exception&) {
      succeeds([this] { onload(); });
      throw;
    }
  }
  agreed("memory-build-rollout", [&] {
    rollout_ = builders.rollout();
    if (!rollout_) throw_invalid(ErrorKind::kInvalidConfig, "rollout", "none was built");
    abilities_ = rollout_->abilities();
  });
  if (!builders.sync) return;
  try {
    build_sync(builders);
  } catch (const std::exception&) {
    if (offloads_ && succeeds([this] { sleep(); })) succeeds([this] { onload(); });
    throw;
  }
  sleep();
  if (offloads_) onload();
}

void MemorySchedule::build_sync(const Builders& builders) {
  agreed("memory-build-sync", [&] {
    sync_ = builders.sync(*rollout_);
    if (!sync_) throw_invalid(ErrorKind::kInvalidConfig, "sync", "none was built");
    streams_ = sync_->uses_gpu_streaming().value();
    if (streams_) check_streaming();
  });
}

void MemorySchedule::check_streaming() const {
  if (!offloads_) {
    throw_invalid(ErrorKind::kInvalidConfig, "enable_fsdp_offload",
                  "must be true for a weight sync that streams: model and optimizer have to leave "
                  "the device around a rollout");
  }
  if (!abilities_.tagged_wake) {
    throw_invalid(ErrorKind::kUnsupported, "wake_up",
                  "the rollout takes no tags, and a weight sync that streams wakes weights alone");
  }
  if (options_.plan.weight_sync_interval > 1 && !abilities_.preserve) {
    throw_invalid(ErrorKind::kUnsupported, "preserve_weights_for_next_sleep",
                  "the rollout has no such call, and with a weight_sync_interval above 1 it would "
                  "wake to weights that its sleep discarded");
  }
}

bool MemorySchedule::syncs(const Phase& phase) const {
  if (!sync_) return false;
  return phase_syncs(options_.plan, phase) || (streams_ && failed_ && phase == next_);
}

bool MemorySchedule::must_preserve() const {
  const std::optional<Phase> following = phase_after(options_.plan, *next_);
  return streams_ && following && !phase_syncs(options_.plan, *following);
}

std::span<const MemorySchedule::PlannedStep> MemorySchedule::order_of(const Phase& phase) const {
  using enum Step;
  using enum AfterFailure;
  static constexpr std::array<PlannedStep, 5> kStreaming{{{kOffloadOptimizer, kSleep},
                                                          {kWakeWeights, kLeave},
                                                          {kSync, kLeave},
                                                          {kOffloadModel, kLeave},
                                                          {kWake, kLeave}}};
  static constexpr std::array<PlannedStep, 4> kStaged{
      {{kWakeWeights, kSleep}, {kSync, kSleep}, {kOffloadAll, kSleepAndOnload}, {kWake, kLeave}}};
  static constexpr std::array<PlannedStep, 3> kPlain{
      {{kWake, kSleep}, {kSync, kSleep}, {kOffloadAll, kSleepAndOnload}}};
  static constexpr std::array<PlannedStep, 2> kPlainResident{{{kWake, kSleep}, {kSync, kSleep}}};
  static constexpr std::array<PlannedStep, 2> kUnsynced{
      {{kOffloadAll, kSleepAndOnload}, {kWake, kLeave}}};
  static constexpr std::array<PlannedStep, 1> kUnsyncedResident{{{kWake, kSleep}}};

  if (!syncs(phase)) {
    if (offloads_) return kUnsynced;
    return kUnsyncedResident;
  }
  if (streams_) return kStreaming;
  if (!offloads_) return kPlainResident;
  if (abilities_.tagged_wake) return kStaged;
  return kPlain;
}

void MemorySchedule::run_phase(const Work& work) {
  constexpr std::string_view kCall = "run_phase";
  if (state_ != ScheduleState::kReady) {
    throw_invalid(ErrorKind::kInvalidState, kCall,
                  "the schedule is " + std::string(to_string(state_)));
  }
  if (!next_) throw_invalid(ErrorKind::kInvalidState, kCall, "no phase is left");
  const bool preserve = must_preserve();
  if (preserve && !abilities_.preserve) {
    throw_invalid(ErrorKind::kUnsupported, "preserve_weights_for_next_sleep",
                  "the rollout has no such call, and the next phase does not publish");
  }
  const std::span<const PlannedStep> order = order_of(*next_);
  state_ = ScheduleState::kInPhase;
  prepare(order);
  run_work(work, preserve);
  try {
    sleep();
    if (offloaded_) onload();
  } catch (const std::exception&) {
    change(ScheduleState::kStopped);
    throw;
  }
  failed_ = false;
  next_ = phase_after(options_.plan, *next_);
  if (state_ == ScheduleState::kInPhase) state_ = ScheduleState::kReady;
}

void MemorySchedule::prepare(std::span<const PlannedStep> order) {
  for (const PlannedStep& planned : order) {
    try {
      run(planned.step);
    } catch (const std::exception&) {
      recover(planned.after_failure);
      throw;
    }
  }
}

void MemorySchedule::run(Step step) {
  switch (step) {
    case Step::kOffloadOptimizer:
      // The gradients were consumed by the optimizer's last step.
      return offload("memory-offload-optimizer",
                     {.model = false, .optimizer = true, .clear_gradients = true});
    case Step::kOffloadModel:
      return offload("memory-offload-model", {.model = true, .optimizer = false});
    case Step::kOffloadAll:
      return offload("memory-offload", Offload{});
    case Step::kWakeWeights:
      return agreed("memory-wake-weights", [this] { rollout_->wake_up({"weights"}); });
    case Step::kWake:
      return agreed("memory-wake", [this] { rollout_->wake_up({}); });
    case Step::kSync:
      return sync_->sync();
  }
}

void MemorySchedule::run_work(const Work& work, bool preserve) {
  try {
    if (preserve) {
      agreed("memory-preserve", [this] { rollout_->preserve_weights_for_next_sleep(); });
    }
    const auto call = [&] {
      work([this](const wire::GenerateRequest& request) { return rollout_->generate(request); });
    };
    // Alone, the caller gets its own exceptions back as they are.
    if (gates_ == nullptr) {
      call();
    } else {
      agreed("memory-work", call);
    }
  } catch (const std::exception&) {
    recover(offloaded_ ? AfterFailure::kSleepAndOnload : AfterFailure::kSleep);
    throw;
  }
}

void MemorySchedule::recover(AfterFailure rule) {
  failed_ = true;
  const bool recovered = rule != AfterFailure::kLeave && succeeds([this] { sleep(); }) &&
                         (rule != AfterFailure::kSleepAndOnload || succeeds([this] { onload(); }));
  change(recovered && !shut_down_ ? ScheduleState::kReady : ScheduleState::kStopped);
}

template <typename Call>
void MemorySchedule::agreed(std::string_view name, Call&& call) {
  std::optional<ErrorRecord> error;
  if (gates_ != nullptr) {
    gates_->enter(name, 0);
    gates_->begin_wait();  // a rank whose step times out still meets the others, who are in theirs
    attempt(error, call);
    gates_->agree(error);
    return;
  }
  log_.record({.level = LogLevel::kDebug, .event = LogEvent::kPhaseEntered, .subject = name});
  attempt(error, call);
  if (!error) return;
  if (error->phase.empty()) error->phase = name;
  throw_record(*error);
}

// Of what is done about a failure: logs its own failure instead of throwing it.
template <typename Call>
bool MemorySchedule::succeeds(Call&& call) {
  try {
    call();
    return true;
  } catch (const std::exception& error) {
    const ErrorRecord record = record_of(error);
    const std::string text = to_text(record);
    log_.record({.level = LogLevel::kError,
                 .event = LogEvent::kPhaseFailed,
                 .subject = record.phase,
                 .text = text});
    return false;
  }
}

void MemorySchedule::offload(std::string_view name, const Offload& what) {
  offloaded_ = true;
  agreed(name, [&] { backend_.offload(what); });
}

void MemorySchedule::sleep() {
  agreed("memory-sleep", [this] { rollout_->sleep(); });
}

void MemorySchedule::onload() {
  agreed("memory-onload", [this] { backend_.onload(); });
  offloaded_ = false;
}

void MemorySchedule::change(ScheduleState state) {
  state_ = state;
  log_.record({.level = LogLevel::kInfo,
               .event = LogEvent::kStateChanged,
               .subject = "memory schedule",
               .text = to_string(state)});
}

void MemorySchedule::shutdown() noexcept {
  if (shut_down_) return;
  shut_down_ = true;
  state_ = ScheduleState::kStopped;
  try {
    rollout_->shutdown();
  } catch (const std::exception& error) {
    log_.record({.level = LogLevel::kError,
                 .event = LogEvent::kPhaseFailed,
                 .subject = "memory-shutdown",
                 .text = to_string(record_of(error).kind)});
  }
}

}  // namespace tpsync::trainer
