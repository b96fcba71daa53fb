// The control channel ends or falls silent while rank 0 waits for its runtime, and while the
// runtime waits for a worker.
#include <fmt/format.h>

#include "conformance/scenarios/scripts.h"

namespace tpsync::conformance {

namespace {

std::string runtime_phase(const Wait& wait) {
  if (wait.phase == "topology-ipc-probe") return "probe_ipc";
  if (wait.phase == "native-init") return "init_native_weight_transfer";
  if (wait.phase == "native-start") return "start_native_weight_update";
  if (wait.phase == "native-transfer") return "update_native_weights";
  if (wait.phase == "native-finish") return "finish_native_weight_update";
  return "release_native_ipc";
}

void parent_loses_runtime(ScenarioContext& context, const std::string& fault, ErrorKind kind) {
  std::vector<WorldJob> jobs;
  std::vector<std::string> phases;
  for (const Wait& wait : runtime_waits(context.spec())) {
    phases.push_back(phase_text(wait.phase, wait.chunk));
    jobs.push_back(
        {fmt::format("{} in {}", fault, phases.back()), context.spec(),
         with_fault(fault, {.phase = wait.phase, .chunk = wait.chunk, .op = "channel.read"}),
         publish_and_recover()});
  }
  context.run_all(jobs, [&](std::size_t job) {
    context.expect_failed({.kind = kind, .phase = phases[job], .rank = 0});
  });
}

void end_of_file(ScenarioContext& context) {
  parent_loses_runtime(context, "channel.eof", ErrorKind::kEndOfFile);
}

void timeout(ScenarioContext& context) {
  parent_loses_runtime(context, "channel.timeout", ErrorKind::kTimeout);
}

void worker_channel(ScenarioContext& context) {
  Batch batch(context);
  for (int rank = 0; rank < context.spec().tp; ++rank) {
    for (const Wait& wait : runtime_waits(context.spec())) {
      const std::string phase = phase_text(wait.phase, wait.chunk);
      batch.add(fmt::format("worker {} closes in {}", rank, phase),
                with_fault("channel.eof", {.role = "worker",
                                           .rank = rank,
                                           .phase = runtime_phase(wait),
                                           .chunk = wait.chunk,
                                           .op = "channel.write"}),
                publish_and_recover(), [=, &context] {
                  context.expect_failed({.kind = ErrorKind::kRemote,
                                         .phase = phase,
                                         .rank = 0,
                                         .detail = fmt::format("worker {}", rank)});
                });
    }
  }
  batch.run();
}

void worker_killed(ScenarioContext& context) {
  Batch batch(context);
  for (const Wait& wait : runtime_waits(context.spec())) {
    const std::string phase = phase_text(wait.phase, wait.chunk);
    const int rank = context.spec().tp - 1;
    batch.add(fmt::format("worker {} is killed in {}", rank, phase),
              with_fault("process.kill", {.role = "worker",
                                          .rank = rank,
                                          .phase = runtime_phase(wait),
                                          .chunk = wait.chunk,
                                          .op = "channel.write"}),
              publish_and_recover(), [=, &context] {
                context.expect_failed({.kind = ErrorKind::kRemote,
                                       .phase = phase,
                                       .rank = 0,
                                       .detail = "killed by signal 9"});
              });
  }
  batch.run();
}

void runtime_killed(ScenarioContext& context) {
  Batch batch(context);
  for (const Wait& wait : runtime_waits(context.spec())) {
    const std::string phase = phase_text(wait.phase, wait.chunk);
    batch.add(fmt::format("the runtime is killed in {}", phase),
              with_fault("process.kill", {.role = "runtime",
                                          .phase = runtime_phase(wait),
                                          .chunk = wait.chunk,
                                          .op = "channel.write"}),
              publish_and_recover(), [=, &context] {
                context.expect_failed({.kind = ErrorKind::kEndOfFile, .phase = phase, .rank = 0});
              });
  }
  batch.run();
}

}  // namespace

std::vector<Scenario> channel_scenarios() {
  return {
      {"channel.eof",
       "End of file from the runtime at every phase poisons (or, untouched, only breaks) and is "
       "agreed on",
       {"TPS-PIPE-02", "TPS-FAIL-01"},
       needs_equal_worlds,
       end_of_file},
      {"channel.timeout",
       "A reply that never comes, at every phase, ends at the command's deadline",
       {"TPS-PIPE-03", "TPS-FAIL-01"},
       needs_equal_worlds,
       timeout},
      {"channel.worker-eof",
       "A worker that closes its channel, at every phase, is named by rank",
       {"TPS-PIPE-04"},
       needs_equal_worlds,
       worker_channel},
      {"process.worker-killed",
       "A killed worker is reported with its signal, at every phase",
       {"TPS-PROC-01"},
       needs_equal_worlds,
       worker_killed},
      {"process.runtime-killed",
       "A killed runtime shows as end of file, at every phase, and its workers go with it",
       {"TPS-PROC-02"},
       needs_equal_worlds,
       runtime_killed},
  };
}

}  // namespace tpsync::conformance
