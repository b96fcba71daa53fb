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

TEST(Enumerate, WithoutAContentDigestNothingIsTriedThatItAloneCouldSee) {
  const std::vector<Operation> reply = {
      operation("worker", 1, "finish_native_weight_update", "channel.write", 0, "runtime")};
  EXPECT_EQ(names_among(reply, 0).size(), 4u + 10u);
  EXPECT_THAT(names_among(reply, 0), Not(Contains("receipt.digest worker")));
  Operation copy = operation("worker", 0, "update_native_weights", "device.launch");
  copy.carries_expert = true;
  EXPECT_THAT(names_among({copy}, 0), Not(Contains("weights.missing_expert loader")));
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
  EXPECT_THAT(names_at(operations, 0), ElementsAre("process.kill", "process.stop", "copy.late"));
  EXPECT_THAT(names_at(operations, 1), ElementsAre("process.kill", "process.stop"));
}

TEST(Enumerate, AReplyToFinishIsAlteredAtItsFirstWriteAlone) {
  const std::string finish = "finish_native_weight_update";
  const std::vector<Operation> worker = {
      operation("worker", 1, finish, "channel.write", 0, "runtime"),
      operation("worker", 1, finish, "channel.write", 1, "runtime")};
  EXPECT_EQ(names_at(worker, 0).size(), 4u + 11u);
  EXPECT_EQ(names_at(worker, 1).size(), 4u);
  // The runtime's requests to workers are no reply; its own reply carries receipts and the result.
  const std::vector<Operation> runtime = {
      operation("runtime", 0, finish, "channel.write", 0, "worker"),
      operation("runtime", 0, finish, "channel.write", 1, "actor")};
  EXPECT_EQ(names_at(runtime, 0).size(), 4u);
  EXPECT_EQ(names_at(runtime, 1).size(), 4u + 11u + 3u);
}

TEST(Enumerate, TheBroadcastResultIsAlteredOnEveryRankButTheRoot) {
  const std::vector<Operation> actors = {
      operation("actor", 0, "native-result", "control.broadcast"),
      operation("actor", 1, "native-result", "control.broadcast"),
      operation("actor", 1, "setup", "control.broadcast")};
  EXPECT_EQ(names_at(actors, 0).size(), 3u);
  EXPECT_EQ(names_at(actors, 1).size(), 3u + 11u + 3u);
  EXPECT_EQ(names_at(actors, 2).size(), 3u);
}

TEST(Enumerate, AnExpertIsLostWhereItsTensorsTravel) {
  const std::string update = "update_native_weights";
  std::vector<Operation> operations = {
      operation("actor", 0, "native-transfer", "channel.write", 0, "runtime"),
      operation("runtime", 0, update, "channel.write", 0, "worker"),
      operation("runtime", 0, update, "channel.write", 1, "actor"),
      operation("worker", 0, update, "device.launch")};
  EXPECT_EQ(names_at(operations, 0).size(), 4u);
  for (Operation& each : operations) each.carries_expert = true;
  EXPECT_EQ(names_at(operations, 0).back(), "weights.missing_expert wire");
  EXPECT_EQ(names_at(operations, 1).back(), "weights.missing_expert wire");
  EXPECT_EQ(names_at(operations, 2).size(), 4u);
  EXPECT_EQ(names_at(operations, 3).back(), "weights.missing_expert loader");
}

TEST(Enumerate, EveryActorThatAllocatesABufferBeginsOnePass) {
  const std::string phase = "native-buffer-allocation";
  std::vector<Operation> operations = {operation("actor", 0, "setup", "clock.now"),
                                       operation("actor", 0, phase, "device.allocate"),
                                       operation("actor", 1, phase, "device.allocate"),
                                       operation("actor", 0, phase, "device.export")};
  add_source_moments(operations);
  add_source_moments(operations);
  ASSERT_EQ(operations.size(), 6u);
  EXPECT_EQ(operations[1].op, kSourceBegin);
  EXPECT_EQ(operations[3].op, kSourceBegin);
  EXPECT_EQ(operations[3].rank, 1);
  EXPECT_THAT(names_at(operations, 1),
              ElementsAre("weights.missing_expert exporter", "weights.extra_tensor"));
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
                                 "process.kill at worker 0: device.wake#0",
                                 "process.stop at worker 0: device.wake#0",
                                 "memory.alloc_fail at worker 0: device.wake#0"));
  EXPECT_THAT(enumerate({}), IsEmpty());
}

}  // namespace
}  // namespace tpsync::faults
