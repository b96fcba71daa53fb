#include "conformance/command/machine_checks.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tpsync::conformance {
namespace {

MachineCheck check(const std::string& what, MachineState state, std::vector<std::string> worlds) {
  return {.what = what, .state = state, .found = "seen", .needed_by = std::move(worlds)};
}

TEST(MachineChecks, AWorldIsStoppedByTheFirstMissingThingThatItNeeds) {
  const std::vector<MachineCheck> checks = {
      check("handles", MachineState::kOk, {"process"}),
      check("folder", MachineState::kLimited, {"process"}),
      check("driver", MachineState::kMissing, {"gpu"}),
      check("network", MachineState::kMissing, {"process", "gpu"}),
      check("program", MachineState::kMissing, {"process"}),
  };
  EXPECT_EQ(what_stops(checks, "process"), "network: seen");
  EXPECT_EQ(what_stops(checks, "gpu"), "driver: seen");
  EXPECT_EQ(what_stops(checks, "sim"), "");
}

TEST(MachineChecks, AMissingPartProgramOrFolderStopsWorldsOfProcessesAndHasAMend) {
  const BuildParts parts{.gloo = false, .test_runtime = "/nowhere/program", .temporary = ""};
  int missing = 0;
  for (const MachineCheck& found : check_machine(parts)) {
    const bool expected = found.what == "Gloo part" || found.what == "tpsync-test-runtime" ||
                          found.what == "temporary folder" || found.what == "local sockets";
    if (!expected) continue;
    ++missing;
    EXPECT_EQ(found.state, MachineState::kMissing) << found.what;
    EXPECT_EQ(found.needed_by, std::vector<std::string>{"process"}) << found.what;
    EXPECT_NE(found.mend, "") << found.what;
  }
  EXPECT_EQ(missing, 4);
}

TEST(MachineChecks, NoCommandInstallsWhatABuildWithoutGpusDoesNotUse) {
  for (const MachineCheck& found : check_machine({.gpu_world = false})) {
    if (found.needed_by != std::vector<std::string>{"gpu"} || found.state == MachineState::kOk)
      continue;
    EXPECT_EQ(found.mend, "") << found.what;
  }
}

}  // namespace
}  // namespace tpsync::conformance
