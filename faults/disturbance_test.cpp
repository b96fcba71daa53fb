// Processes that exit, slow down, stand still or cannot be started, hosts that tell something else,
// sources and engines that do something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faults/catalogue.h"
#include "faults/testing/fakes.h"
#include "tpsync/device/host_device.h"
#include "tpsync/transfer/weight_source.h"

namespace tpsync::faults {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeProcess;
using testing::fault_at;
using testing::Victim;

const Deadline kSoon = Deadline::at(TimePoint{1});

class VirtualClock final : public Clock {
 public:
  TimePoint now() noexcept override { return now_; }
  void sleep_until(TimePoint until) noexcept override { now_ = std::max(now_, until); }

 private:
  TimePoint now_;
};

class OneHost final : public Host {
 public:
  std::string host_name() override { return "node"; }
  std::string boot_id() override { return "boot"; }
  std::int64_t pid() override { return 7; }
  std::optional<std::string> environment(std::string_view) override { return std::nullopt; }
  Environment environment() override { return {}; }
};

class NoRandom final : public Random {
 public:
  void fill(MutableByteView) override {}
};

TEST(Disturbances, AnExitHasItsStatusAndComesBeforeItsOperation) {
  for (const char* status : {"0", "1"}) {
    Victim victim(
        fault_at("process.exit", "worker", 0, "update", "device.import", 0, {{"status", status}}));
    EXPECT_TRUE(victim.faults->wants(Seam::kDevice));
    victim.faults->pass("device.import");
    victim.faults->pass("device.import");
    EXPECT_THAT(victim.process.log, ElementsAre(std::string("EXIT ") + status));
    EXPECT_TRUE(victim.took_effect());
  }
}

TEST(Disturbances, AStallTakesTimeOnceAndSlownessEachTime) {
  VirtualClock clock;
  OneHost host;
  Victim stalled(fault_at("clock.stall", "actor", 0, "gate", "control.gather"), &clock);
  stalled.faults->pass("control.gather");
  const Duration stall = clock.now() - TimePoint{};
  EXPECT_GE(stall, std::chrono::seconds(1));
  stalled.faults->pass("control.gather");
  EXPECT_EQ(clock.now() - TimePoint{}, stall);
  EXPECT_TRUE(stalled.took_effect());

  VirtualClock other;
  Victim slow(fault_at("process.slow", "actor", 0, "gate", "control.gather"), &other);
  const auto decorated = slow.faults->host(host);
  decorated->host_name();
  EXPECT_EQ(other.now(), TimePoint{}) << "its moment has not come";
  slow.faults->pass("control.gather");
  const Duration step = other.now() - TimePoint{};
  EXPECT_GT(step, Duration::zero());
  decorated->host_name();
  EXPECT_EQ(other.now() - TimePoint{}, 2 * step);
  slow.injector.heal();
  decorated->host_name();
  EXPECT_EQ(other.now() - TimePoint{}, 2 * step);
}

class OneProcess final : public Process {
 public:
  explicit OneProcess(std::vector<Signal>& signals) : signals_(signals) {}
  std::int64_t pid() const override { return 7; }
  std::optional<ExitStatus> wait(Deadline) noexcept override { return std::nullopt; }
  bool signal_group(Signal signal) noexcept override {
    signals_.push_back(signal);
    return true;
  }
  bool signal(Signal) noexcept override { return true; }
  bool group_alive() noexcept override { return true; }

 private:
  std::vector<Signal>& signals_;
};

class OneLauncher final : public ProcessLauncher {
 public:
  std::unique_ptr<Process> spawn(SpawnRequest) override {
    return std::make_unique<OneProcess>(signals);
  }
  std::unique_ptr<Process> attach(std::int64_t) override {
    return std::make_unique<OneProcess>(signals);
  }
  std::vector<Signal> signals;
};

TEST(Disturbances, AProcessCannotBeStartedOnce) {
  Victim victim(fault_at("process.spawn_fail", "runtime", 0, "startup", "process.spawn"));
  OneLauncher inner;
  const auto launcher = victim.faults->processes(inner);
  const ErrorRecord record = error_of([&] { launcher->spawn({.program = "worker"}); });
  EXPECT_EQ(record.kind, ErrorKind::kIo);
  EXPECT_EQ(record.subject, "worker");
  EXPECT_TRUE(victim.took_effect());
  EXPECT_NE(launcher->spawn({}), nullptr);
}

TEST(Disturbances, ALivingProcessIsNotSeenOnce) {
  Victim victim(
      fault_at("process.not_found", "actor", 0, "topology-memory-preflight", "process.attach"));
  OneLauncher inner;
  const auto launcher = victim.faults->processes(inner);
  EXPECT_EQ(launcher->attach(7), nullptr);
  EXPECT_TRUE(victim.took_effect());
  EXPECT_NE(launcher->attach(7), nullptr);
}

TEST(Disturbances, ATerminationIsIgnoredAndAKillIsNot) {
  Victim victim(
      fault_at("process.ignores_sigterm", "actor", 0, "native-start", "process.signal_group"));
  OneLauncher inner;
  const auto process = victim.faults->processes(inner)->spawn({});
  EXPECT_TRUE(process->signal_group(Signal::kTerminate));
  EXPECT_TRUE(victim.took_effect());
  EXPECT_TRUE(inner.signals.empty());
  process->signal_group(Signal::kKill);
  EXPECT_THAT(inner.signals, ElementsAre(Signal::kKill));
}

TEST(Disturbances, AHostTellsOtherNamesOrDevicesOrNothing) {
  const std::string preflight = "topology-memory-preflight";
  OneHost inner;
  Victim other(fault_at("host.other_host", "actor", 1, preflight, "host.query"));
  EXPECT_NE(other.faults->host(inner)->host_name(), "node");
  EXPECT_TRUE(other.took_effect());
  Victim other_boot(fault_at("host.other_host", "actor", 1, preflight, "host.query"));
  EXPECT_NE(other_boot.faults->host(inner)->boot_id(), "boot");
  Victim devices(fault_at("host.visible_devices", "actor", 1, preflight, "host.query", 2));
  devices.process.enter("host.query");
  devices.process.enter("host.query");
  EXPECT_EQ(devices.faults->host(inner)->environment("CUDA_VISIBLE_DEVICES"), "0,1");
  EXPECT_TRUE(devices.took_effect());
  EXPECT_EQ(devices.faults->host(inner)->environment("CUDA_VISIBLE_DEVICES"), std::nullopt);
  Victim mute(fault_at("host.query_fails", "actor", 0, preflight, "host.query"));
  EXPECT_EQ(error_of([&] { mute.faults->host(inner)->host_name(); }).kind, ErrorKind::kIo);
  EXPECT_TRUE(mute.took_effect());
}

TEST(Disturbances, ThereIsNoEntropyOnce) {
  Victim victim(fault_at("host.no_entropy", "actor", 0, "publication-id", "random.fill"));
  NoRandom inner;
  const auto random = victim.faults->random(inner);
  EXPECT_EQ(error_of([&] { random->fill({}); }).kind, ErrorKind::kIo);
  EXPECT_TRUE(victim.took_effect());
  EXPECT_EQ(error_of([&] { random->fill({}); }).subject, "");
}

// Two chunks of two tensors each.
class TwoChunks final : public transfer::WeightPass {
 public:
  std::uint64_t group_count(std::uint64_t) override { return 1; }
  void prepare(std::uint64_t chunk, std::uint64_t) override {
    for (const char* name : {"a", "b"}) {
      emitted_.push_back({name + std::to_string(chunk), {2}, "torch.bfloat16", 2, 4});
    }
  }
  void gather(std::uint64_t, std::uint64_t, Deadline, collective::ControlGroup&) override {}
  std::span<const wire::TensorRecord> emitted() const override { return emitted_; }
  bool exhausted() override { return true; }
  bool quiesce(Deadline) override { return true; }
  std::span<const std::uint64_t> digest_sums() const override { return sums_; }

 private:
  std::vector<wire::TensorRecord> emitted_;
  std::vector<std::uint64_t> sums_ = {1, 2, 3, 4};
};

class TwoChunkSource final : public transfer::WeightSource {
 public:
  std::span<const wire::TensorRecord> metadata() override { return {}; }
  const wire::SourceLayout& layout() override { return layout_; }
  std::unique_ptr<transfer::WeightPass> begin(const transfer::PassTarget&) override {
    return std::make_unique<TwoChunks>();
  }
  bool usable(wire::Route) const noexcept override { return true; }

 private:
  wire::SourceLayout layout_;
};

struct Pass {
  explicit Pass(const std::string& fault, const Arguments& arguments = {})
      : victim(fault_at(fault, "actor", 0, "native-buffer-allocation", std::string(kSourceBegin), 0,
                        arguments)) {
    source = victim.faults->weight_source(inner);
    transfer::PassTarget target;
    target.chunks.resize(2);
    pass = source->begin(target);
    EXPECT_TRUE(victim.took_effect());
  }
  std::vector<std::string> names() {
    pass->prepare(0, 0);
    pass->prepare(1, 0);
    std::vector<std::string> names;
    for (const wire::TensorRecord& record : pass->emitted()) names.push_back(record.name);
    return names;
  }
  TwoChunkSource inner;
  Victim victim;
  std::unique_ptr<transfer::WeightSource> source;
  std::unique_ptr<transfer::WeightPass> pass;
};

TEST(Disturbances, APassEmitsATensorTwiceOrTwoInAnotherOrder) {
  EXPECT_THAT(Pass("weights.duplicated").names(), ElementsAre("a0", "a0", "b0", "a1", "b1"));
  EXPECT_THAT(Pass("weights.reordered").names(), ElementsAre("b0", "a0", "a1", "b1"));
}

TEST(Disturbances, APassAnnouncesATensorOtherwise) {
  const auto first = [](const char* field) {
    Pass pass("weights.record", {{"where", "exporter"}, {"field", field}});
    pass.names();
    return pass.pass->emitted()[0];
  };
  EXPECT_EQ(first("name").name, "module.a0");
  EXPECT_THAT(first("shape").shape, ElementsAre(1, 2));
  EXPECT_EQ(first("dtype").dtype, "torch.float64");
}

TEST(Disturbances, APassSumsOtherwiseOrCannotMaterializeItsLastChunk) {
  EXPECT_THAT(Pass("weights.digest_sums").pass->digest_sums(), ElementsAre(3, 2, 3, 4));
  Pass failing("weights.materialize_fail");
  failing.pass->prepare(0, 0);
  EXPECT_EQ(error_of([&] { failing.pass->prepare(1, 0); }).kind, ErrorKind::kDevice);
}

class GoodEngine final : public runtime::InferenceEngine {
 public:
  void load_checkpoint() override {}
  void layer_loaded(std::int64_t) override {}
  wire::GenerateResult generate(const wire::GenerateRequest&) override { return {}; }
  bool reset_prefix_cache() override { return true; }
};

class EngineFaults : public ::testing::Test {
 protected:
  EngineFaults() {
    layout_.placements.resize(1);
    layout_.placements[0].offset = 2;
    weights_ = host_.allocate({.bytes = 4});
  }
  std::unique_ptr<runtime::InferenceEngine> under(Victim& victim) {
    std::unique_ptr<runtime::InferenceEngine> inner = std::make_unique<GoodEngine>();
    return victim.faults->engine(
        {host_, weights_, device::RegionId::kNone, config_, plan_, layout_}, inner);
  }
  static Fault at(const char* name, std::string_view call, std::uint64_t occurrence = 0) {
    return fault_at(name, "worker", 0, "phase", std::string(call), occurrence);
  }

  device::HostMemory memory_;
  bool has_device_ = (memory_.add_device("aa-00", 64), true);
  device::HostDevice host_{memory_, {.uuid = "aa-00"}};
  model::ModelConfig config_;
  model::CanonicalPlan plan_;
  model::TpLayout layout_;
  device::RegionId weights_ = device::RegionId::kNone;
};

TEST_F(EngineFaults, OneCallFailsAndTheNextIsDone) {
  Victim load(at("engine.load_fail", kEngineLoad));
  EXPECT_EQ(error_of([&] { under(load)->load_checkpoint(); }).kind, ErrorKind::kIo);
  EXPECT_TRUE(load.took_effect());
  Victim generate(at("engine.generate_fail", kEngineGenerate, 1));
  const auto engine = under(generate);
  engine->generate({});
  EXPECT_EQ(error_of([&] { engine->generate({}); }).kind, ErrorKind::kOutOfMemory);
  EXPECT_TRUE(generate.took_effect());
  engine->generate({});
  Victim finalize(at("engine.finalize_fail", kEngineLayer, 1));
  const auto finalizing = under(finalize);
  finalizing->layer_loaded(0);
  EXPECT_EQ(error_of([&] { finalizing->layer_loaded(1); }).kind, ErrorKind::kDevice);
  EXPECT_TRUE(finalize.took_effect());
}

TEST_F(EngineFaults, ItsCallsAreCountedAnewInEachPhaseAndChunk) {
  Victim victim(at("engine.keeps_cache", kEngineReset));
  const auto engine = under(victim);
  victim.process.set_phase("phase", 1);
  EXPECT_TRUE(engine->reset_prefix_cache());
  victim.process.set_phase("phase", 0);
  EXPECT_FALSE(engine->reset_prefix_cache());
  EXPECT_TRUE(victim.took_effect());
  EXPECT_TRUE(engine->reset_prefix_cache());
}

TEST_F(EngineFaults, ALoadedLayersBytesAreRewritten) {
  Victim victim(at("engine.rewrites_weights", kEngineLayer));
  under(victim)->layer_loaded(0);
  EXPECT_TRUE(victim.took_effect());
  ByteBuffer found(4);
  const auto stream = host_.create_stream();
  host_.download(stream, weights_, 0, found);
  host_.synchronize(stream, kSoon);
  EXPECT_EQ(found[2], std::byte{0xa5});
  EXPECT_EQ(found[3], std::byte{0xa5});
  EXPECT_EQ(found[1], device::kUndefinedByte);
}

}  // namespace
}  // namespace tpsync::faults
