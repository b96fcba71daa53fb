// What an exploration's result says, on standard error and as files: a table, the coverage, and the
// findings with their traces and replay files, the first of each kind reduced.
#pragma once

#include <cstdint>
#include <string>

#include "conformance/command/output.h"
#include "conformance/command/result_file.h"

namespace tpsync::conformance {

// A row per schedule; the head once, before the first.
std::string report_head();
std::string report_row(const ExploreReport& report);

// Which situations all schedules together reached and missed, and how to search further.
std::string situations_report(const ExploreResult& result);

// Every phase of every rank role with every fault: counts, or a letter that its legend explains.
std::string coverage_text(const Coverage& coverage);

struct FindingFiles {
  std::uint64_t shrink_runs = 2000;
  bool fault_free = false;  // its trace and replay file as well
};
// Makes the findings' runs again, writes their traces and replay files, reduces the first of each
// id to a minimal replay file, and tells of all that.
void tell_findings(const ExploreResult& result, const FindingFiles& options, OutFolder& folder);

// 1 for a violation, 2 for faults without effect that should have had one, 3 for a run that was not
// the same twice or the simulator's own failure, else 0.
int exit_code_of(const ExploreResult& result, bool sampled);

}  // namespace tpsync::conformance
