// The parent's own rules: every startup check in its order, the sleep table, the version, and what
// is refused before anything is sent.
#include "tpsync/rollout/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "core/rollout/testing/scripted_runtime.h"

namespace tpsync::rollout {
namespace {

using fakes::failure_of;
using fakes::FakeWorld;
using fakes::ScriptedRuntime;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::string_view kFingerprint =
    "cc7c21f67fea08b4ef7b6eefb5098cfbdd43223771308dfb95e53c0217640aac";

wire::PublicationHeader header_of(std::int64_t version) {
  wire::PublicationHeader header;
  header.publication_id = "00112233445566778899aabbccddeeff";
  header.model_version = version;
  header.tp_world_size = 2;
  header.expected_manifest = {std::string(kFingerprint), 1, 12};
  header.device_uuids = {"gpu-0", "gpu-1"};
  return header;
}

wire::StartRequest start_of(std::int64_t version) {
  wire::StartRequest request;
  request.header = header_of(version);
  request.chunk_tensor_counts = {1};
  request.buffer_bytes = 12;
  return request;
}

wire::FinishRequest finish_of(std::int64_t version) {
  wire::FinishRequest request;
  request.header = header_of(version);
  request.weight_version = std::to_string(version);
  return request;
}

wire::CommitResult commit_of(std::int64_t version) {
  const wire::PublicationHeader header = header_of(version);
  wire::CommitResult result;
  result.status = "committed";
  result.model_version = version;
  result.prefix_cache_reset = true;
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    wire::WorkerReceipt receipt;
    receipt.tp_rank = rank;
    receipt.tp_world_size = 2;
    receipt.device_uuid = header.device_uuids[static_cast<std::size_t>(rank)];
    receipt.publication_id = header.publication_id;
    receipt.model_version = version;
    receipt.expected_manifest_fingerprint = header.expected_manifest.fingerprint;
    receipt.resident_parameter_count = 3;
    receipt.ready = true;
    result.worker_receipts.push_back(receipt);
  }
  return result;
}

wire::UpdateRequest update_of() {
  wire::UpdateRequest update;
  update.names = {"a.weight"};
  update.dtype_names = {"bfloat16"};
  update.shapes = {{2, 3}};
  update.tensor_sizes = {12};
  return update;
}

class EngineTest : public testing::Test {
 protected:
  EngineTest() {
    options_.tp_size = 2;
    options_.runtime_version = "1.0";
    options_.runtime.program = "runtime";
  }

  RolloutEngine& engine() {
    if (!engine_) engine_.emplace(world_.world(), std::move(options_));
    return *engine_;
  }
  // What was sent since the last call, startup left out.
  std::vector<std::string> sent() {
    std::vector<std::string> commands;
    std::swap(commands, runtime_.commands);
    if (!commands.empty() && commands.front() == "startup") commands.erase(commands.begin());
    return commands;
  }
  void publish(std::int64_t version) {
    engine().init_publication();
    engine().start_publication(start_of(version));
    engine().update_publication(wire::EncodedUpdate(update_of()), {});
    runtime_.commit = commit_of(version);
    engine().finish_publication(finish_of(version));
    engine().release_publication();
  }
  bool runtime_alive() const { return world_.processes.processes.at(0)->alive; }

  // Nothing was sent, and the runtime is as it was.
  void expect_refused(std::string_view command, const std::string& why,
                      const std::function<void()>& action) {
    sent();
    const ErrorRecord record = failure_of(action);
    EXPECT_EQ(record.kind, ErrorKind::kInvalidState) << command;
    EXPECT_EQ(record.remedy, Remedy::kTryLater) << command;
    EXPECT_EQ(record.subject, command);
    EXPECT_THAT(record.detail, HasSubstr(why));
    EXPECT_THAT(sent(), ElementsAre());
    EXPECT_EQ(engine().connection_state(), ConnectionState::kIdle);
  }

  FakeWorld world_;
  ScriptedRuntime runtime_{world_};
  EngineOptions options_;
  std::optional<RolloutEngine> engine_;
};

// ---- start

TEST_F(EngineTest, OptionsAreCheckedInOrderAndNothingIsSpawned) {
  const auto refused = [&](const std::function<void(EngineOptions&)>& edit) {
    EngineOptions options;
    options.tp_size = 2;
    edit(options);
    const ErrorRecord record =
        failure_of([&] { RolloutEngine(world_.world(), std::move(options)); });
    EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
    EXPECT_EQ(record.remedy, Remedy::kFixInput);
    return record.subject;
  };
  EXPECT_EQ(refused([](EngineOptions& o) { o.tp_size = 0, o.tp_rank = -1; }), "tp_size");
  EXPECT_EQ(refused([](EngineOptions& o) { o.tp_rank = 2, o.timeouts.sleep = {}; }), "tp_rank");
  EXPECT_EQ(refused([](EngineOptions& o) { o.tp_rank = -1; }), "tp_rank");
  for (Duration CommandTimeouts::*const timeout :
       {&CommandTimeouts::startup, &CommandTimeouts::generate, &CommandTimeouts::weight_update,
        &CommandTimeouts::health, &CommandTimeouts::sleep, &CommandTimeouts::wake_up,
        &CommandTimeouts::shutdown}) {
    EXPECT_EQ(refused([&](EngineOptions& o) { o.timeouts.*timeout = Duration(0); }), "timeouts");
  }
  EXPECT_TRUE(world_.processes.processes.empty());
}

TEST_F(EngineTest, TheRuntimeLeadsAGroupOfItsOwnAndIsAskedToStartOnce) {
  EXPECT_EQ(engine().connection_state(), ConnectionState::kIdle);
  EXPECT_EQ(world_.processes.processes.at(0)->program, "runtime");
  EXPECT_TRUE(world_.processes.processes.at(0)->own_group);
  EXPECT_THAT(runtime_.commands, ElementsAre("startup"));
  EXPECT_THAT(runtime_.ids, ElementsAre(1));
}

TEST_F(EngineTest, TheFirstFailingStartupCheckIsReportedAndTheRuntimeEnded) {
  using Edit = std::function<void(wire::StartupResult&)>;
  // Later edits are made before earlier ones, so that each check is seen to come before the next.
  const std::vector<std::pair<std::string, Edit>> in_order = {
      {"startup.event", [](auto& r) { r.event = "starting"; }},
      {"startup.vllm_version", [](auto& r) { r.vllm_version = "0.9"; }},
      {"startup.model_type", [](auto& r) { r.model_type = "llama"; }},
      {"startup.process_group_id", [](auto& r) { r.process_group_id = 101; }},
      {"startup.worker_capabilities",
       [](auto& r) { r.worker_capabilities.push_back(r.worker_capabilities.back()); }},
      {"startup.tp_rank", [](auto& r) { r.worker_capabilities[1].tp_rank = 0; }},
      {"startup.tp_world_size", [](auto& r) { r.worker_capabilities[0].tp_world_size = 4; }},
      {"startup.cuda_device_uuid",
       [](auto& r) { r.worker_capabilities[1].cuda_device_uuid = "gpu-0"; }},
      {"startup.vllm_version", [](auto& r) { r.worker_capabilities[1].vllm_version = "0.9"; }},
      {"startup.committed_version", [](auto& r) { r.committed_version = -1; }},
      {"startup.committed_version", [](auto& r) { r.committed_version = INT64_MAX; }},
  };
  for (std::size_t first = 0; first < in_order.size(); ++first) {
    FakeWorld world;
    ScriptedRuntime runtime(world);
    for (std::size_t i = in_order.size(); i-- > first;) in_order[i].second(runtime.startup);
    EngineOptions options;
    options.tp_size = 2;
    options.runtime_version = "1.0";
    const ErrorRecord record =
        failure_of([&] { RolloutEngine(world.world(), std::move(options)); });
    EXPECT_EQ(record.kind, ErrorKind::kMismatch) << first;
    EXPECT_EQ(record.remedy, Remedy::kFixPeer) << first;
    EXPECT_EQ(record.subject, in_order[first].first) << first;
    EXPECT_FALSE(world.processes.processes.at(0)->alive) << first;
    EXPECT_THAT(runtime.commands, ElementsAre("startup")) << first;
  }
}

TEST_F(EngineTest, RanksOutOfRangeAndEmptyUuidsAreRefused) {
  runtime_.startup.worker_capabilities[1].tp_rank = 2;
  EXPECT_EQ(failure_of([&] { engine(); }).subject, "startup.tp_rank");
  runtime_.startup.worker_capabilities[1].tp_rank = -1;
  FakeWorld world;
  ScriptedRuntime runtime(world);
  runtime.startup.worker_capabilities[0].cuda_device_uuid.clear();
  EngineOptions options;
  options.tp_size = 2;
  EXPECT_EQ(failure_of([&] { RolloutEngine(world.world(), std::move(options)); }).subject,
            "startup.cuda_device_uuid");
}

TEST_F(EngineTest, ARuntimeThatFailsOrEndsDuringStartupIsEnded) {
  runtime_.instead[wire::Command::kStartup] = ScriptedRuntime::failure("RuntimeBroken: no memory");
  EXPECT_EQ(failure_of([&] { engine(); }).kind, ErrorKind::kRemote);
  EXPECT_FALSE(runtime_alive());
  FakeWorld world;
  ScriptedRuntime runtime(world);
  runtime.instead[wire::Command::kStartup] = ScriptedRuntime::end_of_file();
  EngineOptions options;
  options.tp_size = 2;
  EXPECT_EQ(failure_of([&] { RolloutEngine(world.world(), std::move(options)); }).kind,
            ErrorKind::kEndOfFile);
  EXPECT_FALSE(world.processes.processes.at(0)->alive);
}

TEST_F(EngineTest, AProgramThatCannotBeStartedIsReported) {
  world_.processes.refused_spawn = 0;
  const ErrorRecord record = failure_of([&] { engine(); });
  EXPECT_EQ(record.kind, ErrorKind::kIo);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
}

TEST_F(EngineTest, WorkersAreSortedByRankAndUnknownLayoutsLeftOut) {
  std::swap(runtime_.startup.worker_capabilities[0], runtime_.startup.worker_capabilities[1]);
  runtime_.startup.layouts = {"zigzag", "rank_major"};
  runtime_.startup.committed_version = 6;
  const sync::TargetTopology topology = engine().topology();
  EXPECT_EQ(topology.tp_size, 2);
  EXPECT_THAT(topology.device_uuids, ElementsAre("gpu-0", "gpu-1"));
  EXPECT_THAT(topology.worker_pids, ElementsAre(200, 201));
  EXPECT_THAT(topology.layouts, ElementsAre(wire::Layout::kRankMajor));
  EXPECT_EQ(topology.committed_version, 6);
  EXPECT_TRUE(topology.weights_awake);
  EXPECT_EQ(engine().version(), 6);
}

TEST_F(EngineTest, ARuntimeThatNamesNoLayoutTakesCompact) {
  runtime_.startup.layouts.clear();
  EXPECT_THAT(engine().topology().layouts, ElementsAre(wire::Layout::kCompact));
}

TEST_F(EngineTest, RoutesAreThoseOfTheTransportsThatTheRuntimeNames) {
  runtime_.startup.transports = {"tpsync_reshard_ipc", "pigeon"};
  EXPECT_THAT(engine().topology().routes, ElementsAre(wire::Route::kReshard));
}

TEST_F(EngineTest, ARuntimeThatNamesNoTransportTakesTheGatherAlone) {
  runtime_.startup.transports.clear();
  EXPECT_THAT(engine().topology().routes, ElementsAre(wire::Route::kGather));
}

TEST_F(EngineTest, OtherRanksHoldNoRuntime) {
  options_.tp_rank = 1;
  EXPECT_FALSE(engine().generate({}).has_value());
  engine().health_check();
  engine().sleep();
  engine().wake_up();
  engine().poison("nothing to end");
  engine().shutdown();
  EXPECT_EQ(engine().connection_state(), std::nullopt);
  EXPECT_TRUE(world_.processes.processes.empty());
  const ErrorRecord record = failure_of([&] { engine().init_publication(); });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
}

// ---- sleep and wake

TEST_F(EngineTest, TheSleepTable) {
  enum Call { kSleep, kWakeTags, kWakeAll };
  struct Row {
    SleepState from;
    Call call;
    std::vector<std::string> sends;
    SleepState to;
  };
  const std::vector<Row> table = {
      {SleepState::kAwake, kSleep, {"sleep"}, SleepState::kAsleep},
      {SleepState::kAsleep, kSleep, {}, SleepState::kAsleep},
      {SleepState::kWeightsOnly, kSleep, {"sleep"}, SleepState::kAsleep},
      {SleepState::kAwake, kWakeTags, {}, SleepState::kAwake},
      {SleepState::kAsleep, kWakeTags, {"wake_up"}, SleepState::kWeightsOnly},
      {SleepState::kWeightsOnly, kWakeTags, {}, SleepState::kWeightsOnly},
      {SleepState::kAwake, kWakeAll, {}, SleepState::kAwake},
      {SleepState::kAsleep, kWakeAll, {"wake_up"}, SleepState::kAwake},
      {SleepState::kWeightsOnly, kWakeAll, {"wake_up"}, SleepState::kAwake},
  };
  for (const Row& row : table) {
    FakeWorld world;
    ScriptedRuntime runtime(world);
    EngineOptions options;
    options.tp_size = 2;
    RolloutEngine engine(world.world(), std::move(options));
    if (row.from != SleepState::kAwake) engine.sleep();
    if (row.from == SleepState::kWeightsOnly) engine.wake_up({"weights"});
    ASSERT_EQ(engine.sleep_state(), row.from);
    runtime.commands.clear();
    runtime.last_body.clear();
    if (row.call == kSleep) engine.sleep();
    if (row.call == kWakeTags) engine.wake_up({"weights"});
    if (row.call == kWakeAll) engine.wake_up();
    EXPECT_EQ(runtime.commands, row.sends) << to_string(row.from) << " call " << row.call;
    EXPECT_EQ(engine.sleep_state(), row.to) << to_string(row.from) << " call " << row.call;
    if (row.sends.empty() || row.call == kSleep) continue;
    const auto wake = std::get<wire::WakeUpRequest>(
        wire::decode_payload(wire::Command::kWakeUp, runtime.last_body));
    const std::vector<std::string> tags =
        row.call == kWakeTags                  ? std::vector<std::string>{"weights"}
        : row.from == SleepState::kWeightsOnly ? std::vector<std::string>{"kv_cache"}
                                               : std::vector<std::string>{};
    EXPECT_EQ(wake.tags, tags);
  }
}

TEST_F(EngineTest, TheSleepLevelIsOneOnceWhereTheWeightsAreToBeKept) {
  const auto level = [&] {
    engine().sleep();
    const auto payload = wire::decode_payload(wire::Command::kSleep, runtime_.last_body);
    engine().wake_up();
    return std::get<wire::SleepRequest>(payload).level;
  };
  EXPECT_EQ(level(), 1);
  engine().set_weight_sync_sleep_level({.level = 2, .preserve_next = true});
  EXPECT_EQ(level(), 1);
  EXPECT_FALSE(engine().weights_lost());
  EXPECT_EQ(level(), 2);
  EXPECT_TRUE(engine().weights_lost());
  engine().preserve_weights_for_next_sleep();
  EXPECT_EQ(level(), 1);
  EXPECT_TRUE(engine().weights_lost());
  EXPECT_EQ(level(), 2);
  for (const int other : {0, 3, -1}) {
    const ErrorRecord record =
        failure_of([&] { engine().set_weight_sync_sleep_level({.level = other}); });
    EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
    EXPECT_EQ(record.remedy, Remedy::kFixInput);
  }
}

TEST_F(EngineTest, AFailedSleepLeavesTheStateAndBreaks) {
  engine().set_weight_sync_sleep_level({.level = 2});
  runtime_.instead[wire::Command::kSleep] = ScriptedRuntime::failure("RuntimeBroken: no");
  EXPECT_EQ(failure_of([&] { engine().sleep(); }).kind, ErrorKind::kRemote);
  EXPECT_EQ(engine().sleep_state(), SleepState::kAwake);
  EXPECT_EQ(engine().connection_state(), ConnectionState::kBroken);
  EXPECT_FALSE(runtime_alive());
}

// ---- generate

TEST_F(EngineTest, GenerateCarriesTheVersionOfItsDispatch) {
  const auto generation = engine().generate({});
  ASSERT_TRUE(generation.has_value());
  EXPECT_EQ(generation->version, 0);
  EXPECT_EQ(generation->rows.size(), 1u);
  publish(3);
  EXPECT_EQ(engine().generate({})->version, 3);
}

TEST_F(EngineTest, GenerateIsRefusedAsleepWeightsOnlyAndWithLostWeights) {
  const auto generate = [&] { engine().generate({}); };
  engine().set_weight_sync_sleep_level({.level = 2});
  engine().sleep();
  expect_refused("generate", "ASLEEP", generate);
  engine().wake_up({"weights"});
  expect_refused("generate", "WEIGHTS_ONLY", generate);
  engine().wake_up();
  expect_refused("generate", "discarded by a level-2 sleep", generate);
  publish(1);
  EXPECT_EQ(engine().generate({})->version, 1);
}

TEST_F(EngineTest, WeightsOnlyIsEnoughForAPublication) {
  engine().sleep();
  expect_refused("init_native_weight_transfer", "asleep", [&] { engine().init_publication(); });
  EXPECT_FALSE(engine().topology().weights_awake);
  engine().wake_up({"weights"});
  publish(1);
  EXPECT_EQ(engine().version(), 1);
}

TEST_F(EngineTest, APartialWakeUpWithoutTheWeightsIsNotEnoughForAPublication) {
  engine().sleep();
  engine().wake_up({"kv_cache"});
  EXPECT_EQ(engine().sleep_state(), SleepState::kWeightsOnly);
  EXPECT_FALSE(engine().topology().weights_awake);
  expect_refused("init_native_weight_transfer", "asleep", [&] { engine().init_publication(); });
  engine().wake_up();
  const auto wake = std::get<wire::WakeUpRequest>(
      wire::decode_payload(wire::Command::kWakeUp, runtime_.last_body));
  EXPECT_THAT(wake.tags, ElementsAre());  // everything
  EXPECT_EQ(engine().sleep_state(), SleepState::kAwake);
  publish(1);
  EXPECT_EQ(engine().generate({})->version, 1);
  engine().sleep();
  engine().wake_up({"kv_cache", "weights"});
  EXPECT_TRUE(engine().topology().weights_awake);
}

// ---- publication

TEST_F(EngineTest, APendingPublicationRefusesWhatWouldDisturbIt) {
  for (const bool started : {false, true}) {
    engine().init_publication();
    const std::int64_t next = engine().version() + 1;
    if (started) engine().start_publication(start_of(next));
    EXPECT_TRUE(engine().publication_pending());
    const std::string pending = "a publication is pending";
    expect_refused("generate", pending, [&] { engine().generate({}); });
    expect_refused("sleep", pending, [&] { engine().sleep(); });
    expect_refused("wake_up", pending, [&] { engine().wake_up(); });
    expect_refused("set_version", pending, [&] { engine().set_version(9); });
    expect_refused("init_native_weight_transfer", pending, [&] { engine().init_publication(); });
    if (!started) engine().start_publication(start_of(next));
    runtime_.commit = commit_of(next);
    engine().finish_publication(finish_of(next));
    EXPECT_FALSE(engine().publication_pending());
  }
}

TEST_F(EngineTest, CommandsOfAPublicationOutOfOrderAreRefusedLocally) {
  const auto start = [&] { engine().start_publication(start_of(1)); };
  const auto update = [&] { engine().update_publication(wire::EncodedUpdate(update_of()), {}); };
  const auto finish = [&] { engine().finish_publication(finish_of(1)); };
  expect_refused("start_native_weight_update", "no init_native_weight_transfer", start);
  expect_refused("update_native_weights", "no publication was started", update);
  expect_refused("finish_native_weight_update", "no publication was started", finish);
  engine().init_publication();
  expect_refused("update_native_weights", "no publication was started", update);
  expect_refused("finish_native_weight_update", "no publication was started", finish);
  start();
  expect_refused("start_native_weight_update", "pending", start);
  expect_refused("finish_native_weight_update", "another publication",
                 [&] { engine().finish_publication(finish_of(2)); });
}

TEST_F(EngineTest, AVersionThatDoesNotRiseIsRefusedAndTheWeightsStayValid) {
  publish(5);
  engine().init_publication();
  for (const std::int64_t version : {4, 5}) {
    expect_refused("start_native_weight_update", "is not above the committed 5",
                   [&] { engine().start_publication(start_of(version)); });
  }
  EXPECT_FALSE(engine().weights_lost());
}

TEST_F(EngineTest, AFailedNativeCommandEndsTheRuntime) {
  engine().init_publication();
  engine().start_publication(start_of(1));
  runtime_.instead[wire::Command::kUpdate] = ScriptedRuntime::failure("PeerViolation: wrong shape");
  const ErrorRecord record =
      failure_of([&] { engine().update_publication(wire::EncodedUpdate(update_of()), {}); });
  EXPECT_EQ(record.kind, ErrorKind::kRemote);
  EXPECT_THAT(record.detail, HasSubstr("wrong shape"));
  EXPECT_EQ(engine().connection_state(), ConnectionState::kBroken);
  EXPECT_FALSE(runtime_alive());
  EXPECT_EQ(failure_of([&] { engine().generate({}); }).remedy, Remedy::kRebuildRuntime);
  EXPECT_EQ(failure_of([&] { engine().topology(); }).remedy, Remedy::kRebuildRuntime);
}

TEST_F(EngineTest, AnInvalidResultOfFinishBreaksAndCommitsNothing) {
  engine().init_publication();
  engine().start_publication(start_of(1));
  runtime_.commit = commit_of(1);
  runtime_.commit.worker_receipts[1].device_uuid = "gpu-0";
  const ErrorRecord record = failure_of([&] { engine().finish_publication(finish_of(1)); });
  EXPECT_EQ(record.kind, ErrorKind::kMismatch);
  EXPECT_EQ(record.remedy, Remedy::kFixPeer);
  EXPECT_EQ(record.subject, "receipts[1].device_uuid");
  EXPECT_EQ(engine().connection_state(), ConnectionState::kBroken);
  EXPECT_FALSE(runtime_alive());
  EXPECT_EQ(engine().version(), 0);
  EXPECT_TRUE(engine().weights_lost());
}

TEST_F(EngineTest, ACacheThatWasNotResetFailsFinishOnlyWhereItWasAskedFor) {
  engine().init_publication();
  engine().start_publication(start_of(1));
  runtime_.commit = commit_of(1);
  runtime_.commit.prefix_cache_reset = false;
  wire::FinishRequest request = finish_of(1);
  request.flush_cache = false;
  EXPECT_FALSE(engine().finish_publication(request).prefix_cache_reset);
  engine().init_publication();
  engine().start_publication(start_of(2));
  runtime_.commit = commit_of(2);
  runtime_.commit.prefix_cache_reset = false;
  EXPECT_EQ(failure_of([&] { engine().finish_publication(finish_of(2)); }).subject,
            "prefix_cache_reset");
  EXPECT_EQ(engine().version(), 1);
}

TEST_F(EngineTest, SetVersionNeverLowersAndEndsWithTheFirstPublication) {
  engine().set_version(4);
  engine().set_version(4);
  const ErrorRecord record = failure_of([&] { engine().set_version(3); });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(record.remedy, Remedy::kFixInput);
  EXPECT_EQ(engine().version(), 4);
  const ErrorRecord last = failure_of([&] { engine().set_version(INT64_MAX); });
  EXPECT_EQ(last.kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(last.remedy, Remedy::kFixInput);
  EXPECT_EQ(engine().version(), 4);
  EXPECT_EQ(engine().generate({})->version, 4);
  publish(5);
  expect_refused("set_version", "before the first publication", [&] { engine().set_version(9); });
}

TEST_F(EngineTest, ProbeFailureLeavesTheRuntimeUsable) {
  runtime_.instead[wire::Command::kProbeIpc] = ScriptedRuntime::failure("NothingHappened: no peer");
  const ErrorRecord record = failure_of([&] { engine().probe_ipc({}); });
  EXPECT_EQ(record.kind, ErrorKind::kRemote);
  EXPECT_EQ(record.remedy, Remedy::kTryLater);
  EXPECT_TRUE(engine().generate({}).has_value());
}

TEST_F(EngineTest, ARuntimeThatSaysItIsBrokenIsEndedWhateverTheCommand) {
  runtime_.instead[wire::Command::kHealth] =
      ScriptedRuntime::failure("RuntimeBroken: worker 1: did not reply in time");
  const ErrorRecord record = failure_of([&] { engine().health_check(); });
  EXPECT_EQ(record.kind, ErrorKind::kRemote);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
  EXPECT_FALSE(runtime_alive());
  EXPECT_EQ(engine().connection_state(), ConnectionState::kBroken);
}

TEST_F(EngineTest, ARuntimeThatIsGoneHasNoTopology) {
  engine().topology();
  engine().shutdown();
  const ErrorRecord record = failure_of([&] { engine().topology(); });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
}

TEST_F(EngineTest, ShutdownEndsTheRuntimeAndLaterCallsSaySo) {
  engine().shutdown();
  engine().shutdown();
  EXPECT_FALSE(runtime_alive());
  EXPECT_EQ(engine().connection_state(), ConnectionState::kIdle);
  const ErrorRecord record = failure_of([&] { engine().generate({}); });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
}

}  // namespace
}  // namespace tpsync::rollout
