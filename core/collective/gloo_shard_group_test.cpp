// Weights between host devices over Gloo: every byte, and what a wait says when a peer dies, raises
// an alarm, or never comes.
#include "tpsync/collective/gloo_shard_group.h"

#include <gtest/gtest.h>

#include <latch>

#include "tpsync/collective/testing/gloo_ranks.h"

namespace tpsync::collective {
namespace {

using device::StreamId;

// A rank with everything that it needs to gather.
struct Rank {
  Rank(GlooControlGroup& group, const World& world, Deadline deadline,
       device::Landing landing = device::Landing::kAtLaunch)
      : control(group) {
    memory.add_device("gpu", 4 * kGiB);
    host.emplace(memory, device::HostDeviceOptions{.uuid = "gpu", .landing = landing});
    stream = host->create_stream();
    shards = std::make_unique<GlooShardGroup>(group, *host, GlooAddress{}, world, deadline);
  }

  // A buffer of which this rank has written its own part.
  device::RegionId prepare(std::span<const GatherPart> parts, Deadline deadline) {
    std::uint64_t end = 0;
    for (const GatherPart& part : parts) end = std::max(end, part.offset + part.bytes);
    const device::RegionId region = host->allocate({.bytes = end});
    const auto mine = static_cast<std::size_t>(control.rank());
    own = fakes::patterned(mine, parts[mine].bytes);
    host->fill(stream, region, 0, end, std::byte{0xee});
    host->upload(stream, region, parts[mine].offset, own);
    if (end != 0) host->synchronize(stream, deadline);
    return region;
  }

  void expect_gathered(device::RegionId region, std::span<const GatherPart> parts) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      const GatherPart& part = parts[rank];
      const std::byte* bytes = host->host_pointer(region, part.offset, part.bytes);
      EXPECT_TRUE(ByteBuffer(bytes, bytes + part.bytes) == fakes::patterned(rank, part.bytes))
          << "part " << rank;
    }
  }

  GlooControlGroup& control;
  device::HostMemory memory;
  std::optional<device::HostDevice> host;
  StreamId stream = StreamId::kNone;
  ByteBuffer own;
  std::unique_ptr<GlooShardGroup> shards;
};

class GlooShards : public fakes::GlooRanks {
 protected:
  fakes::Outcomes run_ranks(int size, const std::function<void(Rank&)>& body,
                            std::optional<int> threads = std::nullopt) {
    return run(
        size,
        [&](GlooControlGroup& group) {
          Rank rank(group, world_.world(), in_an_hour());
          body(rank);
        },
        threads);
  }

  // For a wait that ends by an event.
  void expect_failure(Rank& rank, ErrorKind kind, int lost, std::optional<Deadline> deadline = {}) {
    const auto error = failure_of(
        [&] { rank.shards->wait(rank.stream, deadline.value_or(in_an_hour()), rank.control); });
    EXPECT_EQ(error.kind, kind) << to_text(error);
    EXPECT_EQ(error.rank, lost) << to_text(error);
    EXPECT_EQ(error.subject, "shard group");
    EXPECT_FALSE(rank.shards->usable());
    const auto again =
        failure_of([&] { rank.shards->wait(rank.stream, in_an_hour(), rank.control); });
    EXPECT_EQ(again.kind, ErrorKind::kPeerLost);
  }
};

const std::vector<GatherPart> kUneven = {{0, 1000}, {1024, 0}, {1024, 3 * kMiB + 5}, {4 * kMiB, 1}};
const std::vector<GatherPart> kPair = {{0, 4 * kMiB}, {4 * kMiB, 4 * kMiB}};

TEST_F(GlooShards, EveryRankHasEveryPartAfterwards) {
  const auto outcomes = run_ranks(4, [&](Rank& rank) {
    for (int call = 0; call < 5; ++call) {
      const auto region = rank.prepare(kUneven, in_an_hour());
      rank.shards->all_gather(rank.stream, region, kUneven);
      rank.shards->wait(rank.stream, in_an_hour(), rank.control);
      rank.expect_gathered(region, kUneven);
      rank.host->free(region);
      rank.control.all_gather({}, in_an_hour());
    }
    EXPECT_TRUE(rank.shards->usable());
  });
  expect_all_succeed(outcomes);
}

TEST_F(GlooShards, LargePartsAndEmptyOnesAndAGroupOfOne) {
  const std::vector<GatherPart> large = {{0, 64 * kMiB}, {64 * kMiB, 64 * kMiB}};
  const std::vector<GatherPart> empty = {{0, 0}, {0, 0}};
  for (const auto& parts : {large, empty, std::vector<GatherPart>{{16, 100}}}) {
    group_ = "size-" + std::to_string(parts[0].bytes);
    const auto outcomes = run_ranks(static_cast<int>(parts.size()), [&](Rank& rank) {
      const auto region = rank.prepare(parts, in_an_hour());
      rank.shards->all_gather(rank.stream, region, parts);
      rank.shards->wait(rank.stream, in_an_hour(), rank.control);
      rank.expect_gathered(region, parts);
    });
    expect_all_succeed(outcomes);
  }
}

TEST_F(GlooShards, SeveralGathersAreWaitedForTogether) {
  const auto outcomes = run_ranks(2, [&](Rank& rank) {
    std::vector<device::RegionId> regions;
    for (int i = 0; i < 5; ++i) regions.push_back(rank.prepare(kPair, in_an_hour()));
    for (const auto region : regions) rank.shards->all_gather(rank.stream, region, kPair);
    rank.shards->wait(rank.stream, in_an_hour(), rank.control);
    for (const auto region : regions) rank.expect_gathered(region, kPair);
  });
  expect_all_succeed(outcomes);
}

TEST_F(GlooShards, WorkBeforeTheGatherIsCompleteWhenItBegins) {
  const auto outcomes = run(2, [&](GlooControlGroup& group) {
    Rank rank(group, world_.world(), in_an_hour(), device::Landing::kAtSynchronize);
    const auto region = rank.prepare(kPair, in_an_hour());
    const auto mine = static_cast<std::size_t>(group.rank());
    const ByteBuffer later = fakes::patterned(mine, kPair[mine].bytes);
    rank.host->fill(rank.stream, region, kPair[mine].offset, kPair[mine].bytes, std::byte{0});
    rank.host->upload(rank.stream, region, kPair[mine].offset, later);
    rank.shards->all_gather(rank.stream, region, kPair);
    rank.shards->wait(rank.stream, in_an_hour(), rank.control);
    rank.expect_gathered(region, kPair);
  });
  expect_all_succeed(outcomes);
}

// Rank 1 gives its part only when rank 0 has launched the copy.
TEST_F(GlooShards, WorkBehindTheGatherIsDoneAfterIt) {
  const std::vector<GatherPart> parts = {{0, 64}, {64, 64}};
  std::latch launched(1);
  expect_all_succeed(run_ranks(2, [&](Rank& rank) {
    const device::RegionId region = rank.prepare(parts, in_an_hour());
    const device::RegionId copied = rank.host->allocate({.bytes = 128});
    if (rank.control.rank() == 1) launched.wait();
    rank.shards->all_gather(rank.stream, region, parts);
    const device::TileCopy whole{.dst = 0, .src = 1, .row_bytes = 128, .rows = 1};
    const auto batch = rank.host->prepare_copies({&whole, 1});
    const device::RegionId both[] = {copied, region};
    rank.host->launch(rank.stream, *batch, both);
    if (rank.control.rank() == 0) launched.count_down();
    rank.shards->wait(rank.stream, in_an_hour(), rank.control);
    rank.expect_gathered(copied, parts);
  }));
}

TEST_F(GlooShards, AnAlarmFreesThePeersAndTheControlGroupGoesOn) {
  const auto outcomes = run_ranks(3, [&](Rank& rank) {
    const std::vector<GatherPart> parts = {{0, kMiB}, {kMiB, kMiB}, {2 * kMiB, kMiB}};
    const auto region = rank.prepare(parts, in_an_hour());
    if (rank.control.rank() == 1) {
      rank.control.raise_alarm();
    } else {
      rank.shards->all_gather(rank.stream, region, parts);
      expect_failure(rank, ErrorKind::kPeerFailed, 1);
    }
    rank.host->free(region);
    std::vector<std::uint64_t> words(3);
    rank.control.all_gather_word(1, words, in_an_hour());
    EXPECT_FALSE(rank.control.alarm());
    // A new group takes the place of the aborted one.
    rank.shards = std::make_unique<GlooShardGroup>(rank.control, *rank.host, GlooAddress{},
                                                   world_.world(), in_an_hour());
    const auto again = rank.prepare(parts, in_an_hour());
    rank.shards->all_gather(rank.stream, again, parts);
    rank.shards->wait(rank.stream, in_an_hour(), rank.control);
    rank.expect_gathered(again, parts);
  });
  expect_all_succeed(outcomes);
}

TEST_F(GlooShards, ARankThatDiesIsLostAsTheControlGroupSaysIt) {
  const auto outcomes = run_ranks(2, [&](Rank& rank) {
    const auto region = rank.prepare(kPair, in_an_hour());
    if (rank.control.rank() == 1) {
      rank.control.leave();
      return;
    }
    rank.shards->all_gather(rank.stream, region, kPair);
    expect_failure(rank, ErrorKind::kPeerLost, 1);
    rank.host->free(region);
  });
  expect_all_succeed(outcomes);
}

TEST_F(GlooShards, AnAbsentRankIsSilenceUntilTheDeadline) {
  const auto outcomes = run_ranks(2, [&](Rank& rank) {
    const auto region = rank.prepare(kPair, in_an_hour());
    if (rank.control.rank() == 0) {
      rank.shards->all_gather(rank.stream, region, kPair);
      expect_failure(rank, ErrorKind::kTimeout, -1,
                     Deadline::after(clock_, std::chrono::milliseconds(50)));
      rank.host->free(region);
    }
    rank.control.all_gather({}, in_an_hour());
  });
  expect_all_succeed(outcomes);
}

TEST_F(GlooShards, ListsOfPartsThatDifferNeverMeet) {
  const auto outcomes = run_ranks(2, [&](Rank& rank) {
    auto parts = kPair;
    if (rank.control.rank() == 1) parts[1].bytes -= 1;
    const auto region = rank.prepare(kPair, in_an_hour());
    rank.shards->all_gather(rank.stream, region, parts);
    const auto error = failure_of([&] {
      rank.shards->wait(rank.stream, Deadline::after(clock_, std::chrono::milliseconds(100)),
                        rank.control);
    });
    EXPECT_EQ(error.kind, ErrorKind::kTimeout);
    rank.control.all_gather({}, in_an_hour());
  });
  expect_all_succeed(outcomes);
}

TEST_F(GlooShards, APeerThatAbortedAndSaysNothingIsAFailureOfTheWork) {
  const auto outcomes = run_ranks(2, [&](Rank& rank) {
    const auto region = rank.prepare(kPair, in_an_hour());
    if (rank.control.rank() == 1) {
      rank.shards->abort();
      rank.shards->abort();
      EXPECT_FALSE(rank.shards->usable());
      const auto error = failure_of([&] { rank.shards->all_gather(rank.stream, region, kPair); });
      EXPECT_EQ(error.kind, ErrorKind::kPeerLost);
    } else {
      rank.shards->all_gather(rank.stream, region, kPair);
      expect_failure(rank, ErrorKind::kDevice, 1);
    }
    rank.control.all_gather({}, in_an_hour());
  });
  expect_all_succeed(outcomes);
}

TEST_F(GlooShards, NothingIsLeftOfGroupsThatAreAbortedOrDroppedWithWorkPending) {
  std::size_t descriptors = 0;
  std::size_t tasks = 0;
  for (int round = 0; round < 30; ++round) {
    const auto outcomes = run_ranks(2, [&](Rank& rank) {
      const auto region = rank.prepare(kPair, in_an_hour());
      if (rank.control.rank() != round % 2) rank.shards->all_gather(rank.stream, region, kPair);
      if (round % 3 == 0) rank.shards->abort();
      rank.shards.reset();
      rank.host->free(region);
      rank.control.all_gather({}, in_an_hour());
    });
    expect_all_succeed(outcomes);
    if (round == 1) {
      descriptors = fakes::entries("/proc/self/fd");
      tasks = fakes::entries("/proc/self/task");
    }
  }
  EXPECT_EQ(fakes::entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(fakes::entries("/proc/self/task"), tasks);
}

}  // namespace
}  // namespace tpsync::collective
