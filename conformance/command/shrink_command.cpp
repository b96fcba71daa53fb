// tpsync shrink: a replay file that fails, reduced to a minimal one that fails in the same way.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "conformance/command/commands.h"
#include "conformance/command/integer.h"
#include "conformance/command/output.h"
#include "conformance/command/replay_file.h"
#include "conformance/command/usage.h"
#include "conformance/explore/explanation.h"
#include "conformance/explore/shrinker.h"
#include "conformance/scenarios/scripts.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

struct ShrinkFlags {
  std::string file;
  std::string id;
  std::optional<std::uint64_t> runs;  // 3000
  std::string out;
};

// "x.replay.json" becomes "x.min.replay.json".
std::string minimal_name(const std::string& file) {
  constexpr std::string_view kEnd = ".replay.json";
  const std::string stem = file.ends_with(kEnd) ? file.substr(0, file.size() - kEnd.size()) : file;
  return stem + ".min" + std::string(kEnd);
}

int shrink_file(const ShrinkFlags& flags) {
  Replay replay;
  try {
    replay = replay_from_json(read_file(flags.file));
  } catch (const Error& error) {
    throw UsageError{flags.file + ": " + to_text(error.record())};
  }
  if (!replay.scenario.empty()) {
    throw UsageError{flags.file +
                     ": scenario: is a script, which cannot be reduced; give a replay file of "
                     "tpsync explore"};
  }
  say(fmt::format("tpsync {} seed {} shrink {}", TPSYNC_VERSION, replay.spec.seed, flags.file));
  ShrinkOptions options;
  options.runs_max = flags.runs.value_or(options.runs_max);
  options.id = flags.id;
  // A run that ends the process would end this one as well.
  const auto symptoms = isolated_symptoms(replay.spec, replay.options, publish_and_recover());
  options.isolated =
      has_symptom(symptoms, kCrashSymptom) && symptoms.front().text.starts_with("the process ");
  SimRunner runner;
  const Shrunk shrunk = shrink(runner, replay.spec, replay.options, options);
  if (shrunk.id.empty()) {
    say(flags.id.empty() ? "this run does not fail" : "this run does not fail with " + flags.id);
    return kExitInconclusive;
  }
  replay.spec = shrunk.spec;
  replay.options = shrunk.options;
  replay.trace_hash = shrunk.hash;
  const std::string name = flags.out.empty() ? minimal_name(flags.file) : flags.out;
  std::ofstream file(name, std::ios::binary);
  file << to_json(replay);
  file.close();
  fmt::print("{}: {}\n", shrunk.id, shrunk.summary());
  for (const faults::Fault& fault : shrunk.options.plan.faults) say(to_text(fault));
  if (!options.isolated) {
    const Run run = runner.run(shrunk.spec, shrunk.options, publish_and_recover());
    say(explain_run(runner, shrunk.spec, shrunk.options, run, publish_and_recover()));
  } else {
    say(shrunk.text);
  }
  say(fmt::format("{} runs{}", shrunk.runs,
                  shrunk.finished ? "" : ", and no further: --runs-max came first"));
  if (!file) {
    complain(name + " cannot be written");
    return kExitHarness;
  }
  say("wrote " + name);
  say("tpsync replay " + quoted(name));
  return kExitPassed;
}

}  // namespace

void add_shrink_command(CLI::App& app, Command& command) {
  auto flags = std::make_shared<ShrinkFlags>();
  CLI::App* shrink_app = app.add_subcommand("shrink", "Reduce a failing run to a minimal one");
  shrink_app->add_option("file", flags->file, "Replay file")->required();
  shrink_app->add_option("--id", flags->id,
                         "The failure to keep: I1, ..., hang (default: the first)");
  add_integer(*shrink_app, "--runs-max", flags->runs, {1, 1'000'000},
              "Runs at most (default 3000)");
  shrink_app->add_option("--out", flags->out, "The file (default: FILE.min.replay.json)");
  shrink_app->callback([flags, &command] { command = [flags] { return shrink_file(*flags); }; });
}

}  // namespace tpsync::conformance
