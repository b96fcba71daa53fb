// Channels, groups, processes and the weight source under each fault that is not about messages or
// memory.
#include "faults/injector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faults/testing/fakes.h"
#include "tpsync/collective/forwarding_groups.h"

namespace tpsync::faults {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeChannel;
using testing::FakeProcess;
using testing::fault_at;
using testing::Victim;
using testing::Wire;
using Readiness = HasReadiness::Readiness;

const Deadline kSoon = Deadline::at(TimePoint{1});

ByteBuffer bytes_of(std::string_view text) {
  const ByteView view = as_view(text);
  return ByteBuffer(view.begin(), view.end());
}

std::string read_text(Channel& channel) {
  ByteBuffer into(16);
  into.resize(channel.read_some(into, kSoon));
  std::string text;
  for (const std::byte b : into) text += static_cast<char>(b);
  return text;
}

std::unique_ptr<FaultChannel> channel_of(Victim& victim, Wire& wire) {
  std::unique_ptr<Channel> inner = std::make_unique<FakeChannel>(victim.process, wire);
  return victim.faults->channel({"runtime", 0}, inner);
}

TEST(Injector, AProcessThatNoFaultTargetsIsLeftAlone) {
  FakeProcess process;
  Injector injector(Plan{1, {fault_at("channel.eof", "worker", 1, "", "channel.read")}});
  EXPECT_EQ(injector.enter("worker", 0, {process, process, {}}), nullptr);
  EXPECT_EQ(injector.enter("actor", 1, {process, process, {}}), nullptr);
  const auto faults = injector.enter("worker", 1, {process, process, {}});
  ASSERT_NE(faults, nullptr);
  EXPECT_TRUE(faults->wants(Seam::kChannel));
  EXPECT_FALSE(faults->wants(Seam::kDevice));
  std::unique_ptr<collective::ControlGroup> group;
  EXPECT_EQ(faults->control_group(group), nullptr);
}

TEST(Injector, AClosedChannelGivesEndOfFileAndRefusesWrites) {
  Victim victim(fault_at("channel.eof", "worker", 0, "update", "channel.read", 1));
  Wire wire;
  wire.incoming = bytes_of("ab");
  const auto channel = channel_of(victim, wire);
  EXPECT_EQ(read_text(*channel), "ab");
  EXPECT_EQ(channel->readiness(), Readiness::kAsInner);
  EXPECT_FALSE(wire.is_closed);
  wire.incoming = bytes_of("cd");
  EXPECT_EQ(read_text(*channel), "");
  EXPECT_TRUE(victim.took_effect());
  EXPECT_TRUE(wire.is_closed);  // the other side sees end of file
  EXPECT_EQ(channel->readiness(), Readiness::kReadable);
  EXPECT_EQ(read_text(*channel), "");
  const ErrorRecord record = error_of([&] { channel->write_some(bytes_of("x"), kSoon); });
  EXPECT_EQ(record.kind, ErrorKind::kEndOfFile);
  EXPECT_EQ(record.subject, "channel");
}

TEST(Injector, AWriteOnAChannelThatClosesAtItFailsAndSendsNothing) {
  Victim victim(fault_at("channel.eof", "worker", 0, "update", "channel.write"));
  Wire wire;
  const auto channel = channel_of(victim, wire);
  EXPECT_EQ(error_of([&] { channel->write_some(bytes_of("x"), kSoon); }).kind,
            ErrorKind::kEndOfFile);
  EXPECT_TRUE(wire.written.empty());
  EXPECT_TRUE(wire.is_closed);
  EXPECT_TRUE(victim.took_effect());
}

TEST(Injector, AChannelThatItsOwnerClosedAnswersAsEveryClosedChannel) {
  Victim victim(fault_at("channel.eof", "worker", 0, "update", "channel.read"));
  Wire wire;
  const auto channel = channel_of(victim, wire);
  EXPECT_EQ(read_text(*channel), "");
  channel->close();
  EXPECT_EQ(error_of([&] { read_text(*channel); }).kind, ErrorKind::kIo);
}

TEST(Injector, ADeafChannelHidesBytesButNotTheEndOfFile) {
  Victim victim(fault_at("channel.timeout", "worker", 0, "update", "channel.read"));
  Wire wire;
  wire.incoming = bytes_of("abc");
  const auto channel = channel_of(victim, wire);
  EXPECT_EQ(error_of([&] { read_text(*channel); }).kind, ErrorKind::kTimeout);
  EXPECT_TRUE(victim.took_effect());
  EXPECT_EQ(victim.process.marks[0].second, Visibility::kSilent);
  EXPECT_EQ(channel->readiness(), Readiness::kOnlyEndOfFile);
  wire.incoming = bytes_of("de");
  wire.is_peer_closed = true;
  EXPECT_EQ(read_text(*channel), "");
  EXPECT_EQ(channel->write_some(bytes_of("x"), kSoon), 1u);
  EXPECT_EQ(wire.written, bytes_of("x"));
}

TEST(Injector, AMuteChannelLosesEveryWriteFromItsMomentOn) {
  Victim victim(fault_at("channel.timeout", "worker", 0, "update", "channel.write", 1));
  Wire wire;
  const auto channel = channel_of(victim, wire);
  channel->write_some(bytes_of("a"), kSoon);
  EXPECT_EQ(channel->write_some(bytes_of("b"), kSoon), 1u);
  EXPECT_EQ(channel->write_some(bytes_of("c"), kSoon), 1u);
  EXPECT_EQ(wire.written, bytes_of("a"));
  EXPECT_TRUE(victim.took_effect());
  wire.incoming = bytes_of("d");
  EXPECT_EQ(read_text(*channel), "d");
  victim.injector.heal();
  channel->write_some(bytes_of("e"), kSoon);
  EXPECT_EQ(wire.written, bytes_of("ae"));
}

TEST(Injector, NothingAppliesAfterHealing) {
  Victim victim(fault_at("channel.eof", "worker", 0, "update", "channel.read"));
  Wire wire;
  wire.incoming = bytes_of("a");
  const auto channel = channel_of(victim, wire);
  victim.injector.heal();
  EXPECT_EQ(read_text(*channel), "a");
  EXPECT_EQ(victim.injector.applied(), 0u);
}

TEST(Injector, AMomentIsOneOfItsPhaseAndChunk) {
  Fault fault = fault_at("channel.timeout", "worker", 0, "update", "channel.write", 0);
  fault.moment.chunk = 2;
  Victim victim(fault);
  Wire wire;
  const auto channel = channel_of(victim, wire);
  victim.process.set_phase("update", 1);
  channel->write_some(bytes_of("a"), kSoon);
  victim.process.set_phase("finish", 2);
  channel->write_some(bytes_of("b"), kSoon);
  EXPECT_EQ(victim.injector.applied(), 0u);
  victim.process.set_phase("update", 2);
  channel->write_some(bytes_of("c"), kSoon);
  EXPECT_TRUE(victim.took_effect());
  EXPECT_EQ(wire.written, bytes_of("ab"));
}

class CountingClock final : public Clock {
 public:
  explicit CountingClock(FakeProcess& process) : process_(process) {}
  TimePoint now() noexcept override {
    process_.enter("clock.now");
    return {};
  }
  void sleep_until(TimePoint) noexcept override { process_.enter("clock.sleep"); }

 private:
  FakeProcess& process_;
};

TEST(Injector, AKillComesBeforeItsOperationAndOnce) {
  Victim victim(fault_at("process.kill", "actor", 3, "setup", "clock.now", 1));
  CountingClock inner(victim.process);
  const auto clock = victim.faults->clock(inner);
  ASSERT_NE(clock, nullptr);
  clock->now();
  clock->sleep_until({});
  clock->now();
  clock->now();
  EXPECT_THAT(victim.process.log,
              ElementsAre("clock.now", "clock.sleep", "KILL", "clock.now", "clock.now"));
  EXPECT_TRUE(victim.took_effect());
  EXPECT_EQ(victim.process.marks[0].second, Visibility::kVisible);
}

TEST(Injector, AStopIsSilentAndForwards) {
  Victim victim(fault_at("process.stop", "actor", 3, "setup", "clock.sleep"));
  CountingClock inner(victim.process);
  victim.faults->clock(inner)->sleep_until({});
  EXPECT_THAT(victim.process.log, ElementsAre("STOP", "clock.sleep"));
  EXPECT_EQ(victim.process.marks[0].second, Visibility::kSilent);
}

TEST(Injector, AKillReachesEverySeamOfItsProcess) {
  Victim victim(fault_at("process.kill", "actor", 0, "", "clock.now"));
  for (const Seam seam :
       {Seam::kClock, Seam::kChannelFactory, Seam::kProcesses, Seam::kHost, Seam::kRandom,
        Seam::kThreads, Seam::kDevice, Seam::kChannel, Seam::kControlGroup, Seam::kShardGroup}) {
    EXPECT_TRUE(victim.faults->wants(seam)) << static_cast<int>(seam);
  }
}

class FakeMutex final : public Mutex {
 public:
  void lock() noexcept override {}
  void unlock() noexcept override {}
};
class FakeCondition final : public Condition {
 public:
  explicit FakeCondition(FakeProcess& process) : process_(process) {}
  bool wait(Mutex& mutex, Deadline) noexcept override {
    process_.enter("condition.wait");
    return dynamic_cast<FakeMutex*>(&mutex) != nullptr;
  }
  void notify_all() noexcept override {}

 private:
  FakeProcess& process_;
};
class FakeThreads final : public Threads {
 public:
  explicit FakeThreads(FakeProcess& process) : process_(process) {}
  std::unique_ptr<Mutex> make_mutex() override { return std::make_unique<FakeMutex>(); }
  std::unique_ptr<Condition> make_condition() override {
    return std::make_unique<FakeCondition>(process_);
  }
  std::unique_ptr<Thread> spawn(std::string, std::function<void()>) override { return nullptr; }

 private:
  FakeProcess& process_;
};

TEST(Injector, AConditionWaitsWithTheMutexThatItsImplementationKnows) {
  Victim victim(fault_at("process.kill", "actor", 0, "setup", "condition.wait"));
  FakeThreads inner(victim.process);
  const auto threads = victim.faults->threads(inner);
  const auto mutex = threads->make_mutex();
  const auto condition = threads->make_condition();
  EXPECT_TRUE(condition->wait(*mutex, kSoon));
  EXPECT_THAT(victim.process.log, ElementsAre("KILL", "condition.wait"));
}

class FakeControlGroup final : public collective::ControlGroup {
 public:
  explicit FakeControlGroup(FakeProcess& process) : process_(process) {}
  int rank() const override { return 1; }
  int size() const override { return 4; }
  void all_gather_word(std::uint64_t, std::span<std::uint64_t>, Deadline) override {
    process_.enter("control.word");
  }
  std::vector<ByteBuffer> all_gather(ByteView, Deadline) override {
    process_.enter("control.gather");
    return {};
  }
  void broadcast(ByteBuffer&, int, Deadline) override { process_.enter("control.broadcast"); }
  std::optional<int> lost_peer() override { return std::nullopt; }
  void raise_alarm() noexcept override { process_.enter("control.raise_alarm"); }
  std::optional<int> alarm() override { return 2; }
  void leave() noexcept override { process_.enter("control.leave"); }

 private:
  FakeProcess& process_;
};

TEST(Injector, ABrokenRankLeavesItsGroupAndEveryLaterCallThrows) {
  Victim victim(fault_at("collective.rank_error", "actor", 1, "gate", "control.word", 1));
  std::unique_ptr<collective::ControlGroup> inner =
      std::make_unique<FakeControlGroup>(victim.process);
  const auto group = victim.faults->control_group(inner);
  std::vector<std::uint64_t> words(4);
  group->all_gather_word(0, words, kSoon);
  EXPECT_EQ(group->lost_peer(), std::nullopt);
  const ErrorRecord record = error_of([&] { group->all_gather_word(0, words, kSoon); });
  EXPECT_EQ(record.kind, ErrorKind::kPeerLost);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  EXPECT_TRUE(victim.took_effect());
  ByteBuffer bytes;
  EXPECT_EQ(error_of([&] { group->broadcast(bytes, 0, kSoon); }).kind, ErrorKind::kPeerLost);
  EXPECT_EQ(error_of([&] { group->all_gather(bytes, kSoon); }).kind, ErrorKind::kPeerLost);
  group->raise_alarm();
  EXPECT_EQ(group->alarm(), std::nullopt);
  EXPECT_EQ(group->lost_peer(), 0);
  EXPECT_THAT(victim.process.log, ElementsAre("control.word", "control.leave"));
}

class FakeShardGroup final : public collective::ShardGroup {
 public:
  explicit FakeShardGroup(FakeProcess& process) : process_(process) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void all_gather(device::StreamId, device::RegionId,
                  std::span<const collective::GatherPart>) override {
    process_.enter("shard.gather");
  }
  void wait(device::StreamId, Deadline, collective::ControlGroup&) override {
    process_.enter("shard.wait");
  }
  void abort() noexcept override {
    process_.enter("shard.abort");
    is_usable_ = false;
  }
  bool usable() const noexcept override { return is_usable_; }

 private:
  FakeProcess& process_;
  bool is_usable_ = true;
};

TEST(Injector, ARankThatFailsInAWeightCollectiveAbortsItsGroupAlone) {
  for (const std::string op : {"shard.gather", "shard.wait"}) {
    Victim victim(fault_at("collective.rank_error", "actor", 0, "native-transfer", op));
    std::unique_ptr<collective::ShardGroup> inner =
        std::make_unique<FakeShardGroup>(victim.process);
    const auto group = victim.faults->shard_group(inner);
    FakeControlGroup watch(victim.process);
    const ErrorRecord record = error_of([&] {
      group->all_gather(device::StreamId{1}, device::RegionId{1}, {});
      group->wait(device::StreamId{1}, kSoon, watch);
    });
    EXPECT_EQ(record.kind, ErrorKind::kDevice) << op;
    EXPECT_EQ(record.subject, "shard group") << op;
    EXPECT_FALSE(group->usable()) << op;
    EXPECT_FALSE(victim.process.has_done(op)) << op;
    EXPECT_TRUE(victim.took_effect()) << op;
  }
}

std::vector<wire::TensorRecord> records_of_model() {
  std::vector<wire::TensorRecord> records;
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.0.mlp.experts.0.gate_proj.weight",
        "model.layers.0.mlp.experts.0.up_proj.weight",
        "model.layers.0.mlp.experts.01.up_proj.weight", "model.norm.weight"}) {
    records.push_back({name, {2}, "torch.bfloat16", 2, 4});
  }
  return records;
}

class FakePass final : public transfer::WeightPass {
 public:
  std::uint64_t group_count(std::uint64_t) override { return 1; }
  void prepare(std::uint64_t, std::uint64_t) override { emitted_ = records_of_model(); }
  void gather(std::uint64_t, std::uint64_t, Deadline, collective::ControlGroup&) override {}
  std::span<const wire::TensorRecord> emitted() const override { return emitted_; }
  bool exhausted() override { return !emitted_.empty(); }
  bool quiesce(Deadline) override { return true; }
  std::span<const std::uint64_t> digest_sums() const override { return {}; }

 private:
  std::vector<wire::TensorRecord> emitted_;
};

class FakeSource final : public transfer::WeightSource {
 public:
  std::span<const wire::TensorRecord> metadata() override { return records_; }
  const wire::SourceLayout& layout() override { return layout_; }
  std::unique_ptr<transfer::WeightPass> begin(const transfer::PassTarget&) override {
    return std::make_unique<FakePass>();
  }
  bool usable(wire::Route) const noexcept override { return true; }

 private:
  std::vector<wire::TensorRecord> records_ = records_of_model();
  wire::SourceLayout layout_;
};

TEST(Injector, ThePassOfOneRankEmitsWithoutTheExpert) {
  Victim victim(fault_at("weights.missing_expert", "actor", 1, "native-buffer-allocation",
                         std::string(kSourceBegin), 1, {{"where", "exporter"}}));
  FakeSource inner;
  const auto source = victim.faults->weight_source(inner);
  EXPECT_EQ(source->metadata().size(), 5u);
  const auto untouched = source->begin({});
  untouched->prepare(0, 0);
  EXPECT_EQ(untouched->emitted().size(), 5u);
  EXPECT_EQ(victim.injector.applied(), 0u);
  const auto pass = source->begin({});
  pass->prepare(0, 0);
  EXPECT_TRUE(victim.took_effect());
  ASSERT_EQ(pass->emitted().size(), 3u);
  EXPECT_EQ(pass->emitted()[1].name, "model.layers.0.mlp.experts.01.up_proj.weight");
  EXPECT_TRUE(pass->exhausted());
}

TEST(Injector, ASourceWithOneMoreIsNotExhausted) {
  Victim victim(fault_at("weights.extra_tensor", "actor", 1, "native-buffer-allocation",
                         std::string(kSourceBegin)));
  FakeSource inner;
  const auto pass = victim.faults->weight_source(inner)->begin({});
  pass->prepare(0, 0);
  EXPECT_EQ(pass->emitted().size(), 5u);
  EXPECT_FALSE(pass->exhausted());
  EXPECT_TRUE(victim.took_effect());
}

TEST(Injector, OneOfSeveralWithASharedStateHealsAll) {
  InjectorState state;
  Injector one({}, &state);
  const Injector other({}, &state);
  one.heal();
  EXPECT_TRUE(other.healed());
  EXPECT_FALSE(Injector({}).healed());
}

TEST(Injector, RefusesMoreFaultsThanItsStateHolds) {
  Plan plan;
  plan.faults.assign(kFaultsMax, {"process.kill", {"actor", 0, "setup", 0, "clock.now", 0}, {}});
  EXPECT_EQ(Injector(plan).applied(), 0u);
  plan.faults.push_back(plan.faults.front());
  const auto record = error_of([&] { Injector{plan}; });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(record.subject, "faults");
}

}  // namespace
}  // namespace tpsync::faults
