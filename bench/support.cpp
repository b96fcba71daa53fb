#include "bench/support.h"

#include <unistd.h>

#include <algorithm>

namespace tpsync::bench {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

Reporter::Reporter() : ConsoleReporter(isatty(STDOUT_FILENO) != 0 ? OO_ColorTabular : OO_Tabular) {}

void Reporter::ReportRuns(const std::vector<Run>& runs) {
  for (const Run& run : runs) failed_ = failed_ || run.error_occurred;
  ConsoleReporter::ReportRuns(runs);
}

int run_benchmarks(int argc, char** argv, Reporter& reporter) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 64;
#if defined(__clang__)
  benchmark::AddCustomContext("compiler", "clang " __clang_version__);
#else
  benchmark::AddCustomContext("compiler", "g++ " __VERSION__);
#endif
  benchmark::AddCustomContext("build type", TPSYNC_BUILD_TYPE);
  benchmark::RunSpecifiedBenchmarks(&reporter);
  benchmark::Shutdown();
  return reporter.failed() ? 1 : 0;
}

}  // namespace tpsync::bench
