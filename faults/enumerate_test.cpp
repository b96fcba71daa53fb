#include "faults/enumerate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tpsync::faults {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

Operation operation(std::string role, int rank, std::string phase, std::string op,
                    std::uint64_t occurrence = 0, std::string peer = "") {
  Operation result;
  result.role = std::move(role);
  result.rank = rank;
  result.phase = std::move(phase);
  result.op = std::move(op);
  result.occurrence = occurrence;
  result.peer_role = std::move(peer);
  return result;
}

// The faults of one operation, as they stand in `operations`.
std::vector<std::string> names_among(std::vector<Operation> operations, std::size_t index) {
  annotate(operations);
  std::vector<std::string> names;
  for (const Pair& pair : enumerate(operations)) {
    if (pair.operation != index) continue;
    std::string name = pair.fault.name;
    for (const auto& [key, value] : pair.fault.arguments) name += " " + value;
    names.push_back(name);
  }
  return names;
}

// The same in a publication with a content digest.
std::vector<std::string> names_at(std::vector<Operation> operations, std::size_t index) {
  operations.push_back(
      operation("worker", 0, "finish_native_weight_update", "device.launch_digests"));
  return names_among(std::move(operations), index);
}

// Those of one or more families.
std::vector<std::string> only(std::vector<std::string> names,
                              std::initializer_list<std::string_view> families) {
  std::erase_if(names, [&](const std::string& name) {
    return std::none_of(families.begin(), families.end(), [&](std::string_view family) {
      return name.starts_with(std::string(family) + ".");
    });
  });
  return names;
}

TEST(Enumerate, WithoutAContentDigestNothingIsTriedThatItAloneCouldSee) {
  const std::vector<Operation> reply = {
      operation("worker", 1, "finish_native_weight_update", "channel.write", 0, "runtime")};
  EXPECT_EQ(only(names_among(reply, 0), {"receipt"}).size(), 10u);
  EXPECT_THAT(names_among(reply, 0), Not(Contains("receipt.digest worker")));
  Operation copy = operation("worker", 0, "update_native_weights", "device.launch");
  copy.carries_expert = true;
  EXPECT_THAT(names_among({copy}, 0), Not(Contains("weights.missing_expert loader")));
  for (const char* name : {"copy.lost", "copy.corrupted", "copy.misplaced"}) {
    EXPECT_THAT(names_among({copy}, 0), Not(Contains(name)));
    EXPECT_THAT(names_at({copy}, 0), Contains(name));
  }
}

TEST(Enumerate, AReadOfAnotherProcessIsClosedMutedKilledAndStopped) {
  EXPECT_THAT(names_at({operation("worker", 2, "", "channel.read", 0, "runtime")}, 0),
              ElementsAre("channel.eof", "channel.timeout", "process.kill", "process.stop"));
}

TEST(Enumerate, AChannelWithinAProcessIsNeitherClosedNorMuted) {
  EXPECT_THAT(names_at({operation("actor", 0, "", "channel.read")}, 0),
              ElementsAre("process.kill", "process.stop"));
}

TEST(Enumerate, ACopyThatLandsAtItsSynchronizeCannotBeDelayed) {
  std::vector<Operation> operations = {operation("worker", 0, "x", "device.launch", 0),
                                       operation("worker", 0, "x", "device.launch", 1)};
  operations[1].landed_at_sync = true;
  EXPECT_THAT(names_at(operations, 0), Contains("copy.late"));
  EXPECT_THAT(names_at(operations, 1), Not(Contains("copy.late")));
}

TEST(Enumerate, AReplyToFinishIsAlteredAtItsFirstWriteAlone) {
  const std::string finish = "finish_native_weight_update";
  const std::vector<Operation> worker = {
      operation("worker", 1, finish, "channel.write", 0, "runtime"),
      operation("worker", 1, finish, "channel.write", 1, "runtime")};
  const auto altered = [](const std::vector<Operation>& operations, std::size_t index) {
    return only(names_at(operations, index), {"receipt", "result"}).size();
  };
  EXPECT_EQ(altered(worker, 0), 11u);
  EXPECT_EQ(altered(worker, 1), 0u);
  // The runtime's requests to workers are no reply; its own reply carries receipts and the result.
  const std::vector<Operation> runtime = {
      operation("runtime", 0, finish, "channel.write", 0, "worker"),
      operation("runtime", 0, finish, "channel.write", 1, "actor"),
      operation("worker", 1, finish, "channel.read", 0, "runtime")};
  EXPECT_EQ(altered(runtime, 0), 0u);
  EXPECT_EQ(altered(runtime, 1), 11u + 1u + 3u);
}

TEST(Enumerate, TheBroadcastResultIsAlteredOnEveryRankButTheRoot) {
  const std::vector<Operation> actors = {
      operation("actor", 0, "native-result", "control.broadcast"),
      operation("actor", 1, "native-result", "control.broadcast"),
      operation("actor", 1, "setup", "control.broadcast")};
  const auto altered = [&](std::size_t index) {
    return only(names_at(actors, index), {"receipt", "result"}).size();
  };
  EXPECT_EQ(altered(0), 0u);
  EXPECT_EQ(altered(1), 11u + 3u);  // of one worker's receipts none stands in for another
  EXPECT_EQ(altered(2), 0u);
}

TEST(Enumerate, AMessageIsDistortedAtTheFirstWriteOfItsFrameAlone) {
  const std::vector<Operation> writes = {
      operation("worker", 0, "update_native_weights", "channel.write", 0, "runtime"),
      operation("worker", 0, "update_native_weights", "channel.write", 1, "runtime"),
      operation("actor", 0, "native-init", "channel.write", 0, "runtime")};
  EXPECT_EQ(only(names_at(writes, 0), {"channel"}).size(), 16u);
  EXPECT_THAT(only(names_at(writes, 1), {"channel"}),
              ElementsAre("channel.eof", "channel.timeout"));
  // A request is no reply, and this one has none of the fields that are altered.
  EXPECT_THAT(names_at(writes, 2), Contains("channel.truncated_frame"));
  EXPECT_THAT(names_at(writes, 2), Not(Contains("channel.error_reply")));
  EXPECT_EQ(only(names_at(writes, 2), {"channel"}).size(), 11u);
}

TEST(Enumerate, HandlesAreSwappedOnlyWhereThereAreSeveral) {
  std::vector<Operation> operations = {
      operation("actor", 0, "native-transfer", "channel.write", 0, "runtime")};
  EXPECT_THAT(only(names_at(operations, 0), {"ipc"}), ElementsAre("ipc.missing_handle"));
  operations.push_back(operation("worker", 1, "update_native_weights", "device.import"));
  EXPECT_THAT(only(names_at(operations, 0), {"ipc"}),
              ElementsAre("ipc.missing_handle", "ipc.swapped_handles"));
}

TEST(Enumerate, ThePreflightsQueriesAreToldApartByTheirOrder) {
  std::vector<Operation> queries;
  for (const int rank : {0, 1}) {
    for (const std::uint64_t occurrence : {0, 1, 2}) {
      queries.push_back(
          operation("actor", rank, "topology-memory-preflight", "host.query", occurrence));
    }
  }
  EXPECT_THAT(only(names_at(queries, 0), {"host"}), ElementsAre("host.query_fails"));
  EXPECT_THAT(only(names_at(queries, 2), {"host"}), ElementsAre("host.visible_devices"));
  EXPECT_THAT(only(names_at(queries, 4), {"host"}),
              ElementsAre("host.other_host", "host.query_fails"));
}

TEST(Enumerate, AnEngineMisbehavesInTheLastUpdateAndInFinish) {
  const std::string update = "update_native_weights";
  std::vector<Operation> operations = {
      operation("worker", 0, update, "channel.write", 0, "runtime"),
      operation("worker", 0, update, "channel.write", 0, "runtime"),
      operation("worker", 0, "finish_native_weight_update", "channel.write", 0, "runtime")};
  operations[1].chunk = 1;
  add_own_moments(operations);
  add_own_moments(operations);
  ASSERT_EQ(operations.size(), 5u);
  EXPECT_EQ(operations[1].op, kEngineLayer);
  EXPECT_EQ(operations[1].chunk, 1);
  EXPECT_EQ(operations[3].op, kEngineReset);
  EXPECT_THAT(names_at(operations, 1),
              ElementsAre("engine.finalize_fail", "engine.rewrites_weights"));
  EXPECT_THAT(names_at(operations, 3), ElementsAre("engine.keeps_cache"));
}

TEST(Enumerate, AnExpertIsLostWhereItsTensorsTravel) {
  const std::string update = "update_native_weights";
  std::vector<Operation> operations = {
      operation("actor", 0, "native-transfer", "channel.write", 0, "runtime"),
      operation("runtime", 0, update, "channel.write", 0, "worker"),
      operation("runtime", 0, update, "channel.write", 1, "actor"),
      operation("worker", 0, update, "device.launch")};
  EXPECT_THAT(names_at(operations, 0), Not(Contains("weights.missing_expert wire")));
  for (Operation& each : operations) each.carries_expert = true;
  EXPECT_THAT(names_at(operations, 0), Contains("weights.missing_expert wire"));
  EXPECT_THAT(names_at(operations, 1), Contains("weights.missing_expert wire"));
  EXPECT_THAT(only(names_at(operations, 2), {"weights"}), IsEmpty());
  EXPECT_THAT(names_at(operations, 3), Contains("weights.missing_expert loader"));
}

TEST(Enumerate, EveryActorThatAllocatesABufferBeginsOnePass) {
  const std::string phase = "native-buffer-allocation";
  std::vector<Operation> operations = {operation("actor", 0, "setup", "clock.now"),
                                       operation("actor", 0, phase, "device.allocate"),
                                       operation("actor", 1, phase, "device.allocate"),
                                       operation("actor", 0, phase, "device.export")};
  add_own_moments(operations);
  add_own_moments(operations);
  ASSERT_EQ(operations.size(), 6u);
  EXPECT_EQ(operations[1].op, kSourceBegin);
  EXPECT_EQ(operations[3].op, kSourceBegin);
  EXPECT_EQ(operations[3].rank, 1);
  EXPECT_THAT(names_at(operations, 1),
              ElementsAre("weights.missing_expert exporter", "weights.extra_tensor",
                          "weights.duplicated", "weights.reordered", "weights.record name exporter",
                          "weights.record shape exporter", "weights.record dtype exporter",
                          "weights.digest_sums", "weights.materialize_fail"));
}

TEST(Enumerate, WhatNobodyNeedsAnyMoreMayFailOrNot) {
  std::vector<Operation> operations = {
      operation("worker", 0, "release_native_ipc", "clock.now", 0),
      operation("worker", 0, "release_native_ipc", "channel.write", 0, "runtime"),
      operation("worker", 0, "release_native_ipc", "channel.read", 0, "runtime"),
      operation("actor", 1, "native-ipc-release", "control.word"),
      operation("actor", 1, "native-ipc-release", "device.free")};
  annotate(operations);
  EXPECT_EQ(operations[0].is_tail, false);
  EXPECT_EQ(operations[1].is_tail, false);
  EXPECT_EQ(operations[2].is_tail, true);
  EXPECT_EQ(operations[3].is_tail, false);
  EXPECT_EQ(operations[4].is_tail, true);
  for (const Pair& pair : enumerate(operations)) {
    if (pair.kind->action != Action::kKill && pair.kind->action != Action::kCloseChannel) continue;
    const Demand expected = operations[pair.operation].is_tail ? Demand::kEither : Demand::kFail;
    EXPECT_EQ(pair.demand, expected) << to_text(pair.fault);
  }
}

TEST(Enumerate, PairsComeInTheOrderOfOperationsThenOfTheCatalogue) {
  std::vector<Operation> operations = {operation("actor", 0, "", "control.word"),
                                       operation("worker", 0, "", "device.wake")};
  annotate(operations);
  std::vector<std::string> texts;
  for (const Pair& pair : enumerate(operations)) texts.push_back(to_text(pair.fault));
  EXPECT_THAT(texts, ElementsAre("process.kill at actor 0: control.word#0",
                                 "process.stop at actor 0: control.word#0",
                                 "collective.rank_error at actor 0: control.word#0",
                                 "collective.hang at actor 0: control.word#0",
                                 "collective.corrupt_word at actor 0: control.word#0",
                                 "process.kill at worker 0: device.wake#0",
                                 "process.stop at worker 0: device.wake#0",
                                 "memory.alloc_fail at worker 0: device.wake#0"));
  EXPECT_THAT(enumerate({}), IsEmpty());
}

}  // namespace
}  // namespace tpsync::faults
