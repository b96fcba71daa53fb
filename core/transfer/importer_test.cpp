// The importer over a host device: one import per export, and nothing open after a failure.
#include "tpsync/transfer/importer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/base/testing/fake_world.h"
#include "tpsync/device/forwarding_device.h"
#include "tpsync/device/host_device.h"

namespace tpsync::transfer {
namespace {

using fakes::failure_of;
using testing::HasSubstr;

class CountingDevice final : public device::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  device::ImportedRegion import_region(ByteView handle) override {
    ++imports;
    return ForwardingDevice::import_region(handle);
  }
  void close_import(device::RegionId region) noexcept override {
    ++closes;
    ForwardingDevice::close_import(region);
  }
  int imports = 0;
  int closes = 0;
};

class ImporterTest : public testing::Test {
 protected:
  ImporterTest() {
    memory_.add_device("gpu-0", 4096);
    memory_.add_device("gpu-1", 4096);
    actor_.emplace(memory_, device::HostDeviceOptions{"gpu-0", device::Landing::kAtLaunch});
    foreign_.emplace(memory_, device::HostDeviceOptions{"gpu-1", device::Landing::kAtLaunch});
    worker_.emplace(memory_, device::HostDeviceOptions{"gpu-0", device::Landing::kAtLaunch});
  }
  static wire::HandleMap exported(device::Device& device, std::uint64_t bytes,
                                  const std::string& named) {
    const auto region =
        device.allocate({.bytes = bytes, .kind = device::RegionKind::kExportable, .tag = {}});
    wire::HandleMap handles;
    handles.entries.emplace_back(named, device.export_region(region));
    return handles;
  }
  // Of the worker's own device.
  device::RegionId open(const wire::HandleMap& handles, std::uint64_t bytes) {
    return importer_.open_all(handles, std::vector{worker_->uuid()}, bytes).front();
  }
  ErrorRecord refusal(const wire::HandleMap& handles, std::uint64_t bytes) {
    const ErrorRecord record = failure_of([&] { open(handles, bytes); });
    EXPECT_EQ(memory_.open_imports(), 0u);
    EXPECT_EQ(importer_.release(), 0u);
    return record;
  }

  device::HostMemory memory_;
  std::optional<device::HostDevice> actor_, foreign_, worker_;
  CountingDevice counted_{*worker_};
  Importer importer_{counted_};
};

TEST_F(ImporterTest, TheSameHandleIsOpenedOnceAndReleasedOnce) {
  const wire::HandleMap handles = exported(*actor_, 64, "gpu-0");
  const device::RegionId region = open(handles, 64);
  EXPECT_EQ(open(handles, 10), region);
  EXPECT_EQ(counted_.imports, 1);
  EXPECT_EQ(importer_.release(), 1u);
  EXPECT_EQ(importer_.release(), 0u);
  EXPECT_EQ(counted_.closes, 1);
  EXPECT_EQ(memory_.open_imports(), 0u);
}

TEST_F(ImporterTest, OtherBytesCloseTheOldMappingFirst) {
  open(exported(*actor_, 64, "gpu-0"), 64);
  open(exported(*actor_, 128, "gpu-0"), 128);
  EXPECT_EQ(counted_.imports, 2);
  EXPECT_EQ(counted_.closes, 1);
  EXPECT_EQ(memory_.open_imports(), 1u);
  EXPECT_EQ(importer_.release(), 1u);
}

TEST_F(ImporterTest, AfterAReleaseTheSameBytesAreOpenedAnew) {
  const wire::HandleMap handles = exported(*actor_, 64, "gpu-0");
  open(handles, 64);
  importer_.release();
  open(handles, 64);
  EXPECT_EQ(counted_.imports, 2);
}

TEST_F(ImporterTest, AMissingHandleListsTheDevicesThatHaveOne) {
  wire::HandleMap handles = exported(*foreign_, 64, "gpu-1");
  handles.entries.emplace_back("gpu-2", ByteBuffer(4));
  const ErrorRecord record = refusal(handles, 64);
  EXPECT_EQ(record.kind, ErrorKind::kMismatch);
  EXPECT_EQ(record.remedy, Remedy::kFixPeer);
  EXPECT_EQ(record.subject, "gpu-0");
  EXPECT_THAT(record.detail, HasSubstr("gpu-1, gpu-2"));
  EXPECT_EQ(counted_.imports, 0);
}

TEST_F(ImporterTest, MemoryOfAnotherDeviceIsClosedAgainAndRefused) {
  const ErrorRecord record = refusal(exported(*foreign_, 64, "gpu-0"), 64);
  EXPECT_EQ(record.kind, ErrorKind::kMismatch);
  EXPECT_EQ(record.remedy, Remedy::kFixPeer);
  EXPECT_EQ(record.subject, "gpu-0");
  EXPECT_THAT(record.detail, HasSubstr("gpu-1"));
  EXPECT_EQ(counted_.closes, 1);
}

TEST_F(ImporterTest, AnExportThatIsTooSmallIsRefusedAlsoWhenItIsOpenAlready) {
  const wire::HandleMap handles = exported(*actor_, 64, "gpu-0");
  const ErrorRecord record = refusal(handles, 65);
  EXPECT_EQ(record.kind, ErrorKind::kMismatch);
  EXPECT_EQ(record.subject, "gpu-0");
  EXPECT_EQ(record.detail, "the export has 64 bytes, the publication needs 65");
  open(handles, 64);
  refusal(handles, 65);
}

class AllActors : public ImporterTest {
 protected:
  wire::HandleMap both(std::uint64_t bytes) {
    wire::HandleMap handles = exported(*actor_, bytes, "gpu-0");
    handles.entries.push_back(exported(*foreign_, bytes, "gpu-1").entries.front());
    return handles;
  }
  ErrorRecord all_refused(const wire::HandleMap& handles, std::uint64_t bytes = 64) {
    const ErrorRecord record = failure_of([&] { importer_.open_all(handles, uuids_, bytes); });
    EXPECT_EQ(record.kind, ErrorKind::kMismatch);
    EXPECT_EQ(record.remedy, Remedy::kFixPeer);
    EXPECT_EQ(memory_.open_imports(), 0u);
    EXPECT_EQ(importer_.release(), 0u);
    return record;
  }
  const std::vector<std::string> uuids_ = {"gpu-1", "gpu-0"};
};

TEST_F(AllActors, AreOpenedOnceInTheOrderThatWasAskedForAndReleasedOnce) {
  const wire::HandleMap handles = both(64);
  const auto first = importer_.open_all(handles, uuids_, 64);
  ASSERT_EQ(first.size(), 2u);
  const std::vector<device::RegionId> regions(first.begin(), first.end());
  EXPECT_NE(regions[0], regions[1]);
  const auto second = importer_.open_all(handles, uuids_, 64);
  EXPECT_TRUE(std::equal(second.begin(), second.end(), regions.begin(), regions.end()));
  EXPECT_EQ(counted_.imports, 2);
  EXPECT_EQ(importer_.release(), 2u);
  EXPECT_EQ(counted_.closes, 2);
  EXPECT_EQ(memory_.open_imports(), 0u);
}

TEST_F(AllActors, OneOtherHandleClosesAllBeforeAnyIsOpened) {
  wire::HandleMap handles = both(64);
  importer_.open_all(handles, uuids_, 64);
  handles.entries[1] = exported(*foreign_, 64, "gpu-1").entries.front();
  importer_.open_all(handles, uuids_, 64);
  EXPECT_EQ(counted_.imports, 4);
  EXPECT_EQ(counted_.closes, 2);
  EXPECT_EQ(memory_.open_imports(), 2u);
  importer_.release();
}

TEST_F(AllActors, AMissingHandleIsFoundBeforeAnythingIsOpened) {
  wire::HandleMap handles = both(64);
  handles.entries.erase(handles.entries.begin());
  const ErrorRecord record = all_refused(handles);
  EXPECT_EQ(record.subject, "gpu-0");
  EXPECT_EQ(counted_.imports, 0);
}

TEST_F(AllActors, HandlesUnderOneAnothersUuidAreRefused) {
  wire::HandleMap handles = both(64);
  std::swap(handles.entries[0].second, handles.entries[1].second);
  const ErrorRecord record = all_refused(handles);
  EXPECT_EQ(record.subject, "gpu-1");
  EXPECT_EQ(record.detail, "the handle opened memory of device gpu-0");
}

TEST_F(AllActors, OneHandleForTwoActorsIsRefusedAndClosedOnce) {
  wire::HandleMap handles = both(64);
  handles.entries[0].second = handles.entries[1].second;
  const ErrorRecord record = all_refused(handles);
  EXPECT_EQ(record.subject, "gpu-0");
  EXPECT_EQ(counted_.closes, 1);
}

TEST_F(AllActors, OneExportThatIsTooSmallClosesAll) {
  wire::HandleMap handles = both(64);
  handles.entries[1] = exported(*foreign_, 63, "gpu-1").entries.front();
  const ErrorRecord record = all_refused(handles);
  EXPECT_EQ(record.subject, "gpu-1");
  EXPECT_THAT(record.detail, HasSubstr("63 bytes"));
  EXPECT_EQ(counted_.closes, 2);
}

TEST_F(ImporterTest, AnExportThatIsGoneCannotBeOpened) {
  const wire::HandleMap handles = exported(*actor_, 64, "gpu-0");
  actor_.reset();
  const ErrorRecord record = refusal(handles, 64);
  EXPECT_EQ(record.kind, ErrorKind::kIpc);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
}

TEST_F(ImporterTest, BytesThatAreNoHandleAreAViolation) {
  wire::HandleMap handles;
  handles.entries.emplace_back("gpu-0", ByteBuffer(3, std::byte{1}));
  const ErrorRecord record = refusal(handles, 1);
  EXPECT_EQ(record.kind, ErrorKind::kProtocol);
  EXPECT_EQ(record.remedy, Remedy::kFixPeer);
}

}  // namespace
}  // namespace tpsync::transfer
