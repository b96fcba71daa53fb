// What a runtime and a worker allow, enumerated: every reachable state against every command.
#include "tpsync/runtime/serving_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>

#include "core/base/testing/fake_world.h"

namespace tpsync::runtime {
namespace {

using fakes::failure_of;
using testing::HasSubstr;

wire::PublicationHeader header_of(std::int64_t version) {
  wire::PublicationHeader header;
  header.publication_id = "id" + std::to_string(version);
  header.model_version = version;
  return header;
}
wire::StartRequest start_of(std::int64_t version) {
  wire::StartRequest request;
  request.header = header_of(version);
  return request;
}
wire::FinishRequest finish_of(std::int64_t version) {
  wire::FinishRequest request;
  request.header = header_of(version);
  return request;
}

// States by how they are reached from a fresh one at version 4.
const std::map<std::string, std::function<void(ServingState&)>>& states() {
  static const std::map<std::string, std::function<void(ServingState&)>> all = {
      {"awake", [](ServingState&) {}},
      {"asleep 1", [](ServingState& s) { s.slept(1); }},
      {"asleep 2", [](ServingState& s) { s.slept(2); }},
      {"weights only", [](ServingState& s) { s.slept(1), s.woke({{"weights"}}); }},
      {"kv only", [](ServingState& s) { s.slept(1), s.woke({{"kv_cache"}}); }},
      {"lost", [](ServingState& s) { s.slept(2), s.woke({}); }},
      {"initialized", [](ServingState& s) { s.initialized(); }},
      {"started", [](ServingState& s) { s.initialized(), s.started(header_of(5)); }},
      {"committed",
       [](ServingState& s) { s.initialized(), s.started(header_of(5)), s.committed(); }},
      {"recovered",
       [](ServingState& s) {
         s.slept(2), s.woke({}), s.initialized(), s.started(header_of(5)), s.committed();
       }},
  };
  return all;
}

struct Check {
  wire::Command command;
  std::function<void(const ServingState&)> call;
};

const std::map<std::string, Check>& checks() {
  using wire::Command;
  static const std::map<std::string, Check> all = {
      {"generate", {Command::kGenerate, [](const ServingState& s) { s.check_generate(); }}},
      {"sleep 1", {Command::kSleep, [](const ServingState& s) { s.check_sleep({1}); }}},
      {"sleep 2", {Command::kSleep, [](const ServingState& s) { s.check_sleep({2}); }}},
      {"wake weights",
       {Command::kWakeUp, [](const ServingState& s) { s.check_wake_up({{"weights"}}); }}},
      {"wake kv_cache",
       {Command::kWakeUp, [](const ServingState& s) { s.check_wake_up({{"kv_cache"}}); }}},
      {"wake all", {Command::kWakeUp, [](const ServingState& s) { s.check_wake_up({}); }}},
      {"probe", {Command::kProbeIpc, [](const ServingState& s) { s.check_probe(); }}},
      {"init", {Command::kInit, [](const ServingState& s) { s.check_init(); }}},
      {"start 6", {Command::kStart, [](const ServingState& s) { s.check_start(start_of(6)); }}},
      {"update", {Command::kUpdate, [](const ServingState& s) { s.check_update(); }}},
      {"finish 5", {Command::kFinish, [](const ServingState& s) { s.check_finish(finish_of(5)); }}},
      {"release", {Command::kRelease, [](const ServingState& s) { s.check_release(); }}},
  };
  return all;
}

// Text in the refusal; no entry: allowed.
const std::map<std::pair<std::string, std::string>, std::string>& refusals() {
  static const auto all = [] {
    std::map<std::pair<std::string, std::string>, std::string> table;
    const std::string pending = "a publication is pending";
    for (const char* state : {"asleep 1", "asleep 2", "weights only", "kv only"}) {
      table[{state, "generate"}] = "memory is asleep";
    }
    table[{"lost", "generate"}] = "of no version";
    for (const char* state : {"asleep 1", "asleep 2", "kv only"}) {
      table[{state, "init"}] = "the weights are asleep";
    }
    for (const char* state : {"initialized", "started"}) {
      for (const char* check : {"generate", "sleep 1", "sleep 2", "wake kv_cache", "wake all",
                                "probe", "init", "release"}) {
        table[{state, check}] = pending;
      }
    }
    table[{"started", "start 6"}] = pending;
    for (const auto& [state, reach] : states()) {
      if (state != "started") {
        table[{state, "update"}] = "no publication was started";
        table[{state, "finish 5"}] = "no publication was started";
      }
      if (state != "started" && state != "initialized") {
        table[{state, "start 6"}] = "no init_native_weight_transfer";
      }
    }
    return table;
  }();
  return all;
}

TEST(ServingState, EveryCommandInEveryState) {
  for (const auto& [state_name, reach] : states()) {
    ServingState state(4);
    reach(state);
    for (const auto& [check_name, check] : checks()) {
      std::optional<ErrorRecord> refused;
      try {
        check.call(state);
      } catch (const Error& error) {
        refused = error.record();
      }
      const auto expected = refusals().find({state_name, check_name});
      ASSERT_EQ(refused.has_value(), expected != refusals().end())
          << check_name << " while " << state_name;
      if (!refused) continue;
      EXPECT_EQ(refused->kind, ErrorKind::kInvalidState);
      EXPECT_EQ(refused->remedy, Remedy::kTryLater);
      EXPECT_EQ(refused->subject, name_of(check.command));
      EXPECT_THAT(refused->detail, HasSubstr(expected->second))
          << check_name << " while " << state_name;
    }
  }
}

TEST(ServingState, LevelsAndTagsAreCheckedFirst) {
  ServingState state(0);
  state.initialized();
  for (const std::int64_t level : {0, 3, -1}) {
    EXPECT_EQ(failure_of([&] { state.check_sleep({level}); }).detail, "the level must be 1 or 2");
  }
  EXPECT_THAT(failure_of([&] {
                state.check_wake_up({{"weights", "heads"}});
              }).detail,
              HasSubstr("no memory tagged \"heads\""));
}

TEST(ServingState, AStartMustRaiseTheVersion) {
  ServingState state(4);
  state.initialized();
  for (const std::int64_t version : {-1, 0, 3, 4}) {
    EXPECT_THAT(failure_of([&] { state.check_start(start_of(version)); }).detail,
                HasSubstr("is not above the committed 4"));
  }
  state.check_start(start_of(5));
}

TEST(ServingState, AFinishMustCarryThePendingHeader) {
  ServingState state(4);
  state.initialized();
  state.started(header_of(5));
  state.check_finish(finish_of(5));
  EXPECT_EQ(failure_of([&] { state.check_finish(finish_of(6)); }).detail,
            "another publication is pending");
  wire::FinishRequest other_id = finish_of(5);
  other_id.header.publication_id = "another";
  EXPECT_EQ(failure_of([&] { state.check_finish(other_id); }).subject,
            "finish_native_weight_update");
}

TEST(ServingState, TheVersionMovesWithTheCommitAlone) {
  ServingState state(4);
  state.initialized();
  state.started(header_of(9));
  EXPECT_EQ(state.version(), 4);
  state.committed();
  EXPECT_EQ(state.version(), 9);
  EXPECT_EQ(state.stage(), PublicationStage::kNone);
}

TEST(ServingState, ASecondSleepNeverBringsDiscardedWeightsBackNorLosesKeptOnes) {
  ServingState kept(0);
  kept.slept(1);
  kept.slept(2);  // already away: the content saved by the first sleep stays
  kept.woke({});
  kept.check_generate();
  ServingState lost(0);
  lost.slept(2);
  lost.slept(1);
  lost.woke({});
  failure_of([&] { lost.check_generate(); });
}

}  // namespace
}  // namespace tpsync::runtime
