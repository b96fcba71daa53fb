#include "conformance/command/world_runner.h"

#include <fmt/format.h>

#include <filesystem>

#include "faults/injector.h"
#include "tpsync/base/errors.h"

#ifdef TPSYNC_HAVE_PROCESS_WORLD
#include "conformance/process/process_faults.h"
#include "conformance/process/process_run.h"
#endif

namespace tpsync::conformance {

std::vector<std::string> built_worlds() {
  std::vector<std::string> worlds = {"sim"};
#ifdef TPSYNC_HAVE_PROCESS_WORLD
  worlds.emplace_back("process");
#endif
  return worlds;
}

std::string test_runtime_program() {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  return self.parent_path() / "tpsync-test-runtime";
}

std::unique_ptr<WorldRunner> make_runner(const std::string& world) {
#ifdef TPSYNC_HAVE_PROCESS_WORLD
  if (world == "process") {
    return std::make_unique<ProcessRunner>(ProcessOptions{test_runtime_program()});
  }
#endif
  TPSYNC_ASSERT(world == "sim");
  return std::make_unique<SimRunner>();
}

void check_plan_for(const std::string& world, const faults::Plan& plan) {
  if (plan.faults.size() > faults::kFaultsMax) {
    throw_invalid(
        ErrorKind::kInvalidConfig, "faults",
        fmt::format("has {} entries; give at most {}", plan.faults.size(), faults::kFaultsMax));
  }
  for (std::size_t i = 0; i < plan.faults.size(); ++i) {
    const faults::FaultKind* kind = faults::find_kind(plan.faults[i].name);
    if (kind != nullptr && kind->worlds.find(world) == std::string_view::npos) {
      throw_invalid(ErrorKind::kUnsupported, fmt::format("faults[{}].name", i),
                    fmt::format("{} exists in these worlds: {}", kind->name, kind->worlds));
    }
  }
#ifdef TPSYNC_HAVE_PROCESS_WORLD
  if (world == "process") check_plan(plan);
#endif
  const faults::Injector refuses_what_it_cannot_do(plan);
}

}  // namespace tpsync::conformance
