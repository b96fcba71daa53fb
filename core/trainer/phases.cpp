// The arithmetic of a training run's order. Pure functions: what has happened is known to the
// caller alone.
#include "tpsync/trainer/phases.h"

#include <string_view>

#include "tpsync/base/errors.h"

namespace tpsync::trainer {
namespace {

void require(bool holds, std::string_view field, std::string_view rule) {
  if (!holds) throw_invalid(ErrorKind::kInvalidConfig, field, rule);
}

std::int64_t first_rollout(const TrainingPlan& plan) { return plan.resumed_from.value_or(0); }

std::optional<Phase> rollout_or_end(const TrainingPlan& plan, std::int64_t rollout) {
  if (rollout >= plan.rollouts) return std::nullopt;
  return Phase{PhaseKind::kRollout, rollout};
}

}  // namespace

void check_plan(const TrainingPlan& plan) {
  require(plan.rollouts >= 0, "rollouts", "must not be negative");
  require(!plan.resumed_from || (*plan.resumed_from >= 0 && *plan.resumed_from <= plan.rollouts),
          "resumed_from", "must be from 0 to rollouts");
  require(plan.weight_sync_interval >= 1, "weight_sync_interval", "must be at least 1");
  require(plan.eval_interval >= 0, "eval_interval", "must not be negative; 0 for no evaluations");
}

std::optional<Phase> first_phase(const TrainingPlan& plan) {
  if (plan.eval_interval > 0) return Phase{PhaseKind::kEvaluation, first_rollout(plan) - 1};
  return rollout_or_end(plan, first_rollout(plan));
}

std::optional<Phase> phase_after(const TrainingPlan& plan, const Phase& phase) {
  const bool evaluates = phase.kind == PhaseKind::kRollout && plan.eval_interval > 0 &&
                         (phase.rollout + 1) % plan.eval_interval == 0;
  if (evaluates) return Phase{PhaseKind::kEvaluation, phase.rollout};
  return rollout_or_end(plan, phase.rollout + 1);
}

bool phase_syncs(const TrainingPlan& plan, const Phase& phase) {
  if (phase.kind == PhaseKind::kEvaluation) return true;
  if (plan.resumed_from == phase.rollout) return true;
  return phase.rollout > 0 && phase.rollout % plan.weight_sync_interval == 0;
}

}  // namespace tpsync::trainer
