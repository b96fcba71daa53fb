// Each check of the preflight, their order, and the memory bound to the byte.
#include "tpsync/sync/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/base/testing/fake_world.h"

namespace tpsync::sync {
namespace {

using fakes::failure_of;
using testing::HasSubstr;

struct Given {
  std::vector<wire::PreflightReport> reports;
  wire::TopologyReport topology;
  PreflightLimits limits;
};

Given admitted() {
  Given given;
  given.topology.tp_world_size = 3;
  for (int rank = 0; rank < 3; ++rank) {
    const std::string uuid = "gpu-" + std::to_string(rank);
    given.topology.device_uuids.push_back(uuid);
    given.reports.push_back({"host", "boot", uuid, 1, 1000});
  }
  given.limits = {.bucket_bytes = 100, .largest_tensor_bytes = 100, .required_free_bytes = 1000};
  return given;
}

using Edit = std::function<void(Given&)>;

ErrorRecord refusal(const Edit& edit) {
  Given given = admitted();
  edit(given);
  return failure_of([&] { check_preflight(given.reports, given.topology, given.limits); });
}

const std::vector<std::pair<std::string, Edit>>& in_order() {
  static const std::vector<std::pair<std::string, Edit>> checks = {
      {"visible devices", [](Given& g) { g.reports[1].visible_devices = 2; }},
      {"world size", [](Given& g) { g.topology.tp_world_size = 2; }},
      {"host", [](Given& g) { g.reports[2].boot_id = "another"; }},
      {"device uuid",
       [](Given& g) { std::swap(g.topology.device_uuids[0], g.topology.device_uuids[1]); }},
      {"bucket_bytes", [](Given& g) { g.limits.largest_tensor_bytes = 101; }},
      {"free device memory", [](Given& g) { g.reports[2].free_bytes = 999; }},
  };
  return checks;
}

TEST(Preflight, ExactlyTheRequiredMemoryAndExactlyTheBucketPass) {
  const Given given = admitted();
  check_preflight(given.reports, given.topology, given.limits);
}

TEST(Preflight, TheFirstFailingCheckIsReported) {
  for (std::size_t first = 0; first < in_order().size(); ++first) {
    const ErrorRecord record = refusal([&](Given& given) {
      for (std::size_t i = first; i < in_order().size(); ++i) in_order()[i].second(given);
    });
    EXPECT_EQ(record.subject, in_order()[first].first);
  }
}

TEST(Preflight, EachRefusalSaysItsRankAndWhatToDo) {
  const std::vector<std::tuple<ErrorKind, Remedy, int, std::string>> expected = {
      {ErrorKind::kMismatch, Remedy::kFixInput, 1, "it sees 2"},
      {ErrorKind::kMismatch, Remedy::kFixInput, 0, "3 actors, but 2 TP ranks"},
      {ErrorKind::kMismatch, Remedy::kFixInput, 2, "one host"},
      {ErrorKind::kMismatch, Remedy::kFixInput, 0, "the actor is on gpu-0"},
      {ErrorKind::kInvalidConfig, Remedy::kFixInput, 0, "101 bytes, the bucket only 100"},
      {ErrorKind::kOutOfMemory, Remedy::kTryLater, 2, "1000 bytes are required, 999 are free"},
  };
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const ErrorRecord record = refusal(in_order()[i].second);
    const auto& [kind, remedy, rank, text] = expected[i];
    EXPECT_EQ(record.kind, kind) << i;
    EXPECT_EQ(record.remedy, remedy) << i;
    EXPECT_EQ(record.rank, rank) << i;
    EXPECT_THAT(record.detail, HasSubstr(text));
  }
}

TEST(Preflight, NoVisibleDeviceAndAnotherHostNameAreRefused) {
  EXPECT_EQ(refusal([](Given& g) { g.reports[0].visible_devices = 0; }).subject, "visible devices");
  EXPECT_EQ(refusal([](Given& g) { g.reports[1].host_name = "other"; }).subject, "host");
  EXPECT_EQ(refusal([](Given& g) { g.reports[1].host_name = "other"; }).rank, 1);
}

TEST(Preflight, OneByteLessOnAnyRankIsRefusedThere) {
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const ErrorRecord record = refusal([&](Given& g) { g.reports[rank].free_bytes -= 1; });
    EXPECT_EQ(record.kind, ErrorKind::kOutOfMemory);
    EXPECT_EQ(record.rank, static_cast<int>(rank));
  }
}

TEST(Preflight, RequiredMemoryIsThreeBucketsTheLargestLayerAndTheHeadroom) {
  EXPECT_EQ(required_free_bytes(640 * kMiB, 1246241280, 2048 * kMiB), 5406990848u);
  EXPECT_EQ(required_free_bytes(0, 0, 0), 0u);
  constexpr std::uint64_t kThird = UINT64_MAX / 3;  // divides without a rest
  EXPECT_EQ(required_free_bytes(kThird, 0, 0), UINT64_MAX);
  for (const auto& [bucket, layer, headroom] :
       std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>>{
           {kThird + 1, 0, 0}, {kThird, 1, 0}, {kThird, 0, 1}}) {
    const ErrorRecord record =
        failure_of([&, b = bucket, l = layer, h = headroom] { required_free_bytes(b, l, h); });
    EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
    EXPECT_EQ(record.remedy, Remedy::kFixInput);
    EXPECT_EQ(record.subject, "bucket_bytes");
  }
}

}  // namespace
}  // namespace tpsync::sync
