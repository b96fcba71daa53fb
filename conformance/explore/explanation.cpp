#include "conformance/explore/explanation.h"

#include <fmt/format.h>

#include "conformance/judge/hang.h"
#include "conformance/judge/judge.h"
#include "conformance/judge/records.h"

namespace tpsync::conformance {

namespace {

// "worker 1 holds <tensor and ranges>", a line each.
std::string wrong_ranges(const sim::Trace& trace) {
  constexpr std::size_t kLinesMax = 5;
  std::string text;
  std::size_t lines = 0;
  for (const sim::Event& event : trace.events) {
    if (event.kind != static_cast<std::uint16_t>(judge::Record::kFound)) continue;
    if (++lines > kLinesMax) break;
    text += fmt::format("worker {} holds {}\n", event.a, trace.texts.at(event.text));
  }
  return text;
}

}  // namespace

std::string explain_run(SimRunner& runner, const WorldSpec& spec, const SimOptions& options,
                        const Run& run, const Script& script) {
  std::string text;
  if (run.end.kind == sim::RunResult::Kind::kHang) text += judge::explain_hang(runner.trace());
  bool bytes = false;
  for (const judge::Verdict& verdict : run.judgement.verdicts) {
    if (verdict.status != judge::Status::kViolation) continue;
    text += fmt::format("{}: {}\n{}", verdict.id, verdict.text,
                        judge::explain(runner.trace(), verdict));
    bytes |= verdict.id == "I2";
  }
  return bytes ? text + wrong_contents(runner, spec, options, script) : text;
}

std::string wrong_contents(SimRunner& runner, const WorldSpec& spec, const SimOptions& options,
                           const Script& script) {
  WorldSpec tracked = spec;
  tracked.phantom = true;
  tracked.sync.content_digest = false;
  static_cast<void>(runner.run(tracked, options, script));
  return wrong_ranges(runner.trace());
}

}  // namespace tpsync::conformance
