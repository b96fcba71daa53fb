// Worlds on GPUs that are looked at from outside. Skipped, with the reason, where there are too
// few.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>

#include "conformance/process/gpu_list.h"
#include "conformance/process/testing/endurance.h"
#include "conformance/scenarios/scripts.h"
#include "tpsync/base/errors.h"
#include "tpsync/base/testing/temporary_folder.h"
#include "tpsync/model/config.h"

namespace tpsync::conformance {
namespace {

constexpr int kRanks = 2;

// As the driver counts it, in the context that the rank's device lives in.
std::uint64_t free_on_gpu(int rank) {
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaSetDevice(rank) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
  return free;
}

// Beside this program, where it was carried to another machine.
std::string beside_or(const std::filesystem::path& built) {
  const auto beside =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / built.filename();
  return std::filesystem::exists(beside) ? beside.string() : built.string();
}
std::string test_runtime() { return beside_or(TPSYNC_TEST_RUNTIME); }

// Of a world of kRanks ranks; empty, with a reason, where there are too few.
std::vector<std::string> gpus_or_reason(std::string& reason) {
  std::vector<std::string> uuids;
  try {
    for (const GpuFacts& gpu : list_gpus(test_runtime())) uuids.push_back(gpu.uuid);
  } catch (const Error& error) {
    reason = fmt::format("the GPUs can't be used: {}", error.what());
    return {};
  }
  if (uuids.size() >= kRanks) return uuids;
  reason = fmt::format("{} GPUs are there, {} are needed", uuids.size(), kRanks);
  return {};
}

WorldSpec small_spec() {
  WorldSpec spec = small_world(tiny_tp4(), kRanks);
  spec.gather = Gather::kCopies;
  return spec;
}

TEST(EnduranceOnGpus, AThousandPublicationsLeaveGpusAndProcessesWithWhatTheyHadAfterTheTenth) {
  std::string reason;
  const std::vector<std::string> uuids = gpus_or_reason(reason);
  if (uuids.empty()) GTEST_SKIP() << reason;
  const Endured endured = endure({.options = {.runtime_program = test_runtime(), .gpus = uuids},
                                  .spec = small_spec(),
                                  .publications = 1000,
                                  .early = 10,
                                  .free_device_bytes = free_on_gpu});
  expect_the_same(endured, 4 << 20);
  ASSERT_EQ(endured.late.free_device_bytes.size(), 2U);
  EXPECT_GT(endured.late.free_device_bytes[0], 0U);
}

// ---- the driver's calls, as CUPTI reports them

struct Call {
  std::int64_t ns = 0;
  std::string name;
  bool begins_with_any(std::initializer_list<std::string_view> prefixes) const {
    return std::any_of(prefixes.begin(), prefixes.end(),
                       [this](std::string_view prefix) { return name.starts_with(prefix); });
  }
};

struct CallsOfProcess {
  std::string command_line;
  std::vector<Call> calls;
};

std::vector<CallsOfProcess> read_calls(const std::filesystem::path& folder) {
  std::vector<CallsOfProcess> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path());
    CallsOfProcess& one = all.emplace_back();
    std::getline(file, one.command_line);
    for (Call call; file >> call.ns >> call.name;) one.calls.push_back(call);
  }
  return all;
}

struct Window {
  std::int64_t begin = INT64_MAX;
  std::int64_t end = 0;
};

// From the first operation of the second chunk to the last one of the last chunk, of all actors or
// of all workers.
Window from_the_second_chunk(const sim::Trace& trace, bool workers) {
  std::set<std::uint32_t> members;
  Window window;
  for (const sim::Event& event : trace.events) {
    if (event.kind == static_cast<std::uint16_t>(sim::EventKind::kProcessStart) &&
        trace.texts.at(event.text) == (workers ? "worker" : "actor")) {
      members.insert(event.process);
    }
    if (event.kind != static_cast<std::uint16_t>(sim::EventKind::kOp) || event.chunk == 0 ||
        !members.contains(event.process)) {
      continue;
    }
    const std::string_view phase = trace.texts.at(event.phase);
    const bool of_a_chunk = workers ? phase == "update_native_weights"
                                    : phase == "native-materialize" || phase == "native-transfer";
    // A worker's last read belongs to the command before the one that it waits for.
    if (!of_a_chunk || event.op == static_cast<std::uint16_t>(sim::Op::kChannelRead)) continue;
    window.begin = std::min(window.begin, event.time);
    window.end = std::max(window.end, event.end);
  }
  return window;
}

TEST(CallsOnGpus, CuptiSeesNoAllocationExportOrOpeningAndFewLaunchesFromTheSecondChunkOn) {
#ifndef TPSYNC_CUDA_CALL_LOG
  GTEST_SKIP() << "this build found no CUPTI";
#else
  constexpr double kLaunchesMax = 10;  // of a process for a chunk
  std::string reason;
  const std::vector<std::string> uuids = gpus_or_reason(reason);
  if (uuids.empty()) GTEST_SKIP() << reason;
  const TemporaryFolder folder("tpsync-cuda-calls");
  // What begins with CUDA_ is handed on to runtimes and their workers.
  setenv("CUDA_INJECTION64_PATH", beside_or(TPSYNC_CUDA_CALL_LOG).c_str(), 1);
  setenv("CUDA_CALLS_FOLDER", folder.path().c_str(), 1);
  const WorldSpec spec = small_spec();
  ProcessRunner runner({.runtime_program = test_runtime(), .gpus = uuids});
  const auto run = runner.run(spec, {}, publish_once());
  unsetenv("CUDA_INJECTION64_PATH");
  unsetenv("CUDA_CALLS_FOLDER");
  ASSERT_TRUE(run.judgement.ok());
  const double chunks = static_cast<double>(chunk_count(spec)) - 1;
  ASSERT_GE(chunks, 2);
  int actors = 0;
  int workers = 0;
  for (const CallsOfProcess& process : read_calls(folder.path())) {
    if (process.command_line.find(" gpus") != std::string::npos) continue;
    const bool is_worker = process.command_line.find(" worker ") != std::string::npos;
    const Window window = from_the_second_chunk(runner.trace(), is_worker);
    double launches = 0;
    for (const Call& call : process.calls) {
      if (call.ns < window.begin || call.ns > window.end) continue;
      EXPECT_FALSE(call.begins_with_any({"cuMemAlloc", "cuMemFree", "cuMemCreate", "cuMemRelease",
                                         "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemAddress",
                                         "cuMemExport", "cuMemImport", "cuIpc", "cuMemHostAlloc",
                                         "cuMemHostRegister", "cuCtxCreate", "cuDevicePrimary"}))
          << process.command_line << ": " << call.name;
      if (call.begins_with_any({"cuLaunch", "cuMemcpy", "cuMemset", "cuGraphLaunch"})) ++launches;
    }
    std::cout << fmt::format("{}: {} calls, {:.1f} launches and copies for each of {} chunks\n",
                             is_worker ? "worker" : "actor", process.calls.size(),
                             launches / chunks, chunks);
    EXPECT_GT(launches, 0) << process.command_line;
    EXPECT_LE(launches / chunks, kLaunchesMax) << process.command_line;
    ++(is_worker ? workers : actors);
  }
  EXPECT_EQ(actors, kRanks);
  EXPECT_EQ(workers, kRanks);
#endif
}

}  // namespace
}  // namespace tpsync::conformance
