// Many worlds at once: each is run by a process of its own, which hands back the trace; the judge's
// verdict is made here.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "conformance/process/child.h"
#include "conformance/process/process_faults.h"
#include "conformance/process/process_run.h"
#include "conformance/process/process_world.h"
#include "sim/trace_file.h"
#include "tpsync/base/errors.h"
#include "tpsync/base/testing/temporary_folder.h"

namespace tpsync::conformance {

namespace {

std::string trace_file(const WorldFolder& folder, std::size_t job) {
  return folder.path / fmt::format("{}.trace", job);
}
std::string end_file(const WorldFolder& folder, std::size_t job) {
  return folder.path / fmt::format("{}.end", job);
}

void run_job(ProcessOptions options, const WorldJob& job, const WorldFolder& folder,
             std::size_t number) {
  ProcessRunner runner(std::move(options));
  SimOptions unjudged = job.options;
  unjudged.judge = false;
  const Run run = runner.run(job.spec, unjudged, job.script);
  std::ofstream(trace_file(folder, number)) << sim::write_trace(runner.trace());
  const nlohmann::json end = {{"kind", static_cast<int>(run.end.kind)},
                              {"detail", run.end.detail},
                              {"faults_applied", run.faults_applied}};
  std::ofstream(end_file(folder, number)) << end.dump();
}

// Children by number, which are killed and collected if they are left.
class Jobs {
 public:
  Jobs() = default;
  ~Jobs() {
    for (const auto& [number, pid] : running_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;

  void start(std::size_t number, const std::string& label, const std::function<int()>& body) {
    running_[number] = fork_child(label, body);
  }
  void collect() {
    std::erase_if(running_, [this](const auto& entry) {
      return waitpid(entry.second, &statuses_[entry.first], WNOHANG) == entry.second;
    });
  }
  std::size_t count() const { return running_.size(); }
  bool runs(std::size_t number) const { return running_.contains(number); }
  // Of one that ended, as waitpid gives it.
  int status(std::size_t number) const { return statuses_.at(number); }

 private:
  std::map<std::size_t, pid_t> running_;
  std::map<std::size_t, int> statuses_;
};

// How long the host needs to bring such a world up, about: actors, runtime and workers.
std::int64_t starting_ns(const ProcessOptions& options, const WorldSpec& spec) {
  return options.start_ns_per_process * (spec.actors + 1 + spec.tp);
}

// `status` as waitpid gives it.
std::string end_of(int status) {
  return WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                             : fmt::format("exited with status {}", WEXITSTATUS(status));
}

}  // namespace

Run ProcessRunner::result_of(const WorldJob& job, const WorldFolder& folder, std::size_t number,
                             int status) {
  Run run;
  trace_.clear();
  std::ifstream end(end_file(folder, number));
  std::ifstream file(trace_file(folder, number));
  if (!end || !file) {
    run.end = {sim::RunResult::Kind::kHarnessError,
               "this world's harness " + end_of(status) + " without a result", 0};
    return run;
  }
  const auto json = nlohmann::json::parse(end);
  run.end.kind = static_cast<sim::RunResult::Kind>(json.at("kind").get<int>());
  run.end.detail = json.at("detail").get<std::string>();
  run.faults_applied = json.at("faults_applied").get<std::uint64_t>();
  sim::read_trace(std::string(std::istreambuf_iterator<char>(file), {}), trace_);
  run.hash = sim::hash_of(trace_);
  run.log = read_actor_log(trace_, job.spec.actors);
  if (job.options.judge) run.judgement = judge_.judge(trace_);
  return run;
}

void ProcessRunner::run_all(const std::vector<WorldJob>& jobs,
                            const std::function<void(std::size_t job, const Run& run)>& done) {
  for (const WorldJob& job : jobs) check_plan(job.options.plan);
  const TemporaryFolder temporary("tpsync-worlds");
  const WorldFolder folder{temporary.path()};
  Jobs running;
  std::int64_t next_start = 0;
  std::size_t started = 0;
  for (std::size_t next = 0; next < jobs.size();) {
    if (started < jobs.size() && running.count() < options_.worlds_at_once &&
        monotonic_ns() >= next_start) {
      const std::size_t number = started++;
      next_start = monotonic_ns() + starting_ns(options_, jobs[number].spec);
      running.start(number, jobs[number].label, [&] {
        run_job(options_, jobs[number], folder, number);
        return 0;
      });
    }
    running.collect();
    while (next < started && !running.runs(next)) {
      done(next, result_of(jobs[next], folder, next, running.status(next)));
      ++next;
    }
    poll(nullptr, 0, 2);
  }
}

}  // namespace tpsync::conformance
