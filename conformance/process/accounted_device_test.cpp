#include "conformance/process/accounted_device.h"

#include <gtest/gtest.h>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_threads.h"
#include "tpsync/device/host_device.h"
#include "tpsync/device/host_memory.h"

namespace tpsync::conformance {
namespace {

constexpr std::uint64_t kBudget = 1 << 20;

// Two devices of one host, each in a participant of its own, on one account.
class AccountedDevices : public testing::Test {
 protected:
  struct Memory : device::HostMemory {
    Memory() {
      for (const char* uuid : {"real-0", "real-1"}) add_device(uuid, 1ULL << 30);
    }
  };
  struct Account : device::MemoryAccount {
    Account() {
      for (const char* name : {"name-0", "name-1"}) add_device(name, kBudget);
    }
  };

  AccountedDeviceOptions options(const char* name, bool report = true) {
    return {.name = name,
            .device_uuids = {"real-0", "real-1"},
            .names = {"name-0", "name-1"},
            .report_account = report};
  }

  Memory memory_;
  Account account_;
  OsThreads threads_;
  device::HostDevice real0_{memory_, {.uuid = "real-0"}};
  device::HostDevice real1_{memory_, {.uuid = "real-1"}};
  AccountedDevice device0_{real0_, account_, threads_, options("name-0")};
  AccountedDevice device1_{real1_, account_, threads_, options("name-1")};
};

device::AllocationRequest bytes_of(std::uint64_t bytes, device::RegionKind kind,
                                   std::string_view tag = "") {
  return {.bytes = bytes, .kind = kind, .tag = tag};
}

TEST_F(AccountedDevices, TheBudgetIsExactAndARefusalCostsNothing) {
  const auto all = device0_.allocate(bytes_of(kBudget, device::RegionKind::kPlain));
  EXPECT_EQ(device0_.memory().free_bytes, 0u);
  try {
    device0_.allocate(bytes_of(1, device::RegionKind::kExportable));
    FAIL() << "one byte more than the budget was given";
  } catch (const RuntimeBroken& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
  }
  device0_.free(all);
  EXPECT_EQ(device0_.memory().free_bytes, kBudget);
  EXPECT_EQ(device1_.memory().free_bytes, kBudget);
}

TEST_F(AccountedDevices, WithoutABudgetFreeMemoryIsTheWrappedDevices) {
  AccountedDevice device(real0_, account_, threads_, options("name-0", false));
  EXPECT_EQ(device.memory().total_bytes, 1ULL << 30);
}

TEST_F(AccountedDevices, ExportsAndImportsAreOnTheAccountUnderItsNames) {
  const auto region = device0_.allocate(bytes_of(64, device::RegionKind::kExportable));
  const ByteBuffer handle = device0_.export_region(region);
  EXPECT_EQ(account_.live_exports(), 1u);
  const device::ImportedRegion imported = device1_.import_region(handle);
  EXPECT_EQ(imported.device_uuid, "name-0");
  EXPECT_EQ(account_.open_imports(), 1u);
  EXPECT_EQ(device1_.import_region(handle).region, imported.region);
  EXPECT_EQ(account_.open_imports(), 1u) << "one mapping, counted twice";
  device1_.close_import(imported.region);
  EXPECT_EQ(account_.open_imports(), 0u);
  device0_.revoke_export(region);
  EXPECT_EQ(account_.live_exports(), 0u);
  device0_.free(region);
  EXPECT_EQ(device0_.memory().free_bytes, kBudget);
}

TEST_F(AccountedDevices, AHandleOfAnyLengthIsForTheWrappedDeviceToRefuse) {
  for (const std::size_t length : {0, 1, 7, 8, 9, 200}) {
    try {
      device1_.import_region(ByteBuffer(length));
      FAIL() << length << " bytes are no handle";
    } catch (const PeerViolation& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kProtocol) << length;
    }
  }
  EXPECT_EQ(account_.open_imports(), 0u);
}

TEST_F(AccountedDevices, SleepGivesTheMemoryBackAndAWakeThatFailsTakesNone) {
  const auto asleep =
      device0_.allocate(bytes_of(kBudget, device::RegionKind::kSleepable, "weights"));
  EXPECT_TRUE(device0_.while_awake(asleep, [](device::Device&) {}));
  device0_.sleep("weights", false);
  EXPECT_EQ(device0_.memory().free_bytes, kBudget);
  EXPECT_FALSE(device0_.while_awake(asleep, [](device::Device&) { FAIL() << "it sleeps"; }));
  const auto other = device0_.allocate(bytes_of(1, device::RegionKind::kPlain));
  EXPECT_THROW(device0_.wake("weights"), RuntimeBroken);
  EXPECT_EQ(device0_.memory().free_bytes, kBudget - 1);
  device0_.free(other);
  device0_.wake("weights");
  EXPECT_EQ(device0_.memory().free_bytes, 0u);
  device0_.free(asleep);
  EXPECT_FALSE(device0_.while_awake(asleep, [](device::Device&) { FAIL() << "it is freed"; }));
}

TEST_F(AccountedDevices, WhatADeviceStillHeldIsOffTheAccountWhenItIsGone) {
  {
    AccountedDevice gone(real0_, account_, threads_, options("name-0"));
    gone.export_region(gone.allocate(bytes_of(64, device::RegionKind::kExportable)));
    gone.allocate(bytes_of(64, device::RegionKind::kPlain));
    EXPECT_EQ(device0_.memory().free_bytes, kBudget - 128);
  }
  EXPECT_EQ(account_.live_exports(), 0u);
  EXPECT_EQ(device0_.memory().free_bytes, kBudget);
}

}  // namespace
}  // namespace tpsync::conformance
