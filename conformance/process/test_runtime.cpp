#include "conformance/process/test_runtime.h"

#include <fmt/format.h>

#include <utility>

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
  options.worker = [&folder, version, program](int rank) {
    SpawnRequest request;
    request.program = program;
    request.arguments = worker_arguments(folder, std::to_string(version), rank);
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
  options.version = kTestVersion;
  options.kv_cache_bytes = spec.kv_cache_bytes;
  options.committed_version = spec.base_version;
  options.command_timeout = spec.timeouts.weight_update;
  return options;
}

runtime::EngineFactory engine_factory(const WorldFolder& folder, const WorldSpec& spec, int rank,
                                      device::HostDevice& host, ContentPort& content) {
  return [&folder, &spec, rank, &host, &content](const runtime::ResidentModel& resident) {
    const std::uint64_t bytes = resident.layout.resident_bytes;
    publish_resident(folder, rank, host.host_pointer(resident.weights, 0, bytes), bytes);
    return std::make_unique<TestEngine>(resident, spec, content, nullptr);
  };
}

}  // namespace tpsync::conformance
