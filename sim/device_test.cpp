// The simulated device: budget, lifetimes, imports, order of copies, sleep, and what it reports.
#include "sim/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

#include "sim/testing.h"
#include "tpsync/device/host_kernels.h"

namespace tpsync::sim {
namespace {

using device::RegionId;
using device::RegionKind;
using device::StreamId;
using device::TileCopy;
using std::chrono::seconds;
using testing::config_of;
using testing::count;
using testing::kind_of;

Deadline soon(SimProcess& process) { return Deadline::after(process.world().clock, seconds(1)); }

// One process on one device.
void alone(const SimConfig& config, const std::function<void(SimProcess&, SimWorld&)>& body,
           const std::vector<std::string>& violations = {}) {
  Pools pools;
  SimWorld world(config, pools);
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    body(process, world);
    return 0;
  });
  const RunResult result = world.run();
  EXPECT_EQ(result.kind, RunResult::Kind::kFinished) << result.detail;
  EXPECT_EQ(world.violations(), violations);
}

TEST(Memory, KeepsTheBudgetAndRecordsThePeak) {
  alone(config_of(1, 1, 1000), [](SimProcess& process, SimWorld& world) {
    device::Device& device = process.device();
    const RegionId first = device.allocate({600, RegionKind::kPlain, ""});
    EXPECT_EQ(device.memory().free_bytes, 400u);
    EXPECT_EQ(kind_of([&] {
                device.allocate({401, RegionKind::kPlain, ""});
              }),
              ErrorKind::kOutOfMemory);
    const RegionId second = device.allocate({400, RegionKind::kPlain, ""});
    EXPECT_EQ(device.memory().free_bytes, 0u);
    device.free(first);
    device.free(second);
    EXPECT_EQ(device.memory().free_bytes, 1000u);
    EXPECT_EQ(world.devices().peak_bytes(0), 1000u);
  });
}

TEST(Memory, FreedAddressesAreUsedAgainUnlessSwitchedOff) {
  for (const bool reuse : {true, false}) {
    SimConfig config = config_of(1, 1);
    config.cruelty.address_reuse = reuse;
    alone(config, [&](SimProcess& process, SimWorld& world) {
      device::Device& device = process.device();
      const RegionId first = device.allocate({600, RegionKind::kPlain, ""});
      device.free(first);
      const RegionId second = device.allocate({500, RegionKind::kPlain, ""});
      EXPECT_NE(first, second);
      const auto memories = world.devices().memories();
      EXPECT_EQ(memories[0]->address == memories[1]->address, reuse);
      device.free(second);
    });
  }
}

TEST(Memory, MisuseIsAViolationAndADeviceError) {
  alone(config_of(2, 1),
        [](SimProcess& process, SimWorld&) {
          device::Device& device = process.device();
          const RegionId region = device.allocate({8, RegionKind::kSleepable, "weights"});
          const StreamId stream = device.create_stream();
          EXPECT_EQ(kind_of([&] { device.fill(stream, region, 4, 5, std::byte{1}); }),
                    ErrorKind::kDevice);
          device.sleep("weights", false);
          EXPECT_EQ(kind_of([&] { device.fill(stream, region, 0, 1, std::byte{1}); }),
                    ErrorKind::kDevice);
          device.free(region);
          device.free(region);
          EXPECT_EQ(kind_of([&] { device.fill(stream, region, 0, 1, std::byte{1}); }),
                    ErrorKind::kDevice);
        },
        {"out.of.bounds", "use.asleep", "free.unknown", "use.after.free"});
}

TEST(Memory, FreeingOrSleepingBeforeTheSynchronizeIsAViolation) {
  alone(config_of(2, 1),
        [](SimProcess& process, SimWorld&) {
          device::Device& device = process.device();
          const RegionId region = device.allocate({8, RegionKind::kSleepable, "weights"});
          const StreamId stream = device.create_stream();
          device.fill(stream, region, 0, 8, std::byte{1});
          device.sleep("weights", true);
          device.free(region);
        },
        {"sleep.pending", "free.pending"});
}

TEST(Sleep, LevelOneKeepsTheContentAndLevelTwoLosesIt) {
  for (const bool phantom : {false, true}) {
    SimConfig config = config_of(3, 1, 1000);
    config.phantom = phantom;
    alone(config, [](SimProcess& process, SimWorld&) {
      device::Device& device = process.device();
      const RegionId region = device.allocate({800, RegionKind::kSleepable, "weights"});
      const RegionId other = device.allocate({100, RegionKind::kSleepable, "kv_cache"});
      const StreamId stream = device.create_stream();
      device.fill(stream, region, 0, 800, std::byte{7});
      device.synchronize(stream, soon(process));
      const auto first_byte = [&] {
        std::array<std::byte, 1> byte{};
        process.sim_device().peek(region, 0, byte);
        return byte[0];
      };
      device.sleep("weights", true);
      device.sleep("weights", false);  // asleep already: without effect
      EXPECT_EQ(device.memory().free_bytes, 900u);
      const RegionId taken = device.allocate({101, RegionKind::kPlain, ""});
      EXPECT_EQ(kind_of([&] { device.wake("weights"); }), ErrorKind::kOutOfMemory);
      device.free(taken);
      device.wake("weights");
      EXPECT_EQ(first_byte(), std::byte{7});
      device.sleep("weights", false);
      device.wake("weights");
      EXPECT_EQ(first_byte(), kCanary);
      device.free(region);
      device.free(other);
      device.destroy_stream(stream);
    });
  }
}

// Two processes that pass a handle and permissions to go on through plain values and a control
// group.
struct Pair {
  std::function<void(SimProcess&, collective::ControlGroup&)> exporter;
  std::function<void(SimProcess&, collective::ControlGroup&)> importer;
  std::size_t importer_device = 0;
};

std::vector<std::string> run_pair(const SimConfig& config, const Pair& pair,
                                  Trace* trace = nullptr) {
  Pools pools;
  SimWorld world(config, pools);
  std::vector<std::unique_ptr<collective::ControlGroup>> groups;
  const auto body = [&groups](const auto& script, std::size_t rank) {
    return [&groups, &script, rank](SimProcess& process) {
      const auto group = std::move(groups[rank]);
      script(process, *group);
      return 0;
    };
  };
  const std::array<SimProcess*, 2> members = {
      &world.start_process("exporter", 0, 0, body(pair.exporter, 0)),
      &world.start_process("importer", 1, pair.importer_device, body(pair.importer, 1))};
  groups = world.make_control_group(members);
  const RunResult result = world.run();
  EXPECT_EQ(result.kind, RunResult::Kind::kFinished) << result.detail;
  if (trace != nullptr) *trace = world.trace();
  return world.violations();
}

void meet(SimProcess& process, collective::ControlGroup& group) {
  std::array<std::uint64_t, 2> words{};
  group.all_gather_word(0, words, soon(process));
}

TEST(Import, GivesTheSameMappingTwiceAndCountsOnce) {
  ByteBuffer handle;
  Pair pair;
  pair.exporter = [&](SimProcess& process, collective::ControlGroup& group) {
    device::Device& device = process.device();
    const RegionId region = device.allocate({8, RegionKind::kExportable, ""});
    handle = device.export_region(region);
    EXPECT_EQ(kind_of([&] { device.export_region(region); }), ErrorKind::kIpc);
    EXPECT_EQ(kind_of([&] { device.import_region(handle); }), ErrorKind::kIpc) << "own export";
    meet(process, group);
    meet(process, group);
    device.revoke_export(region);
    device.free(region);
    meet(process, group);
  };
  pair.importer_device = 1;
  pair.importer = [&](SimProcess& process, collective::ControlGroup& group) {
    device::Device& device = process.device();
    meet(process, group);
    const auto first = device.import_region(handle);
    const auto second = device.import_region(handle);
    EXPECT_EQ(first.region, second.region);
    EXPECT_EQ(first.device_uuid, "gpu-0") << "another device's export opens without an error";
    EXPECT_EQ(first.bytes, 8u);
    device.close_import(first.region);
    meet(process, group);
    meet(process, group);
    EXPECT_EQ(kind_of([&] { device.import_region(handle); }), ErrorKind::kIpc) << "gone";
    handle[0] ^= std::byte{1};
    EXPECT_EQ(kind_of([&] { device.import_region(handle); }), ErrorKind::kProtocol);
    device.close_import(first.region);
  };
  EXPECT_THAT(run_pair(config_of(4), pair), ::testing::ElementsAre("close.unknown"));
}

TEST(Import, FreeingWhileImportedIsAViolationAndKeepsTheMemoryUntilTheClose) {
  ByteBuffer handle;
  Pair pair;
  pair.exporter = [&](SimProcess& process, collective::ControlGroup& group) {
    device::Device& device = process.device();
    const RegionId region = device.allocate({1000, RegionKind::kExportable, ""});
    handle = device.export_region(region);
    meet(process, group);
    meet(process, group);
    const std::uint64_t free = device.memory().free_bytes;
    device.free(region);
    EXPECT_EQ(device.memory().free_bytes, free);
    meet(process, group);
    meet(process, group);
    EXPECT_EQ(device.memory().free_bytes, free + 1000);
  };
  pair.importer = [&](SimProcess& process, collective::ControlGroup& group) {
    meet(process, group);
    const auto region = process.device().import_region(handle).region;
    meet(process, group);
    meet(process, group);
    process.device().close_import(region);
    meet(process, group);
  };
  EXPECT_THAT(run_pair(config_of(5), pair), ::testing::ElementsAre("free.while.imported"));
}

// The importer reads what the exporter wrote: ordered by sync and message, or not.
std::vector<std::string> read_after(std::uint64_t seed, bool synchronized, bool told) {
  ByteBuffer handle;
  Pair pair;
  pair.exporter = [&](SimProcess& process, collective::ControlGroup& group) {
    device::Device& device = process.device();
    const RegionId region = device.allocate({64, RegionKind::kExportable, ""});
    handle = device.export_region(region);
    const StreamId stream = device.create_stream();
    meet(process, group);
    device.fill(stream, region, 0, 64, std::byte{1});
    if (synchronized) device.synchronize(stream, soon(process));
    if (told) meet(process, group);
    process.world().clock.sleep_until(TimePoint{10'000'000});
    device.synchronize(stream, soon(process));
    meet(process, group);
  };
  pair.importer = [&](SimProcess& process, collective::ControlGroup& group) {
    device::Device& device = process.device();
    meet(process, group);
    const RegionId region = device.import_region(handle).region;
    if (told)
      meet(process, group);
    else
      process.world().clock.sleep_until(TimePoint{5'000'000});
    const StreamId stream = device.create_stream();
    std::array<std::byte, 64> got{};
    device.download(stream, region, 0, got);
    device.synchronize(stream, soon(process));
    device.destroy_stream(stream);
    device.close_import(region);
    meet(process, group);
  };
  return run_pair(config_of(seed), pair);
}

TEST(Order, AnAccessNeedsTheOthersSynchronizeAndAMessage) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    EXPECT_THAT(read_after(seed, true, true), ::testing::IsEmpty());
    EXPECT_THAT(read_after(seed, false, true), ::testing::ElementsAre("race.copy"));
    EXPECT_THAT(read_after(seed, true, false), ::testing::ElementsAre("race.copy"));
  }
}

TEST(Order, DisjointColumnsOfOneMatrixDoNotRace) {
  alone(config_of(6, 1), [](SimProcess& process, SimWorld&) {
    device::Device& device = process.device();
    const RegionId from = device.allocate({64, RegionKind::kPlain, ""});
    const RegionId to = device.allocate({64, RegionKind::kPlain, ""});
    const StreamId first = device.create_stream();
    const StreamId second = device.create_stream();
    const std::array<TileCopy, 1> left = {TileCopy{0, 1, 0, 16, 0, 8, 8, 4}};
    const std::array<TileCopy, 1> right = {TileCopy{0, 1, 8, 16, 32, 8, 8, 4}};
    const auto one = device.prepare_copies(left);
    const auto two = device.prepare_copies(right);
    const std::array<RegionId, 2> regions = {to, from};
    device.launch(first, *one, regions);
    device.launch(second, *two, regions);
    device.synchronize(first, soon(process));
    device.synchronize(second, soon(process));
    device.free(from);
    device.free(to);
  });
}

TEST(Order, TwoStreamsThatWriteTheSameBytesRace) {
  alone(config_of(6, 1),
        [](SimProcess& process, SimWorld&) {
          device::Device& device = process.device();
          const RegionId region = device.allocate({64, RegionKind::kPlain, ""});
          const StreamId first = device.create_stream();
          const StreamId second = device.create_stream();
          device.fill(first, region, 0, 9, std::byte{1});
          device.fill(second, region, 8, 8, std::byte{2});
          device.synchronize(first, soon(process));
          device.synchronize(second, soon(process));
          device.free(region);
        },
        {"race.copy"});
}

// How much of an unsynchronized copy has landed a while after its launch.
std::size_t landed_without_synchronize(std::uint64_t seed, bool late) {
  SimConfig config = config_of(seed, 1);
  config.cruelty.late_copies = late;
  std::size_t landed = 0;
  alone(config, [&](SimProcess& process, SimWorld&) {
    device::Device& device = process.device();
    const RegionId region = device.allocate({64, RegionKind::kPlain, ""});
    const StreamId stream = device.create_stream();
    device.fill(stream, region, 0, 64, std::byte{1});
    process.world().clock.sleep_until(TimePoint{1'000'000'000});
    std::array<std::byte, 64> got{};
    process.sim_device().peek(region, 0, got);
    landed = static_cast<std::size_t>(std::count(got.begin(), got.end(), std::byte{1}));
    device.synchronize(stream, soon(process));
    process.sim_device().peek(region, 0, got);
    EXPECT_EQ(std::count(got.begin(), got.end(), std::byte{1}), 64);
    device.free(region);
  });
  return landed;
}

TEST(Copies, LandBeforeInPartOrOnlyAtTheSynchronize) {
  std::array<int, 3> seen{};
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::size_t landed = landed_without_synchronize(seed, true);
    ++seen[landed == 0 ? 0 : (landed < 64 ? 1 : 2)];
    EXPECT_EQ(landed_without_synchronize(seed, false), 64u);
  }
  EXPECT_THAT(seen, ::testing::Each(::testing::Gt(0)));
}

TEST(Copies, OfAKilledProcessLandInPartOrVanish) {
  std::array<int, 3> seen{};
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    std::size_t landed = 0;
    ByteBuffer handle;
    Pools pools;
    SimWorld world(config_of(seed), pools);
    SimProcess& victim = world.start_process("exporter", 0, 0, [&](SimProcess& process) {
      device::Device& device = process.device();
      const RegionId region = device.allocate({64, RegionKind::kExportable, ""});
      handle = device.export_region(region);
      process.world().clock.sleep_until(TimePoint{1'000'000});
      const StreamId stream = device.create_stream();
      device.fill(stream, region, 0, 64, std::byte{1});
      world.kill(process);
      device.synchronize(stream, soon(process));
      return 0;
    });
    world.start_process("importer", 1, 1, [&](SimProcess& process) {
      process.world().clock.sleep_until(TimePoint{500'000});
      const RegionId region = process.device().import_region(handle).region;
      process.world().clock.sleep_until(TimePoint{2'000'000});
      EXPECT_TRUE(victim.dead());
      std::array<std::byte, 64> got{};
      process.sim_device().peek(region, 0, got);
      landed = static_cast<std::size_t>(std::count(got.begin(), got.end(), std::byte{1}));
      process.device().close_import(region);
      return 0;
    });
    EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
    EXPECT_EQ(world.devices().used_bytes(0), 0u);
    ++seen[landed == 0 ? 0 : (landed < 64 ? 1 : 2)];
  }
  EXPECT_THAT(seen, ::testing::Each(::testing::Gt(0)));
}

TEST(Copies, PackConvertAndDigestAsTheHostKernelsDo) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    alone(config_of(seed, 1), [](SimProcess& process, SimWorld&) {
      device::Device& device = process.device();
      const RegionId from = device.allocate({64, RegionKind::kPlain, ""});
      const RegionId to = device.allocate({32, RegionKind::kPlain, ""});
      std::array<float, 16> values{};
      std::iota(values.begin(), values.end(), 1.0f);
      const StreamId stream = device.create_stream();
      device.upload(stream, from, 0, std::as_bytes(std::span(values)));
      const std::array<device::PackPiece, 1> pieces = {
          device::PackPiece{0, 1, 0, 0, 16, DType::kBFloat16, DType::kFloat32}};
      const auto pack = device.prepare_packs(pieces);
      const std::array<RegionId, 2> regions = {to, from};
      device.launch(stream, *pack, regions);
      const std::array<device::DigestItem, 1> items = {
          device::DigestItem{0, 0, 8, 2, 3, 4, 5, 4, 99}};
      const auto digests = device.prepare_digests(items);
      std::array<std::uint64_t, 1> sums{};
      device.launch_digests(stream, *digests, regions, sums);
      std::array<std::byte, 32> got{};
      device.download(stream, to, 0, got);
      device.synchronize(stream, soon(process));
      std::array<std::byte, 32> expected{};
      device::convert(expected.data(), DType::kBFloat16,
                      reinterpret_cast<const std::byte*>(values.data()), DType::kFloat32, 16);
      EXPECT_EQ(got, expected);
      EXPECT_EQ(sums[0], device::digest_rect(expected.data(), 8, 2, 3, 4, 5, 4, 99));
      device.free(from);
      device.free(to);
    });
  }
}

TEST(Copies, AFailedStreamSaysSoOnce) {
  alone(config_of(9, 1), [](SimProcess& process, SimWorld&) {
    device::Device& device = process.device();
    const StreamId stream = device.create_stream();
    process.sim_device().fail_stream(stream);
    EXPECT_EQ(kind_of([&] { device.synchronize(stream, soon(process)); }), ErrorKind::kDevice);
    device.synchronize(stream, soon(process));
    device.destroy_stream(stream);
  });
}

TEST(Traces, ChangeWithOneCopyAndAreEqualInPhantomAndByteMode) {
  const auto hash_with = [](bool phantom, std::uint64_t rows) {
    SimConfig config = config_of(10, 1);
    config.phantom = phantom;
    Pools pools;
    SimWorld world(config, pools);
    world.start_process("actor", 0, 0, [&](SimProcess& process) {
      device::Device& device = process.device();
      const RegionId from = device.allocate({64, RegionKind::kPlain, ""});
      const RegionId to = device.allocate({64, RegionKind::kPlain, ""});
      const StreamId stream = device.create_stream();
      const std::array<TileCopy, 2> tiles = {TileCopy{0, 1, 0, 16, 0, 8, 8, rows},
                                             TileCopy{0, 1, 8, 16, 32, 8, 8, 4}};
      const auto batch = device.prepare_copies(tiles);
      const std::array<RegionId, 2> regions = {to, from};
      device.fill(stream, from, 0, 64, std::byte{3});
      device.launch(stream, *batch, regions);
      device.synchronize(stream, soon(process));
      return 0;
    });
    EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
    EXPECT_EQ(count(world.trace(), EventKind::kProcessLeft), 1u) << "two regions were left";
    return hash_of(world.trace());
  };
  EXPECT_EQ(hash_with(false, 4), hash_with(true, 4));
  EXPECT_NE(hash_with(false, 4), hash_with(false, 3));
}

TEST(Device, ALookAtItsMemoryUnwindsAProcessThatWasKilled) {
  Pools pools;
  SimWorld world(config_of(1), pools);
  bool unwound = false;
  bool survived = false;
  world.start_process("actor", 0, 0, [&](SimProcess& process) {
    const auto region = process.device().allocate({8, device::RegionKind::kPlain, ""});
    world.kill(process);
    try {
      process.sim_device().view(region);
      survived = true;
    } catch (const Killed&) {
      unwound = true;
      throw;
    }
    return 0;
  });
  EXPECT_EQ(world.run().kind, RunResult::Kind::kFinished);
  EXPECT_TRUE(unwound);
  EXPECT_FALSE(survived);
}

}  // namespace
}  // namespace tpsync::sim
