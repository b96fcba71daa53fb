// tpsync judge and replay: a recorded trace judged again, a recorded run done again.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iterator>
#include <memory>

#include "conformance/command/commands.h"
#include "conformance/command/output.h"
#include "conformance/command/replay_file.h"
#include "conformance/command/usage.h"
#include "conformance/judge/judge.h"
#include "conformance/scenarios/scripts.h"
#include "sim/trace_file.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw UsageError{path + ": cannot be read; give a file that exists"};
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

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

int replay_file(const std::string& path, const std::string& out) {
  Replay replay;
  try {
    replay = replay_from_json(read_file(path));
  } catch (const Error& error) {
    throw UsageError{path + ": " + to_text(error.record())};
  }
  say(fmt::format("tpsync {} seed {} replay {}", TPSYNC_VERSION, replay.spec.seed, path));
  SimRunner runner;
  ActorLog log;
  log.by_rank.assign(static_cast<std::size_t>(replay.spec.actors), {});
  const Script script = replay.script == "publish" ? publish_once(log) : publish_and_recover(log);
  const Run run = runner.run(replay.spec, replay.options, script);
  for (std::size_t rank = 0; rank < log.by_rank.size(); ++rank) {
    for (const Outcome& outcome : log.by_rank[rank]) {
      say(outcome.ok() ? fmt::format("actor {}: version {}", rank, outcome.version)
                       : fmt::format("actor {}: {}", rank, to_text(*outcome.error)));
    }
  }
  const std::string hash = sim::to_text(run.hash);
  fmt::print("trace_hash {}\n", hash);
  if (!out.empty())
    say("wrote " + write_file(out, "replay.trace.ndjson", sim::write_trace(runner.trace())));
  if (run.end.kind != sim::RunResult::Kind::kFinished) say("the world: " + run.end.detail);
  if (!replay.trace_hash.empty() && replay.trace_hash != hash) {
    say("the recorded run gave " + replay.trace_hash + ": another build, or another version");
    return kExitHarness;
  }
  const int verdict = print_judgement(run.judgement, runner.trace());
  return run.end.kind == sim::RunResult::Kind::kFinished ? verdict : kExitFailed;
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
