// The order of a training run: rollouts, the evaluations between them, and which of them publish
// fresh weights first.
//
// Rules: rollout i publishes if i > 0 and i is a multiple of the interval, or if it is the first
// one after a resume; an evaluation always does. With evaluations, one comes before the first
// rollout and one after each rollout whose number, counted from 1, is a multiple of their interval.
// All of it assumes that there is a weight sync; without one nothing publishes.
#pragma once

#include <cstdint>
#include <optional>

namespace tpsync::trainer {

struct TrainingPlan {
  std::int64_t rollouts = 0;                 // in total, those before a resume included
  std::optional<std::int64_t> resumed_from;  // the first rollout, if a checkpoint was loaded
  std::int64_t weight_sync_interval = 1;     // in rollouts
  std::int64_t eval_interval = 0;            // in rollouts; 0: no evaluations
};

enum class PhaseKind : std::uint8_t { kRollout, kEvaluation };

struct Phase {
  PhaseKind kind = PhaseKind::kRollout;
  // Of the rollout; of the rollout before the evaluation, one less than the first one if there is
  // none.
  std::int64_t rollout = 0;
  friend bool operator==(const Phase&, const Phase&) = default;
};

// Throws InvalidInput kInvalidConfig, subject the field, in order: rollouts >= 0; resumed_from from
// 0 to rollouts; weight_sync_interval >= 1; eval_interval >= 0.
void check_plan(const TrainingPlan& plan);

// For plans that pass the check. nullopt: nothing is left to do.
std::optional<Phase> first_phase(const TrainingPlan& plan);
std::optional<Phase> phase_after(const TrainingPlan& plan, const Phase& phase);
bool phase_syncs(const TrainingPlan& plan, const Phase& phase);

}  // namespace tpsync::trainer
