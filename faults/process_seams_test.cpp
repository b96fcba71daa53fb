// A process can be ended at every operation of every seam: each decorated call passes under its own
// name, before it forwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "faults/testing/fakes.h"
#include "tpsync/base/os_threads.h"
#include "tpsync/collective/forwarding_groups.h"
#include "tpsync/device/host_device.h"

namespace tpsync::faults {
namespace {

using testing::fault_at;
using ::testing::NiceMock;
using testing::Victim;

const Deadline kSoon = Deadline::at(TimePoint{1});

class MockClock : public Clock {
 public:
  MOCK_METHOD(TimePoint, now, (), (noexcept, override));
  MOCK_METHOD(void, sleep_until, (TimePoint), (noexcept, override));
};
class MockFactory : public ChannelFactory {
 public:
  using Ends = std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>>;
  MOCK_METHOD(Ends, make_pair, (), (override));
  MOCK_METHOD(std::size_t, wait_readable, (std::span<Channel* const>, Deadline), (override));
};
class MockProcess : public Process {
 public:
  MOCK_METHOD(std::int64_t, pid, (), (const, override));
  MOCK_METHOD(std::optional<ExitStatus>, wait, (Deadline), (noexcept, override));
  MOCK_METHOD(bool, signal_group, (Signal), (noexcept, override));
  MOCK_METHOD(bool, signal, (Signal), (noexcept, override));
  MOCK_METHOD(bool, group_alive, (), (noexcept, override));
};
class FakeLauncher final : public ProcessLauncher {
 public:
  std::unique_ptr<Process> spawn(SpawnRequest) override {
    return std::make_unique<NiceMock<MockProcess>>();
  }
  std::unique_ptr<Process> attach(std::int64_t pid) override {
    return pid == 0 ? nullptr : std::make_unique<NiceMock<MockProcess>>();
  }
};
class MockHost : public Host {
 public:
  MOCK_METHOD(std::string, host_name, (), (override));
  MOCK_METHOD(std::string, boot_id, (), (override));
  MOCK_METHOD(std::int64_t, pid, (), (override));
  MOCK_METHOD(std::optional<std::string>, environment, (std::string_view), (override));
  MOCK_METHOD(Environment, environment, (), (override));
};
class MockRandom : public Random {
 public:
  MOCK_METHOD(void, fill, (MutableByteView), (override));
};
class MockControlGroup : public collective::ControlGroup {
 public:
  MOCK_METHOD(int, rank, (), (const, override));
  MOCK_METHOD(int, size, (), (const, override));
  MOCK_METHOD(void, all_gather_word, (std::uint64_t, std::span<std::uint64_t>, Deadline),
              (override));
  MOCK_METHOD(std::vector<ByteBuffer>, all_gather, (ByteView, Deadline), (override));
  MOCK_METHOD(void, broadcast, (ByteBuffer&, int, Deadline), (override));
  MOCK_METHOD(std::optional<int>, lost_peer, (), (override));
  MOCK_METHOD(void, raise_alarm, (), (noexcept, override));
  MOCK_METHOD(std::optional<int>, alarm, (), (override));
  MOCK_METHOD(void, leave, (), (noexcept, override));
};
class MockShardGroup : public collective::ShardGroup {
 public:
  MOCK_METHOD(int, rank, (), (const, override));
  MOCK_METHOD(int, size, (), (const, override));
  MOCK_METHOD(void, all_gather,
              (device::StreamId, device::RegionId, std::span<const collective::GatherPart>),
              (override));
  MOCK_METHOD(void, wait, (device::StreamId, Deadline, collective::ControlGroup&), (override));
  MOCK_METHOD(void, abort, (), (noexcept, override));
  MOCK_METHOD(bool, usable, (), (const, noexcept, override));
};

// Every call that is an operation, by the operation's name.
using Calls = std::vector<std::pair<std::string, std::function<void(Victim&)>>>;

template <typename Call>
std::function<void(Victim&)> on_process(Call call) {
  return [call](Victim& victim) {
    FakeLauncher inner;
    const auto launcher = victim.faults->processes(inner);
    EXPECT_EQ(launcher->attach(0), nullptr);
    const auto process = launcher->spawn({});
    call(*process);
    const auto attached = launcher->attach(1);
    ASSERT_NE(attached, nullptr);
  };
}

template <typename Call>
std::function<void(Victim&)> on_device(Call call) {
  return [call](Victim& victim) {
    device::HostMemory memory;
    memory.add_device("aa-00", 4096);
    device::HostDevice host(memory, {.uuid = "aa-00"});
    const auto device = victim.faults->device(host);
    call(*device, memory);
  };
}

// One round over every operation of a device.
void use_all_of(device::Device& device, device::HostMemory& memory) {
  device.memory();
  const auto region = device.allocate({.bytes = 8, .kind = device::RegionKind::kExportable});
  device.export_region(region);
  device.revoke_export(region);
  {
    device::HostDevice other(memory, {.uuid = "aa-00"});
    const auto theirs = other.allocate({.bytes = 8, .kind = device::RegionKind::kExportable});
    const auto handle = other.export_region(theirs);
    device.close_import(device.import_region(handle).region);
  }
  device.sleep("weights", true);
  device.wake("weights");
  const auto stream = device.create_stream();
  const device::TileCopy tile = {.dst_offset = 4, .row_bytes = 2, .rows = 1};
  const device::DigestItem item = {.item_bytes = 2, .rows = 1, .cols = 1};
  const auto copies = device.prepare_copies(std::span(&tile, 1));
  const auto digests = device.prepare_digests(std::span(&item, 1));
  std::uint64_t sum = 0;
  ByteBuffer bytes(2);
  device.launch(stream, *copies, std::span(&region, 1));
  device.launch_digests(stream, *digests, std::span(&region, 1), std::span(&sum, 1));
  device.fill(stream, region, 0, 1, std::byte{1});
  device.upload(stream, region, 0, bytes);
  device.download(stream, region, 0, bytes);
  device.synchronize(stream, kSoon);
  device.destroy_stream(stream);
  device.free(region);
}

template <typename Call>
std::function<void(Victim&)> on_control(Call call) {
  return [call](Victim& victim) {
    std::unique_ptr<collective::ControlGroup> inner =
        std::make_unique<NiceMock<MockControlGroup>>();
    call(*victim.faults->control_group(inner));
  };
}

template <typename Call>
std::function<void(Victim&)> on_shards(Call call) {
  return [call](Victim& victim) {
    std::unique_ptr<collective::ShardGroup> inner = std::make_unique<NiceMock<MockShardGroup>>();
    call(*victim.faults->shard_group(inner));
  };
}

template <typename Call>
std::function<void(Victim&)> on_channel(Call call) {
  return [call](Victim& victim) {
    testing::Wire wire;
    wire.is_peer_closed = true;
    std::unique_ptr<Channel> inner = std::make_unique<testing::FakeChannel>(victim.process, wire);
    call(*victim.faults->channel({"runtime", 0}, inner));
  };
}

template <typename Call>
std::function<void(Victim&)> on_threads(Call call) {
  return [call](Victim& victim) {
    OsThreads inner;
    call(*victim.faults->threads(inner));
  };
}

void lock_once(Threads& threads) {
  const auto mutex = threads.make_mutex();
  const MutexLock lock(*mutex);
}

Calls all_calls() {
  Calls calls = {
      {"clock.now",
       [](Victim& v) {
         NiceMock<MockClock> inner;
         v.faults->clock(inner)->now();
       }},
      {"clock.sleep",
       [](Victim& v) {
         NiceMock<MockClock> inner;
         v.faults->clock(inner)->sleep_until({});
       }},
      {"channel.pair",
       [](Victim& v) {
         NiceMock<MockFactory> inner;
         v.faults->channel_factory(inner)->make_pair();
       }},
      {"channel.wait_readable",
       [](Victim& v) {
         NiceMock<MockFactory> inner;
         v.faults->channel_factory(inner)->wait_readable({}, kSoon);
       }},
      {"host.query",
       [](Victim& v) {
         NiceMock<MockHost> inner;
         v.faults->host(inner)->boot_id();
       }},
      {"host.query",
       [](Victim& v) {
         NiceMock<MockHost> inner;
         v.faults->host(inner)->host_name();
       }},
      {"host.query",
       [](Victim& v) {
         NiceMock<MockHost> inner;
         v.faults->host(inner)->environment("HOME");
       }},
      {"host.query",
       [](Victim& v) {
         NiceMock<MockHost> inner;
         v.faults->host(inner)->environment();
       }},
      {"random.fill",
       [](Victim& v) {
         NiceMock<MockRandom> inner;
         v.faults->random(inner)->fill({});
       }},
      {"process.spawn", on_process([](Process&) {})},
      {"process.attach", on_process([](Process&) {})},
      {"process.wait", on_process([](Process& p) { p.wait(kSoon); })},
      {"process.signal", on_process([](Process& p) { p.signal(Signal::kKill); })},
      {"process.signal_group", on_process([](Process& p) { p.signal_group(Signal::kKill); })},
      {"process.group_alive", on_process([](Process& p) { p.group_alive(); })},
      {"channel.read", on_channel([](Channel& c) {
         std::byte byte{};
         c.read_some(std::span(&byte, 1), kSoon);
       })},
      {"channel.write", on_channel([](Channel& c) {
         const std::byte byte{};
         c.write_some(std::span(&byte, 1), kSoon);
       })},
      {"channel.send_descriptors", on_channel([](Channel& c) { c.send_descriptors({}, kSoon); })},
      {"channel.receive_descriptors",
       on_channel([](Channel& c) { c.receive_descriptors(1, kSoon); })},
      {"channel.close", on_channel([](Channel& c) { c.close(); })},
      {"thread.spawn", on_threads([](Threads& t) { t.spawn("t", [] {})->join(); })},
      {"thread.join", on_threads([](Threads& t) { t.spawn("t", [] {})->join(); })},
      {"mutex.lock", on_threads(lock_once)},
      {"mutex.unlock", on_threads(lock_once)},
      {"condition.notify", on_threads([](Threads& t) { t.make_condition()->notify_all(); })},
      {"control.word", on_control([](auto& g) { g.all_gather_word(0, {}, kSoon); })},
      {"control.gather", on_control([](auto& g) { g.all_gather({}, kSoon); })},
      {"control.broadcast", on_control([](auto& g) {
         ByteBuffer bytes;
         g.broadcast(bytes, 0, kSoon);
       })},
      {"control.lost_peer", on_control([](auto& g) { g.lost_peer(); })},
      {"control.raise_alarm", on_control([](auto& g) { g.raise_alarm(); })},
      {"control.alarm", on_control([](auto& g) { g.alarm(); })},
      {"control.leave", on_control([](auto& g) { g.leave(); })},
      {"shard.gather",
       on_shards([](auto& g) { g.all_gather(device::StreamId{1}, device::RegionId{1}, {}); })},
      {"shard.wait", on_shards([](auto& g) {
         NiceMock<MockControlGroup> watch;
         g.wait(device::StreamId{1}, kSoon, watch);
       })},
      {"shard.abort", on_shards([](auto& g) { g.abort(); })},
  };
  for (const std::string_view op : operation_names()) {
    if (op.starts_with("device.")) calls.emplace_back(op, on_device(use_all_of));
  }
  return calls;
}

TEST(ProcessFaults, AreReachedAtEveryOperationUnderItsName) {
  for (const auto& [op, call] : all_calls()) {
    Victim victim(fault_at("process.kill", "worker", 0, "phase", op));
    call(victim);
    EXPECT_TRUE(victim.took_effect()) << op;
    EXPECT_EQ(std::count(victim.process.log.begin(), victim.process.log.end(), "KILL"), 1) << op;
  }
}

TEST(ProcessFaults, CoverEveryOperationThatAMomentMayName) {
  std::vector<std::string> covered;
  for (const auto& [op, call] : all_calls()) covered.push_back(op);
  covered.emplace_back("condition.wait");  // has a test of its own, beside the injector
  for (const std::string_view op : operation_names()) {
    if (is_own_moment(op)) continue;
    EXPECT_NE(std::find(covered.begin(), covered.end(), op), covered.end()) << op;
  }
}

}  // namespace
}  // namespace tpsync::faults
