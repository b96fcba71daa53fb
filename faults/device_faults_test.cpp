// Memory, imports, late streams and lost tiles, over a host device with real bytes that does its
// work at launch.
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
using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeProcess;
using testing::fault_at;
using testing::Victim;

const Deadline kSoon = Deadline::at(TimePoint{1});

// Counts the operations that these tests name.
class CountingDevice final : public device::ForwardingDevice {
 public:
  CountingDevice(FakeProcess& process, device::Device& inner)
      : ForwardingDevice(inner), process_(process) {}
  RegionId allocate(const device::AllocationRequest& request) override {
    process_.enter("device.allocate");
    return ForwardingDevice::allocate(request);
  }
  void wake(std::string_view tag) override {
    process_.enter("device.wake");
    ForwardingDevice::wake(tag);
  }
  device::ImportedRegion import_region(ByteView handle) override {
    process_.enter("device.import");
    return ForwardingDevice::import_region(handle);
  }
  void launch(StreamId stream, const device::Prepared& batch,
              std::span<const RegionId> bindings) override {
    process_.enter("device.launch");
    ForwardingDevice::launch(stream, batch, bindings);
  }
  void fill(StreamId stream, RegionId region, std::uint64_t offset, std::uint64_t bytes,
            std::byte value) override {
    process_.enter("device.fill");
    ForwardingDevice::fill(stream, region, offset, bytes, value);
  }
  void synchronize(StreamId stream, Deadline deadline) override {
    process_.enter("device.synchronize");
    ForwardingDevice::synchronize(stream, deadline);
  }

 private:
  FakeProcess& process_;
};

class DeviceFaults : public ::testing::Test {
 protected:
  void decorate(Victim& victim) {
    counting_ = std::make_unique<CountingDevice>(victim.process, host_);
    device_ = victim.faults->device(*counting_);
    ASSERT_NE(device_, nullptr);
  }
  std::string bytes_of(RegionId region, std::size_t count) {
    ByteBuffer into(count);
    const StreamId stream = host_.create_stream();
    host_.download(stream, region, 0, into);
    host_.synchronize(stream, kSoon);
    host_.destroy_stream(stream);
    std::string text;
    for (const std::byte b : into) text += b == device::kUndefinedByte ? '?' : static_cast<char>(b);
    return text;
  }

  device::HostMemory memory_;
  bool has_device_ = (memory_.add_device("aa-00", 1024), true);
  device::HostDevice host_{memory_, {.uuid = "aa-00"}};
  std::unique_ptr<CountingDevice> counting_;
  std::unique_ptr<device::Device> device_;
};

TEST_F(DeviceFaults, OneAllocationFailsAndTakesNoMemory) {
  Victim victim(fault_at("memory.alloc_fail", "actor", 0, "gate", "device.allocate", 1));
  decorate(victim);
  device_->allocate({.bytes = 16});
  const ErrorRecord record = error_of([&] { device_->allocate({.bytes = 32}); });
  EXPECT_EQ(record.kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(record.subject, "device memory");
  EXPECT_EQ(host_.memory().free_bytes, 1024u - 16u);
  EXPECT_TRUE(victim.took_effect());
  device_->allocate({.bytes = 32});
  EXPECT_EQ(host_.memory().free_bytes, 1024u - 48u);
}

TEST_F(DeviceFaults, AWakeFailsAndTheRegionsStayAsleep) {
  Victim victim(fault_at("memory.alloc_fail", "worker", 0, "wake_up", "device.wake"));
  decorate(victim);
  device_->allocate({.bytes = 64, .kind = device::RegionKind::kSleepable, .tag = "weights"});
  device_->sleep("weights", true);
  EXPECT_EQ(error_of([&] { device_->wake("weights"); }).kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(host_.memory().free_bytes, 1024u);
  EXPECT_TRUE(victim.took_effect());
}

TEST_F(DeviceFaults, AnImportIsNotPermitted) {
  Victim victim(fault_at("ipc.open_fail", "worker", 0, "probe_ipc", "device.import"));
  decorate(victim);
  device::HostDevice exporter(memory_, {.uuid = "aa-00"});
  const RegionId region = exporter.allocate({.bytes = 8, .kind = device::RegionKind::kExportable});
  const ByteBuffer handle = exporter.export_region(region);
  const ErrorRecord record = error_of([&] { device_->import_region(handle); });
  EXPECT_EQ(record.kind, ErrorKind::kIpc);
  EXPECT_EQ(record.subject, "import");
  EXPECT_EQ(memory_.open_imports(), 0u);
  EXPECT_TRUE(victim.took_effect());
  device_->close_import(device_->import_region(handle).region);
}

TEST_F(DeviceFaults, ALateStreamWorksOnlyWhenWaitedForAndInOrder) {
  Victim victim(fault_at("copy.late", "worker", 0, "update", "device.fill", 1));
  decorate(victim);
  const RegionId region = device_->allocate({.bytes = 4});
  const StreamId late = device_->create_stream();
  const StreamId other = device_->create_stream();
  device_->fill(late, region, 0, 1, std::byte{'a'});
  EXPECT_EQ(bytes_of(region, 4), "a???");
  device_->fill(late, region, 0, 3, std::byte{'b'});
  device_->upload(late, region, 1, as_view(std::string_view("c")));
  device_->fill(other, region, 3, 1, std::byte{'d'});
  EXPECT_EQ(bytes_of(region, 4), "a??d");
  EXPECT_TRUE(victim.took_effect());
  device_->synchronize(late, kSoon);
  EXPECT_EQ(bytes_of(region, 4), "bcbd");
  device_->fill(late, region, 0, 1, std::byte{'e'});
  EXPECT_EQ(bytes_of(region, 4), "bcbd");
  victim.injector.heal();
  device_->fill(late, region, 1, 1, std::byte{'f'});  // behind work that is still held
  EXPECT_EQ(bytes_of(region, 4), "bcbd");
  device_->synchronize(late, kSoon);
  EXPECT_EQ(bytes_of(region, 4), "efbd");
  device_->fill(late, region, 2, 1, std::byte{'g'});
  EXPECT_EQ(bytes_of(region, 4), "efgd");
}

TEST_F(DeviceFaults, ADestroyedLateStreamDropsItsWork) {
  Victim victim(fault_at("copy.late", "worker", 0, "update", "device.fill"));
  decorate(victim);
  const RegionId region = device_->allocate({.bytes = 1});
  const StreamId stream = device_->create_stream();
  device_->fill(stream, region, 0, 1, std::byte{'a'});
  device_->destroy_stream(stream);
  EXPECT_EQ(bytes_of(region, 1), "?");
  EXPECT_FALSE(victim.process.has_done("device.fill"));
}

class GroupOnDevice final : public collective::ShardGroup {
 public:
  explicit GroupOnDevice(FakeProcess& process) : process_(process) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_gather(StreamId, RegionId, std::span<const collective::GatherPart> parts) override {
    process_.enter("shard.gather");
    bytes = parts.front().bytes;
  }
  void wait(StreamId, Deadline, collective::ControlGroup&) override {
    process_.enter("shard.wait");
  }
  void abort() noexcept override {}
  bool usable() const noexcept override { return true; }
  std::uint64_t bytes = 0;

 private:
  FakeProcess& process_;
};

class NoControlGroup final : public collective::ControlGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_gather_word(std::uint64_t, std::span<std::uint64_t>, Deadline) override {}
  std::vector<ByteBuffer> all_gather(ByteView, Deadline) override { return {}; }
  void broadcast(ByteBuffer&, int, Deadline) override {}
  std::optional<int> lost_peer() override { return std::nullopt; }
  void raise_alarm() noexcept override {}
  std::optional<int> alarm() override { return std::nullopt; }
  void leave() noexcept override {}
};

TEST_F(DeviceFaults, AGatherOnALateStreamKeepsItsPlaceBehindThePack) {
  Victim victim(fault_at("copy.late", "actor", 0, "native-materialize", "device.launch"));
  decorate(victim);
  auto owned = std::make_unique<GroupOnDevice>(victim.process);
  const GroupOnDevice& reached = *owned;
  std::unique_ptr<collective::ShardGroup> inner = std::move(owned);
  const auto group = victim.faults->shard_group(inner);
  ASSERT_NE(group, nullptr);
  const RegionId region = device_->allocate({.bytes = 8});
  const StreamId stream = device_->create_stream();
  const device::TileCopy tile = {
      .dst = 0, .src = 0, .dst_offset = 4, .src_offset = 0, .row_bytes = 2, .rows = 1};
  const auto batch = device_->prepare_copies(std::span(&tile, 1));
  victim.process.log.clear();
  {
    const std::vector<RegionId> bindings = {region};
    device_->launch(stream, *batch, bindings);
    const std::vector<collective::GatherPart> parts = {{0, 8}};
    group->all_gather(stream, region, parts);
  }
  EXPECT_TRUE(victim.process.log.empty());
  NoControlGroup watch;
  group->wait(stream, kSoon, watch);
  EXPECT_THAT(victim.process.log, ElementsAre("device.launch", "shard.gather", "shard.wait"));
  EXPECT_EQ(reached.bytes, 8u);
  EXPECT_TRUE(victim.took_effect());
}

TEST(LostTiles, AWorkersLaunchLosesWhatGoesToTheExpertsPlace) {
  device::HostMemory memory;
  memory.add_device("aa-00", 1024);
  device::HostDevice host(memory, {.uuid = "aa-00"});
  FakeProcess process;
  Injector injector(Plan{1,
                         {fault_at("weights.missing_expert", "worker", 0, "update_native_weights",
                                   "device.launch", 1, {{"where", "loader"}})}});
  process.set_phase("update_native_weights");
  std::string asked;
  const auto faults = injector.enter("worker", 0, {process, process, [&](std::string_view expert) {
                                                     asked = expert;
                                                     return std::vector<ByteRange>{{2, 2}};
                                                   }});
  CountingDevice counting(process, host);
  const auto device = faults->device(counting);
  const RegionId weights =
      device->allocate({.bytes = 6, .kind = device::RegionKind::kSleepable, .tag = "weights"});
  const RegionId packed = device->allocate({.bytes = 6});
  const StreamId stream = device->create_stream();
  std::vector<device::TileCopy> tiles;
  for (std::uint64_t at = 0; at < 6; at += 2) {
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
  const auto publish = [&](std::string_view text) {
    device->upload(stream, packed, 0, as_view(text));
    device->launch(stream, *batch, bindings);
    ByteBuffer into(6);
    device->download(stream, weights, 0, into);
    device->synchronize(stream, kSoon);
    std::string found;
    for (const std::byte b : into) found += static_cast<char>(b);
    return found;
  };
  EXPECT_EQ(publish("aabbcc"), "aabbcc");
  EXPECT_EQ(injector.applied(), 0u);
  EXPECT_EQ(publish("ddeeff"), "ddbbff");
  EXPECT_EQ(injector.applied(), 1u);
  EXPECT_EQ(asked, "model.layers.0.mlp.experts.0");
  EXPECT_EQ(publish("gghhii"), "gghhii");
}

}  // namespace
}  // namespace tpsync::faults
