// The host device: what every device does (testing/device_contract.h), and what it alone promises:
// its budget, undefined bytes, counts of exports and imports, and when work lands.
#include "tpsync/device/host_device.h"

#include <gtest/gtest.h>

#include "tpsync/base/os_threads.h"
#include "tpsync/device/testing/device_contract.h"

namespace tpsync::device {
namespace {

constexpr std::uint64_t kTotal = 1000;

class HostWorld final : public ContractWorld {
 public:
  explicit HostWorld(Landing landing) {
    memory_.add_device("device-0", kTotal);
    actor_ = std::make_unique<HostDevice>(memory_, HostDeviceOptions{"device-0", landing});
    worker_ = std::make_unique<HostDevice>(memory_, HostDeviceOptions{"device-0", landing});
  }
  Device& actor() override { return *actor_; }
  Device& worker() override { return *worker_; }

 private:
  HostMemory memory_;
  std::unique_ptr<HostDevice> actor_, worker_;
};

template <Landing kLanding>
ContractCase host_case(const char* name) {
  return {name, [] { return std::string(); },
          []() -> std::unique_ptr<ContractWorld> { return std::make_unique<HostWorld>(kLanding); }};
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceContract,
                         testing::Values(host_case<Landing::kAtLaunch>("AtLaunch"),
                                         host_case<Landing::kAtSynchronize>("AtSynchronize")),
                         contract_case_name);
INSTANTIATE_TEST_SUITE_P(Host, DeviceContractDeathTest,
                         testing::Values(host_case<Landing::kAtSynchronize>("AtSynchronize")),
                         contract_case_name);

class HostDeviceTest : public testing::TestWithParam<Landing> {
 protected:
  HostDeviceTest() {
    memory_.add_device("device-0", kTotal);
    memory_.add_device("device-1", kTotal);
    actor_ = std::make_unique<HostDevice>(memory_, HostDeviceOptions{"device-0", GetParam()});
    worker_ = std::make_unique<HostDevice>(memory_, HostDeviceOptions{"device-0", GetParam()});
    foreign_ = std::make_unique<HostDevice>(memory_, HostDeviceOptions{"device-1", GetParam()});
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
