// A rollout engine and a native weight sync as the trainer's memory schedule sees them
// (trainer/memory_schedule.h). They add nothing: what the engine and the sync throw passes through.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tpsync/rollout/engine.h"
#include "tpsync/sync/ipc_weight_sync.h"
#include "tpsync/trainer/memory_schedule.h"

namespace tpsync::rollout {

// The engine outlives it.
class ScheduledRollout final : public trainer::Rollout {
 public:
  explicit ScheduledRollout(RolloutEngine& engine) : engine_(engine) {}

  trainer::RolloutAbilities abilities() const override {
    return {.tagged_wake = true, .preserve = true};
  }
  void sleep() override { engine_.sleep(); }
  void wake_up(const std::vector<std::string>& tags) override { engine_.wake_up(tags); }
  void preserve_weights_for_next_sleep() override { engine_.preserve_weights_for_next_sleep(); }
  std::optional<trainer::Generated> generate(const wire::GenerateRequest& request) override {
    std::optional<Generation> generation = engine_.generate(request);
    if (!generation) return std::nullopt;
    return trainer::Generated{std::move(generation->rows), generation->version};
  }
  void shutdown() override { engine_.shutdown(); }

 private:
  RolloutEngine& engine_;
};

// The sync outlives it and was set up: from then on, sleeps of the engine but the next one discard
// its weights, as the bootstrap expects.
class ScheduledWeightSync final : public trainer::WeightSync {
 public:
  explicit ScheduledWeightSync(sync::IpcWeightSync& sync) : sync_(sync) {}

  // Every gather reads the trainer's shards on the device.
  trainer::StrictBool uses_gpu_streaming() override { return true; }
  void sync() override { sync_.sync(); }

 private:
  sync::IpcWeightSync& sync_;
};

}  // namespace tpsync::rollout
