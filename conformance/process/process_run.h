// Runs a script in a real world on this host: an actor process per trainer rank, the test runtime
// and its workers as their children; host shared memory and Gloo, or GPUs and NCCL (hardware.h).
//
// Actors are forked from the harness, so a scenario's script and decorators are theirs as they are;
// runtime and workers are programs that are executed with a clean environment. What each process
// does is recorded as in a simulated world and merged by time; what is left at the end is asked of
// the system. Needs Gloo.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conformance/world/sim_run.h"

namespace tpsync::conformance {

struct WorldFolder;

struct ProcessOptions {
  // The program that serves as runtime and workers (tpsync-test-runtime).
  std::string runtime_program;
  std::vector<std::string> gpus = {};  // UUIDs in the order of ordinals; empty: host memory
  // In run_all: worlds wait most of their time, but need the host while they start.
  std::size_t worlds_at_once = 96;
  std::int64_t start_ns_per_process = 40'000'000;
};

class ProcessRunner final : public WorldRunner {
 public:
  // Forks: made and used while this process has one thread.
  explicit ProcessRunner(ProcessOptions options);
  ~ProcessRunner() override;

  std::string_view world() const override { return options_.gpus.empty() ? "process" : "gpu"; }
  // Policies, deviations and pipe capacities are a simulated world's and change nothing here.
  // Throws InvalidInput kUnsupported for phantom worlds and more ranks than GPUs.
  Run run(const WorldSpec& spec, const SimOptions& options, const Script& script) override;
  // Several worlds at once, each in a process of its own below this one.
  void run_all(const std::vector<WorldJob>& jobs,
               const std::function<void(std::size_t job, const Run& run)>& done) override;
  const sim::Trace& trace() const override { return trace_; }

 private:
  // Of a world of run_all whose harness ended with `status`.
  Run result_of(const WorldJob& job, const WorldFolder& folder, std::size_t number, int status);

  ProcessOptions options_;
  sim::Trace trace_;
  judge::Judge judge_;
};

}  // namespace tpsync::conformance
