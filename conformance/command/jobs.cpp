#include "conformance/command/jobs.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>

#include "conformance/command/output.h"
#include "conformance/command/result_file.h"
#include "conformance/command/run_slot.h"
#include "conformance/command/usage.h"
#include "conformance/explore/symptoms.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

using Instant = std::chrono::steady_clock::time_point;

constexpr useconds_t kLookEveryUs = 5'000;
// A run that takes longer loops without asking the world for anything, which would count steps.
// Counted in looks, so that a machine that was suspended meanwhile makes no run too long.
constexpr std::uint64_t kRunMaxS = 300;
constexpr std::uint64_t kLooksMax = kRunMaxS * 1'000'000 / kLookEveryUs;
constexpr auto kTellEvery = std::chrono::milliseconds(250);

[[noreturn]] void fail_system(const char* what) {
  throw_broken(ErrorKind::kIo, what, "failed, no job can be made");
}

RunSlot* shared_slot() {
  void* const memory =
      mmap(nullptr, sizeof(RunSlot), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail_system("mmap");
  return new (memory) RunSlot;
}

void free_slot(RunSlot* slot) { munmap(slot, sizeof(RunSlot)); }

using SlotOwner = std::unique_ptr<RunSlot, decltype(&free_slot)>;

struct Crash {
  std::uint64_t exploration = 0;
  std::uint64_t number = 0;
  std::string id;
  std::string what;
  SimOptions options;
};

struct Job {
  explicit Job(std::uint64_t job_index) : index(job_index) {}
  std::uint64_t index;
  pid_t child = -1;
  int answer = -1;  // a file in memory
  SlotOwner slot{shared_slot(), free_slot};
  std::uint64_t seen = 0;   // of slot->begun
  std::uint64_t looks = 0;  // since then
  bool overdue = false;
  std::vector<Crash> crashes;
  bool given_up = false;
  bool failed = false;
  std::vector<ExploreReport> reports;
};

class Jobs {
 public:
  Jobs(const std::vector<Exploring>& explorations, const JobOptions& options)
      : explorations_(explorations), options_(options) {}

  JobsResult run() {
    for (std::uint64_t index = 0; index < options_.jobs; ++index) {
      jobs_.push_back(std::make_unique<Job>(index));
    }
    for (auto& job : jobs_) start(*job);
    auto told = std::chrono::steady_clock::now();
    while (std::any_of(jobs_.begin(), jobs_.end(), [](auto& job) { return job->child > 0; })) {
      for (auto& job : jobs_) look_after(*job);
      usleep(kLookEveryUs);
      const auto now = std::chrono::steady_clock::now();
      if (options_.progress && now - told > kTellEvery) {
        told = now;
        options_.progress(progress());
      }
    }
    return joined();
  }

 private:
  void start(Job& job) {
    job.answer = memfd_create("tpsync-job", MFD_CLOEXEC);
    if (job.answer < 0) fail_system("memfd_create");
    std::fflush(nullptr);
    const pid_t parent = getpid();
    job.seen = job.slot->begun;
    job.looks = 0;
    job.child = fork();
    if (job.child < 0) fail_system("fork");
    if (job.child > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(kExitHarness);
    _exit(work(job));
  }

  // In the child.
  int work(Job& job) {
    try {
      SimRunner runner;
      ExploreResult result;
      // Read back as any other file is.
      result.shard = {0, 1};
      result.tp = 1;
      for (std::uint64_t i = 0; i < explorations_.size(); ++i) {
        job.slot->exploration = i;
        ExploreOptions explore = options_.explore;
        explore.shard_count = options_.shard.count * options_.jobs;
        explore.shard_index = options_.shard.index + options_.shard.count * job.index;
        for (const Crash& crash : job.crashes) {
          if (crash.exploration == i) explore.left_out.push_back(crash.number);
        }
        explore.before = [&job](std::uint64_t number, const WorldSpec&, const SimOptions& run) {
          job.slot->number = number;
          job.slot->write(run);
          ++job.slot->begun;
        };
        std::uint64_t violations = 0;
        explore.after = [&job, &violations](const ExploreReport& report) {
          ++job.slot->runs;
          if (report.violations > violations)
            job.slot->violations += report.violations - violations;
          violations = report.violations;
          constexpr std::uint64_t kCountedEvery = 64;
          if (report.runs % kCountedEvery != 0) return;
          job.slot->covered = report.coverage.covered();
          job.slot->applicable = report.coverage.applicable();
        };
        result.reports.push_back(explorations_[i](runner, explore));
      }
      const std::string text =
          to_json(result).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      for (std::size_t at = 0; at < text.size();) {
        const ssize_t wrote = write(job.answer, text.data() + at, text.size() - at);
        if (wrote < 0) return kExitHarness;
        at += static_cast<std::size_t>(wrote);
      }
      return kExitPassed;
    } catch (const std::exception& error) {
      complain(std::string("the harness failed: ") + error.what());
      return kExitHarness;
    }
  }

  void look_after(Job& job) {
    if (job.child <= 0) return;
    const std::uint64_t begun = job.slot->begun;
    if (begun != job.seen) {
      job.seen = begun;
      job.looks = 0;
    } else if (++job.looks > kLooksMax) {
      job.overdue = true;
      kill(job.child, SIGKILL);
    }
    int status = 0;
    const pid_t ended = waitpid(job.child, &status, WNOHANG);
    if (ended == 0 || (ended < 0 && errno == EINTR)) return;
    if (ended < 0) fail_system("waitpid");
    job.child = -1;
    const bool answered = WIFEXITED(status) && WEXITSTATUS(status) == kExitPassed;
    if (answered) {
      job.reports = result_from_json(answer_of(job)).reports;
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == kExitHarness) {
      job.failed = true;
    } else {
      add_crash(job, status);
    }
    close(job.answer);
    if (answered || job.failed || job.given_up) return;
    job.slot->runs = 0;
    job.slot->violations = 0;
    start(job);
  }

  void add_crash(Job& job, int status) {
    Crash crash;
    crash.exploration = job.slot->exploration;
    crash.number = job.slot->number;
    crash.options = job.slot->read();
    if (job.overdue) {
      crash.id = kHangSymptom;
      crash.what = fmt::format(
          "the run did not end within {} s: livelock, some thread goes round without a call of any "
          "seam",
          kRunMaxS);
    } else {
      crash.id = kCrashSymptom;
      crash.what =
          WIFSIGNALED(status)
              ? fmt::format("core crashed: the process ended by signal {} ({})", WTERMSIG(status),
                            strsignal(WTERMSIG(status)))
              : fmt::format("core crashed: the process exited with {}", WEXITSTATUS(status));
    }
    job.overdue = false;
    // Without the fault-free run there is nothing that could go on.
    job.given_up = crash.number == kTwinNumber || job.crashes.size() == kCrashesMax;
    job.crashes.push_back(std::move(crash));
  }

  static std::string answer_of(const Job& job) {
    std::string text;
    char buffer[64 * 1024];
    off_t at = 0;
    for (;;) {
      const ssize_t got = pread(job.answer, buffer, sizeof(buffer), at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_system("pread");
      if (got == 0) return text;
      text.append(buffer, static_cast<std::size_t>(got));
      at += got;
    }
  }

  Progress progress() const {
    Progress sum;
    for (const auto& job : jobs_) {
      sum.runs += job->slot->runs;
      sum.violations += job->slot->violations;
      sum.covered = std::max<std::uint64_t>(sum.covered, job->slot->covered);
      sum.applicable = std::max<std::uint64_t>(sum.applicable, job->slot->applicable);
    }
    const auto now = std::chrono::steady_clock::now();
    sum.seconds = std::chrono::duration<double>(now - start_).count();
    return sum;
  }

  JobsResult joined() {
    JobsResult result;
    const Job* model = nullptr;
    for (const auto& job : jobs_) {
      result.failed |= job->failed;
      if (!job->reports.empty() && model == nullptr) model = job.get();
    }
    result.reports.resize(explorations_.size());
    for (std::size_t i = 0; i < explorations_.size(); ++i) {
      ExploreReport& report = result.reports[i];
      if (model != nullptr) {
        report = model->reports[i];
      } else {
        report.schedule = "none";
        report.fault_free.spec = *options_.spec;
      }
      for (const auto& job : jobs_) {
        if (job.get() != model && !job->reports.empty()) merge(report, job->reports[i]);
        if (job->given_up || job->failed) report.complete = false;
      }
    }
    for (const auto& job : jobs_) {
      for (const Crash& crash : job->crashes) add_finding(result.reports, crash);
    }
    return result;
  }

  void add_finding(std::vector<ExploreReport>& reports, const Crash& crash) const {
    ExploreReport& report = reports[crash.exploration];
    ++report.runs;
    ++report.violations;
    ++report.findings_by_id[crash.id];
    std::string faults;
    for (const faults::Fault& fault : crash.options.plan.faults) {
      faults += (faults.empty() ? "" : ", ") + to_text(fault);
    }
    const bool other = options_.world && crash.number != kTwinNumber;
    report.findings.push_back(
        {crash.number, crash.id,
         fmt::format("run {} ({}): {}", crash.number, faults.empty() ? "no fault" : faults,
                     crash.what),
         other ? options_.world(crash.exploration, crash.number) : *options_.spec, crash.options,
         ""});
    keep_first_findings(report.findings);
  }

  const std::vector<Exploring>& explorations_;
  const JobOptions& options_;
  const Instant start_ = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Job>> jobs_;
};

}  // namespace

JobsResult run_jobs(const std::vector<Exploring>& explorations, const JobOptions& options) {
  return Jobs(explorations, options).run();
}

}  // namespace tpsync::conformance
