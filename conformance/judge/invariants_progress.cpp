// I10 (progress) and I11 (recovery).
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "conformance/judge/invariants.h"

namespace tpsync::judge {
namespace {

bool injected_by_scenario(const View& view, const SyncRound& round) {
  return std::any_of(round.calls.begin(), round.calls.end(), [&](std::uint32_t c) {
    const CallView& call = view.calls()[c];
    return call.end != kNoEvent && !call.ok && view.error(call).injected();
  });
}

bool is_misuse(const View& view, const SyncRound& round) {
  return std::all_of(round.calls.begin(), round.calls.end(),
                     [&](std::uint32_t c) { return refused_as_misuse(view, view.calls()[c]); });
}

// The round in which the fault struck: of an actor its own sync, of the runtime or a worker rank
// 0's; nullptr if it struck outside of any.
const SyncRound* struck_round(const View& view, std::uint32_t fault) {
  const std::uint32_t process = view.event(fault).process;
  const ProcessView* struck = view.process(process);
  const bool actor = struck != nullptr && struck->role == Role::kActor;
  for (const SyncRound& round : view.rounds()) {
    for (const std::uint32_t c : round.calls) {
      const CallView& call = view.calls()[c];
      if (actor ? call.process != process : call.rank != 0) continue;
      if (call.begin < fault && (call.end == kNoEvent || call.end > fault)) return &round;
    }
  }
  return nullptr;
}

// A fault that demands a failure must not have been passed over.
std::optional<Verdict> check_demanded_failure(const Context& context, std::uint32_t fault) {
  const View& view = context.view;
  const SyncRound* round = struck_round(view, fault);
  if (round == nullptr) return std::nullopt;
  for (const std::uint32_t c : round->calls) {
    const CallView& call = view.calls()[c];
    if (call.end == kNoEvent || !call.ok) continue;
    return violation(
        "I10", call.end,
        fmt::format("{} returned version {} although {} demands a failure", View::name_of(call),
                    call.value, view.text(view.event(fault).text)));
  }
  return std::nullopt;
}

std::string why_not_committed(const Context& context, const SyncRound& round) {
  const View& view = context.view;
  for (const std::uint32_t c : round.calls) {
    const CallView& call = view.calls()[c];
    if (call.end == kNoEvent) return View::name_of(call) + " never returned";
    if (call.ok) continue;
    const ErrorView error = view.error(call);
    return fmt::format("{} failed with {} in {}: {}: {}", View::name_of(call), error.kind,
                       error.phase, error.subject, error.detail);
  }
  return "not every actor took part";
}

std::optional<Verdict> check_committed(const Context& context, const SyncRound& round,
                                       std::int64_t& last) {
  const View& view = context.view;
  const std::uint32_t event = round.end;
  if (!all_committed(context, round)) {
    return violation("I10", event,
                     "no fault that may stop a publication took effect, but " +
                         why_not_committed(context, round));
  }
  const std::int64_t version = view.calls()[round.calls.front()].value;
  if (version != last + 1) {
    return violation("I10", event,
                     fmt::format("version {} follows {}: it is not the next one", version, last));
  }
  last = version;
  return std::nullopt;
}

bool is_part_of_publication(Call call) {
  switch (call) {
    case Call::kSync:
    case Call::kInit:
    case Call::kStart:
    case Call::kUpdate:
    case Call::kFinish:
    case Call::kRelease:
      return true;
    default:
      return false;
  }
}

// What is known of an engine, by the calls on it that succeeded.
struct EngineState {
  bool broken = false;          // a failure that stands against every later call
  bool driven_by_hand = false;  // by single commands: a publication may be pending
  bool awake = true;
  bool has_weights = true;  // of a version: not since a sleep, until a sync
};

// An engine refuses without sending anything what its state forbids. Health, sleep, wake and
// shutdown are forbidden by a pending publication alone.
bool may_refuse(const EngineState& engine, Call call) {
  if (engine.driven_by_hand) return true;
  return call == Call::kGenerate && !(engine.awake && engine.has_weights);
}

void note_success(EngineState& engine, Call call) {
  if (call == Call::kSleep) engine.awake = engine.has_weights = false;
  if (call == Call::kWakeAll) engine.awake = true;
  if (call == Call::kSync) engine.has_weights = true;
}

// Other calls than publications (and their single commands, which scripts also give in wrong
// orders) work where nothing stands against them: no state, and no failure before that broke the
// engine.
std::optional<Verdict> check_calls(const View& view) {
  std::map<std::uint32_t, EngineState> engines;
  for (const CallView& call : view.calls()) {
    if (call.end == kNoEvent) continue;
    EngineState& engine = engines[call.engine];
    engine.driven_by_hand |= is_part_of_publication(call.call) && call.call != Call::kSync;
    if (call.ok) {
      note_success(engine, call.call);
      continue;
    }
    const ErrorView error = view.error(call);
    if (is_part_of_publication(call.call) || error.injected()) {
      engine.broken |= error.breaks();
      continue;
    }
    const bool refused = error.kind == "invalid_state" && error.remedy == ErrorRemedy::kTryLater;
    if (engine.broken || (refused && may_refuse(engine, call.call))) continue;
    if (call.call == Call::kSetup && refused_as_misuse(view, call)) continue;
    return violation(
        "I10", call.end,
        fmt::format("no fault that may stop it took effect, but {} failed with {}: {}: {}",
                    View::name_of(call), error.kind, error.subject, error.detail));
  }
  return std::nullopt;
}

}  // namespace

// Evidence: the syncs' results, and the faults that took effect with what each demands of its
// publication. Inconclusive: faults were planned and none took effect, or one that did is not
// listed in the parameters.
Verdict judge_progress(const Context& context) {
  const View& view = context.view;
  const auto& faults = view.lists().faults;
  if (context.facts.expects_failure) {
    return not_applicable("I10", "the world is made so that a publication fails");
  }
  bool unlisted = false;
  bool must_survive = true;
  for (const std::uint32_t i : faults) {
    const PlannedFault* fault = planned(context, i);
    if (fault == nullptr) {
      unlisted = true;
    } else if (fault->demand == FaultDemand::kFail) {
      if (auto verdict = check_demanded_failure(context, i)) return *verdict;
    }
    must_survive &= fault != nullptr && fault->demand == FaultDemand::kSurvive;
  }
  bool injected = false;
  if (must_survive) {
    if (auto verdict = check_calls(view)) return *verdict;
    std::int64_t last = context.facts.base_version;
    for (const SyncRound& round : view.rounds()) {
      if (is_misuse(view, round)) continue;
      if (injected_by_scenario(view, round)) {
        injected = true;
      } else if (auto verdict = check_committed(context, round, last)) {
        return *verdict;
      }
    }
  }
  if (view.rounds().empty()) return not_applicable("I10", "no sync was made");
  if (unlisted) return inconclusive("I10", "the parameters do not list a fault that took effect");
  if (faults.empty() && !context.facts.faults.empty()) {
    return inconclusive("I10", "faults were planned, none took effect");
  }
  if (injected) return not_applicable("I10", "the scenario itself injected the failure");
  return must_survive || !faults.empty() ? pass("I10") : not_applicable("I10", "no demand");
}

// Evidence: after the last failure that came at or after a fault, a round that all actors committed
// with a version above every returned one. Inconclusive: no such round was tried, and the harness
// does not say that another world recovers.
Verdict judge_recovery(const Context& context) {
  const View& view = context.view;
  const auto& faults = view.lists().faults;
  std::uint32_t first_fault = faults.empty() ? kNoEvent : faults.front();
  for (const SyncRound& round : view.rounds()) {
    if (injected_by_scenario(view, round)) first_fault = std::min(first_fault, round.begin);
  }
  if (first_fault == kNoEvent) return not_applicable("I11", "no fault took effect");
  std::uint32_t failed = kNoEvent;
  std::uint32_t failed_sync = kNoEvent;
  // Actors fail and begin anew each at their own time, so what is later is asked per process.
  std::map<std::uint32_t, std::uint32_t> failed_in;
  for (const CallView& call : view.calls()) {
    if (call.end == kNoEvent || call.ok || call.end < first_fault) continue;
    const bool sync = call.call == Call::kSync && !refused_as_misuse(view, call);
    if (!sync && !view.error(call).breaks()) continue;
    failed = failed == kNoEvent ? call.end : std::max(failed, call.end);
    failed_in[call.process] = std::max(failed_in[call.process], call.end);
    if (sync) failed_sync = call.end;
  }
  bool actor_lost = false;
  for (const ProcessView& process : view.processes()) {
    // Only an exit is a good end for an actor.
    actor_lost |= process.role == Role::kActor && !process.exited;
  }
  if (failed == kNoEvent && !actor_lost) return pass("I11");

  std::int64_t highest = context.facts.base_version;
  const SyncRound* tried = nullptr;
  for (const SyncRound& round : view.rounds()) {
    const bool later = std::all_of(round.calls.begin(), round.calls.end(), [&](std::uint32_t c) {
      const CallView& call = view.calls()[c];
      const auto at = failed_in.find(call.process);
      return at == failed_in.end() || call.begin > at->second;
    });
    if (failed != kNoEvent && later && !is_misuse(view, round)) {
      tried = &round;
      if (all_committed(context, round)) {
        const std::int64_t version = view.calls()[round.calls.front()].value;
        if (version > highest) return pass("I11");
        return violation("I11", round.end,
                         fmt::format("the recovery published version {}, an actor returned {} "
                                     "before",
                                     version, highest));
      }
    }
    for (const std::uint32_t c : round.calls) {
      const CallView& call = view.calls()[c];
      if (call.end != kNoEvent && call.ok) highest = std::max(highest, call.value);
    }
  }
  if (context.facts.recovers_elsewhere) return not_applicable("I11", "another world recovers");
  if (tried != nullptr) {
    return violation("I11", tried->end,
                     "the recovery did not commit: " + why_not_committed(context, *tried));
  }
  if (failed_sync == kNoEvent && !actor_lost) {
    return inconclusive("I11", "the runtime broke, and no recovery was tried");
  }
  return inconclusive("I11",
                      "a publication failed, and neither this world nor another is known to "
                      "have recovered");
}

}  // namespace tpsync::judge
