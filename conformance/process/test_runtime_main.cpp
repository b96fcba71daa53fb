// The test runtime of real worlds, and its workers:
//   tpsync-test-runtime runtime FOLDER VERSION
//   tpsync-test-runtime worker FOLDER VERSION RANK
//   tpsync-test-runtime gpus
// Started by the harness's actors and by the runtime itself, over an inherited channel.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <string>
#include <vector>

#include "conformance/process/gpu_list.h"
#include "conformance/process/hardware.h"
#include "conformance/process/process_world.h"
#include "conformance/world/test_engine.h"
#include "tpsync/runtime/server.h"
#include "tpsync/runtime/worker.h"

namespace tpsync::conformance {
namespace {

std::int64_t number_in(const std::string& text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end)
    throw_invalid(ErrorKind::kInvalidConfig, text, "is no number");
  return number;
}

int run_runtime_process(const WorldFolder& folder, const std::string& version,
                        const std::string& program) {
  const WrittenWorld written = read_world(folder);
  const WorldSpec& spec = written.spec;
  ProcessSeams seams(folder, {"runtime", 0, 0, getpid(), getppid()}, written);
  auto channel = seams.inherited_channel("actor");
  runtime::RuntimeOptions options;
  options.tp_size = spec.tp;
  options.version = kTestVersion;
  options.model_type = spec.config.model_type;
  options.committed_version = number_in(version);
  options.control_timeout = spec.sync.control_timeout;
  options.worker_timeout = rollout::longest(spec.timeouts);
  options.combine = combine_lanes;
  options.worker = [&](int rank) {
    SpawnRequest request;
    request.program = program;
    request.arguments = worker_arguments(folder, version, rank);
    request.environment = seams.world().host.environment();
    request.log_path = folder.log(fmt::format("worker-{}", rank));
    return request;
  };
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
  runtime::WorkerOptions options;
  options.tp_rank = rank;
  options.tp_size = spec.tp;
  options.config = spec.config;
  options.version = kTestVersion;
  options.kv_cache_bytes = spec.kv_cache_bytes;
  options.committed_version = spec.base_version;
  options.command_timeout = spec.timeouts.weight_update;
  runtime::run_worker(
      seams.world(), *channel, device,
      [&](const runtime::ResidentModel& resident) {
        hardware->publish_resident(folder, rank, resident);
        return std::make_unique<TestEngine>(resident, spec, hardware->content(), nullptr);
      },
      options);
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
