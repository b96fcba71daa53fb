#include "conformance/process/gpu_list.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_clock.h"
#include "tpsync/base/os_host.h"
#include "tpsync/base/os_process.h"
#include "tpsync/base/testing/temporary_folder.h"
#include "tpsync/device/cuda_device.h"

namespace tpsync::conformance {

namespace {

constexpr Duration kListLimit = std::chrono::minutes(1);
constexpr std::size_t kListBytes = 64 * 1024;

}  // namespace

std::vector<GpuFacts> list_gpus(const std::string& runtime_program) {
  OsClock clock;
  OsHost host;
  OsProcessLauncher launcher;
  const TemporaryFolder temporary("tpsync-gpus");
  SpawnRequest request;
  request.program = runtime_program;
  request.arguments = {"gpus"};
  request.environment = host.environment();
  request.log_path = temporary.path() / "gpus.log";
  const auto child = launcher.spawn(std::move(request));
  const auto status = child->wait(Deadline::after(clock, kListLimit));
  const std::string text = child->log_tail(kListBytes);
  if (!status) {
    child->signal_group(Signal::kKill);
    throw_broken(ErrorKind::kDevice, "gpus", "asking for them takes more than a minute");
  }
  if (status->signaled || status->code != 0) throw_broken(ErrorKind::kDevice, "gpus", text);
  std::vector<GpuFacts> gpus;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    GpuFacts gpu;
    if (!(fields >> gpu.uuid >> gpu.free_bytes >> gpu.total_bytes)) continue;
    for (int other = 0; fields >> other;) gpu.reads.push_back(other);
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

int print_gpus() {
  OsClock clock;
  const int count = device::find_cuda_devices().count;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    device::CudaDevice device(clock, {.ordinal = ordinal});
    const device::MemoryInfo memory = device.memory();
    std::vector<int> reads;
    for (int other = 0; other < count; ++other) {
      int can = 0;
      const bool asked =
          other != ordinal && cudaDeviceCanAccessPeer(&can, ordinal, other) == cudaSuccess;
      if (asked && can != 0) reads.push_back(other);
    }
    fmt::print("{} {} {} {}\n", device.uuid(), memory.free_bytes, memory.total_bytes,
               fmt::join(reads, " "));
  }
  return 0;
}

}  // namespace tpsync::conformance
