// Which plans real processes can carry out, and the state that a world's injectors share.
#include "conformance/process/process_faults.h"

#include <gtest/gtest.h>

#include "tpsync/base/errors.h"
#include "tpsync/base/testing/temporary_folder.h"

namespace tpsync::conformance {
namespace {

faults::Plan plan_of(const std::string& name, const std::string& role, const std::string& op) {
  faults::Plan plan;
  plan.faults.push_back({name, {role, 0, "native-start", 0, op, 0}, {}});
  return plan;
}

ErrorRecord refusal_of(const faults::Plan& plan) {
  try {
    check_plan(plan);
  } catch (const InvalidInput& error) {
    return error.record();
  }
  return {};
}

TEST(ProcessPlans, AtOperationsThatAreCountedAreTaken) {
  for (const char* op : {"channel.read", "channel.wait_readable", "control.word", "shard.wait",
                         "device.allocate", "process.spawn"})
    EXPECT_EQ(refusal_of(plan_of("process.kill", "actor", op)).subject, "") << op;
}

TEST(ProcessPlans, AtOperationsThatAreNotCountedAreRefused) {
  for (const char* op :
       {"clock.now", "host.query", "random.fill", "mutex.lock", "thread.join", "condition.wait",
        "process.wait", "process.signal_group", "channel.pair"}) {
    faults::Plan plan = plan_of("process.kill", "actor", "channel.read");
    plan.faults.push_back(plan_of("process.kill", "actor", op).faults.front());
    const ErrorRecord record = refusal_of(plan);
    EXPECT_EQ(record.kind, ErrorKind::kUnsupported) << op;
    EXPECT_EQ(record.subject, "faults[1].moment.op") << op;
  }
}

TEST(ProcessPlans, OfFaultsOfOtherWorldsAreRefused) {
  const ErrorRecord record = refusal_of(plan_of("copy.late", "worker", "device.launch"));
  EXPECT_EQ(record.kind, ErrorKind::kUnsupported);
  EXPECT_EQ(record.subject, "faults[0].name");
}

TEST(SharedFaultState, IsOneForAllWhoOpenIt) {
  const TemporaryFolder temporary;
  const std::string path = temporary.path() / "state";
  const SharedFaultState mine = SharedFaultState::create(path);
  const SharedFaultState other = SharedFaultState::open(path);
  EXPECT_EQ(mine.applied(), 0u);
  EXPECT_FALSE((*mine).healed.load());
  (*other).applied[3].store(true);
  (*other).healed.store(true);
  EXPECT_EQ(mine.applied(), 1u);
  EXPECT_TRUE((*mine).healed.load());
}

TEST(SharedFaultState, IsNotMadeOverAnother) {
  const TemporaryFolder temporary;
  const SharedFaultState state = SharedFaultState::create(temporary.path() / "state");
  EXPECT_THROW(SharedFaultState::create(temporary.path() / "state"), RuntimeBroken);
  EXPECT_THROW(SharedFaultState::open(temporary.path() / "none"), RuntimeBroken);
}

}  // namespace
}  // namespace tpsync::conformance
