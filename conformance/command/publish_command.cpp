// tpsync publish: a trainer's whole loop in one world, with what each publication's phases took.
//
// Tables are the answer and go to standard output; progress and verdict to standard error. A world
// whose planned faults break its group or end an actor cannot publish again, so the next version is
// then published in a second world.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "conformance/command/commands.h"
#include "conformance/command/integer.h"
#include "conformance/command/output.h"
#include "conformance/command/publication_memory.h"
#include "conformance/command/publication_times.h"
#include "conformance/command/publish_loop.h"
#include "conformance/command/usage.h"
#include "conformance/command/world_flags.h"
#include "conformance/command/world_runner.h"
#include "conformance/explore/explorer.h"
#include "conformance/scenarios/scripts.h"
#include "sim/trace_file.h"
#include "tpsync/base/errors.h"
#include "tpsync/model/plan.h"
#include "tpsync/sync/preflight.h"

namespace tpsync::conformance {

namespace {

constexpr std::uint64_t kVersionsMax = 10'000;

struct PublishFlags {
  WorldFlags world;
  std::optional<std::uint64_t> versions;  // 2
  std::optional<std::uint64_t> train_ms;  // 0
  std::string fault;
  std::string out;
  bool json = false;
  bool quiet = false;
};

struct Report {
  std::vector<Round> rounds;
  Transfer transfer;
  std::vector<DeviceUse> device_uses;
  std::uint64_t required_bytes = 0;  // of free device memory, by the preflight
  std::vector<faults::Fault> faults;
  std::set<std::size_t> applied;  // indices of faults
  ActorLog log;
  judge::Judgement judgement;
  std::string trace_hash;
  std::int64_t recovered_version = 0;  // by a second world; 0: there was none

  std::vector<std::string> failures;      // of what must hold
  std::vector<std::string> inconclusive;  // what is not known
  std::vector<std::string> explanations;  // of violations, event by event
  bool harness_failed = false;

  ExitCode exit_code() const {
    if (harness_failed) return kExitHarness;
    if (!failures.empty()) return kExitFailed;
    return inconclusive.empty() ? kExitPassed : kExitInconclusive;
  }
  const char* verdict() const {
    if (harness_failed) return "harness error";
    if (!failures.empty()) return "failed";
    return inconclusive.empty() ? "passed" : "inconclusive";
  }
};

// Refusals name the flag, the file, and the place in it.
faults::Plan load_plan(const std::string& path, const std::string& world) {
  try {
    faults::Plan plan = faults::plan_from_json(read_file(path));
    if (plan.faults.empty()) {
      throw_invalid(ErrorKind::kInvalidConfig, "faults", "is empty; leave --fault out");
    }
    check_plan_for(world, plan);
    return plan;
  } catch (const Error& error) {
    throw UsageError{"--fault: " + path + ": " + to_text(error.record())};
  } catch (const UsageError& error) {
    throw UsageError{"--fault: " + error.text};
  }
}

std::set<std::size_t> applied_faults(const sim::Trace& trace) {
  std::set<std::size_t> applied;
  for (const sim::Event& event : trace.events) {
    if (event.kind == static_cast<std::uint16_t>(judge::Record::kFault)) applied.insert(event.a);
  }
  return applied;
}

std::int64_t highest_version(const ActorLog& log, std::int64_t base) {
  std::int64_t highest = base;
  for (const auto& outcomes : log.by_rank) {
    for (const Outcome& outcome : outcomes) {
      if (outcome.ok()) highest = std::max(highest, outcome.version);
    }
  }
  return highest;
}

void add_verdicts(Report& report, const Run& run, const sim::Trace& trace,
                  const std::string& world) {
  report.harness_failed |= is_harness_failure(run.end.kind);
  if (run.end.kind != sim::RunResult::Kind::kFinished) {
    report.failures.push_back(world + "the world did not end by itself: " + run.end.detail);
  }
  for (const std::string& check : run.log.failed_checks) report.failures.push_back(world + check);
  for (const judge::Verdict& verdict : run.judgement.verdicts) {
    const std::string line = world + verdict.id + ": " + verdict.text;
    if (verdict.status == judge::Status::kViolation) {
      report.failures.push_back(line);
      report.explanations.push_back(judge::explain(trace, verdict));
    }
    if (verdict.status == judge::Status::kInconclusive) report.inconclusive.push_back(line);
  }
}

// What has to be published in any case: all versions, or with faults one more by all ranks.
void add_expectations(Report& report, const Run& run, const WorldSpec& spec,
                      std::uint64_t versions) {
  for (std::size_t i = 0; i < report.faults.size(); ++i) {
    if (report.applied.contains(i)) continue;
    report.inconclusive.push_back(
        fmt::format("faults[{}]: its moment never came: {}", i, faults::to_text(report.faults[i])));
  }
  if (!report.faults.empty()) return;
  for (std::size_t rank = 0; rank < run.log.by_rank.size(); ++rank) {
    const auto& outcomes = run.log.by_rank[rank];
    const auto done = static_cast<std::uint64_t>(std::count_if(
        outcomes.begin(), outcomes.end(), [](const Outcome& outcome) { return outcome.ok(); }));
    if (done == versions) continue;
    report.failures.push_back(fmt::format("rank {} published {} of {} versions from version {} on",
                                          rank, done, versions, spec.base_version));
  }
}

// A new world, given the highest version that any actor returned, publishes the next.
void recover_elsewhere(Report& report, WorldRunner& runner, WorldSpec spec) {
  spec.base_version = highest_version(report.log, spec.base_version);
  const Run run = runner.run(spec, {}, publish_loop({.versions = 1}));
  add_verdicts(report, run, runner.trace(), "the second world: ");
  report.recovered_version = highest_version(run.log, spec.base_version);
  if (report.recovered_version == spec.base_version) {
    report.failures.emplace_back("the second world: nothing was published");
    report.recovered_version = 0;
  }
}

std::string outcome_text(const Outcome& outcome) {
  return outcome.ok() ? fmt::format("version {}", outcome.version) : to_text(*outcome.error);
}

std::string rank_lines(const ActorLog& log) {
  std::size_t most = 0;
  for (const auto& outcomes : log.by_rank) most = std::max(most, outcomes.size());
  std::string text;
  for (std::size_t rank = 0; rank < log.by_rank.size(); ++rank) {
    for (const Outcome& outcome : log.by_rank[rank]) {
      text += fmt::format("rank {}: {}\n", rank, outcome_text(outcome));
    }
    if (log.by_rank[rank].size() < most) {
      text += fmt::format("rank {}: nothing more\n", rank);
    }
  }
  return text;
}

std::string text_of(const Report& report) {
  std::string text = "\n" + loop_table(report.rounds, report.transfer);
  for (const Round& round : report.rounds) {
    if (round.publication() != nullptr) text += "\n" + phase_table(round, report.transfer);
  }
  if (!report.device_uses.empty()) {
    text += "\n" + device_use_table(report.device_uses, report.required_bytes);
  }
  if (report.faults.empty()) return text + "\n";
  text += "\n";
  for (std::size_t i = 0; i < report.faults.size(); ++i) {
    text += fmt::format("fault {} {}\n", faults::to_text(report.faults[i]),
                        report.applied.contains(i) ? "was applied" : "was not applied");
  }
  text += rank_lines(report.log);
  if (report.recovered_version > 0) {
    text += fmt::format("a second world published version {}\n", report.recovered_version);
  }
  return text + "\n";
}

std::string summary(const Report& report) {
  const auto published = std::count_if(
      report.rounds.begin(), report.rounds.end(),
      [](const Round& round) { return round.publication() != nullptr && round.publication()->ok; });
  std::string text = fmt::format("{}: {} {}", report.verdict(), published,
                                 published == 1 ? "publication" : "publications");
  if (report.recovered_version > 0) {
    text += fmt::format(", version {} in a second world", report.recovered_version);
  }
  return text + (report.judgement.ok() ? ", every invariant held" : ", see above");
}

nlohmann::ordered_json to_json(const Round& round, const Transfer& transfer) {
  nlohmann::ordered_json json;
  const CallTime* publication = round.publication();
  const bool ok = publication->ok;
  json["version"] = ok ? nlohmann::ordered_json(round.version) : nullptr;
  json["outcome"] = ok ? "published" : publication->returned ? "failed" : "died";
  if (!round.error.empty()) json["error"] = nlohmann::ordered_json::parse(round.error);
  json["nanoseconds"] = publication->ns;
  json["bytes"] = ok ? transfer.bytes : 0;
  json["gigabytes_per_second"] =
      ok && transfer.real_time
          ? nlohmann::ordered_json(gigabytes_per_second(transfer.bytes, publication->ns))
          : nullptr;
  json["phases"] = nlohmann::ordered_json::array();
  for (const PhaseTime& phase : round.phases) {
    json["phases"].push_back({{"phase", phase.phase},
                              {"count", phase.count},
                              {"nanoseconds", phase.ns},
                              {"percent", percent_of(phase.ns, publication->ns)}});
  }
  json["calls"] = nlohmann::ordered_json::object();
  for (const auto& [call, time] : round.calls) {
    json["calls"][std::string(judge::to_string(call))] = {{"nanoseconds", time.ns},
                                                          {"ok", time.ok}};
  }
  return json;
}

nlohmann::ordered_json to_json(const Report& report, const PublishFlags& flags,
                               const WorldSpec& spec) {
  nlohmann::ordered_json json;
  json["world"] = flags.world.world;
  json["seed"] = spec.seed;
  json["actors"] = spec.actors;
  json["tp"] = spec.tp;
  json["versions"] = *flags.versions;
  json["bucket_bytes"] = spec.sync.bucket_bytes;
  json["bytes"] = report.transfer.bytes;
  json["chunks"] = report.transfer.chunks;
  json["verdict"] = report.verdict();
  json["failures"] = report.failures;
  json["inconclusive"] = report.inconclusive;
  json["trace_hash"] = report.trace_hash;
  json["publications"] = nlohmann::ordered_json::array();
  for (const Round& round : report.rounds) {
    if (round.publication() == nullptr) continue;
    json["publications"].push_back(to_json(round, report.transfer));
  }
  json["device_memory"] = nlohmann::ordered_json::array();
  for (const DeviceUse& use : report.device_uses) {
    json["device_memory"].push_back({{"rank", use.rank},
                                     {"free_bytes", use.free_bytes},
                                     {"asked_bytes", report.required_bytes},
                                     {"more_bytes", use.more_bytes}});
  }
  json["faults"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < report.faults.size(); ++i) {
    json["faults"].push_back({{"name", report.faults[i].name},
                              {"fault", faults::to_text(report.faults[i])},
                              {"applied", report.applied.contains(i)}});
  }
  json["ranks"] = nlohmann::ordered_json::array();
  for (const auto& outcomes : report.log.by_rank) {
    nlohmann::ordered_json entries = nlohmann::ordered_json::array();
    for (const Outcome& outcome : outcomes) {
      nlohmann::ordered_json entry;
      entry["version"] = outcome.ok() ? nlohmann::ordered_json(outcome.version) : nullptr;
      entry["error"] = outcome.ok()
                           ? nullptr
                           : nlohmann::ordered_json::parse(conformance::to_json(*outcome.error));
      entries.push_back(std::move(entry));
    }
    json["ranks"].push_back(std::move(entries));
  }
  json["recovered_version"] =
      report.recovered_version > 0 ? nlohmann::ordered_json(report.recovered_version) : nullptr;
  json["invariants"] = nlohmann::ordered_json::array();
  for (const judge::Verdict& verdict : report.judgement.verdicts) {
    json["invariants"].push_back({{"id", verdict.id},
                                  {"verdict", std::string(judge::to_string(verdict.status))},
                                  {"why", verdict.text}});
  }
  return json;
}

std::string command_line(const PublishFlags& flags, const WorldSpec& spec) {
  std::string text =
      fmt::format("{} --versions {}", flags.world.text(spec), flags.versions.value_or(2));
  if (flags.train_ms) text += fmt::format(" --train-ms {}", *flags.train_ms);
  if (!flags.fault.empty()) text += " --fault " + quoted(flags.fault);
  return text;
}

Report run_loop(WorldRunner& runner, const PublishFlags& flags, const WorldSpec& spec,
                const faults::Plan& plan, std::string& trace_text) {
  PublishLoop loop{.versions = *flags.versions,
                   .faulted = !plan.faults.empty(),
                   .train = std::chrono::milliseconds(flags.train_ms.value_or(0))};
  if (!flags.json && !flags.quiet) loop.progress = say;
  SimOptions options;
  options.plan = plan;
  const bool elsewhere = std::any_of(plan.faults.begin(), plan.faults.end(),
                                     [](const auto& fault) { return breaks_world(fault); });
  if (elsewhere) options.recovery = "other-world";
  const Run run = runner.run(spec, options, publish_loop(std::move(loop)));
  Report report;
  report.rounds = read_rounds(runner.trace());
  report.transfer = {model::plan_canonical(spec.config).byte_count, chunk_count(spec),
                     runner.world() != "sim"};
  if (runner.world() != "sim") report.device_uses = read_device_use(runner.trace());
  report.required_bytes = sync::required_free_bytes(
      spec.sync.bucket_bytes, model::plan_canonical(spec.config).largest_layer_bytes,
      spec.sync.gpu_memory_headroom_bytes);
  report.faults = plan.faults;
  report.applied = applied_faults(runner.trace());
  report.log = run.log;
  report.judgement = run.judgement;
  report.trace_hash = sim::to_text(run.hash);
  add_verdicts(report, run, runner.trace(), "");
  for (std::string& sentence : beyond_preflight(report.device_uses, report.required_bytes)) {
    report.failures.push_back(std::move(sentence));
  }
  add_expectations(report, run, spec, *flags.versions);
  if (flags.out.empty() && report.exit_code() == kExitPassed) {
    trace_text.clear();
  } else {
    trace_text = sim::write_trace(runner.trace());
  }
  if (elsewhere && !report.applied.empty()) recover_elsewhere(report, runner, spec);
  return report;
}

int publish(PublishFlags flags) {
  flags.versions = flags.versions.value_or(2);
  const WorldSpec spec = flags.world.spec();
  if (spec.actors != spec.tp) {
    throw UsageError{"--actors: a publication needs as many actors as TP ranks; leave it out"};
  }
  faults::Plan plan;
  if (!flags.fault.empty()) plan = load_plan(flags.fault, flags.world.world);
  OutFolder folder(flags.out);
  const std::string parameters = command_line(flags, spec);
  say(fmt::format("tpsync {} seed {} {}", TPSYNC_VERSION, spec.seed, parameters));
  const std::unique_ptr<WorldRunner> runner = make_runner(flags.world.world, spec);
  std::string trace;
  const Report report = run_loop(*runner, flags, spec, plan, trace);

  const std::string json = dumped(to_json(report, flags, spec));
  if (!trace.empty()) folder.write("publish.trace.ndjson", trace);
  if (folder.given()) folder.write("result.json", json);
  fmt::print("{}", flags.json ? json : text_of(report));
  std::fflush(stdout);
  for (const std::string& failure : report.failures) say(failure);
  for (const std::string& explanation : report.explanations) say(explanation);
  for (const std::string& reason : report.inconclusive) say("not known: " + reason);
  for (const std::string& file : folder.files()) say("wrote " + file);
  say(summary(report));
  const ExitCode exit_code = report.exit_code();
  if (exit_code != kExitPassed) say("tpsync publish " + parameters);
  return folder.lost() ? kExitHarness : exit_code;
}

}  // namespace

void add_publish_command(CLI::App& app, Command& command) {
  auto flags = std::make_shared<PublishFlags>();
  CLI::App* publish_app = app.add_subcommand(
      "publish", "Bootstrap, publish and generate, and show what each phase took");
  flags->world.worlds = built_worlds();
  flags->world.world = flags->world.worlds.back();
  flags->world.add_to(*publish_app);
  add_integer(*publish_app, "--versions", flags->versions, {1, kVersionsMax},
              "Publications (default 2)");
  add_integer(*publish_app, "--train-ms", flags->train_ms, {.first = 0, .last = 3'600'000},
              "Time that training takes between sleep and wake-up (default 0)");
  publish_app->add_option("--fault", flags->fault, "A fault plan (JSON) to run under");
  publish_app->add_flag("--json", flags->json, "JSON on standard output instead of tables");
  publish_app->add_flag("--quiet", flags->quiet, "No line per publication while it runs");
  publish_app->add_option("--out", flags->out, "Folder for the trace and result.json");
  publish_app->callback([flags, &command] { command = [flags] { return publish(*flags); }; });
}

}  // namespace tpsync::conformance
