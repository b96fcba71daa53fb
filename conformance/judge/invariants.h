// One function per invariant. Each states in its head what is evidence, and what lacking evidence
// makes its verdict inconclusive.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "conformance/judge/facts.h"
#include "conformance/judge/judge.h"
#include "conformance/judge/slicer.h"
#include "conformance/judge/view.h"

namespace tpsync::judge {

struct Context {
  const Facts& facts;
  const View& view;
  ExpectedLanes& lanes;
};

inline Verdict pass(std::string_view id) { return {std::string(id), Status::kPass, {}, kNoEvent}; }
inline Verdict violation(std::string_view id, std::uint32_t event, std::string text) {
  return {std::string(id), Status::kViolation, std::move(text), event};
}
inline Verdict inconclusive(std::string_view id, std::string text) {
  return {std::string(id), Status::kInconclusive, std::move(text), kNoEvent};
}
inline Verdict not_applicable(std::string_view id, std::string text) {
  return {std::string(id), Status::kNotApplicable, std::move(text), kNoEvent};
}

Verdict judge_fail_stop(const Context& context);        // I1
Verdict judge_no_torn_version(const Context& context);  // I2
Verdict judge_agreement(const Context& context);        // I3
Verdict judge_no_hang(const Context& context);          // I4
Verdict judge_prompt(const Context& context);           // I4b
Verdict judge_lockstep(const Context& context);         // I5
Verdict judge_release(const Context& context);          // I6
Verdict judge_monotonic(const Context& context);        // I7
Verdict judge_no_fallback(const Context& context);      // I8
Verdict judge_diagnosable(const Context& context);      // I9
Verdict judge_progress(const Context& context);         // I10
Verdict judge_recovery(const Context& context);         // I11
Verdict judge_world(const Context& context);            // world
Verdict judge_evidence(const Context& context);         // evidence

// ---- what several of them ask ----

// The call (a sync or a setup) was refused as a wrong one before anything collective: out of order,
// after cleanup, or after a failure.
bool refused_as_misuse(const View& view, const CallView& call);

// Of a round: true if every actor of the world is there and returned success.
bool all_committed(const Context& context, const SyncRound& round);

// The plan's entry of a kFault record; nullptr if the parameters do not list it.
const PlannedFault* planned(const Context& context, std::uint32_t fault_event);

// Some actor died or was stopped, or the control group broke, at or before `event`.
bool group_broke(const View& view, std::uint32_t event);

}  // namespace tpsync::judge
