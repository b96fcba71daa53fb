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
                                       "process.kill",
                                       "process.stop",
                                       "collective.rank_error",
                                       "memory.alloc_fail",
                                       "ipc.open_fail",
                                       "copy.late",
                                       "receipt.missing",
                                       "receipt.duplicated",
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
                                       "weights.extra_tensor"}));
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
      for (const char* phase : {"native-transfer", "native-result", "update_native_weights",
                                "finish_native_weight_update"}) {
        for (const char* peer : {"", "actor", "runtime", "worker"}) {
          Operation operation;
          operation.role = role;
          operation.rank = 1;
          operation.phase = phase;
          operation.op = op;
          operation.peer_role = peer;
          operation.is_first_to_peer = true;
          operation.carries_expert = true;
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

TEST(Catalogue, OnlySilenceStopsAndLateCopiesAreSilent) {
  for (const FaultKind& kind : catalogue()) {
    const bool is_silent =
        kind.name == "channel.timeout" || kind.name == "process.stop" || kind.name == "copy.late";
    EXPECT_EQ(kind.visibility == Visibility::kSilent, is_silent) << kind.name;
  }
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
