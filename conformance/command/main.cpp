// tpsync: plans publications, runs scenarios, explores faults, judges traces.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "conformance/command/commands.h"
#include "conformance/command/usage.h"
#include "tpsync/base/errors.h"

int main(int argc, char** argv) {
  using namespace tpsync::conformance;
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
  add_replay_command(app, command);
  add_judge_command(app, command);
  add_hash_command(app, command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    for (char& c : text) c = c == '\n' ? ' ' : c;
    std::fprintf(stderr, "tpsync: %s (tpsync --help lists commands and flags)\n", text.c_str());
    return kExitUsage;
  }
  try {
    return command();
  } catch (const UsageError& error) {
    std::fprintf(stderr, "tpsync: %s\n", error.text.c_str());
    return kExitUsage;
  } catch (const tpsync::Error& error) {
    std::fprintf(stderr, "tpsync: the harness failed: %s\n", error.what());
    return kExitHarness;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tpsync: the harness failed: %s\n", error.what());
    return kExitHarness;
  }
}
