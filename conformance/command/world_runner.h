// Which worlds this build can make, and their runners.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conformance/world/sim_run.h"

namespace tpsync::conformance {

// "sim", and "process" and "gpu" where this build has them.
std::vector<std::string> built_worlds();

// The program that serves as runtime and workers in worlds of processes: beside this program.
std::string test_runtime_program();

// Of one of built_worlds(), for `spec`. Throws UsageError with kExitEnvironment where this machine
// has too few GPUs for it.
std::unique_ptr<WorldRunner> make_runner(const std::string& world, const WorldSpec& spec);

// Throws InvalidInput, subject the place in the plan, for a fault that this kind of world cannot
// carry out.
void check_plan_for(const std::string& world, const faults::Plan& plan);

}  // namespace tpsync::conformance
