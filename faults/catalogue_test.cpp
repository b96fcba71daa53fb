#include "faults/catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "faults/testing/fakes.h"

namespace tpsync::faults {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

TEST(Catalogue, ListsEveryFaultOfThisVersionInOrder) {
  std::vector<std::string_view> names;
  for (const FaultKind& kind : catalogue()) names.push_back(kind.name);
  EXPECT_THAT(names, ElementsAreArray({"channel.eof",
                                       "channel.timeout",
                                       "channel.truncated_frame",
                                       "channel.oversized_frame",
                                       "channel.stray_text",
                                       "channel.malformed_body",
                                       "channel.wrong_version",
                                       "channel.wrong_reply",
                                       "channel.stale_reply",
                                       "channel.duplicated",
                                       "channel.extra_field",
                                       "channel.error_reply",
                                       "channel.late_reply",
                                       "channel.slow",
                                       "channel.write_error",
                                       "channel.corrupted_field",
                                       "process.kill",
                                       "process.stop",
                                       "process.exit",
                                       "process.slow",
                                       "process.not_found",
                                       "process.ignores_sigterm",
                                       "process.spawn_fail",
                                       "clock.stall",
                                       "host.other_host",
                                       "host.visible_devices",
                                       "host.query_fails",
                                       "host.no_entropy",
                                       "collective.rank_error",
                                       "collective.hang",
                                       "collective.corrupt_word",
                                       "collective.truncated_bytes",
                                       "collective.garbled",
                                       "memory.alloc_fail",
                                       "memory.prepare_fail",
                                       "memory.low_at_preflight",
                                       "ipc.open_fail",
                                       "ipc.export_fail",
                                       "ipc.stale_handle",
                                       "ipc.wrong_device",
                                       "ipc.wrong_size",
                                       "ipc.missing_handle",
                                       "ipc.swapped_handles",
                                       "ipc.wrong_uuid",
                                       "copy.late",
                                       "copy.launch_fail",
                                       "copy.sync_fail",
                                       "copy.lost",
                                       "copy.corrupted",
                                       "copy.misplaced",
                                       "copy.twice",
                                       "copy.context_lost",
                                       "receipt.missing",
                                       "receipt.duplicated",
                                       "receipt.echoed",
                                       "receipt.tp_rank",
                                       "receipt.tp_world_size",
                                       "receipt.device_uuid",
                                       "receipt.publication_id",
                                       "receipt.model_version",
                                       "receipt.expected_manifest_fingerprint",
                                       "receipt.resident_parameter_count",
                                       "receipt.ready",
                                       "receipt.digest",
                                       "result.status",
                                       "result.model_version",
                                       "result.prefix_cache_reset",
                                       "weights.missing_expert",
                                       "weights.extra_tensor",
                                       "weights.duplicated",
                                       "weights.reordered",
                                       "weights.record",
                                       "weights.digest_sums",
                                       "weights.materialize_fail",
                                       "weights.chunk_skipped",
                                       "version.stale",
                                       "version.ahead",
                                       "engine.load_fail",
                                       "engine.generate_fail",
                                       "engine.keeps_cache",
                                       "engine.finalize_fail",
                                       "engine.rewrites_weights"}));
}

// Rows that differ in the field that they alter alone count as one.
TEST(Catalogue, HasAtLeastSixtyMechanismsInEveryFamily) {
  std::set<std::string_view> mechanisms;
  std::set<std::string_view> families;
  for (const FaultKind& kind : catalogue()) {
    mechanisms.insert(mechanism_of(kind));
    families.insert(kind.family);
    EXPECT_TRUE(mechanism_of(kind).starts_with(kind.family)) << kind.name;
  }
  EXPECT_GE(mechanisms.size(), 60u);
  EXPECT_LT(mechanisms.size(), catalogue().size());
  for (const char* family : {"channel", "process", "collective", "ipc", "memory", "copy", "weights",
                             "receipt", "version", "engine", "clock", "host"}) {
    EXPECT_TRUE(families.contains(family)) << family;
  }
}

TEST(Catalogue, TheFieldsOfAReceiptAndThoseOfAResultAreOneMechanismEach) {
  EXPECT_EQ(mechanism_of(*find_kind("receipt.tp_rank")), "receipt.field");
  EXPECT_EQ(mechanism_of(*find_kind("receipt.digest")), "receipt.field");
  EXPECT_EQ(mechanism_of(*find_kind("receipt.missing")), "receipt.missing");
  EXPECT_EQ(mechanism_of(*find_kind("result.status")), "result.field");
}

TEST(Catalogue, EveryRowHasAllOfItsTextsAndRules) {
  std::set<std::string_view> names;
  for (const FaultKind& kind : catalogue()) {
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    EXPECT_EQ(kind.name.substr(0, kind.name.find('.')), kind.family);
    EXPECT_EQ(find_kind(kind.name), &kind);
    for (const std::string_view text : {kind.summary, kind.effect, kind.moment, kind.legal,
                                        kind.illegal, kind.proof, kind.worlds, kind.counterpart}) {
      EXPECT_FALSE(text.empty()) << kind.name;
      EXPECT_THAT(page_of(kind), HasSubstr(std::string(text))) << kind.name;
    }
    EXPECT_THAT(std::string(kind.worlds), HasSubstr("sim")) << kind.name;
    ASSERT_TRUE(kind.variants && kind.applies && kind.demand && kind.kinds) << kind.name;
    EXPECT_FALSE(kind.variants().empty()) << kind.name;
  }
}

// Some operation, role, phase and peer for which a variant applies.
std::vector<Operation> all_operations() {
  std::vector<Operation> operations;
  for (const std::string_view op : operation_names()) {
    for (const char* role : {"actor", "runtime", "worker"}) {
      for (const char* phase :
           {"topology-memory-preflight", "topology-ipc-probe", "native-start",
            "native-buffer-allocation", "native-materialize", "native-transfer", "native-finish",
            "native-result", "native-ipc-release", "start_native_weight_update",
            "update_native_weights", "finish_native_weight_update"}) {
        for (const char* peer : {"", "actor", "runtime", "worker"}) {
          Operation operation;
          operation.workers = 2;
          operation.role = role;
          operation.rank = 1;
          operation.phase = phase;
          operation.op = op;
          operation.peer_role = peer;
          operation.is_first_to_peer = true;
          operation.ends_gather = true;
          operation.carries_expert = true;
          operations.push_back(operation);
          operation.occurrence = 2;
          operations.push_back(operation);
        }
      }
    }
  }
  return operations;
}

TEST(Catalogue, EveryVariantAppliesSomewhereAndMakesAValidPlan) {
  const auto operations = all_operations();
  for (const FaultKind& kind : catalogue()) {
    for (const Arguments& arguments : kind.variants()) {
      std::size_t count = 0;
      for (const Operation& operation : operations) {
        if (!kind.applies(operation, arguments)) continue;
        ++count;
        const Fault fault{std::string(kind.name), moment_of(operation), arguments};
        EXPECT_NO_THROW(check_fault(fault, "fault")) << to_text(fault);
      }
      EXPECT_GT(count, 0u) << kind.name;
      EXPECT_LT(count, operations.size()) << kind.name;
    }
  }
}

TEST(Catalogue, AFaultThatMustOrMayFailNamesItsErrorsInOrder) {
  for (const FaultKind& kind : catalogue()) {
    for (const Operation& operation : all_operations()) {
      const auto kinds = kind.kinds(operation);
      EXPECT_EQ(kinds.empty(), kind.demand(operation) == Demand::kSurvive) << kind.name;
      EXPECT_EQ(std::set<ErrorKind>(kinds.begin(), kinds.end()).size(), kinds.size()) << kind.name;
    }
  }
}

TEST(Catalogue, WhatShowsByADeadlineOrNotAtAllIsSilent) {
  const std::set<std::string_view> silent = {
      "channel.timeout", "channel.late_reply", "channel.duplicated",      "process.stop",
      "process.slow",    "clock.stall",        "process.ignores_sigterm", "collective.hang",
      "copy.late",       "copy.twice"};
  for (const FaultKind& kind : catalogue()) {
    EXPECT_EQ(kind.visibility == Visibility::kSilent, silent.contains(kind.name)) << kind.name;
  }
}

TEST(Catalogue, OnlyALostActorOrABrokenAgreementNeedsAnotherWorld) {
  const auto breaks = [](const char* name, const char* role, const char* op) {
    return needs_another_world(testing::fault_at(name, role, 0, "", op));
  };
  EXPECT_TRUE(breaks("process.kill", "actor", "clock.now"));
  EXPECT_TRUE(breaks("process.stop", "actor", "clock.now"));
  EXPECT_TRUE(breaks("collective.rank_error", "actor", "control.word"));
  EXPECT_TRUE(breaks("collective.hang", "actor", "control.gather"));
  EXPECT_FALSE(breaks("process.kill", "worker", "clock.now"));
  EXPECT_TRUE(breaks("collective.hang", "actor", "shard.wait"));
  EXPECT_FALSE(breaks("collective.rank_error", "actor", "shard.wait"));
  EXPECT_FALSE(breaks("channel.eof", "actor", "channel.read"));
}

TEST(Catalogue, TheTrainersLossIsAPropertyOfTheWorldAndNotInjected) {
  const Fault fault = testing::fault_at("weights.missing_expert", "actor", 0, "",
                                        kSourceBegin.data(), 0, {{"where", "trainer"}});
  EXPECT_NO_THROW(check_fault(fault, "fault"));
  const ErrorRecord record = testing::error_of([&] { Injector injector(Plan{1, {fault}}); });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(record.subject, "faults[0].arguments.where");
}

}  // namespace
}  // namespace tpsync::faults
