// tpsync judge and replay: a recorded trace judged again, a recorded run done again.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "conformance/command/commands.h"
#include "conformance/command/output.h"
#include "conformance/command/replay_file.h"
#include "conformance/command/usage.h"
#include "conformance/explore/explanation.h"
#include "conformance/judge/hang.h"
#include "conformance/judge/judge.h"
#include "conformance/scenarios/scripts.h"
#include "sim/trace_file.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

int print_judgement(const judge::Judgement& judgement, const sim::Trace& trace) {
  std::vector<std::vector<std::string>> rows = {{"invariant", "verdict", "why"}};
  for (const judge::Verdict& verdict : judgement.verdicts) {
    rows.push_back({verdict.id, std::string(to_string(verdict.status)), verdict.text});
  }
  say(table(rows));
  for (const judge::Verdict& verdict : judgement.verdicts) {
    if (verdict.status == judge::Status::kViolation) say(judge::explain(trace, verdict));
  }
  switch (judgement.worst()) {
    case judge::Status::kViolation:
      return kExitFailed;
    case judge::Status::kInconclusive:
      return kExitInconclusive;
    default:
      return kExitPassed;
  }
}

int judge_file(const std::string& path) {
  sim::Trace trace;
  try {
    sim::read_trace(read_file(path), trace);
  } catch (const sim::TraceFormatError& error) {
    throw UsageError{path + ": " + error.what()};
  }
  judge::Judge judge;
  const judge::Judgement judgement = judge.judge(trace);
  fmt::print("trace_hash {}\n", sim::to_text(sim::hash_of(trace)));
  return print_judgement(judgement, trace);
}

// Compares with the recorded hash and prints the verdicts.
int report_replay(const Replay& replay, const std::string& hash, const judge::Judgement& judgement,
                  const sim::Trace& trace, OutFolder& folder) {
  fmt::print("trace_hash {}\n", hash);
  if (folder.given() && folder.write("replay.trace.ndjson", sim::write_trace(trace))) {
    say("wrote " + folder.files().back());
  }
  if (!replay.trace_hash.empty() && replay.trace_hash != hash) {
    say("the recorded run gave " + replay.trace_hash + ": another build, or another version");
    return kExitHarness;
  }
  return print_judgement(judgement, trace);
}

int replay_scenario(const Replay& replay, OutFolder& folder) {
  const Scenario scenario = *scenario_named(replay.scenario);
  const std::string reason = scenario.not_applicable(replay.spec);
  if (!reason.empty()) throw UsageError{"scenario: " + replay.scenario + " " + reason};
  SimRunner runner;
  ScenarioContext context(runner, replay.spec);
  context.keep(replay.world);
  scenario.body(context);
  const auto& world = context.kept_world();
  if (!world) {
    throw UsageError{
        fmt::format("world: {} has the worlds 1 to {}", replay.scenario, context.worlds())};
  }
  say(fmt::format("{}, world {}: {}", replay.scenario, world->number, world->label));
  for (const std::string& failure : context.failures()) say(failure);
  sim::Trace trace;
  sim::read_trace(world->trace, trace);
  const int verdict = report_replay(replay, world->hash, world->judgement, trace, folder);
  if (context.harness_failed()) return kExitHarness;
  return verdict == kExitPassed && !context.failures().empty() ? kExitFailed : verdict;
}

int replay_pair(const Replay& replay, OutFolder& folder) {
  SimRunner runner;
  const Run run = runner.run(replay.spec, replay.options, publish_and_recover());
  for (std::size_t rank = 0; rank < run.log.by_rank.size(); ++rank) {
    for (const Outcome& outcome : run.log.by_rank[rank]) {
      say(outcome.ok() ? fmt::format("actor {}: version {}", rank, outcome.version)
                       : fmt::format("actor {}: {}", rank, to_text(*outcome.error)));
    }
  }
  const bool finished = run.end.kind == sim::RunResult::Kind::kFinished;
  if (!finished) say("the world: " + run.end.detail);
  if (run.end.kind == sim::RunResult::Kind::kHang) say(judge::explain_hang(runner.trace()));
  const int verdict =
      report_replay(replay, sim::to_text(run.hash), run.judgement, runner.trace(), folder);
  const judge::Verdict* torn = run.judgement.find("I2");
  if (torn != nullptr && torn->status == judge::Status::kViolation) {
    say(wrong_contents(runner, replay.spec, replay.options, publish_and_recover()));
  }
  if (is_harness_failure(run.end.kind)) return kExitHarness;
  return finished || verdict != kExitPassed ? verdict : kExitFailed;
}

int replay_file(const std::string& path, const std::string& out) {
  Replay replay;
  try {
    replay = replay_from_json(read_file(path));
  } catch (const Error& error) {
    throw UsageError{path + ": " + to_text(error.record())};
  }
  say(fmt::format("tpsync {} seed {} replay {}", TPSYNC_VERSION, replay.spec.seed, path));
  OutFolder folder(out);
  const int exit_code =
      replay.scenario.empty() ? replay_pair(replay, folder) : replay_scenario(replay, folder);
  return folder.lost() ? kExitHarness : exit_code;
}

}  // namespace

void add_judge_command(CLI::App& app, Command& command) {
  auto path = std::make_shared<std::string>();
  CLI::App* judge = app.add_subcommand("judge", "Judge a recorded trace");
  judge->add_option("trace", *path, "Trace file")->required();
  judge->callback([path, &command] { command = [path] { return judge_file(*path); }; });
}

void add_replay_command(CLI::App& app, Command& command) {
  auto path = std::make_shared<std::string>();
  auto out = std::make_shared<std::string>();
  CLI::App* replay = app.add_subcommand("replay", "Run a recorded run again");
  replay->add_option("file", *path, "Replay file")->required();
  replay->add_option("--out", *out, "Folder for the trace");
  replay->callback(
      [path, out, &command] { command = [path, out] { return replay_file(*path, *out); }; });
}

}  // namespace tpsync::conformance
