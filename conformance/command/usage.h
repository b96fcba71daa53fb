// Exit codes of the tpsync command, and how it refuses what it is given: one line that names the
// flag or field and says what to change.
#pragma once

#include <string>

namespace tpsync::conformance {

enum ExitCode : int {
  kExitPassed = 0,
  kExitFailed = 1,  // a conformance failure
  kExitInconclusive = 2,
  // The harness itself failed (before 1), or a replay gave another trace hash, or output that was
  // asked for could not be written.
  kExitHarness = 3,
  kExitEnvironment = 4,  // this machine cannot run a world that this build has
  kExitUsage = 64,
};

// Thrown by commands; main prints the text as one line and exits with the code.
struct UsageError {
  std::string text;
  ExitCode exit_code = kExitUsage;
};

}  // namespace tpsync::conformance
