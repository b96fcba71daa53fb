#include "conformance/process/test_runtime.h"

#include <fmt/format.h>

#include <utility>

#include "tpsync/base/os_host.h"

namespace tpsync::conformance {

runtime::RuntimeOptions runtime_options(const WorldSpec& spec, const WorldFolder& folder,
                                        std::int64_t version, const std::string& program) {
  runtime::RuntimeOptions options;
  options.tp_size = spec.tp;
  options.version = kTestVersion;
  options.model_type = spec.config.model_type;
  options.committed_version = version;
  options.control_timeout = spec.sync.control_timeout;
  options.worker_timeout = rollout::longest(spec.timeouts);
  options.combine = combine_lanes;
  options.routes = runtime_routes(spec);
  const Environment environment = OsHost().environment();
  options.worker = [&folder, version, program, environment](int rank) {
    SpawnRequest request;
    request.program = program;
    request.arguments = worker_arguments(folder, std::to_string(version), rank);
    request.environment = environment;
    request.log_path = folder.log(fmt::format("worker-{}", rank));
    return request;
  };
  return options;
}

runtime::WorkerOptions worker_options(const WorldSpec& spec, int rank) {
  runtime::WorkerOptions options;
  options.tp_rank = rank;
  options.tp_size = spec.tp;
  options.config = spec.config;
  options.routes = runtime_routes(spec);
  options.version = kTestVersion;
  options.kv_cache_bytes = spec.kv_cache_bytes;
  options.committed_version = spec.base_version;
  options.command_timeout = spec.timeouts.weight_update;
  return options;
}

runtime::EngineFactory engine_factory(const WorldFolder& folder, const WorldSpec& spec, int rank,
                                      Hardware& hardware, faults::ProcessFaults* faults) {
  return [&folder, &spec, rank, &hardware, faults](const runtime::ResidentModel& resident) {
    hardware.publish_resident(folder, rank, resident);
    std::unique_ptr<runtime::InferenceEngine> engine =
        std::make_unique<TestEngine>(resident, spec, hardware.content(), nullptr);
    auto decorated = faults != nullptr ? faults->engine(resident, engine) : nullptr;
    return decorated ? std::move(decorated) : std::move(engine);
  };
}

}  // namespace tpsync::conformance
