// tpsync doctor: what this machine can run, and what is missing for the rest, each with the command
// that mends it. A world that nothing stands against is tried: one publication at TP 1.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "conformance/command/commands.h"
#include "conformance/command/machine_checks.h"
#include "conformance/command/output.h"
#include "conformance/command/publish_loop.h"
#include "conformance/command/usage.h"
#include "conformance/command/world_flags.h"
#include "conformance/command/world_runner.h"
#ifdef TPSYNC_HAVE_GPU_WORLD
#include "conformance/process/gpu_list.h"
#endif
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

struct WorldAnswer {
  std::string world;
  bool built = false;
  bool runs = false;
  std::string why;  // what was tried, or what stands against it
};

// Empty if the world published once and every invariant held.
std::string try_world(const std::string& world) {
  try {
    WorldFlags flags;
    flags.worlds = built_worlds();
    flags.world = world;
    flags.tp = 1;
    const WorldSpec spec = flags.spec();
    const Run run = make_runner(world, spec)->run(spec, {}, publish_loop({.versions = 1}));
    if (run.end.kind != sim::RunResult::Kind::kFinished) return run.end.detail;
    if (!run.log.failed_checks.empty()) return run.log.failed_checks.front();
    return run.judgement.ok() ? "" : run.judgement.text();
  } catch (const std::exception& error) {
    return to_text(record_of(error));
  }
}

WorldAnswer ask(const std::string& world, const std::vector<MachineCheck>& checks) {
  const std::vector<std::string> built = built_worlds();
  WorldAnswer answer{world, std::find(built.begin(), built.end(), world) != built.end()};
  answer.why = what_stops(checks, world);
  if (!answer.built) {
    answer.why = "not in this build" + (answer.why.empty() ? "" : "; " + answer.why);
    return answer;
  }
  if (!answer.why.empty()) return answer;
  answer.why = try_world(world);
  answer.runs = answer.why.empty();
  answer.why = answer.runs ? "one publication at TP 1 passed"
                           : "one publication at TP 1 failed: " + answer.why;
  return answer;
}

BuildParts build_parts() {
  BuildParts parts;
  const std::vector<std::string> built = built_worlds();
  parts.gloo = std::find(built.begin(), built.end(), "process") != built.end();
  parts.gpu_world = std::find(built.begin(), built.end(), "gpu") != built.end();
#ifdef TPSYNC_HAVE_CUDA
  parts.cuda = true;
#endif
  parts.sanitizer = TPSYNC_SANITIZER;
  parts.test_runtime = test_runtime_program();
  std::error_code error;
  const auto folder = std::filesystem::temp_directory_path(error);
  if (!error) parts.temporary = folder;
  return parts;
}

nlohmann::ordered_json to_json(const std::vector<MachineCheck>& checks,
                               const std::vector<WorldAnswer>& answers) {
  nlohmann::ordered_json json;
  json["version"] = TPSYNC_VERSION;
  json["sanitizer"] = TPSYNC_SANITIZER;
  json["checks"] = nlohmann::ordered_json::array();
  for (const MachineCheck& check : checks) {
    json["checks"].push_back({{"what", check.what},
                              {"state", std::string(to_string(check.state))},
                              {"found", check.found},
                              {"why", check.why},
                              {"mend", check.mend},
                              {"needed_by", check.needed_by}});
  }
  json["worlds"] = nlohmann::ordered_json::array();
  for (const WorldAnswer& answer : answers) {
    json["worlds"].push_back({{"world", answer.world},
                              {"built", answer.built},
                              {"runs", answer.runs},
                              {"why", answer.why}});
  }
  return json;
}

std::string text_of(const std::vector<MachineCheck>& checks,
                    const std::vector<WorldAnswer>& answers) {
  std::vector<std::vector<std::string>> rows = {{"what", "state", "found", "why", "mend"}};
  for (const MachineCheck& check : checks) {
    const char* const nothing = check.state == MachineState::kOk ? "-" : "nothing to do";
    rows.push_back({check.what, std::string(to_string(check.state)), check.found, check.why,
                    check.mend.empty() ? nothing : check.mend});
  }
  std::string text = table(rows) + "\n";
  rows = {{"world", "state", "why"}};
  for (const WorldAnswer& answer : answers) {
    rows.push_back({answer.world, answer.runs ? "runs" : "does not run", answer.why});
  }
  return text + table(rows);
}

// What a child sees of the GPUs, which this process must not open; nothing where there are none.
void add_gpus(std::vector<MachineCheck>& checks) {
#ifdef TPSYNC_HAVE_GPU_WORLD
  std::vector<GpuFacts> gpus;
  try {
    gpus = list_gpus(test_runtime_program());
  } catch (const Error& error) {
    checks.push_back({"GPUs",
                      MachineState::kMissing,
                      to_text(error.record()),
                      "every rank has one of its own",
                      "",
                      {"gpu"}});
    return;
  }
  if (gpus.empty()) return;
  std::string found;
  std::string unread;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    constexpr double kGiB = 1 << 30;
    found += fmt::format("{}{} {:.0f} of {:.0f} GiB free", i == 0 ? "" : ", ", gpus[i].uuid,
                         static_cast<double>(gpus[i].free_bytes) / kGiB,
                         static_cast<double>(gpus[i].total_bytes) / kGiB);
    for (std::size_t other = 0; other < gpus.size(); ++other) {
      const auto& reads = gpus[i].reads;
      const bool reads_it =
          std::find(reads.begin(), reads.end(), static_cast<int>(other)) != reads.end();
      if (other == i || reads_it) continue;
      unread += fmt::format("{}GPU {} can't read GPU {}", unread.empty() ? "" : ", ", i, other);
    }
  }
  checks.push_back({"GPUs", MachineState::kOk, found, "every rank has one of its own", "", {}});
  checks.push_back({"GPU links",
                    unread.empty() ? MachineState::kOk : MachineState::kLimited,
                    unread.empty() ? "every GPU reads the others' memory" : unread,
                    "weights by copies, and the reshard route",
                    unread.empty() ? "" : "tpsync publish --world gpu --gather collective",
                    {}});
#else
  static_cast<void>(checks);
#endif
}

int doctor(bool as_json) {
  std::vector<MachineCheck> checks = check_machine(build_parts());
  add_gpus(checks);
  std::vector<WorldAnswer> answers;
  for (const char* world : {"sim", "process", "gpu"}) answers.push_back(ask(world, checks));
  fmt::print("{}", as_json ? dumped(to_json(checks, answers)) : text_of(checks, answers));
  // A machine without a GPU lacks nothing that it should have.
  const bool gpus = std::any_of(checks.begin(), checks.end(), [](const MachineCheck& check) {
    return check.what == kGpuDriver && check.state == MachineState::kOk;
  });
  const bool complete = std::all_of(answers.begin(), answers.end(), [&](const WorldAnswer& answer) {
    return answer.runs || !answer.built || (answer.world == "gpu" && !gpus);
  });
  return complete ? kExitPassed : kExitEnvironment;
}

}  // namespace

void add_doctor_command(CLI::App& app, Command& command) {
  auto as_json = std::make_shared<bool>(false);
  CLI::App* doctor_app =
      app.add_subcommand("doctor", "Say what this machine can run, and what mends the rest");
  doctor_app->add_flag("--json", *as_json, "JSON on standard output");
  doctor_app->callback([as_json, &command] { command = [as_json] { return doctor(*as_json); }; });
}

}  // namespace tpsync::conformance
