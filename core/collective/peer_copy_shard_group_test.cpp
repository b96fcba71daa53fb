// Weights by copies between host devices: every byte, what may be overwritten and freed when, and
// what a wait says when a peer dies, fails, differs or never comes.
#include "tpsync/collective/peer_copy_shard_group.h"

#include <gtest/gtest.h>

#include "tpsync/collective/os_shared_words.h"
#include "tpsync/collective/testing/gloo_ranks.h"
#include "tpsync/device/forwarding_device.h"
#include "tpsync/device/host_device.h"

namespace tpsync::collective {
namespace {

using device::RegionId;
using device::StreamId;

// Says that it is another device than it is, or refuses to open exports.
class LyingDevice final : public device::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::string uuid() override { return claimed.value_or(ForwardingDevice::uuid()); }
  device::ImportedRegion import_region(ByteView handle) override {
    if (refuses) throw_broken(ErrorKind::kIpc, "import", "opening the export is not permitted");
    return ForwardingDevice::import_region(handle);
  }
  std::optional<std::string> claimed;
  bool refuses = false;
};

// A rank with a device of its own and everything that it needs to gather.
struct Rank {
  Rank(GlooControlGroup& group, device::HostMemory& memory, World the_world,
       device::Landing landing)
      : control(group),
        world(the_world),
        host(memory, {.uuid = "gpu-" + std::to_string(group.rank()), .landing = landing}),
        device(host),
        stream(host.create_stream()) {}

  void join(Deadline deadline) {
    shards = std::make_unique<PeerCopyShardGroup>(control, device, factory, world, deadline);
  }
  std::size_t mine() const { return static_cast<std::size_t>(control.rank()); }

  RegionId allocate(std::span<const GatherPart> parts) {
    std::uint64_t end = 0;
    for (const GatherPart& part : parts) end = std::max(end, part.offset + part.bytes);
    return host.allocate({.bytes = end, .kind = device::RegionKind::kExportable});
  }
  // Writes this rank's part; not waited for.
  void write(RegionId region, std::span<const GatherPart> parts, std::size_t round = 0) {
    own = fakes::patterned(mine() + 10 * round, parts[mine()].bytes);
    host.upload(stream, region, parts[mine()].offset, own);
  }
  RegionId prepare(std::span<const GatherPart> parts) {
    const RegionId region = allocate(parts);
    write(region, parts);
    return region;
  }
  void gather(RegionId region, std::span<const GatherPart> parts, Deadline deadline) {
    shards->all_gather(stream, region, parts);
    shards->wait(stream, deadline, control);
  }
  void expect_gathered(RegionId region, std::span<const GatherPart> parts, std::size_t round = 0) {
    for (std::size_t r = 0; r < parts.size(); ++r) {
      const std::byte* bytes = host.host_pointer(region, parts[r].offset, parts[r].bytes);
      EXPECT_TRUE(ByteBuffer(bytes, bytes + parts[r].bytes) ==
                  fakes::patterned(r + 10 * round, parts[r].bytes))
          << "part " << r << " on rank " << mine();
    }
  }
  void give_back(RegionId region, Deadline deadline) {
    host.synchronize(stream, deadline);
    EXPECT_TRUE(shards->detach(region, deadline));
    host.free(region);
  }

  GlooControlGroup& control;
  World world;
  device::HostDevice host;
  LyingDevice device;
  StreamId stream;
  ByteBuffer own;
  OsSharedWordsFactory factory;
  std::unique_ptr<PeerCopyShardGroup> shards;
};

class PeerCopies : public fakes::GlooRanks {
 protected:
  PeerCopies() : memory_(device::HostMemory::create(folder_ + "/memory")) {
    for (int r = 0; r < 4; ++r) memory_->add_device("gpu-" + std::to_string(r), kGiB);
  }
  ~PeerCopies() override {
    EXPECT_EQ(memory_->open_imports(), 0U);
    EXPECT_EQ(memory_->live_exports(), 0U);
  }

  // The body joins the group.
  fakes::Outcomes run_unjoined(int size, const std::function<void(Rank&)>& body,
                               std::optional<int> threads = std::nullopt,
                               device::Landing landing = device::Landing::kAtLaunch) {
    return run(
        size,
        [&](GlooControlGroup& group) {
          Rank rank(group, *memory_, world_.world(), landing);
          body(rank);
        },
        threads);
  }
  fakes::Outcomes run_ranks(int size, const std::function<void(Rank&)>& body,
                            std::optional<int> threads = std::nullopt,
                            device::Landing landing = device::Landing::kAtLaunch) {
    return run_unjoined(
        size,
        [&](Rank& rank) {
          rank.join(in_an_hour());
          body(rank);
        },
        threads, landing);
  }

  // A wait that fails, and ends the group.
  ErrorRecord expect_failure(Rank& rank, RegionId region, std::span<const GatherPart> parts,
                             ErrorKind kind, int subject_rank,
                             std::optional<Deadline> deadline = {}) {
    const ErrorRecord error =
        failure_of([&] { rank.gather(region, parts, deadline.value_or(in_an_hour())); });
    EXPECT_EQ(error.kind, kind) << to_text(error);
    EXPECT_EQ(error.rank, subject_rank) << to_text(error);
    EXPECT_FALSE(rank.shards->usable());
    const ErrorRecord again =
        failure_of([&] { rank.shards->wait(rank.stream, in_an_hour(), rank.control); });
    EXPECT_EQ(again.kind, ErrorKind::kPeerLost);
    return error;
  }

  std::unique_ptr<device::HostMemory> memory_;
};

const std::vector<GatherPart> kUneven = {{0, 1000}, {1024, 0}, {1024, 3 * kMiB + 5}, {4 * kMiB, 1}};
const std::vector<GatherPart> kPair = {{0, kMiB}, {kMiB, kMiB}};

TEST_F(PeerCopies, EveryRankHasEveryPartAfterwards) {
  for (const auto landing : {device::Landing::kAtLaunch, device::Landing::kAtSynchronize}) {
    group_ = landing == device::Landing::kAtLaunch ? "at-launch" : "at-synchronize";
    expect_all_succeed(run_ranks(
        4,
        [&](Rank& rank) {
          const RegionId region = rank.allocate(kUneven);
          for (std::size_t round = 0; round < 5; ++round) {
            rank.write(region, kUneven, round);
            rank.gather(region, kUneven, in_an_hour());
            rank.expect_gathered(region, kUneven, round);
            rank.control.all_gather({}, in_an_hour());
          }
          rank.give_back(region, in_an_hour());
        },
        std::nullopt, landing));
  }
}

TEST_F(PeerCopies, EmptyPartsAndAGroupOfOne) {
  const std::vector<GatherPart> empty = {{0, 0}, {0, 0}};
  for (const auto& parts : {empty, std::vector<GatherPart>{{16, 100}}}) {
    group_ = "size-" + std::to_string(parts.size());
    expect_all_succeed(run_ranks(static_cast<int>(parts.size()), [&](Rank& rank) {
      const RegionId region = rank.prepare(parts);
      rank.gather(region, parts, in_an_hour());
      rank.expect_gathered(region, parts);
      rank.give_back(region, in_an_hour());
    }));
  }
}

TEST_F(PeerCopies, APartMayBeOverwrittenAsSoonAsItsOwnersWaitIsOver) {
  expect_all_succeed(run_ranks(
      3,
      [&](Rank& rank) {
        const std::vector<GatherPart> parts = {{0, kMiB}, {kMiB, kMiB}, {2 * kMiB, kMiB}};
        const RegionId region = rank.allocate(parts);
        for (std::size_t round = 0; round < 20; ++round) {
          rank.write(region, parts, round);
          rank.gather(region, parts, in_an_hour());
          const GatherPart& own = parts[rank.mine()];
          rank.host.fill(rank.stream, region, own.offset, own.bytes, std::byte{0xee});
          rank.host.synchronize(rank.stream, in_an_hour());
          rank.write(region, parts, round);
          rank.host.synchronize(rank.stream, in_an_hour());
          rank.expect_gathered(region, parts, round);
        }
        rank.give_back(region, in_an_hour());
      },
      std::nullopt, device::Landing::kAtSynchronize));
}

TEST_F(PeerCopies, AlternatingBuffersAreOpenedOnceEach) {
  expect_all_succeed(run_ranks(2, [&](Rank& rank) {
    const RegionId buffers[] = {rank.allocate(kPair), rank.allocate(kPair)};
    for (const RegionId buffer : buffers)
      rank.shards->attach(buffer, rank.host.export_region(buffer));
    for (std::size_t round = 0; round < 6; ++round) {
      rank.write(buffers[round % 2], kPair, round);
      rank.gather(buffers[round % 2], kPair, in_an_hour());
      rank.expect_gathered(buffers[round % 2], kPair, round);
    }
    rank.control.all_gather({}, in_an_hour());
    EXPECT_EQ(memory_->open_imports(), 4U);
    EXPECT_EQ(memory_->live_exports(), 4U);
    rank.control.all_gather({}, in_an_hour());
    for (const RegionId buffer : buffers) rank.give_back(buffer, in_an_hour());
  }));
}

TEST_F(PeerCopies, GathersOfTwoStreamsAreDoneInTheOrderOfTheCalls) {
  expect_all_succeed(run_ranks(2, [&](Rank& rank) {
    const RegionId first = rank.prepare(kPair);
    const RegionId second = rank.prepare(kPair);
    rank.host.synchronize(rank.stream, in_an_hour());
    const StreamId other = rank.host.create_stream();
    rank.shards->all_gather(rank.stream, first, kPair);
    rank.shards->all_gather(other, second, kPair);
    const bool backwards = rank.mine() == 1;
    rank.shards->wait(backwards ? other : rank.stream, in_an_hour(), rank.control);
    rank.shards->wait(backwards ? rank.stream : other, in_an_hour(), rank.control);
    rank.expect_gathered(first, kPair);
    rank.expect_gathered(second, kPair);
    rank.give_back(first, in_an_hour());
    rank.give_back(second, in_an_hour());
  }));
}

TEST_F(PeerCopies, ABufferIsHeldUntilThePeersHaveDetached) {
  expect_all_succeed(run_ranks(2, [&](Rank& rank) {
    const RegionId region = rank.prepare(kPair);
    rank.gather(region, kPair, in_an_hour());
    if (rank.mine() == 0) {
      EXPECT_FALSE(rank.shards->detach(region, Deadline::at(clock_.now())));
    }
    rank.control.all_gather({}, in_an_hour());
    rank.give_back(region, in_an_hour());
  }));
}

TEST_F(PeerCopies, AnAlarmFreesThePeersAndANewGroupTakesOver) {
  expect_all_succeed(run_ranks(3, [&](Rank& rank) {
    const std::vector<GatherPart> parts = {{0, kMiB}, {kMiB, kMiB}, {2 * kMiB, kMiB}};
    const RegionId region = rank.prepare(parts);
    if (rank.mine() == 1) {
      rank.control.raise_alarm();
    } else {
      expect_failure(rank, region, parts, ErrorKind::kPeerFailed, 1);
    }
    rank.give_back(region, in_an_hour());
    std::vector<std::uint64_t> words(3);
    rank.control.all_gather_word(1, words, in_an_hour());
    rank.join(in_an_hour());
    const RegionId again = rank.prepare(parts);
    rank.gather(again, parts, in_an_hour());
    rank.expect_gathered(again, parts);
    rank.give_back(again, in_an_hour());
  }));
}

TEST_F(PeerCopies, ARankThatLeavesIsLostAsTheControlGroupSaysIt) {
  expect_all_succeed(run_ranks(2, [&](Rank& rank) {
    const RegionId region = rank.prepare(kPair);
    if (rank.mine() == 1) {
      rank.control.leave();
    } else {
      expect_failure(rank, region, kPair, ErrorKind::kPeerLost, 1);
    }
    rank.give_back(region, in_an_hour());
  }));
}

TEST_F(PeerCopies, AnAbsentRankIsSilenceUntilTheDeadline) {
  expect_all_succeed(run_ranks(2, [&](Rank& rank) {
    const RegionId region = rank.prepare(kPair);
    if (rank.mine() == 0) {
      expect_failure(rank, region, kPair, ErrorKind::kTimeout, -1,
                     Deadline::after(clock_, std::chrono::milliseconds(50)));
    }
    rank.control.all_gather({}, in_an_hour());
    rank.give_back(region, in_an_hour());
  }));
}

TEST_F(PeerCopies, APeerThatAbortedAndSaysNothingIsAFailureOfTheWork) {
  expect_all_succeed(run_ranks(2, [&](Rank& rank) {
    const RegionId region = rank.prepare(kPair);
    if (rank.mine() == 1) {
      rank.shards->abort();
      rank.shards->abort();
      const auto error = failure_of([&] { rank.shards->all_gather(rank.stream, region, kPair); });
      EXPECT_EQ(error.kind, ErrorKind::kPeerLost);
    } else {
      expect_failure(rank, region, kPair, ErrorKind::kDevice, 1);
    }
    rank.control.all_gather({}, in_an_hour());
    rank.give_back(region, in_an_hour());
  }));
}

TEST_F(PeerCopies, ListsOfPartsThatDifferAreAMismatchOnBothRanks) {
  expect_all_succeed(run_ranks(2, [&](Rank& rank) {
    auto parts = kPair;
    if (rank.mine() == 1) parts[1].bytes -= 1;
    const RegionId region = rank.prepare(kPair);
    const auto error = failure_of([&] { rank.gather(region, parts, in_an_hour()); });
    EXPECT_EQ(error.kind, ErrorKind::kMismatch) << to_text(error);
    EXPECT_EQ(error.remedy, Remedy::kFixPeer);
    EXPECT_EQ(error.rank, rank.mine() == 0 ? 1 : 0);
    rank.give_back(region, in_an_hour());
  }));
}

TEST_F(PeerCopies, AnExportThatCannotBeOpenedIsSaidByWhoOpensIt) {
  expect_all_succeed(run_ranks(2, [&](Rank& rank) {
    const RegionId region = rank.prepare(kPair);
    if (rank.mine() == 1) {
      rank.device.refuses = true;
      const auto error = failure_of([&] { rank.gather(region, kPair, in_an_hour()); });
      EXPECT_EQ(error.kind, ErrorKind::kIpc) << to_text(error);
      EXPECT_EQ(error.detail.find("the buffer of rank 0: "), 0U) << to_text(error);
      rank.control.raise_alarm();
    } else {
      expect_failure(rank, region, kPair, ErrorKind::kPeerFailed, 1);
    }
    rank.control.all_gather({}, in_an_hour());
    rank.give_back(region, in_an_hour());
  }));
}

TEST_F(PeerCopies, ABufferOnAnotherDeviceThanItsRankNamedIsAMismatch) {
  expect_all_succeed(run_unjoined(2, [&](Rank& rank) {
    if (rank.mine() == 1) rank.device.claimed = "gpu-3";
    rank.join(in_an_hour());
    const RegionId region = rank.prepare(kPair);
    if (rank.mine() == 1) {
      rank.shards->all_gather(rank.stream, region, kPair);
      const auto error =
          failure_of([&] { rank.shards->wait(rank.stream, in_an_hour(), rank.control); });
      EXPECT_EQ(error.kind, ErrorKind::kDevice) << to_text(error);
      EXPECT_EQ(error.rank, 0);
    } else {
      const ErrorRecord error = expect_failure(rank, region, kPair, ErrorKind::kMismatch, 1);
      EXPECT_EQ(error.detail,
                "the handle of this rank's buffer opened memory of device gpu-1, the rank is on "
                "gpu-3");
    }
    rank.control.all_gather({}, in_an_hour());  // nobody leaves before the other has looked
    rank.give_back(region, in_an_hour());
  }));
}

TEST_F(PeerCopies, ABufferThatEndsBeforeItsPartIsAMismatch) {
  expect_all_succeed(run_ranks(2, [&](Rank& rank) {
    const std::vector<GatherPart> half = {{0, kMiB}, {kMiB, 0}};
    const RegionId region = rank.mine() == 1 ? rank.allocate(half) : rank.prepare(kPair);
    if (rank.mine() == 0) {
      expect_failure(rank, region, kPair, ErrorKind::kMismatch, 1);
    } else {
      expect_failure(rank, region, kPair, ErrorKind::kDevice, 0);
    }
    rank.control.all_gather({}, in_an_hour());
    rank.give_back(region, in_an_hour());
  }));
}

// ---- processes ----------------------------------------------------------------------------------

TEST_F(PeerCopies, AKilledRankIsLostAndHoldsNoBuffer) {
  auto child = spawn_rank(TPSYNC_TEST_RANK, 1, 2, "stuck-in-copy");
  expect_all_succeed(run_ranks(
      2,
      [&](Rank& rank) {
        const RegionId region = rank.prepare(kPair);
        rank.shards->all_gather(rank.stream, region, kPair);
        // The child opens this rank's buffer once that is complete, which a first wait says.
        std::unique_ptr<Thread> killer = threads_.spawn("killer", [&] {
          wait_for_child();
          child->signal(Signal::kKill);
        });
        const auto error =
            failure_of([&] { rank.shards->wait(rank.stream, in_an_hour(), rank.control); });
        killer->join();
        EXPECT_EQ(error.kind, ErrorKind::kPeerLost) << to_text(error);
        EXPECT_EQ(error.rank, 1);
        rank.give_back(region, in_an_hour());
      },
      1));
}

TEST_F(PeerCopies, AStoppedRankIsFoundByTheDeadlineAndItsBufferIsKept) {
  auto child = spawn_rank(TPSYNC_TEST_RANK, 1, 2, "stuck-in-copy");
  expect_all_succeed(run_ranks(
      2,
      [&](Rank& rank) {
        const RegionId region = rank.prepare(kPair);
        expect_failure(rank, region, kPair, ErrorKind::kTimeout, -1,
                       Deadline::after(clock_, std::chrono::milliseconds(300)));
        wait_for_child();  // it has opened this rank's buffer, and says so no more
        EXPECT_FALSE(rank.shards->detach(region, Deadline::at(clock_.now())));
        child->signal(Signal::kKill);
        rank.give_back(region, in_an_hour());
      },
      1));
}

TEST_F(PeerCopies, NothingIsLeftOfGroupsThatAreDroppedWithGathersPending) {
  std::size_t descriptors = 0;
  for (int round = 0; round < 20; ++round) {
    expect_all_succeed(run_ranks(2, [&](Rank& rank) {
      const RegionId region = rank.prepare(kPair);
      if (static_cast<int>(rank.mine()) != round % 2)
        rank.shards->all_gather(rank.stream, region, kPair);
      if (round % 3 == 0) rank.shards->abort();
      rank.give_back(region, in_an_hour());
      rank.shards.reset();
      rank.control.all_gather({}, in_an_hour());
    }));
    if (round == 1) descriptors = fakes::entries("/proc/self/fd");
  }
  EXPECT_EQ(fakes::entries("/proc/self/fd"), descriptors);
}

}  // namespace
}  // namespace tpsync::collective
