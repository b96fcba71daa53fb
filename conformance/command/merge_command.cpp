// tpsync merge: the results of shards, made anywhere, as one.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "conformance/command/commands.h"
#include "conformance/command/findings.h"
#include "conformance/command/output.h"
#include "conformance/command/usage.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

struct MergeFlags {
  std::vector<std::string> files;
  bool coverage = false;
  bool json = false;
  std::string out;
};

ExploreResult read_and_merge(const std::vector<std::string>& files) {
  std::vector<std::pair<std::string, ExploreResult>> parts;
  for (const std::string& file : files) {
    try {
      parts.emplace_back(file, result_from_json(read_file(file)));
    } catch (const Error& error) {
      throw UsageError{file + ": " + to_text(error.record())};
    }
  }
  try {
    return merged(parts);
  } catch (const Error& error) {
    throw UsageError{error.record().subject + ": " + error.record().detail};
  }
}

int merge_files(const MergeFlags& flags) {
  const ExploreResult result = read_and_merge(flags.files);
  OutFolder folder(flags.out);
  say(fmt::format("tpsync {} merges {} parts of: tpsync explore {}", TPSYNC_VERSION,
                  flags.files.size(), result.parameters));
  say(report_head());
  for (const ExploreReport& report : result.reports) say(report_row(report));
  say(situations_report(result));
  for (const ExploreReport& report : result.reports) {
    if (flags.coverage) say(report.schedule + ":\n" + coverage_text(report.coverage));
    for (const Finding& finding : report.findings) {
      say(fmt::format("{}: {}: {}", report.schedule, finding.id, finding.what));
    }
  }
  const std::string json = dumped(to_json(result));
  if (folder.given() && folder.write("result.json", json)) say("wrote " + folder.files().back());
  if (flags.json) fmt::print("{}", json);
  if (folder.lost()) return kExitHarness;
  return exit_code_of(result, !result.parameters.starts_with("--faults single"));
}

}  // namespace

void add_merge_command(CLI::App& app, Command& command) {
  auto flags = std::make_shared<MergeFlags>();
  CLI::App* merge_app = app.add_subcommand("merge", "Join the results of shards");
  merge_app->add_option("files", flags->files, "result.json of every shard")->required();
  merge_app->add_flag("--coverage", flags->coverage, "Print phase x fault x rank role");
  merge_app->add_flag("--json", flags->json, "JSON on standard output");
  merge_app->add_option("--out", flags->out, "Folder for the joined result.json");
  merge_app->callback([flags, &command] { command = [flags] { return merge_files(*flags); }; });
}

}  // namespace tpsync::conformance
