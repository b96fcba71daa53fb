// The test runtime of real worlds, and its workers:
//   tpsync-test-runtime runtime FOLDER VERSION
//   tpsync-test-runtime worker FOLDER VERSION RANK
//   tpsync-test-runtime gpus
// Started by the harness's actors and by the runtime itself, over an inherited channel.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "conformance/process/gpu_list.h"
#include "conformance/process/hardware.h"
#include "conformance/process/process_world.h"
#include "conformance/process/test_runtime.h"
#include "tpsync/runtime/server.h"
#include "tpsync/runtime/worker.h"

namespace tpsync::conformance {
namespace {

int run_runtime_process(const WorldFolder& folder, const std::string& version,
                        const std::string& program) {
  const WrittenWorld written = read_world(folder);
  const WorldSpec& spec = written.spec;
  ProcessSeams seams(folder, {"runtime", 0, 0, getpid(), getppid()}, written);
  auto channel = seams.inherited_channel("actor");
  const auto options = runtime_options(spec, folder, number_in(version), program);
  runtime::run_runtime(seams.world(), *channel, options);
  channel.reset();
  seams.goodbye(0);
  return 0;
}

int run_worker_process(const WorldFolder& folder, const std::string& version, int rank) {
  WrittenWorld written = read_world(folder);
  WorldSpec& spec = written.spec;
  spec.base_version = number_in(version);
  ProcessSeams seams(folder, {"worker", rank, rank, getpid(), getppid()}, written);
  auto channel = seams.inherited_channel("runtime");
  const std::unique_ptr<Hardware> hardware = open_hardware(written, rank);
  device::Device& device = seams.device(hardware->device(), rank);
  runtime::run_worker(seams.world(), *channel, device,
                      engine_factory(folder, spec, rank, *hardware, seams.faults().faults()),
                      worker_options(spec, rank));
  channel.reset();
  seams.goodbye(0);
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 4 && arguments[1] == "runtime")
    return run_runtime_process({arguments[2]}, arguments[3], arguments[0]);
#ifdef TPSYNC_HAVE_GPU_WORLD
  if (arguments.size() == 2 && arguments[1] == "gpus") return print_gpus();
#endif
  if (arguments.size() == 5 && arguments[1] == "worker")
    return run_worker_process({arguments[2]}, arguments[3],
                              static_cast<int>(number_in(arguments[4])));
  fmt::print(stderr, "{} is started by tpsync, not by hand\n", arguments[0]);
  return 64;
}

}  // namespace
}  // namespace tpsync::conformance

int main(int argc, char** argv) {
  try {
    return tpsync::conformance::run({argv, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", tpsync::to_text(tpsync::record_of(error)));
    return 70;
  }
}
