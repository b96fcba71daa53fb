#include "faults/plan.h"

#include <gtest/gtest.h>

#include "faults/testing/fakes.h"

namespace tpsync::faults {
namespace {

using testing::error_of;
using testing::fault_at;

Plan full_plan() {
  Plan plan;
  plan.seed = 0xffffffffffffffffULL;
  plan.faults.push_back(fault_at("channel.eof", "runtime", 0, "", "channel.read", 7));
  Fault fault = fault_at("receipt.digest", "runtime", 0, "finish_native_weight_update",
                         "channel.write", 4, {{"hop", "runtime"}, {"receipt", "2"}});
  plan.faults.push_back(fault);
  fault = fault_at("process.kill", "worker", 3, "update_native_weights", "device.launch");
  fault.moment.chunk = 2;
  plan.faults.push_back(fault);
  return plan;
}

TEST(Plan, IsTheSameAfterItWasWrittenAndRead) {
  const Plan plan = full_plan();
  EXPECT_EQ(plan_from_json(to_json(plan)), plan);
  EXPECT_EQ(to_json(plan_from_json(to_json(plan))), to_json(plan));
}

TEST(Plan, ReadsAShortFormWithDefaults) {
  const Plan plan = plan_from_json(
      R"({"faults":[{"name":"memory.alloc_fail",
                     "moment":{"role":"actor","op":"device.allocate"}}]})");
  ASSERT_EQ(plan.faults.size(), 1u);
  EXPECT_EQ(plan.seed, 0u);
  EXPECT_EQ(plan.faults[0], fault_at("memory.alloc_fail", "actor", 0, "", "device.allocate"));
}

TEST(Plan, HasAStableTextForm) {
  const Plan plan = full_plan();
  EXPECT_EQ(to_text(plan.faults[0]), "channel.eof at runtime 0: channel.read#7");
  EXPECT_EQ(to_text(plan.faults[1]),
            "receipt.digest at runtime 0: channel.write#4 in finish_native_weight_update/0 "
            "(hop=runtime, receipt=2)");
  EXPECT_EQ(to_text(plan.faults[2]),
            "process.kill at worker 3: device.launch#0 in update_native_weights/2");
}

TEST(Plan, RefusesWhatIsWrongAndNamesThePlace) {
  const std::string good = R"("moment":{"role":"actor","op":"channel.read"})";
  const std::string head = R"({"faults":[{"name":"channel.eof",)" + good + "},{";
  const auto second = [&](const std::string& text) { return head + text + "}]}"; };
  const std::vector<std::pair<std::string, std::pair<std::string, std::string>>> cases = {
      {"{\"faults\":[", {"plan", "is not JSON"}},
      {"[]", {"plan", "must be an object"}},
      {"{}", {"faults", "is missing"}},
      {R"({"faults":3})", {"faults", "must be a list"}},
      {R"({"faults":[],"sed":1})", {"sed", "remove it"}},
      {R"({"faults":[],"seed":1,"seed":1})", {"seed", "stands twice"}},
      {R"({"faults":[],"seed":-1})", {"seed", "whole number"}},
      {R"({"faults":[],"seed":1.5})", {"seed", "whole number"}},
      {second(good), {"faults[1].name", "is missing"}},
      {second(R"("name":"channel.eof")"), {"faults[1].moment", "is missing"}},
      {second(R"("name":"channel.eof","name":"channel.eof",)" + good),
       {"faults[1].name", "stands twice"}},
      {second(R"("name":"channel.eof","moment":{"role":"actor","role":"actor"})"),
       {"faults[1].moment.role", "stands twice"}},
      {second(R"("name":"channel.oef",)" + good), {"faults[1].name", "not in the catalogue"}},
      {second(R"("name":"channel.eof","moment":{"role":"actor"})"),
       {"faults[1].moment.op", "is missing"}},
      {second(R"("name":"channel.eof","moment":{"role":"actor","op":"channel.raed"})"),
       {"faults[1].moment.op", "channel.read"}},
      {second(R"("name":"channel.eof","moment":{"role":"boss","op":"channel.read"})"),
       {"faults[1].moment.role", "actor, runtime or worker"}},
      {second(R"("name":"channel.eof","moment":{"role":"actor","op":"channel.read","rank":-1})"),
       {"faults[1].moment.rank", "whole number"}},
      {second(R"("name":"channel.eof","moment":{"role":"actor","op":"channel.read","nth":1})"),
       {"faults[1].moment.nth", "remove it"}},
      {second(R"("name":"channel.eof","moment":{"role":"actor","op":"device.launch"})"),
       {"faults[1].moment", "does not apply"}},
      {second(R"("name":"channel.eof","arguments":{"a":"b"},)" + good),
       {"faults[1].arguments.a", "no argument of channel.eof"}},
      {second(R"("name":"channel.eof","arguments":{"a":1},)" + good),
       {"faults[1].arguments.a", "must be a text"}},
      {second(R"("name":"receipt.ready",)" + good), {"faults[1].arguments.hop", "is missing"}},
      {second(R"("name":"result.status","arguments":{"hop":"worker"},)" + good),
       {"faults[1].arguments.hop", "runtime|broadcast"}},
      {second(R"("name":"receipt.ready","arguments":{"hop":"runtime","receipt":"x"},)" + good),
       {"faults[1].arguments.receipt", "index"}},
      {second(R"("name":"receipt.ready","arguments":{"hop":"worker"},)" + good),
       {"faults[1].moment", "does not apply"}},
  };
  for (const auto& [text, expected] : cases) {
    const ErrorRecord record = error_of([&, text = text] { plan_from_json(text); });
    EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig) << text;
    EXPECT_EQ(record.remedy, Remedy::kFixInput) << text;
    EXPECT_EQ(record.subject, expected.first) << text;
    EXPECT_NE(record.detail.find(expected.second), std::string::npos) << record.detail;
    EXPECT_EQ(record.detail.find('\n'), std::string::npos) << record.detail;
  }
}

}  // namespace
}  // namespace tpsync::faults
