// What publications of a world of real devices needed of device memory, read from the world's
// trace: by how much more was in use than at the preflight, as the device counted it each time that
// an actor gave memory back. On GPUs that is the driver's figure, and so has in it what the worker
// beside the actor, NCCL and everybody else on the GPU took meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/trace.h"

namespace tpsync::conformance {

struct DeviceUse {
  int rank = 0;
  std::uint64_t free_bytes = 0;  // at the preflight of the publication that needed most
  std::uint64_t more_bytes = 0;  // in use at most beyond what was in use then
};

// Of all publications of a world of processes, by rank; none for a rank that gave nothing back
// after a preflight. Simulated devices record their peaks themselves.
std::vector<DeviceUse> read_device_use(const sim::Trace& trace);

// A line per rank beside what the preflight asks for; empty without any.
std::string device_use_table(const std::vector<DeviceUse>& uses, std::uint64_t required_bytes);
// For each rank that needed more than the preflight asks for, a sentence.
std::vector<std::string> beyond_preflight(const std::vector<DeviceUse>& uses,
                                          std::uint64_t required_bytes);

}  // namespace tpsync::conformance
