// The host device against its contract: memory and budget, exports and imports between
// participants, sleep, streams that land at once or late, and what asserts.
#include "tpsync/device/host_device.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_threads.h"
#include "tpsync/device/forwarding_device.h"
#include "tpsync/device/handles.h"
#include "tpsync/device/host_kernels.h"

namespace tpsync::device {
namespace {

constexpr std::uint64_t kTotal = 1000;

template <typename Function>
ErrorRecord failure_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.record();
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

AllocationRequest request(std::uint64_t bytes, RegionKind kind = RegionKind::kPlain) {
  AllocationRequest result;
  result.bytes = bytes;
  result.kind = kind;
  if (kind == RegionKind::kSleepable) result.tag = "weights";
  return result;
}

ByteBuffer counting(std::size_t bytes, int first = 0) {
  ByteBuffer buffer(bytes);
  for (std::size_t i = 0; i < bytes; ++i) buffer[i] = std::byte(first + static_cast<int>(i));
  return buffer;
}

class HostDeviceTest : public testing::TestWithParam<Landing> {
 protected:
  HostDeviceTest() {
    memory_.add_device("device-0", kTotal);
    memory_.add_device("device-1", kTotal);
    actor_ = std::make_unique<HostDevice>(memory_, HostDeviceOptions{"device-0", GetParam()});
    worker_ = std::make_unique<HostDevice>(memory_, HostDeviceOptions{"device-0", GetParam()});
    foreign_ = std::make_unique<HostDevice>(memory_, HostDeviceOptions{"device-1", GetParam()});
  }

  static void put(Device& device, RegionId region, ByteView bytes) {
    const Stream stream = create_stream(device);
    device.upload(stream.id(), region, 0, bytes);
    device.synchronize(stream.id(), Deadline::never());
  }
  static ByteBuffer get(Device& device, RegionId region, std::uint64_t bytes) {
    ByteBuffer into(bytes);
    const Stream stream = create_stream(device);
    device.download(stream.id(), region, 0, into);
    device.synchronize(stream.id(), Deadline::never());
    return into;
  }
  std::uint64_t free_bytes() { return actor_->memory().free_bytes; }

  HostMemory memory_;
  std::unique_ptr<HostDevice> actor_, worker_, foreign_;
};

INSTANTIATE_TEST_SUITE_P(Work, HostDeviceTest,
                         testing::Values(Landing::kAtLaunch, Landing::kAtSynchronize),
                         [](const auto& information) {
                           return information.param == Landing::kAtLaunch ? "AtLaunch"
                                                                          : "AtSynchronize";
                         });

TEST_P(HostDeviceTest, AllocationsOfAllParticipantsShareTheBudgetOfTheirDevice) {
  {
    const Region one = allocate(*actor_, request(600));
    const Region other = allocate(*worker_, request(400));
    EXPECT_EQ(free_bytes(), 0u);
    EXPECT_EQ(foreign_->memory().free_bytes, kTotal);
    const ErrorRecord record = failure_of([&] { actor_->allocate(request(1)); });
    EXPECT_EQ(record.kind, ErrorKind::kOutOfMemory);
    EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
    EXPECT_EQ(record.detail, "1 bytes are needed and 0 of 1000 are free on device device-0");
    const Region empty = allocate(*actor_, request(0));
    EXPECT_TRUE(empty);
  }
  EXPECT_EQ(free_bytes(), kTotal);
}

TEST_P(HostDeviceTest, RegionIdsAreNeverReused) {
  const RegionId first = allocate(*actor_, request(1)).id();
  const RegionId second = allocate(*actor_, request(1)).id();
  EXPECT_LT(first, second);
}

TEST_P(HostDeviceTest, FreshMemoryCarriesTheUndefinedByte) {
  const Region region = allocate(*actor_, request(3));
  EXPECT_EQ(get(*actor_, region.id(), 3), ByteBuffer(3, kUndefinedByte));
}

TEST_P(HostDeviceTest, EndOfAParticipantReturnsWhatItHeld) {
  const RegionId region = actor_->allocate(request(100, RegionKind::kExportable));
  const ByteBuffer handle = actor_->export_region(region);
  worker_->import_region(handle);
  EXPECT_EQ(memory_.live_exports(), 1u);
  actor_.reset();
  EXPECT_EQ(memory_.live_exports(), 0u);
  EXPECT_EQ(worker_->memory().free_bytes, kTotal - 100) << "the import still holds it";
  worker_.reset();
  EXPECT_EQ(memory_.open_imports(), 0u);
  EXPECT_EQ(HostDevice(memory_, {"device-0"}).memory().free_bytes, kTotal);
}

TEST_P(HostDeviceTest, ImportSharesTheExportersBytesInBothDirections) {
  const Region region = allocate(*actor_, request(8, RegionKind::kExportable));
  const ByteBuffer handle = actor_->export_region(region.id());
  const ImportedRegion imported = worker_->import_region(handle);
  const Import import(*worker_, imported.region);
  EXPECT_EQ(imported.bytes, 8u);
  EXPECT_EQ(imported.device_uuid, "device-0");
  put(*actor_, region.id(), counting(8));
  EXPECT_EQ(get(*worker_, import.id(), 8), counting(8));
  put(*worker_, import.id(), counting(8, 50));
  EXPECT_EQ(get(*actor_, region.id(), 8), counting(8, 50));
}

TEST_P(HostDeviceTest, ImportOfAnotherDevicesExportSucceedsAndNamesThatDevice) {
  const Region region = allocate(*foreign_, request(8, RegionKind::kExportable));
  const ImportedRegion imported = worker_->import_region(foreign_->export_region(region.id()));
  const Import import(*worker_, imported.region);
  EXPECT_EQ(imported.device_uuid, "device-1");
}

TEST_P(HostDeviceTest, SecondImportIsTheSameMappingAndIsClosedOnce) {
  const Region region = allocate(*actor_, request(8, RegionKind::kExportable));
  const ByteBuffer handle = actor_->export_region(region.id());
  const ImportedRegion first = worker_->import_region(handle);
  EXPECT_EQ(worker_->import_region(handle).region, first.region);
  EXPECT_EQ(memory_.open_imports(), 1u);
  worker_->close_import(first.region);
  EXPECT_EQ(memory_.open_imports(), 0u);
}

TEST_P(HostDeviceTest, ImportIsRefusedForOwnRevokedAndFreedExports) {
  Region region = allocate(*actor_, request(8, RegionKind::kExportable));
  const ByteBuffer first = actor_->export_region(region.id());
  EXPECT_EQ(failure_of([&] { actor_->import_region(first); }).kind, ErrorKind::kIpc);
  EXPECT_EQ(failure_of([&] { actor_->export_region(region.id()); }).kind, ErrorKind::kIpc);
  actor_->revoke_export(region.id());
  actor_->revoke_export(region.id());
  EXPECT_EQ(failure_of([&] { worker_->import_region(first); }).kind, ErrorKind::kIpc);
  const ByteBuffer second = actor_->export_region(region.id());
  EXPECT_NE(first, second);
  region.reset();
  EXPECT_EQ(failure_of([&] { worker_->import_region(second); }).kind, ErrorKind::kIpc);
  EXPECT_EQ(memory_.live_exports(), 0u);
}

TEST_P(HostDeviceTest, BytesThatAreNoHandleAreAViolationAndAlteredOnesAreRefused) {
  const Region region = allocate(*actor_, request(8, RegionKind::kExportable));
  const ByteBuffer handle = actor_->export_region(region.id());
  for (std::size_t bytes = 0; bytes < handle.size(); ++bytes) {
    EXPECT_EQ(failure_of([&] { worker_->import_region(ByteView(handle).first(bytes)); }).kind,
              ErrorKind::kProtocol);
  }
  for (std::size_t i = 0; i < handle.size(); ++i) {
    ByteBuffer altered = handle;
    altered[i] ^= std::byte{1};
    EXPECT_EQ(failure_of([&] { worker_->import_region(altered); }).kind,
              i < 8 ? ErrorKind::kProtocol : ErrorKind::kIpc);
  }
}

TEST_P(HostDeviceTest, OnlyExportableRegionsAreExported) {
  const Region plain = allocate(*actor_, request(8));
  const Region sleepable = allocate(*actor_, request(8, RegionKind::kSleepable));
  EXPECT_EQ(failure_of([&] { actor_->export_region(plain.id()); }).kind, ErrorKind::kIpc);
  EXPECT_EQ(failure_of([&] { actor_->export_region(sleepable.id()); }).kind, ErrorKind::kIpc);
}

TEST_P(HostDeviceTest, SleepGivesMemoryBackAndWakeRestoresOnlyWhatWasKept) {
  const Region region = allocate(*worker_, request(100, RegionKind::kSleepable));
  for (const bool keep : {true, false}) {
    put(*worker_, region.id(), counting(100));
    worker_->sleep("weights", keep);
    worker_->sleep("weights", false);  // asleep already: changes nothing
    worker_->sleep("kv_cache", false);
    EXPECT_EQ(free_bytes(), kTotal);
    worker_->wake("kv_cache");
    EXPECT_EQ(free_bytes(), kTotal);
    worker_->wake("weights");
    worker_->wake("weights");
    EXPECT_EQ(free_bytes(), kTotal - 100);
    EXPECT_EQ(get(*worker_, region.id(), 100),
              keep ? counting(100) : ByteBuffer(100, kUndefinedByte));
  }
}

TEST_P(HostDeviceTest, WakeWithoutMemoryFailsForAllRegionsAndMayBeRepeated) {
  const Region one = allocate(*worker_, request(300, RegionKind::kSleepable));
  const Region other = allocate(*worker_, request(300, RegionKind::kSleepable));
  put(*worker_, one.id(), counting(300));
  worker_->sleep("weights", true);
  {
    const Region taken = allocate(*actor_, request(500));
    const ErrorRecord record = failure_of([&] { worker_->wake("weights"); });
    EXPECT_EQ(record.kind, ErrorKind::kOutOfMemory);
    EXPECT_EQ(record.subject, "weights");
    EXPECT_EQ(free_bytes(), 500u) << "a part of the tag woke";
  }
  worker_->wake("weights");
  EXPECT_EQ(get(*worker_, one.id(), 300), counting(300));
}

TEST_P(HostDeviceTest, SleepingRegionMayBeFreed) {
  Region region = allocate(*worker_, request(100, RegionKind::kSleepable));
  worker_->sleep("weights", true);
  region.reset();
  worker_->wake("weights");
  EXPECT_EQ(free_bytes(), kTotal);
}

TEST_P(HostDeviceTest, PreparedCopiesServeManyBindings) {
  const Region source = allocate(*actor_, request(12));
  put(*actor_, source.id(), counting(12));
  TileCopy copy;
  copy.dst = 1;
  copy.src = 0;
  copy.dst_offset = 1;
  copy.dst_pitch = 2;
  copy.src_offset = 2;
  copy.src_pitch = 4;
  copy.row_bytes = 2;
  copy.rows = 2;
  const auto batch = actor_->prepare_copies({&copy, 1});
  for (int i = 0; i < 2; ++i) {
    const Region target = allocate(*actor_, request(6));
    const Stream stream = create_stream(*actor_);
    actor_->fill(stream.id(), target.id(), 0, 6, std::byte{9});
    const std::array<RegionId, 2> bindings{source.id(), target.id()};
    actor_->launch(stream.id(), *batch, bindings);
    actor_->synchronize(stream.id(), Deadline::never());
    EXPECT_EQ(get(*actor_, target.id(), 6), (ByteBuffer{std::byte{9}, std::byte{2}, std::byte{3},
                                                        std::byte{6}, std::byte{7}, std::byte{9}}));
  }
}

TEST_P(HostDeviceTest, PreparedPacksConvert) {
  const Region source = allocate(*actor_, request(8));
  const Region target = allocate(*actor_, request(5));
  const std::array<float, 2> values{1.0F, -2.0F};
  put(*actor_, source.id(), std::as_bytes(std::span(values)));
  PackPiece piece;
  piece.dst = 1;
  piece.dst_offset = 1;
  piece.count = 2;
  piece.src_dtype = DType::kFloat32;
  const auto batch = actor_->prepare_packs({&piece, 1});
  const Stream stream = create_stream(*actor_);
  const std::array<RegionId, 2> bindings{source.id(), target.id()};
  actor_->launch(stream.id(), *batch, bindings);
  actor_->synchronize(stream.id(), Deadline::never());
  EXPECT_EQ(get(*actor_, target.id(), 5),
            (ByteBuffer{kUndefinedByte, std::byte{0x80}, std::byte{0x3f}, std::byte{0x00},
                        std::byte{0xc0}}));
}

TEST_P(HostDeviceTest, PreparedDigestsWriteOneSumEach) {
  const Region region = allocate(*actor_, request(24));
  const ByteBuffer content = counting(24);
  put(*actor_, region.id(), content);
  std::vector<DigestItem> items(2);
  items[0] = {0, 0, 12, 2, 0, 2, 0, 6, 77};
  items[1] = {0, 4, 12, 4, 5, 2, 8, 2, 78};
  const auto batch = actor_->prepare_digests(items);
  std::array<std::uint64_t, 2> sums{};
  const Stream stream = create_stream(*actor_);
  const RegionId binding = region.id();
  actor_->launch_digests(stream.id(), *batch, {&binding, 1}, sums);
  actor_->synchronize(stream.id(), Deadline::never());
  EXPECT_EQ(sums[0], digest_rect(content.data(), 12, 2, 0, 2, 0, 6, 77));
  EXPECT_EQ(sums[1], digest_rect(content.data() + 4, 12, 4, 5, 2, 8, 2, 78));
}

TEST_P(HostDeviceTest, WorkLandsWhenTheOptionSaysSo) {
  const Region region = allocate(*actor_, request(4));
  const Stream working = create_stream(*actor_);
  actor_->fill(working.id(), region.id(), 0, 4, std::byte{1});
  const bool landed = GetParam() == Landing::kAtLaunch;
  EXPECT_EQ(get(*actor_, region.id(), 4), ByteBuffer(4, landed ? std::byte{1} : kUndefinedByte));
  actor_->synchronize(working.id(), Deadline::never());
  EXPECT_EQ(get(*actor_, region.id(), 4), ByteBuffer(4, std::byte{1}));
}

TEST_P(HostDeviceTest, WorkOfOneStreamLandsInOrderAndADestroyedStreamDropsIt) {
  const Region region = allocate(*actor_, request(4));
  {
    const Stream stream = create_stream(*actor_);
    actor_->fill(stream.id(), region.id(), 0, 4, std::byte{1});
    actor_->fill(stream.id(), region.id(), 1, 2, std::byte{2});
    actor_->synchronize(stream.id(), Deadline::never());
    EXPECT_EQ(get(*actor_, region.id(), 4),
              (ByteBuffer{std::byte{1}, std::byte{2}, std::byte{2}, std::byte{1}}));
    actor_->fill(stream.id(), region.id(), 0, 4, std::byte{3});
  }
  const auto expected = GetParam() == Landing::kAtLaunch ? std::byte{3} : std::byte{2};
  EXPECT_EQ(get(*actor_, region.id(), 4)[1], expected);
}

TEST_P(HostDeviceTest, ForwardingDeviceReachesTheWrappedOne) {
  ForwardingDevice wrapped(*actor_);
  const Region region = allocate(wrapped, request(8, RegionKind::kExportable));
  const Export exported(wrapped, region.id());
  const Import import(*worker_, worker_->import_region(wrapped.export_region(region.id())).region);
  put(wrapped, region.id(), counting(8));
  EXPECT_EQ(get(*worker_, import.id(), 8), counting(8));
  EXPECT_EQ(wrapped.uuid(), "device-0");
  EXPECT_EQ(wrapped.memory().free_bytes, kTotal - 8);
}

using HostDeviceDeathTest = HostDeviceTest;

INSTANTIATE_TEST_SUITE_P(Work, HostDeviceDeathTest, testing::Values(Landing::kAtSynchronize),
                         [](const auto&) { return "AtSynchronize"; });

TEST_P(HostDeviceDeathTest, EveryByteOutOfBoundsAssertsAtLaunch) {
  const Region small = allocate(*actor_, request(8));
  const Region large = allocate(*actor_, request(64));
  const Stream stream = create_stream(*actor_);
  const std::array<RegionId, 2> bindings{small.id(), large.id()};
  ByteBuffer host(9);
  EXPECT_DEATH(actor_->fill(stream.id(), small.id(), 4, 5, std::byte{}), "bytes");
  EXPECT_DEATH(actor_->fill(stream.id(), small.id(), UINT64_MAX, 2, std::byte{}), "bytes");
  EXPECT_DEATH(actor_->upload(stream.id(), small.id(), 0, host), "bytes");
  EXPECT_DEATH(actor_->download(stream.id(), small.id(), 0, host), "bytes");
  TileCopy copy{1, 0, 0, 4, 0, 4, 2, 3};
  copy.src_offset = 0;  // rows at 0, 4 and 8 of eight bytes
  const auto copies = actor_->prepare_copies({&copy, 1});
  EXPECT_DEATH(actor_->launch(stream.id(), *copies, bindings), "bytes");
  copy = {1, 0, 0, UINT64_MAX, 0, 0, 2, 3};
  const auto overflowing = actor_->prepare_copies({&copy, 1});
  EXPECT_DEATH(actor_->launch(stream.id(), *overflowing, bindings), "has_value");
  PackPiece piece;
  piece.dst = 1;
  piece.count = 5;
  const auto packs = actor_->prepare_packs({&piece, 1});
  EXPECT_DEATH(actor_->launch(stream.id(), *packs, bindings), "bytes");
  DigestItem item;
  item.rows = 1;
  item.cols = 5;
  const auto digests = actor_->prepare_digests({&item, 1});
  std::uint64_t sum = 0;
  EXPECT_DEATH(actor_->launch_digests(stream.id(), *digests, bindings, {&sum, 1}), "bytes");
  EXPECT_DEATH(actor_->launch_digests(stream.id(), *digests, bindings, {}), "sums.size");
  EXPECT_DEATH(actor_->launch(stream.id(), *packs, {bindings.data(), 1}), "bindings.size");
}

TEST_P(HostDeviceDeathTest, UseOfDeadSleepingAndForeignRegionsAsserts) {
  const Stream stream = create_stream(*actor_);
  const RegionId dead = allocate(*actor_, request(8)).id();
  const Region sleeping = allocate(*actor_, request(8, RegionKind::kSleepable));
  actor_->sleep("weights", true);
  EXPECT_DEATH(actor_->fill(stream.id(), dead, 0, 1, std::byte{}), "regions_.end");
  EXPECT_DEATH(actor_->fill(stream.id(), sleeping.id(), 0, 1, std::byte{}), "region.awake");
  EXPECT_DEATH(actor_->free(dead), "regions_.end");
  EXPECT_DEATH(actor_->close_import(sleeping.id()), "import_serial");
}

TEST(HostMemoryTest, DevicesNeedNamesOfTheirOwnAndParticipantsAKnownOne) {
  HostMemory memory;
  memory.add_device("one", 1);
  EXPECT_EQ(failure_of([&] { memory.add_device("one", 1); }).kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(failure_of([&] { memory.add_device("", 1); }).kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(failure_of([&] { HostDevice(memory, {"two"}); }).kind, ErrorKind::kInvalidConfig);
}

TEST(HostMemoryTest, ParticipantsOfSeveralThreadsShareItsBudget) {
  constexpr std::uint64_t kThreads = 4;
  OsThreads threads;
  HostMemory memory;
  memory.add_device("one", 2 * kThreads);
  HostDevice exporter(memory, {"one"});
  const Region region = allocate(exporter, request(1, RegionKind::kExportable));
  const ByteBuffer handle = exporter.export_region(region.id());
  std::vector<std::unique_ptr<Thread>> running;
  for (std::uint64_t i = 0; i < kThreads; ++i) {
    running.push_back(threads.spawn("participant", [&] {
      for (int round = 0; round < 100; ++round) {
        HostDevice device(memory, {"one"});
        const Region held = allocate(device, request(1));
        const Import import(device, device.import_region(handle).region);
        EXPECT_LE(device.memory().free_bytes, 2 * kThreads - 2);
      }
    }));
  }
  for (const auto& thread : running) thread->join();
  EXPECT_EQ(exporter.memory().free_bytes, 2 * kThreads - 1);
  EXPECT_EQ(memory.open_imports(), 0u);
}

TEST(HostMemoryTest, RefusesMoreParticipantsThanItHasEntriesForAndTakesThemLater) {
  HostMemory memory;
  memory.add_device("one", 1);
  std::vector<std::unique_ptr<HostDevice>> devices;
  const auto join = [&] {
    devices.push_back(
        std::make_unique<HostDevice>(memory, HostDeviceOptions{"one", Landing::kAtLaunch}));
  };
  for (int i = 0; i < 4096; ++i) join();
  const ErrorRecord record = failure_of(join);
  EXPECT_EQ(record.kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(record.subject, "memory account");
  devices.resize(4000);
  join();
}

TEST(HostMemoryTest, DevicesHaveShortNamesAndAreAtMost64) {
  HostMemory memory;
  EXPECT_EQ(failure_of([&] { memory.add_device(std::string(64, 'x'), 1); }).kind,
            ErrorKind::kInvalidConfig);
  memory.add_device(std::string(63, 'x'), 1);
  for (int i = 1; i < 64; ++i) memory.add_device("device-" + std::to_string(i), 1);
  EXPECT_EQ(failure_of([&] { memory.add_device("one more", 1); }).kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(HostDevice(memory, {std::string(63, 'x')}).memory().total_bytes, 1u);
}

}  // namespace
}  // namespace tpsync::device
