// Groups in which a rank hangs, contributes what it should not, or receives garbage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faults/catalogue.h"
#include "faults/testing/fakes.h"
#include "tpsync/collective/forwarding_groups.h"
#include "tpsync/device/host_device.h"

namespace tpsync::faults {
namespace {

using testing::error_of;
using testing::FakeProcess;
using testing::fault_at;
using testing::Victim;

const Deadline kSoon = Deadline::at(TimePoint{5});

class SleepyClock final : public Clock {
 public:
  TimePoint now() noexcept override { return now_; }
  void sleep_until(TimePoint until) noexcept override { now_ = std::max(now_, until); }

 private:
  TimePoint now_;
};

// Rank 1 of 2. Keeps what it was given; rank 0 gives `given_by_first`.
class EchoGroup final : public collective::ControlGroup {
 public:
  explicit EchoGroup(FakeProcess& process) : process_(process) {}
  int rank() const override { return 1; }
  int size() const override { return 2; }
  void all_gather_word(std::uint64_t own, std::span<std::uint64_t>, Deadline) override {
    process_.enter("control.word");
    word = own;
  }
  std::vector<ByteBuffer> all_gather(ByteView own, Deadline) override {
    process_.enter("control.gather");
    bytes.assign(own.begin(), own.end());
    return {given_by_first, bytes};
  }
  void broadcast(ByteBuffer& into, int, Deadline) override {
    process_.enter("control.broadcast");
    into = given_by_first;
  }
  std::optional<int> lost_peer() override { return std::nullopt; }
  void raise_alarm() noexcept override {}
  std::optional<int> alarm() override { return std::nullopt; }
  void leave() noexcept override { process_.log.emplace_back("left"); }

  std::uint64_t word = 0;
  ByteBuffer bytes;
  ByteBuffer given_by_first;

 private:
  FakeProcess& process_;
};

struct Group {
  explicit Group(Victim& victim) {
    auto owned = std::make_unique<EchoGroup>(victim.process);
    echo = owned.get();
    std::unique_ptr<collective::ControlGroup> inner = std::move(owned);
    group = victim.faults->control_group(inner);
  }
  EchoGroup* echo = nullptr;
  std::unique_ptr<collective::ControlGroup> group;
};

wire::HandleMap handle_of(const std::string& uuid) {
  wire::HandleMap map;
  map.entries.emplace_back(uuid, ByteBuffer(3, std::byte{7}));
  return map;
}
ByteBuffer encoded(const wire::HandleMap& map) {
  ByteBuffer out;
  wire::encode(map, out);
  return out;
}

TEST(GroupFaults, ARankThatHangsLeavesAtItsDeadlineAndIsLost) {
  SleepyClock clock;
  Victim victim(fault_at("collective.hang", "actor", 1, "gate", "control.word"), &clock);
  Group fixture(victim);
  std::vector<std::uint64_t> words(2);
  EXPECT_EQ(error_of([&] { fixture.group->all_gather_word(1, words, kSoon); }).kind,
            ErrorKind::kPeerLost);
  EXPECT_EQ(clock.now(), kSoon.time());
  EXPECT_TRUE(victim.process.has_done("left"));
  EXPECT_FALSE(victim.process.has_done("control.word"));
  EXPECT_EQ(error_of([&] { fixture.group->all_gather({}, kSoon); }).kind, ErrorKind::kPeerLost);
  EXPECT_EQ(victim.process.marks.front().second, Visibility::kSilent);
}

TEST(GroupFaults, OneWordOfAnAgreementIsAnother) {
  Victim victim(fault_at("collective.corrupt_word", "actor", 1, "gate", "control.word"));
  Group fixture(victim);
  std::vector<std::uint64_t> words(2);
  fixture.group->all_gather_word(0xf000000000000001, words, kSoon);
  EXPECT_NE(fixture.echo->word, 0xf000000000000001);
  EXPECT_EQ(fixture.echo->word & 3, 1u) << "what the rank says of itself stays";
  EXPECT_TRUE(victim.took_effect());
  fixture.group->all_gather_word(5, words, kSoon);
  EXPECT_EQ(fixture.echo->word, 5u);
}

TEST(GroupFaults, HalfOfWhatARankGivesOrReceivesIsMissing) {
  Victim giver(fault_at("collective.truncated_bytes", "actor", 1, "gate", "control.gather"));
  Group gather(giver);
  gather.group->all_gather(ByteBuffer(8, std::byte{1}), kSoon);
  EXPECT_EQ(gather.echo->bytes.size(), 4u);
  EXPECT_TRUE(giver.took_effect());
  Victim taker(fault_at("collective.truncated_bytes", "actor", 1, "gate", "control.broadcast"));
  Group broadcast(taker);
  broadcast.echo->given_by_first.resize(6);
  ByteBuffer received;
  broadcast.group->broadcast(received, 0, kSoon);
  EXPECT_EQ(received.size(), 3u);
  EXPECT_TRUE(taker.took_effect());
}

TEST(GroupFaults, AHandleIsOfNobodysDeviceOrOfRankZeros) {
  const std::string phase = "native-buffer-allocation";
  for (const char* uuid : {"foreign", "duplicate"}) {
    Victim victim(
        fault_at("ipc.wrong_uuid", "actor", 1, phase, "control.gather", 1, {{"uuid", uuid}}));
    Group fixture(victim);
    fixture.echo->given_by_first = encoded(handle_of("rank-zero"));
    fixture.group->all_gather(encoded(handle_of("rank-one")), kSoon);
    EXPECT_EQ(victim.injector.applied(), 0u);
    fixture.group->all_gather(encoded(handle_of("rank-one")), kSoon);
    EXPECT_TRUE(victim.took_effect()) << uuid;
    const std::string found = wire::decode_handle_map(fixture.echo->bytes).entries.front().first;
    EXPECT_EQ(found == "rank-zero", std::string_view(uuid) == "duplicate") << found;
    EXPECT_NE(found, "rank-one");
  }
}

class ShardGroupOnHost final : public collective::ShardGroup {
 public:
  explicit ShardGroupOnHost(FakeProcess& process) : process_(process) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void all_gather(device::StreamId, device::RegionId,
                  std::span<const collective::GatherPart>) override {
    process_.enter("shard.gather");
  }
  void wait(device::StreamId, Deadline, collective::ControlGroup&) override {
    process_.enter("shard.wait");
  }
  void abort() noexcept override { process_.log.emplace_back("aborted"); }
  bool usable() const noexcept override { return true; }

 private:
  FakeProcess& process_;
};

TEST(GroupFaults, AHungWaitForWeightsTimesOutAndAborts) {
  SleepyClock clock;
  Victim victim(fault_at("collective.hang", "actor", 1, "native-materialize", "shard.wait"),
                &clock);
  std::unique_ptr<collective::ShardGroup> inner =
      std::make_unique<ShardGroupOnHost>(victim.process);
  const auto group = victim.faults->shard_group(inner);
  EchoGroup watch(victim.process);
  EXPECT_EQ(error_of([&] { group->wait(device::StreamId{1}, kSoon, watch); }).kind,
            ErrorKind::kTimeout);
  EXPECT_EQ(clock.now(), kSoon.time());
  EXPECT_TRUE(victim.process.has_done("aborted"));
}

TEST(GroupFaults, AGatherDeliversGarbageInItsPartsAlone) {
  Victim victim(fault_at("collective.garbled", "actor", 0, "native-materialize", "shard.wait"));
  device::HostMemory memory;
  memory.add_device("aa-00", 1024);
  device::HostDevice host(memory, {.uuid = "aa-00"});
  EXPECT_EQ(victim.faults->device(host), nullptr) << "the device itself does nothing wrong";
  std::unique_ptr<collective::ShardGroup> inner =
      std::make_unique<ShardGroupOnHost>(victim.process);
  const auto group = victim.faults->shard_group(inner);
  const device::RegionId buffer = host.allocate({.bytes = 4});
  const device::StreamId stream = host.create_stream();
  host.fill(stream, buffer, 0, 4, std::byte{'a'});
  const std::vector<collective::GatherPart> parts = {{0, 1}, {2, 1}};
  group->all_gather(stream, buffer, parts);
  EchoGroup watch(victim.process);
  group->wait(stream, kSoon, watch);
  EXPECT_TRUE(victim.took_effect());
  ByteBuffer found(4);
  host.download(stream, buffer, 0, found);
  host.synchronize(stream, kSoon);
  EXPECT_EQ(found, (ByteBuffer{std::byte{0xa5}, std::byte{'a'}, std::byte{0xa5}, std::byte{'a'}}));
}

}  // namespace
}  // namespace tpsync::faults
