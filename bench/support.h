// What every benchmark of this folder does alike: the machine's facts are printed, a wrong result
// fails the program, and seams that nobody measures are quiet.
#pragma once

#include <benchmark/benchmark.h>

#include <vector>

#include "tpsync/base/log.h"

namespace tpsync::bench {

class SilentLog final : public Log {
 public:
  bool wants(LogLevel) const noexcept override { return false; }
  void record(const LogRecord&) noexcept override {}
};

// 0 of nothing.
double median(std::vector<double> values);

// The console's table, with colours on a terminal; remembers whether a benchmark ended as an error.
class Reporter : public benchmark::ConsoleReporter {
 public:
  Reporter();
  void ReportRuns(const std::vector<Run>& runs) override;
  bool failed() const { return failed_; }

 private:
  bool failed_ = false;
};

// The rest of main(): reads Google Benchmark's flags, runs everything, and returns the exit status:
// 0, 1 after an error, 64 for a flag that nobody knows.
int run_benchmarks(int argc, char** argv, Reporter& reporter);

}  // namespace tpsync::bench
