// The memory schedule over a real engine and a real weight sync, seen from the runtime: which
// commands it gets, and at which level it sleeps.
#include "tpsync/rollout/schedule_adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/model/testing/models.h"
#include "core/rollout/testing/scripted_runtime.h"
#include "core/sync/testing/thread_group.h"
#include "core/trainer/testing/recording_trainer.h"
#include "core/transfer/testing/recording_gates.h"
#include "tpsync/device/host_device.h"
#include "tpsync/sync/consensus.h"

namespace tpsync::rollout {
namespace {

using fakes::failure_of;
using fakes::FakeWorld;
using fakes::ScriptedRuntime;
using testing::ElementsAre;

constexpr std::int64_t kWorkerPid = 101;  // the process after the runtime's

// A whole trainer of one rank, whose own memory is of no interest.
class ScheduleAdaptersTest : public testing::Test {
 protected:
  ScheduleAdaptersTest() {
    memory_.add_device("gpu-0", 1 << 20);
    device_.emplace(memory_, device::HostDeviceOptions{"gpu-0", device::Landing::kAtLaunch});
    runtime_.startup.worker_capabilities[0].pid = kWorkerPid;
    runtime_.instead[wire::Command::kSleep] = [this](auto& peer, const auto& head) {
      const auto request = wire::decode_payload(wire::Command::kSleep, runtime_.last_body);
      runtime_.commands.back() += " " + std::to_string(std::get<wire::SleepRequest>(request).level);
      fakes::send_response(peer, fakes::succeeded(head, {}));
    };
    runtime_.instead[wire::Command::kWakeUp] = [this](auto& peer, const auto& head) {
      const auto request = wire::decode_payload(wire::Command::kWakeUp, runtime_.last_body);
      for (const auto& tag : std::get<wire::WakeUpRequest>(request).tags) {
        runtime_.commands.back() += " " + tag;
      }
      fakes::send_response(peer, fakes::succeeded(head, {}));
    };
    runtime_.instead[wire::Command::kFinish] = [this](auto& peer, const auto& head) {
      const auto request = wire::decode_payload(wire::Command::kFinish, runtime_.last_body);
      fakes::send_response(
          peer, fakes::succeeded(head, commit_of(std::get<wire::FinishRequest>(request))));
    };
    options_.plan = {.rollouts = 3, .weight_sync_interval = 2};
  }

  static wire::CommitResult commit_of(const wire::FinishRequest& request) {
    wire::WorkerReceipt receipt;
    receipt.tp_rank = 0;
    receipt.tp_world_size = 1;
    receipt.device_uuid = "gpu-0";
    receipt.publication_id = request.header.publication_id;
    receipt.model_version = request.header.model_version;
    receipt.expected_manifest_fingerprint = request.header.expected_manifest.fingerprint;
    receipt.resident_parameter_count = 1;
    receipt.ready = true;
    wire::CommitResult result;
    result.status = "committed";
    result.model_version = request.header.model_version;
    result.prefix_cache_reset = true;
    result.worker_receipts = {receipt};
    return result;
  }

  std::unique_ptr<trainer::Rollout> build_rollout() {
    EngineOptions options;
    options.runtime.program = "runtime";
    engine_.emplace(world_.world(), std::move(options));
    world_.processes.spawn({});  // the worker
    return std::make_unique<ScheduledRollout>(*engine_);
  }
  std::unique_ptr<trainer::WeightSync> build_sync() {
    sync::SyncOptions options;
    options.bucket_bytes = 1 << 16;
    options.gpu_memory_headroom_bytes = 0;
    sync_.emplace(world_.world(), std::make_unique<sync::fakes::ThreadGroup>(board_, 0, 1),
                  *device_, source_, *engine_, config_, options);
    sync_->setup();
    return std::make_unique<ScheduledWeightSync>(*sync_);
  }
  trainer::MemorySchedule& schedule() {
    if (!schedule_) {
      schedule_.emplace(world_.log, backend_,
                        trainer::Builders{[this] { return build_rollout(); },
                                          [this](trainer::Rollout&) { return build_sync(); }},
                        options_);
    }
    return *schedule_;
  }
  // What the runtime got since the last call.
  std::vector<std::string> sent() { return std::exchange(runtime_.commands, {}); }
  // The version that the next phase generates from.
  std::int64_t run_phase() {
    std::int64_t version = -1;
    schedule().run_phase([&](const trainer::MemorySchedule::Generate& generate) {
      const std::optional<trainer::Generated> generated = generate({});
      ASSERT_TRUE(generated.has_value());
      EXPECT_EQ(generated->rows.size(), 1U);
      version = generated->version;
    });
    return version;
  }

  class NoBackend final : public trainer::TrainBackend {
   public:
    void offload(const trainer::Offload&) override {}
    void onload() override {}
  };

  FakeWorld world_;
  ScriptedRuntime runtime_{world_, 1};
  NoBackend backend_;
  device::HostMemory memory_;
  std::optional<device::HostDevice> device_;
  sync::fakes::Board board_{1};
  model::ModelConfig config_ = model::model_named("tiny-tp4");
  std::vector<std::string> source_steps_;
  transfer::fakes::ScriptedSource source_{model::plan_canonical(config_).tensors, source_steps_};
  std::optional<RolloutEngine> engine_;
  std::optional<sync::IpcWeightSync> sync_;
  trainer::ScheduleOptions options_;
  std::optional<trainer::MemorySchedule> schedule_;
};

TEST_F(ScheduleAdaptersTest, SleepsDiscardWeightsOnlyBeforeAPhaseThatPublishes) {
  schedule();
  EXPECT_TRUE(schedule().streams());
  EXPECT_THAT(sent(), ElementsAre("startup", "sleep 1"));
  EXPECT_EQ(run_phase(), 0);  // preserves
  EXPECT_THAT(sent(), ElementsAre("wake_up", "generate", "sleep 1"));
  EXPECT_EQ(run_phase(), 0);  // of the same weights
  EXPECT_THAT(sent(), ElementsAre("wake_up", "generate", "sleep 2"));
  EXPECT_TRUE(engine_->weights_lost());
  EXPECT_EQ(run_phase(), 1);
  EXPECT_THAT(sent(), ElementsAre("wake_up weights", "probe_ipc", "init_native_weight_transfer",
                                  "start_native_weight_update", "update_native_weights",
                                  "finish_native_weight_update", "release_native_ipc",
                                  "wake_up kv_cache", "generate", "sleep 2"));
  EXPECT_EQ(schedule().next_phase(), std::nullopt);
}

TEST_F(ScheduleAdaptersTest, AFailedGenerationIsRepeatedWithFreshWeights) {
  run_phase();
  runtime_.instead[wire::Command::kGenerate] = ScriptedRuntime::failure("ValueError: a prompt");
  const ErrorRecord record = failure_of([this] { run_phase(); });
  EXPECT_EQ(record.kind, ErrorKind::kRemote);
  EXPECT_EQ(record.remedy, Remedy::kTryLater);
  EXPECT_EQ(engine_->sleep_state(), SleepState::kAsleep);
  EXPECT_TRUE(engine_->weights_lost());
  runtime_.instead.erase(wire::Command::kGenerate);
  EXPECT_EQ(run_phase(), 1);
}

TEST_F(ScheduleAdaptersTest, AFailedWeightWakeUpStopsTheScheduleAndTheRuntimeIsGone) {
  run_phase();
  run_phase();
  runtime_.instead[wire::Command::kWakeUp] = ScriptedRuntime::end_of_file();
  const ErrorRecord record = failure_of([this] { run_phase(); });
  EXPECT_EQ(record.kind, ErrorKind::kEndOfFile);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  EXPECT_EQ(record.phase, "memory-wake-weights");
  EXPECT_EQ(schedule().state(), trainer::ScheduleState::kStopped);
  EXPECT_EQ(engine_->connection_state(), ConnectionState::kBroken);
}

TEST_F(ScheduleAdaptersTest, AShutdownEndsTheRuntime) {
  schedule().shutdown();
  EXPECT_THAT(sent(), ElementsAre("startup", "sleep 1", "shutdown"));
  EXPECT_EQ(failure_of([this] { run_phase(); }).kind, ErrorKind::kInvalidState);
}

TEST_F(ScheduleAdaptersTest, RanksWithoutARuntimeGenerateNothing) {
  EngineOptions options;
  options.tp_size = 2;
  options.tp_rank = 1;
  RolloutEngine sibling(world_.world(), std::move(options));
  ScheduledRollout rollout(sibling);
  rollout.sleep();
  rollout.wake_up({"weights"});
  rollout.wake_up({});
  EXPECT_FALSE(rollout.generate({}).has_value());
  EXPECT_THAT(sent(), ElementsAre());
}

// ---- ranks over a real consensus

// What each of two ranks does in its first phase that publishes, in which `failing` fails on rank 0
// alone; and what it throws.
struct RankOutcome {
  trainer::fakes::Calls calls;
  ErrorRecord error;
  trainer::ScheduleState state = trainer::ScheduleState::kReady;
  bool offloaded = false;
};

std::vector<RankOutcome> two_ranks_with(const std::string& failing) {
  std::vector<RankOutcome> outcomes(2);
  const auto thrown =
      sync::fakes::run_ranks(2, [&](std::unique_ptr<sync::fakes::ThreadGroup> group) {
        FakeWorld world;
        sync::Consensus consensus(*group, world.clock, world.log, std::chrono::seconds(30));
        trainer::fakes::Script script;
        trainer::fakes::FakeBackend backend(script);
        const trainer::Builders builders{
            [&] {
              return std::make_unique<trainer::fakes::FakeRollout>(
                  script, trainer::RolloutAbilities{.tagged_wake = true, .preserve = true});
            },
            [&](trainer::Rollout&) {
              return std::make_unique<trainer::fakes::FakeSync>(script, true);
            }};
        trainer::MemorySchedule schedule(world.log, backend, builders,
                                         {.plan = {.rollouts = 1, .resumed_from = 0}}, &consensus);
        script.take();
        if (group->rank() == 0) script.failing = {{failing, "first"}};
        RankOutcome& outcome = outcomes[static_cast<std::size_t>(group->rank())];
        outcome.error = failure_of([&] { schedule.run_phase(trainer::fakes::generate_once); });
        outcome.calls = script.take();
        outcome.state = schedule.state();
        outcome.offloaded = schedule.train_state_offloaded();
      });
  for (const auto& error : thrown) EXPECT_FALSE(error.has_value());
  return outcomes;
}

TEST(ScheduledRanks, ARuntimeThatDoesNotWakeKeepsAllRanksOutOfThePublication) {
  for (const RankOutcome& outcome : two_ranks_with("wake weights")) {
    EXPECT_THAT(outcome.calls, ElementsAre("offload gradients optimizer", "wake weights"));
    EXPECT_EQ(outcome.error.kind, ErrorKind::kDevice);
    EXPECT_EQ(outcome.error.phase, "memory-wake-weights");
    EXPECT_EQ(outcome.error.rank, 0);
    EXPECT_EQ(outcome.error.subject, "first");
    EXPECT_EQ(outcome.state, trainer::ScheduleState::kStopped);
    EXPECT_TRUE(outcome.offloaded);
  }
}

TEST(ScheduledRanks, AGenerationThatFailsOnOneRankLeavesTheSameMemoryOnAll) {
  for (const RankOutcome& outcome : two_ranks_with("generate")) {
    EXPECT_THAT(outcome.calls, ElementsAre("offload gradients optimizer", "wake weights", "sync",
                                           "offload model", "wake", "generate", "sleep", "onload"));
    EXPECT_EQ(outcome.error.phase, "memory-work");
    EXPECT_EQ(outcome.error.rank, 0);
    EXPECT_EQ(outcome.state, trainer::ScheduleState::kReady);
    EXPECT_FALSE(outcome.offloaded);
  }
}

}  // namespace
}  // namespace tpsync::rollout
