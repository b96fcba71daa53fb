// Weights between GPUs: over NCCL every byte, what a wait says when a peer is killed, stopped, or
// has failed, and the group that takes over; copies between processes beside it.
#include "tpsync/collective/nccl_shard_group.h"

#include <gtest/gtest.h>
#include <nccl.h>

#include "tpsync/collective/forwarding_groups.h"
#include "tpsync/collective/testing/gloo_ranks.h"
#include "tpsync/device/cuda_device.h"

namespace tpsync::collective {
namespace {

using device::RegionId;
using device::StreamId;

// What ranks tell one another before they connect.
ByteBuffer version_bytes(int version) {
  ByteBuffer bytes;
  for (int shift = 0; shift < 32; shift += 8)
    bytes.push_back(static_cast<std::byte>(version >> shift & 0xff));
  return bytes;
}

// Says that its process has loaded version 2.1.0.
class OldLibrary final : public ForwardingControlGroup {
 public:
  using ForwardingControlGroup::ForwardingControlGroup;
  std::vector<ByteBuffer> all_gather(ByteView, Deadline deadline) override {
    return ForwardingControlGroup::all_gather(version_bytes(20100), deadline);
  }
};

class Environment final : public ForwardingHost {
 public:
  Environment(Host& inner, std::optional<std::string> multicast, std::optional<std::string> policy)
      : ForwardingHost(inner), multicast_(std::move(multicast)), policy_(std::move(policy)) {}
  using ForwardingHost::environment;
  std::optional<std::string> environment(std::string_view name) override {
    if (name == "NCCL_NVLS_ENABLE") return multicast_;
    if (name == "NCCL_CTA_POLICY") return policy_;
    return ForwardingHost::environment(name);
  }

 private:
  std::optional<std::string> multicast_;
  std::optional<std::string> policy_;
};

// A rank on the device of its number.
struct Rank {
  Rank(GlooControlGroup& group, World the_world)
      : control(group), world(the_world), device(the_world.clock, {.ordinal = group.rank()}) {
    stream = device.create_stream();
  }
  ~Rank() {
    shards.reset();
    device.destroy_stream(stream);
  }
  void join(Deadline deadline) {
    shards = std::make_unique<NcclShardGroup>(control, device, device, world, deadline);
  }
  std::size_t mine() const { return static_cast<std::size_t>(control.rank()); }

  RegionId prepare(std::span<const GatherPart> parts, Deadline deadline) {
    std::uint64_t end = 0;
    for (const GatherPart& part : parts) end = std::max(end, part.offset + part.bytes);
    bytes = end;
    const RegionId region = device.allocate({.bytes = std::max<std::uint64_t>(end, 16)});
    const ByteBuffer own = fakes::patterned(mine(), parts[mine()].bytes);
    if (end != 0) device.fill(stream, region, 0, end, std::byte{0xee});
    if (!own.empty()) device.upload(stream, region, parts[mine()].offset, own);
    device.synchronize(stream, deadline);
    return region;
  }
  void gather(RegionId region, std::span<const GatherPart> parts, Deadline deadline) {
    shards->all_gather(stream, region, parts);
    shards->wait(stream, deadline, control);
  }
  void expect_gathered(RegionId region, std::span<const GatherPart> parts, Deadline deadline) {
    ByteBuffer found(bytes);
    if (!found.empty()) device.download(stream, region, 0, found);
    device.synchronize(stream, deadline);
    for (std::size_t r = 0; r < parts.size(); ++r) {
      const std::byte* at = found.data() + parts[r].offset;
      EXPECT_TRUE(ByteBuffer(at, at + parts[r].bytes) == fakes::patterned(r, parts[r].bytes))
          << "part " << r << " on rank " << mine();
    }
  }

  GlooControlGroup& control;
  World world;
  device::CudaDevice device;
  StreamId stream = StreamId::kNone;
  std::uint64_t bytes = 0;
  std::unique_ptr<NcclShardGroup> shards;
};

class NcclShards : public fakes::GlooRanks {
 protected:
  void need(int devices) {
    const device::CudaDevices found = device::find_cuda_devices();
    if (found.count < devices) {
      GTEST_SKIP() << "needs " << devices << " GPUs, there are " << found.count << " "
                   << found.reason;
    }
    if (world_.world().host.environment("NCCL_NVLS_ENABLE") != "0")
      GTEST_SKIP() << "needs NCCL_NVLS_ENABLE=0 in the environment";
  }
  World world_with(Host& host) {
    const World given = world_.world();
    return {given.clock,  given.channels, given.processes, host,
            given.random, given.log,      given.threads};
  }
  fakes::Outcomes run_unjoined(int size, const std::function<void(Rank&)>& body,
                               std::optional<int> threads = std::nullopt) {
    return run(
        size,
        [&](GlooControlGroup& group) {
          Rank rank(group, world_.world());
          body(rank);
        },
        threads);
  }
  fakes::Outcomes run_ranks(int size, const std::function<void(Rank&)>& body,
                            std::optional<int> threads = std::nullopt) {
    return run_unjoined(
        size,
        [&](Rank& rank) {
          rank.join(in_an_hour());
          body(rank);
        },
        threads);
  }
  void expect_failure(Rank& rank, ErrorKind kind, int lost, std::optional<Deadline> deadline = {}) {
    const auto error = failure_of(
        [&] { rank.shards->wait(rank.stream, deadline.value_or(in_an_hour()), rank.control); });
    EXPECT_EQ(error.kind, kind) << to_text(error);
    EXPECT_EQ(error.rank, lost) << to_text(error);
    EXPECT_FALSE(rank.shards->usable());
    const auto again =
        failure_of([&] { rank.shards->wait(rank.stream, in_an_hour(), rank.control); });
    EXPECT_EQ(again.kind, ErrorKind::kPeerLost);
    // What was in the stream has gone from it, so that the buffer may be freed.
    rank.device.synchronize(rank.stream, in_an_hour());
  }
};

const std::vector<GatherPart> kEven = {{0, 4 * kMiB}, {4 * kMiB, 4 * kMiB}};

TEST_F(NcclShards, AGroupOfOneGathersNothing) {
  need(1);
  if (IsSkipped()) return;
  const std::vector<GatherPart> parts = {{16, 100}};
  expect_all_succeed(run_ranks(1, [&](Rank& rank) {
    const RegionId region = rank.prepare(parts, in_an_hour());
    rank.gather(region, parts, in_an_hour());
    rank.expect_gathered(region, parts, in_an_hour());
    rank.device.free(region);
    rank.shards->abort();
    EXPECT_FALSE(rank.shards->usable());
    rank.join(in_an_hour());
    EXPECT_TRUE(rank.shards->usable());
  }));
}

TEST_F(NcclShards, MulticastOrAnotherPolicyInTheEnvironmentIsRefused) {
  need(1);
  if (IsSkipped()) return;
  const std::pair<std::optional<std::string>, std::optional<std::string>> refused[] = {
      {std::nullopt, std::nullopt}, {"2", std::nullopt}, {"0", "2"}};
  for (const auto& [multicast, policy] : refused) {
    Environment environment(world_.world().host, multicast, policy);
    group_ = "refused-" + multicast.value_or("unset") + policy.value_or("");
    const auto outcomes = run(1, [&](GlooControlGroup& group) {
      Rank rank(group, world_with(environment));
      rank.join(in_an_hour());
    });
    ASSERT_TRUE(outcomes[0]);
    EXPECT_EQ(outcomes[0]->kind, ErrorKind::kInvalidConfig);
    EXPECT_EQ(outcomes[0]->subject, policy ? "NCCL_CTA_POLICY" : "NCCL_NVLS_ENABLE");
  }
}

TEST_F(NcclShards, DifferentVersionsAreTheSameErrorOnAllRanks) {
  need(2);
  if (IsSkipped()) return;
  const auto outcomes = run(2, [&](GlooControlGroup& group) {
    Rank rank(group, world_.world());
    OldLibrary old(group);
    ControlGroup& control = group.rank() == 1 ? static_cast<ControlGroup&>(old) : group;
    NcclShardGroup shards(control, rank.device, rank.device, rank.world, in_an_hour());
  });
  ASSERT_TRUE(outcomes[0] && outcomes[1]);
  EXPECT_EQ(*outcomes[0], *outcomes[1]);
  EXPECT_EQ(outcomes[0]->kind, ErrorKind::kMismatch);
  EXPECT_EQ(outcomes[0]->rank, 1);
  EXPECT_EQ(outcomes[0]->detail, "this rank has loaded version 2.1.0, rank 0 has " +
                                     nccl_version() + "; let all ranks load the same library");
}

TEST_F(NcclShards, EveryRankHasEveryPartAfterwards) {
  need(2);
  if (IsSkipped()) return;
  const std::vector<GatherPart> lists[] = {
      kEven,                              // one all-gather
      {{0, 1000}, {1024, 3 * kMiB + 5}},  // uneven
      {{0, 2 * kMiB}, {2 * kMiB, 0}},     // all on one rank
      {{0, 0}, {0, 1}},
      {{0, 0}, {0, 0}},
      {{0, 64 * kMiB}, {64 * kMiB + 16, 64 * kMiB}}  // even, with a gap
  };
  expect_all_succeed(run_ranks(2, [&](Rank& rank) {
    for (const auto& parts : lists) {
      const RegionId region = rank.prepare(parts, in_an_hour());
      rank.gather(region, parts, in_an_hour());
      rank.expect_gathered(region, parts, in_an_hour());
      rank.control.all_gather({}, in_an_hour());
      rank.device.free(region);
    }
    EXPECT_TRUE(rank.shards->usable());
  }));
}

TEST_F(NcclShards, WorkBeforeAndBehindTheGatherIsDoneInItsOrder) {
  need(2);
  if (IsSkipped()) return;
  expect_all_succeed(run_ranks(2, [&](Rank& rank) {
    const RegionId region = rank.prepare(kEven, in_an_hour());
    const RegionId copied = rank.device.allocate({.bytes = 8 * kMiB});
    for (int round = 0; round < 50; ++round) {
      const auto value = [&](std::size_t r) {
        return static_cast<std::byte>(static_cast<std::size_t>(round) * 2 + r);
      };
      rank.device.fill(rank.stream, region, kEven[rank.mine()].offset, 4 * kMiB,
                       value(rank.mine()));
      rank.shards->all_gather(rank.stream, region, kEven);
      rank.device.copy(rank.stream, {.dst = copied, .src = region, .bytes = 8 * kMiB});
      rank.shards->wait(rank.stream, in_an_hour(), rank.control);
      ByteBuffer found(8 * kMiB);
      rank.device.download(rank.stream, copied, 0, found);
      rank.device.synchronize(rank.stream, in_an_hour());
      ByteBuffer expected(4 * kMiB, value(0));
      expected.resize(8 * kMiB, value(1));
      EXPECT_TRUE(found == expected) << "round " << round;
    }
    rank.device.free(copied);
    rank.device.free(region);
  }));
}

TEST_F(NcclShards, AnAbsentRankIsSilenceUntilTheDeadline) {
  need(2);
  if (IsSkipped()) return;
  expect_all_succeed(run_ranks(2, [&](Rank& rank) {
    const RegionId region = rank.prepare(kEven, in_an_hour());
    if (rank.mine() == 0) {
      rank.shards->all_gather(rank.stream, region, kEven);
      expect_failure(rank, ErrorKind::kTimeout, -1,
                     Deadline::after(clock_, std::chrono::milliseconds(200)));
    }
    rank.control.all_gather({}, in_an_hour());
    rank.device.free(region);
  }));
}

TEST_F(NcclShards, ARankThatNeverConnectsIsFoundByTheDeadline) {
  need(2);
  if (IsSkipped()) return;
  expect_all_succeed(run_unjoined(2, [&](Rank& rank) {
    if (rank.mine() == 0) {
      const auto error =
          failure_of([&] { rank.join(Deadline::after(clock_, std::chrono::milliseconds(500))); });
      EXPECT_EQ(error.kind, ErrorKind::kTimeout) << to_text(error);
    } else {
      // It says over the control group what is asked, and goes no further.
      int version = 0;
      ncclGetVersion(&version);
      rank.control.all_gather(version_bytes(version), in_an_hour());
      ByteBuffer id;
      rank.control.broadcast(id, 0, in_an_hour());
    }
    rank.control.all_gather({}, in_an_hour());
  }));
}

// ---- processes ----------------------------------------------------------------------------------

class GpuProcesses : public NcclShards, public testing::WithParamInterface<const char*> {
 protected:
  std::string behaviour(const char* name) { return std::string(GetParam()) + ":" + name; }
};

TEST_P(GpuProcesses, GatherEveryByte) {
  need(2);
  if (IsSkipped()) return;
  auto first = spawn_rank(TPSYNC_GPU_TEST_RANK, 0, 2, behaviour("gather"));
  const std::unique_ptr<Channel> open = std::move(channel_);
  auto second = spawn_rank(TPSYNC_GPU_TEST_RANK, 1, 2, behaviour("gather"));
  for (Process* const process : {first.get(), second.get()}) {
    const auto status = process->wait(Deadline::after(clock_, std::chrono::minutes(1)));
    ASSERT_TRUE(status);
    EXPECT_FALSE(status->signaled);
    EXPECT_EQ(status->code, 0);
  }
}

TEST_P(GpuProcesses, LoseAKilledRankInTheMiddleOfGathers) {
  need(2);
  if (IsSkipped()) return;
  auto survivor = spawn_rank(TPSYNC_GPU_TEST_RANK, 0, 2, behaviour("gather-till-lost"));
  const std::unique_ptr<Channel> open = std::move(channel_);
  auto killed = spawn_rank(TPSYNC_GPU_TEST_RANK, 1, 2, behaviour("gather-till-lost"));
  wait_for_child();
  killed->signal(Signal::kKill);
  const auto status = survivor->wait(Deadline::after(clock_, std::chrono::minutes(1)));
  ASSERT_TRUE(status);
  EXPECT_FALSE(status->signaled);
  EXPECT_EQ(status->code, static_cast<int>(ErrorKind::kPeerLost));
}

INSTANTIATE_TEST_SUITE_P(Groups, GpuProcesses, testing::Values("nccl", "copies"),
                         [](const auto& of) { return std::string(of.param); });

TEST_F(NcclShards, AKilledRankIsLostAndTheDeviceGoesOn) {
  need(2);
  if (IsSkipped()) return;
  auto child = spawn_rank(TPSYNC_GPU_TEST_RANK, 1, 2, "nccl:idle");
  expect_all_succeed(run_ranks(
      2,
      [&](Rank& rank) {
        const RegionId region = rank.prepare(kEven, in_an_hour());
        wait_for_child();
        rank.shards->all_gather(rank.stream, region, kEven);
        child->signal(Signal::kKill);
        expect_failure(rank, ErrorKind::kPeerLost, 1);
        // The context has survived, and the memory can be used and freed.
        rank.device.fill(rank.stream, region, 0, 8 * kMiB, std::byte{1});
        rank.device.synchronize(rank.stream, in_an_hour());
        rank.shards.reset();
        rank.device.free(region);
      },
      1));
}

TEST_F(NcclShards, AnAlarmFreesThePeersAndANewGroupTakesOver) {
  need(2);
  if (IsSkipped()) return;
  auto child = spawn_rank(TPSYNC_GPU_TEST_RANK, 1, 2, "nccl:alarm-and-rebuild");
  expect_all_succeed(run_ranks(
      2,
      [&](Rank& rank) {
        for (int round = 0; round < 3; ++round) {
          const RegionId region = rank.prepare(kEven, in_an_hour());
          rank.shards->all_gather(rank.stream, region, kEven);
          expect_failure(rank, ErrorKind::kPeerFailed, 1);
          rank.device.free(region);
          std::vector<std::uint64_t> words(2);
          rank.control.all_gather_word(1, words, in_an_hour());
          rank.shards.reset();
          rank.join(in_an_hour());
          const RegionId again = rank.prepare(kEven, in_an_hour());
          rank.gather(again, kEven, in_an_hour());
          rank.expect_gathered(again, kEven, in_an_hour());
          rank.control.all_gather({}, in_an_hour());
          rank.device.free(again);
        }
      },
      1));
  EXPECT_EQ(child->wait(in_an_hour()), (ExitStatus{false, 0}));
}

TEST_F(NcclShards, AStoppedRankIsFoundByTheDeadline) {
  need(2);
  if (IsSkipped()) return;
  auto child = spawn_rank(TPSYNC_GPU_TEST_RANK, 1, 2, "nccl:stop");
  expect_all_succeed(run_ranks(
      2,
      [&](Rank& rank) {
        const RegionId region = rank.prepare(kEven, in_an_hour());
        wait_for_child();
        rank.shards->all_gather(rank.stream, region, kEven);
        expect_failure(rank, ErrorKind::kTimeout, -1,
                       Deadline::after(clock_, std::chrono::milliseconds(300)));
        rank.shards.reset();
        rank.device.free(region);
        child->signal(Signal::kKill);
      },
      1));
}

}  // namespace
}  // namespace tpsync::collective
