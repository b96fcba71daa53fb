#include "conformance/judge/judge.h"

#include <algorithm>

#include "conformance/judge/facts.h"
#include "conformance/judge/invariants.h"
#include "conformance/judge/situations.h"
#include "conformance/judge/slicer.h"
#include "conformance/judge/view.h"

namespace tpsync::judge {

std::string_view to_string(Status status) {
  switch (status) {
    case Status::kPass:
      return "pass";
    case Status::kViolation:
      return "violation";
    case Status::kInconclusive:
      return "inconclusive";
    case Status::kNotApplicable:
      return "not applicable";
  }
  return "unknown";
}

Status Judgement::worst() const {
  Status worst = Status::kPass;
  for (const Verdict& verdict : verdicts) {
    if (verdict.status == Status::kViolation) return Status::kViolation;
    if (verdict.status == Status::kInconclusive) worst = Status::kInconclusive;
  }
  return worst;
}

bool Judgement::ok() const { return worst() == Status::kPass; }

const Verdict* Judgement::find(std::string_view id) const {
  const auto found = std::find_if(verdicts.begin(), verdicts.end(),
                                  [&](const Verdict& verdict) { return verdict.id == id; });
  return found == verdicts.end() ? nullptr : &*found;
}

std::string Judgement::text() const {
  std::string text;
  for (const Verdict& verdict : verdicts) {
    if (verdict.status == Status::kPass || verdict.status == Status::kNotApplicable) continue;
    text += verdict.id + " " + std::string(to_string(verdict.status)) + ": " + verdict.text + "\n";
  }
  return text;
}

struct Judge::State {
  std::string parameters;
  Facts facts;
  ExpectedLanes lanes;
  View view;
  SituationReader situations;
};

Judge::Judge() : state_(std::make_unique<State>()) {}
Judge::~Judge() = default;
Judge::Judge(Judge&&) noexcept = default;
Judge& Judge::operator=(Judge&&) noexcept = default;

Judgement Judge::judge(const sim::Trace& trace) {
  if (trace.parameters != state_->parameters || state_->parameters.empty()) {
    state_->parameters = trace.parameters;
    state_->facts = parse_facts(trace.parameters);
    state_->lanes.set_world(state_->facts);
  }
  state_->view.read(trace);
  const Context context{state_->facts, state_->view, state_->lanes};
  Judgement judgement;
  judgement.verdicts.reserve(14);
  for (auto judge :
       {judge_fail_stop, judge_no_torn_version, judge_agreement, judge_no_hang, judge_prompt,
        judge_lockstep, judge_release, judge_monotonic, judge_no_fallback, judge_diagnosable,
        judge_progress, judge_recovery, judge_world, judge_evidence}) {
    judgement.verdicts.push_back(judge(context));
  }
  judgement.situations = state_->situations.read(state_->view);
  return judgement;
}

}  // namespace tpsync::judge
