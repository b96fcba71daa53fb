// Explorations in child processes, each a shard of its own. What ends a child without an answer is
// a finding: the run that it was making lies in memory that parent and child share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "conformance/command/shard.h"
#include "conformance/explore/explorer.h"

namespace tpsync::conformance {

// One exploration, of a shard and with the callbacks that the options name.
using Exploring = std::function<ExploreReport(SimRunner&, const ExploreOptions&)>;

struct Progress {
  std::uint64_t runs = 0;
  std::uint64_t violations = 0;
  std::uint64_t covered = 0;  // cells of the coverage table, of the job that covers most
  std::uint64_t applicable = 0;
  double seconds = 0;
};

struct JobOptions {
  std::uint64_t jobs = 1;
  Shard shard;  // what all jobs together are
  const WorldSpec* spec = nullptr;
  // The world of a run with this number, where it is not that of `spec`; may be empty.
  std::function<WorldSpec(std::uint64_t exploration, std::uint64_t number)> world;
  ExploreOptions explore;                         // shard and callbacks are set by the jobs
  std::function<void(const Progress&)> progress;  // a few times a second
};

struct JobsResult {
  std::vector<ExploreReport> reports;  // by exploration
  bool failed = false;                 // a job ended by the harness's own failure, and said why
};

// Must be called before the process has threads. A crash leaves its run out and makes the job's
// others again; a job that crashes more than kCrashesMax times is given up, and its reports are not
// complete.
inline constexpr std::size_t kCrashesMax = 5;
JobsResult run_jobs(const std::vector<Exploring>& explorations, const JobOptions& options);

}  // namespace tpsync::conformance
