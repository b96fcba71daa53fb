// Worlds on GPUs that are looked at from outside. Skipped, with the reason, where there are too
// few.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "conformance/process/gpu_list.h"
#include "conformance/process/testing/endurance.h"
#include "tpsync/base/errors.h"
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
std::string test_runtime() {
  const auto beside =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "tpsync-test-runtime";
  return std::filesystem::exists(beside) ? beside.string() : TPSYNC_TEST_RUNTIME;
}

TEST(EnduranceOnGpus, AThousandPublicationsLeaveGpusAndProcessesWithWhatTheyHadAfterTheTenth) {
  std::vector<std::string> uuids;
  try {
    for (const GpuFacts& gpu : list_gpus(test_runtime())) uuids.push_back(gpu.uuid);
  } catch (const Error& error) {
    GTEST_SKIP() << "the GPUs can't be used: " << error.what();
  }
  if (uuids.size() < kRanks) {
    GTEST_SKIP() << fmt::format("{} GPUs are there, {} are needed", uuids.size(), kRanks);
  }
  WorldSpec spec = small_world(tiny_tp4(), kRanks);
  spec.gather = Gather::kCopies;
  const Endured endured = endure({.options = {.runtime_program = test_runtime(), .gpus = uuids},
                                  .spec = spec,
                                  .publications = 1000,
                                  .early = 10,
                                  .free_device_bytes = free_on_gpu});
  expect_the_same(endured, 4 << 20);
  ASSERT_EQ(endured.late.free_device_bytes.size(), 2U);
  EXPECT_GT(endured.late.free_device_bytes[0], 0U);
}

}  // namespace
}  // namespace tpsync::conformance
