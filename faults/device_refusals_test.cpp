// Memory, exports, imports and work on a device that fail, or are not what they say, over a host
// device with real bytes that does its work at launch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faults/catalogue.h"
#include "faults/testing/fakes.h"
#include "tpsync/device/forwarding_device.h"
#include "tpsync/device/host_device.h"

namespace tpsync::faults {
namespace {

using device::RegionId;
using device::StreamId;
using testing::error_of;
using testing::fault_at;
using testing::Victim;

const Deadline kSoon = Deadline::at(TimePoint{1});
constexpr const char* kUpdate = "update_native_weights";

class DeviceRefusals : public ::testing::Test {
 protected:
  std::unique_ptr<device::Device> under(Victim& victim) { return victim.faults->device(host_); }

  // Two tiles of two bytes each, from a packed buffer into the weights, under a fault of copies.
  std::string weights_under(const std::string& fault, bool* took_effect) {
    Victim victim(fault_at(fault, "worker", 0, kUpdate, "device.launch"));
    const auto device = under(victim);
    const RegionId weights =
        device->allocate({.bytes = 4, .kind = device::RegionKind::kSleepable, .tag = "weights"});
    const RegionId packed = device->allocate({.bytes = 4});
    const StreamId stream = device->create_stream();
    std::vector<device::TileCopy> tiles;
    for (const std::uint64_t at : {0, 2}) {
      tiles.push_back({.dst = 1,
                       .src = 0,
                       .dst_offset = at,
                       .dst_pitch = 2,
                       .src_offset = at,
                       .src_pitch = 2,
                       .row_bytes = 2,
                       .rows = 1});
    }
    const auto batch = device->prepare_copies(tiles);
    const std::vector<RegionId> bindings = {packed, weights};
    device->fill(stream, weights, 0, 4, std::byte{'-'});
    device->upload(stream, packed, 0, as_view(std::string_view("abcd")));
    device->launch(stream, *batch, bindings);
    device->synchronize(stream, kSoon);
    ByteBuffer into(4);
    device->download(stream, weights, 0, into);
    device->synchronize(stream, kSoon);
    std::string found;
    for (const std::byte b : into) found += b == std::byte{0xa5} ? '!' : static_cast<char>(b);
    *took_effect = victim.took_effect();
    return found;
  }

  device::HostMemory memory_;
  bool has_device_ = (memory_.add_device("aa-00", 1024), true);
  device::HostDevice host_{memory_, {.uuid = "aa-00"}};
};

TEST_F(DeviceRefusals, ABatchCannotBeMadeResidentOnce) {
  Victim victim(fault_at("memory.prepare_fail", "worker", 0, "start", "device.prepare"));
  const auto device = under(victim);
  const device::TileCopy tile = {.dst_offset = 4, .row_bytes = 2, .rows = 1};
  const ErrorRecord record = error_of([&] { device->prepare_copies(std::span(&tile, 1)); });
  EXPECT_EQ(record.kind, ErrorKind::kOutOfMemory);
  EXPECT_TRUE(victim.took_effect());
  EXPECT_NE(device->prepare_copies(std::span(&tile, 1)), nullptr);
}

TEST_F(DeviceRefusals, ThereIsNoFreeMemoryWhenSomebodyLooksOnce) {
  Victim victim(fault_at("memory.low_at_preflight", "actor", 1, "topology-memory-preflight",
                         "device.memory"));
  const auto device = under(victim);
  EXPECT_EQ(device->memory().free_bytes, 0u);
  EXPECT_TRUE(victim.took_effect());
  EXPECT_EQ(device->memory().free_bytes, 1024u);
}

TEST_F(DeviceRefusals, AnExportFailsOrGivesTheFirstOnesHandle) {
  Victim refused(fault_at("ipc.export_fail", "actor", 0, "topology-ipc-probe", "device.export"));
  {
    const auto device = under(refused);
    const RegionId region = device->allocate({.bytes = 8, .kind = device::RegionKind::kExportable});
    EXPECT_EQ(error_of([&] { device->export_region(region); }).kind, ErrorKind::kIpc);
    EXPECT_TRUE(refused.took_effect());
    device->free(region);
  }
  Victim stale(
      fault_at("ipc.stale_handle", "actor", 0, "native-buffer-allocation", "device.export"));
  const auto device = under(stale);
  stale.process.set_phase("topology-ipc-probe");
  const RegionId probe = device->allocate({.bytes = 8, .kind = device::RegionKind::kExportable});
  const ByteBuffer first = device->export_region(probe);
  device->revoke_export(probe);
  device->free(probe);
  EXPECT_EQ(stale.injector.applied(), 0u);
  stale.process.set_phase("native-buffer-allocation");
  const RegionId buffer = device->allocate({.bytes = 16, .kind = device::RegionKind::kExportable});
  EXPECT_EQ(device->export_region(buffer), first);
  EXPECT_TRUE(stale.took_effect());
  device::HostDevice importer(memory_, {.uuid = "aa-00"});
  EXPECT_EQ(error_of([&] { importer.import_region(first); }).kind, ErrorKind::kIpc);
}

TEST_F(DeviceRefusals, AnImportIsOfAnotherDeviceOrTooSmall) {
  device::HostDevice exporter(memory_, {.uuid = "aa-00"});
  const RegionId region = exporter.allocate({.bytes = 8, .kind = device::RegionKind::kExportable});
  const ByteBuffer handle = exporter.export_region(region);
  for (const char* name : {"ipc.wrong_device", "ipc.wrong_size"}) {
    Victim victim(fault_at(name, "worker", 0, "probe_ipc", "device.import"));
    const auto device = under(victim);
    const device::ImportedRegion imported = device->import_region(handle);
    const bool is_device = std::string_view(name) == "ipc.wrong_device";
    EXPECT_EQ(imported.device_uuid == "aa-00", !is_device) << name;
    EXPECT_EQ(imported.bytes, is_device ? 8u : 4u) << name;
    EXPECT_TRUE(victim.took_effect()) << name;
    device->close_import(imported.region);
  }
}

TEST_F(DeviceRefusals, OneLaunchIsRefused) {
  Victim victim(fault_at("copy.launch_fail", "worker", 0, kUpdate, "device.fill"));
  const auto device = under(victim);
  const RegionId region = device->allocate({.bytes = 1});
  const StreamId stream = device->create_stream();
  const auto fill = [&] { device->fill(stream, region, 0, 1, std::byte{'a'}); };
  EXPECT_EQ(error_of(fill).kind, ErrorKind::kDevice);
  EXPECT_TRUE(victim.took_effect());
  EXPECT_EQ(error_of(fill).subject, "");
}

TEST_F(DeviceRefusals, WorkTurnsOutToHaveFailedWhenItIsWaitedFor) {
  Victim victim(fault_at("copy.sync_fail", "worker", 0, kUpdate, "device.synchronize"));
  const auto device = under(victim);
  const StreamId stream = device->create_stream();
  const auto wait = [&] { device->synchronize(stream, kSoon); };
  EXPECT_EQ(error_of(wait).kind, ErrorKind::kDevice);
  EXPECT_TRUE(victim.took_effect());
  EXPECT_EQ(error_of(wait).subject, "");
}

TEST_F(DeviceRefusals, EverythingFailsOnceTheContextIsLost) {
  Victim victim(fault_at("copy.context_lost", "worker", 0, kUpdate, "device.fill"));
  const auto device = under(victim);
  const RegionId region = device->allocate({.bytes = 1});
  const StreamId stream = device->create_stream();
  const auto failure = [&](auto call) { return error_of(call).subject; };
  EXPECT_EQ(failure([&] { device->fill(stream, region, 0, 1, std::byte{}); }), "device context");
  EXPECT_EQ(failure([&] { device->synchronize(stream, kSoon); }), "device context");
  EXPECT_EQ(failure([&] { device->prepare_copies({}); }), "device context");
  EXPECT_EQ(failure([&] { device->import_region({}); }), "device context");
  EXPECT_TRUE(victim.took_effect());
  device->destroy_stream(stream);
  device->free(region);
}

TEST_F(DeviceRefusals, ALaunchIsLostDoneTwiceOrWritesWhereItShouldNot) {
  bool took_effect = false;
  EXPECT_EQ(weights_under("copy.lost", &took_effect), "----");
  EXPECT_TRUE(took_effect);
  EXPECT_EQ(weights_under("copy.twice", &took_effect), "abcd");
  EXPECT_TRUE(took_effect);
  EXPECT_EQ(weights_under("copy.corrupted", &took_effect), "!!cd");
  EXPECT_TRUE(took_effect);
  EXPECT_EQ(weights_under("copy.misplaced", &took_effect), "abab");
  EXPECT_TRUE(took_effect);
}

}  // namespace
}  // namespace tpsync::faults
