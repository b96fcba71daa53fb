#include "conformance/explore/symptoms.h"

#include <algorithm>

namespace tpsync::conformance {

std::vector<Symptom> symptoms_of(const Run& run) {
  std::vector<Symptom> symptoms;
  using Kind = sim::RunResult::Kind;
  const auto add_end = [&](std::string_view id) {
    symptoms.push_back({std::string(id), "the world did not end by itself: " + run.end.detail});
  };
  switch (run.end.kind) {
    case Kind::kFinished:
      break;
    case Kind::kHang:
      add_end(kHangSymptom);
      break;
    case Kind::kCrash:
      add_end(kCrashSymptom);
      break;
    case Kind::kHarnessError:
      add_end(kHarnessSymptom);
      break;
    case Kind::kReplayMismatch:
      add_end(kReplaySymptom);
      break;
  }
  for (const judge::Verdict& verdict : run.judgement.verdicts) {
    if (verdict.status == judge::Status::kViolation) symptoms.push_back({verdict.id, verdict.text});
  }
  return symptoms;
}

bool has_symptom(const std::vector<Symptom>& symptoms, std::string_view id) {
  return std::any_of(symptoms.begin(), symptoms.end(),
                     [&](const Symptom& symptom) { return symptom.id == id; });
}

}  // namespace tpsync::conformance
