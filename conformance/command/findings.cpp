#include "conformance/command/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "conformance/command/replay_file.h"
#include "conformance/command/situation_text.h"
#include "conformance/command/usage.h"
#include "conformance/explore/explanation.h"
#include "conformance/explore/shrinker.h"
#include "conformance/scenarios/scripts.h"
#include "sim/trace_file.h"

namespace tpsync::conformance {

namespace {

constexpr std::size_t kColumnMin = 11;  // holds the longest name of a schedule, and counts

const std::vector<std::string>& columns() {
  static const std::vector<std::string> kColumns = {
      "schedule", "operations", "faults",     "pairs",       "runs",
      "equal",    "repeated",   "violations", "ineffective", "seconds"};
  return kColumns;
}

std::vector<std::size_t> widths() {
  std::vector<std::size_t> result;
  for (const std::string& name : columns()) result.push_back(std::max(name.size(), kColumnMin));
  return result;
}

Replay replay_of(const WorldSpec& spec, const SimOptions& options, const std::string& hash) {
  Replay replay;
  replay.spec = spec;
  replay.options = options;
  replay.trace_hash = hash;
  return replay;
}

bool ends_process(const Finding& finding) { return finding.hash.empty(); }

bool is_symptom(const std::string& id) {
  static const std::set<std::string> kOthers = {"inconclusive", "demand", "no effect", "recovery",
                                                "determinism"};
  return !kOthers.contains(id);
}

void write_run(SimRunner& runner, const Finding& finding, OutFolder& folder,
               const std::string& name) {
  if (!ends_process(finding)) {
    static_cast<void>(runner.run(finding.spec, finding.options, publish_and_recover()));
    folder.write(name + ".trace.ndjson", sim::write_trace(runner.trace()));
  }
  folder.write(name + ".replay.json",
               to_json(replay_of(finding.spec, finding.options, finding.hash)));
}

void tell_reduced(SimRunner& runner, const Finding& finding, std::uint64_t runs, OutFolder& folder,
                  const std::string& name) {
  ShrinkOptions options;
  options.runs_max = runs;
  options.id = finding.id;
  options.isolated = ends_process(finding);
  const Shrunk shrunk = shrink(runner, finding.spec, finding.options, options);
  if (shrunk.id.empty()) {
    say(fmt::format("{}: fails no more when it is run by itself", finding.id));
    return;
  }
  say(fmt::format("{}: reduced to {} in {} runs{}", shrunk.id, shrunk.summary(), shrunk.runs,
                  shrunk.finished ? "" : " (and no further within --shrink-runs)"));
  for (const faults::Fault& fault : shrunk.options.plan.faults) say("  " + to_text(fault));
  folder.write(name + ".min.replay.json",
               to_json(replay_of(shrunk.spec, shrunk.options, shrunk.hash)));
  if (options.isolated) return;
  const Run run = runner.run(shrunk.spec, shrunk.options, publish_and_recover());
  say(explain_run(runner, shrunk.spec, shrunk.options, run, publish_and_recover()));
}

}  // namespace

std::string report_head() { return table_row(columns(), widths()); }

std::string report_row(const ExploreReport& report) {
  return table_row(
      {report.schedule, std::to_string(report.operations), std::to_string(report.kinds),
       std::to_string(report.pairs), std::to_string(report.runs), std::to_string(report.equal),
       std::to_string(report.repeated), std::to_string(report.violations),
       std::to_string(report.ineffective), fmt::format("{:.1f}", report.seconds)},
      widths());
}

std::string coverage_text(const Coverage& coverage) {
  std::vector<std::string> reasons;
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> head = {"rank role", "phase"};
  for (const faults::FaultKind& kind : faults::catalogue()) head.emplace_back(kind.name);
  rows.push_back(head);
  for (const auto& [row, cells] : coverage.rows()) {
    std::vector<std::string> line = {row.first, row.second};
    for (const faults::FaultKind& kind : faults::catalogue()) {
      std::string text = coverage.text(row, kind);
      if (text.starts_with("not applicable")) {
        // The moments are in the fault's own page.
        text = text.substr(0, text.find(" ("));
        const auto found = std::find(reasons.begin(), reasons.end(), text);
        const auto letter = static_cast<std::size_t>(found - reasons.begin());
        if (found == reasons.end()) reasons.push_back(text);
        text = std::string(1, static_cast<char>('a' + letter));
      }
      line.push_back(text);
    }
    rows.push_back(line);
  }
  std::string text = table(rows);
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    text += fmt::format("{}: {}\n", static_cast<char>('a' + i), reasons[i]);
  }
  return text + fmt::format("{} of {} applicable cells have a run\n", coverage.covered(),
                            coverage.applicable());
}

void tell_findings(const ExploreResult& result, const FindingFiles& options, OutFolder& folder) {
  SimRunner runner;
  std::set<std::string> reduced;
  for (const ExploreReport& report : result.reports) {
    for (std::size_t i = 0; i < report.findings.size(); ++i) {
      const Finding& finding = report.findings[i];
      const std::string name = fmt::format("{}-{}", report.schedule, i);
      say(fmt::format("{}: {}: {}", report.schedule, finding.id, finding.what));
      write_run(runner, finding, folder, name);
      if (options.shrink_runs == 0 || !is_symptom(finding.id)) continue;
      if (!reduced.insert(finding.id).second) continue;
      tell_reduced(runner, finding, options.shrink_runs, folder, name);
    }
    for (const auto& [id, count] : report.findings_by_id) {
      say(fmt::format("{}: {} findings of {}", report.schedule, count, id));
    }
    if (options.fault_free && !report.fault_free.hash.empty()) {
      write_run(runner, report.fault_free, folder, report.schedule + "-fault-free");
    }
  }
  for (const std::string& file : folder.files()) say("wrote " + file);
}

std::string situations_report(const ExploreResult& result) {
  judge::SituationCount count;
  for (const ExploreReport& report : result.reports) count.merge(report.situations);
  return situations_text(count) +
         "\nsearch further: tpsync explore --world sim --faults random --swarm --draw-worlds "
         "--first 1000000 --seeds 100000";
}

int exit_code_of(const ExploreResult& result, bool sampled) {
  std::uint64_t violations = 0;
  std::uint64_t harness = 0;
  std::uint64_t ineffective = 0;
  bool complete = true;
  for (const ExploreReport& report : result.reports) {
    violations += report.violations;
    harness += report.harness_errors + report.diverged;
    ineffective += report.ineffective;
    complete &= report.complete;
  }
  if (harness > 0) return kExitHarness;
  if (violations > 0) return kExitFailed;
  return sampled || (ineffective == 0 && complete) ? kExitPassed : kExitInconclusive;
}

}  // namespace tpsync::conformance
