// tpsync: plans publications, runs scenarios and loops of publications, explores faults, judges
// traces.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>

#include "conformance/command/commands.h"
#include "conformance/command/output.h"
#include "conformance/command/usage.h"

namespace tpsync::conformance {

namespace {

// An allocation of the harness that fails inside a simulated process would look like a failure of
// what runs there, so it ends the program before it is thrown.
void out_of_memory() {
  constexpr std::string_view kText = "tpsync: the harness failed: out of memory\n";
  static_cast<void>(!write(STDERR_FILENO, kText.data(), kText.size()));
  _exit(kExitHarness);
}

std::string parse_error_text(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining();
  // CLI11 reports that a command is missing before it looks at what stands in its place.
  const bool no_command = app.get_subcommands().empty() && !unknown.empty();
  return (no_command ? "\"" + unknown.front() + "\" is no command or flag" : error.what()) +
         std::string(" (tpsync --help lists commands and flags)");
}

int run_command(int argc, char** argv) {
  CLI::App app{
      "tpsync: weight publication into tensor-parallel runtimes, and the harness that proves it"};
  app.name("tpsync");
  app.require_subcommand(1);
  app.set_version_flag("--version", "tpsync " TPSYNC_VERSION);
  Command command;
  add_plan_command(app, command);
  add_run_command(app, command);
  add_list_commands(app, command);
  add_explore_command(app, command);
  add_merge_command(app, command);
  add_shrink_command(app, command);
  add_replay_command(app, command);
  add_judge_command(app, command);
  add_hash_command(app, command);
  add_publish_command(app, command);
  add_doctor_command(app, command);
  try {
    app.parse(argc, argv);
    return command();
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    complain(parse_error_text(app, error));
    return kExitUsage;
  } catch (const UsageError& error) {
    complain(error.text);
    return error.exit_code;
  } catch (const std::exception& error) {
    complain(std::string("the harness failed: ") + error.what());
    return kExitHarness;
  }
}

}  // namespace

}  // namespace tpsync::conformance

int main(int argc, char** argv) {
  using namespace tpsync::conformance;
  std::set_new_handler(out_of_memory);
  const int exit_code = run_command(argc, argv);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    complain("standard output cannot be written, the answer is lost");
    return kExitHarness;
  }
  return exit_code;
}
