// One actor of a publication over fakes: a scripted runtime, a scripted trainer, a host device.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/testing/fake_world.h"
#include "core/model/testing/models.h"
#include "core/sync/testing/thread_group.h"
#include "core/transfer/testing/recording_gates.h"
#include "tpsync/device/host_device.h"
#include "tpsync/sync/ipc_weight_sync.h"

namespace tpsync::sync::fakes {

using transfer::fakes::ScriptedSource;

inline constexpr std::uint64_t kDeviceBytes = 1 << 20;

class ScriptedTarget final : public PublicationTarget {
 public:
  explicit ScriptedTarget(int size) {
    given.tp_size = size;
    for (int rank = 0; rank < size; ++rank) {
      given.device_uuids.push_back("gpu-" + std::to_string(rank));
      given.worker_pids.push_back(100 + rank);
    }
    given.layouts = {wire::Layout::kCompact};
    given.weights_awake = true;
  }

  TargetTopology given;
  Duration update_timeout = std::chrono::seconds(300);
  std::string failing;  // the step of this name throws
  std::function<void()> at_probe = [] {};
  std::function<void()> at_poison = [] {};
  std::function<void(wire::CommitResult&)> edit_result = [](wire::CommitResult&) {};
  std::vector<std::string> steps;
  std::string poisoned_with;
  wire::PublicationHeader header;
  wire::ProbeIpcRequest probed;

  TargetTopology topology() override {
    step("topology");
    return given;
  }
  Duration weight_update_timeout() const override { return update_timeout; }
  void set_weight_sync_sleep_level(const SleepPolicy& policy) override {
    step("sleep level " + std::to_string(policy.level) +
         (policy.preserve_next ? " preserving" : ""));
  }
  void probe_ipc(const wire::ProbeIpcRequest& request) override {
    probed = request;
    at_probe();
    if (failing == "silent probe") {
      throw_broken(ErrorKind::kTimeout, "probe_ipc", "injected by the test");
    }
    if (failing == "unsent probe") {
      throw_invalid(ErrorKind::kProtocol, "probe_ipc", "injected by the test");
    }
    if (failing == "probe") {
      throw_nothing_happened(ErrorKind::kRemote, "probe_ipc", "injected by the test");
    }
    step("probe");
  }
  void init_publication() override {
    if (failing == "unsent init") {
      throw_nothing_happened(ErrorKind::kInvalidState, "init", "injected by the test");
    }
    step("init");
  }
  void start_publication(const wire::StartRequest& request) override {
    header = request.header;
    step("start");
  }
  void send_update(const wire::EncodedUpdate& update, const wire::HandleMap& handles) override {
    ByteBuffer body;
    update.encode(1, handles, body);
    const auto payload = wire::decode_payload(wire::Command::kUpdate, body);
    step("update " + std::to_string(std::get<wire::UpdateRequest>(payload).chunk_index));
  }
  void await_update() override { step("loaded"); }
  wire::CommitResult finish_publication(const wire::FinishRequest&) override {
    step("finish");
    wire::CommitResult result;
    result.status = "committed";
    result.model_version = header.model_version;
    result.prefix_cache_reset = true;
    for (std::int64_t rank = 0; rank < header.tp_world_size; ++rank) {
      wire::WorkerReceipt receipt;
      receipt.tp_rank = rank;
      receipt.tp_world_size = header.tp_world_size;
      receipt.device_uuid = header.device_uuids[static_cast<std::size_t>(rank)];
      receipt.publication_id = header.publication_id;
      receipt.model_version = header.model_version;
      receipt.expected_manifest_fingerprint = header.expected_manifest.fingerprint;
      receipt.resident_parameter_count = 1;
      receipt.ready = true;
      result.worker_receipts.push_back(receipt);
    }
    edit_result(result);
    return result;
  }
  void release_publication() override { step("release"); }
  void poison(std::string_view reason) noexcept override {
    poisoned_with = reason;
    steps.emplace_back("poison");
    at_poison();
  }

 private:
  void step(const std::string& name) {
    steps.push_back(name);
    if (name == failing) throw_broken(ErrorKind::kRemote, name, "injected by the test");
  }
};

// One actor with everything around it; its workers are processes of the fake world.
class Actor {
 public:
  Actor(device::HostMemory& memory, std::unique_ptr<collective::ControlGroup> group)
      : rank(group->rank()),
        device(memory, {"gpu-" + std::to_string(rank), device::Landing::kAtLaunch}),
        target(group->size()),
        source(model::plan_canonical(config).tensors, source_steps, group->size()),
        joined_(group.get()),
        group_(std::move(group)) {
    options.bucket_bytes = 1024;
    options.gpu_memory_headroom_bytes = 0;
    for (int r = 0; r < group_->size(); ++r) world.processes.spawn({});  // pids from 100
  }
  IpcWeightSync& sync() {
    if (!sync_) {
      sync_.emplace(world.world(), std::move(group_), device, source, target, config, options);
    }
    return *sync_;
  }
  void leave_group() { joined_->leave(); }
  void end_workers() {
    for (const auto& process : world.processes.processes) process->alive = false;
  }

  int rank;
  tpsync::fakes::FakeWorld world;
  model::ModelConfig config = model::model_named("tiny-tp4");
  device::HostDevice device;
  ScriptedTarget target;
  std::vector<std::string> source_steps;
  ScriptedSource source;
  SyncOptions options;

 private:
  collective::ControlGroup* joined_;
  std::unique_ptr<collective::ControlGroup> group_;  // until the sync owns it
  std::optional<IpcWeightSync> sync_;
};

class IpcWeightSyncTest : public testing::Test {
 protected:
  IpcWeightSyncTest() {
    memory_.add_device("gpu-0", kDeviceBytes);
    memory_.add_device("gpu-1", kDeviceBytes);
    actor_.emplace(memory_, std::make_unique<ThreadGroup>(board_, 0, 1));
  }
  IpcWeightSync& sync() { return actor_->sync(); }
  ScriptedTarget& target() { return actor_->target; }
  ErrorRecord sync_failure() {
    return tpsync::fakes::failure_of([&] { sync().sync(); });
  }
  // Another sync is possible, and nothing had an effect.
  void expect_untouched() {
    EXPECT_EQ(sync().state(), PublicationState::kIdle);
    EXPECT_THAT(target().steps, testing::Not(testing::Contains("init")));
    EXPECT_THAT(target().steps, testing::Not(testing::Contains("poison")));
    EXPECT_EQ(memory_.live_exports(), 0u);
  }
  void expect_poisoned() {
    EXPECT_EQ(sync().state(), PublicationState::kPoisoned);
    EXPECT_EQ(target().steps.back(), "poison");
    const std::size_t before = target().steps.size();
    const ErrorRecord record = sync_failure();
    EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
    EXPECT_EQ(record.remedy, Remedy::kFixInput);
    EXPECT_THAT(record.detail, testing::HasSubstr("build a new runtime"));
    EXPECT_EQ(target().steps.size(), before);
  }

  device::HostMemory memory_;
  Board board_{1};
  std::optional<Actor> actor_;
};

}  // namespace tpsync::sync::fakes
