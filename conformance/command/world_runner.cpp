#include "conformance/command/world_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "conformance/command/usage.h"
#include "faults/injector.h"
#include "tpsync/base/errors.h"

#ifdef TPSYNC_HAVE_PROCESS_WORLD
#include "conformance/process/process_faults.h"
#include "conformance/process/process_run.h"
#endif
#ifdef TPSYNC_HAVE_GPU_WORLD
#include "conformance/process/gpu_list.h"
#endif

namespace tpsync::conformance {

std::vector<std::string> built_worlds() {
  std::vector<std::string> worlds = {"sim"};
#ifdef TPSYNC_HAVE_PROCESS_WORLD
  worlds.emplace_back("process");
#endif
#ifdef TPSYNC_HAVE_GPU_WORLD
  worlds.emplace_back("gpu");
#endif
  return worlds;
}

std::string test_runtime_program() {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  return self.parent_path() / "tpsync-test-runtime";
}

std::unique_ptr<WorldRunner> make_runner(const std::string& world,
                                         [[maybe_unused]] const WorldSpec& spec) {
#ifdef TPSYNC_HAVE_PROCESS_WORLD
  if (world == "process") {
    return std::make_unique<ProcessRunner>(ProcessOptions{test_runtime_program()});
  }
#endif
#ifdef TPSYNC_HAVE_GPU_WORLD
  if (world == "gpu") {
    ProcessOptions options{test_runtime_program()};
    for (const GpuFacts& gpu : list_gpus(options.runtime_program)) options.gpus.push_back(gpu.uuid);
    const auto needed = static_cast<std::size_t>(std::max(spec.tp, spec.actors));
    if (options.gpus.size() < needed) {
      throw UsageError{fmt::format("--world gpu: every rank needs a GPU of its own, {} in all, and "
                                   "this machine has {}; tpsync doctor says what is missing",
                                   needed, options.gpus.size()),
                       kExitEnvironment};
    }
    // The driver opens and closes the contexts of all processes one after the other, a quarter of
    // a second each: more worlds at once end no sooner, and wait for theirs beyond their deadlines.
    options.start_ns_per_process = 200'000'000;
    options.worlds_at_once = 8;
    return std::make_unique<ProcessRunner>(std::move(options));
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
  if (world != "sim") check_plan(plan);
#endif
  const faults::Injector refuses_what_it_cannot_do(plan);
}

}  // namespace tpsync::conformance
