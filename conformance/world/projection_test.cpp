#include "conformance/world/projection.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <iterator>

#include "conformance/judge/records.h"
#include "conformance/world/accepted_differences.h"
#include "tpsync/base/errors.h"
#include "tpsync/base/log.h"

namespace tpsync::conformance {
namespace {

using sim::EventKind;
using sim::Op;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint32_t kActor0 = 0;
constexpr std::uint32_t kActor1 = 1;
constexpr std::uint32_t kRuntime = 2;
constexpr std::uint32_t kWorker0 = 3;
constexpr std::uint32_t kWorker1 = 4;

// What two worlds of one story number differently.
struct Numbers {
  std::uint64_t first_pid = 1000;
  std::uint64_t group = 1;
  std::int64_t start = 0;
};

// Writes traces by hand; every event takes one microsecond.
class Tale {
 public:
  explicit Tale(Numbers numbers = {}) : numbers_(numbers), now_(numbers.start) {
    start(kActor0, "actor", 0, 0);
    start(kActor1, "actor", 1, 0);
    add(EventKind::kGroupMade, sim::kNoProcess, numbers_.group, 2, 1);
  }

  sim::Event& add(std::uint16_t kind, std::uint32_t process, std::uint64_t a = 0,
                  std::uint64_t b = 0, std::uint64_t c = 0, std::string_view text = {}) {
    sim::Event event;
    event.time = event.end = now_ += 1000;
    event.process = process;
    event.kind = kind;
    event.a = a;
    event.b = b;
    event.c = c;
    event.text = trace.texts.intern(text);
    return trace.events.emplace_back(event);
  }
  sim::Event& add(EventKind kind, std::uint32_t process, std::uint64_t a = 0, std::uint64_t b = 0,
                  std::uint64_t c = 0, std::string_view text = {}) {
    return add(static_cast<std::uint16_t>(kind), process, a, b, c, text);
  }
  void op(std::uint32_t process, Op op, std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0) {
    add(EventKind::kOp, process, a, b, c).op = static_cast<std::uint16_t>(op);
  }
  void start(std::uint32_t process, std::string_view role, std::uint64_t rank,
             std::uint64_t parent) {
    add(EventKind::kProcessStart, process, rank, parent, 0, role);
  }
  void spawn(std::uint32_t parent, std::uint32_t child, std::string_view role, std::uint64_t rank) {
    op(parent, Op::kProcessSpawn, numbers_.first_pid + child);
    start(child, role, rank, parent + 1);
  }
  void start_engine() {
    spawn(kActor0, kRuntime, "runtime", 0);
    spawn(kRuntime, kWorker0, "worker", 0);
    spawn(kRuntime, kWorker1, "worker", 1);
  }
  // The end of the channel to `child` that its parent holds; the child's is one more.
  std::uint64_t end_to(std::uint32_t child) const { return 2 * (numbers_.first_pid + child); }
  void write_to(std::uint32_t parent, std::uint32_t child, std::uint64_t bytes) {
    op(parent, Op::kChannelWrite, end_to(child), bytes);
  }
  void read_from(std::uint32_t parent, std::uint32_t child, std::uint64_t bytes) {
    op(parent, Op::kChannelRead, end_to(child), bytes);
  }
  void child_reads(std::uint32_t child, std::uint64_t bytes) {
    op(child, Op::kChannelRead, end_to(child) + 1, bytes);
  }
  void child_writes(std::uint32_t child, std::uint64_t bytes) {
    op(child, Op::kChannelWrite, end_to(child) + 1, bytes);
  }
  void phase(std::uint32_t actor, std::string_view name) {
    add(EventKind::kLog, actor, 0, 0, static_cast<std::uint64_t>(LogEvent::kPhaseEntered), name);
  }
  void enter(std::uint32_t actor, std::uint64_t call) {
    op(actor, Op::kControlWord, numbers_.group, call);
    add(EventKind::kGroupEnter, actor, numbers_.group, call, std::uint64_t{1} << 56 | 8);
  }
  void complete(std::uint32_t actor, std::uint64_t call) {
    add(EventKind::kGroupComplete, actor, numbers_.group, call);
  }
  void agree(std::uint64_t call) {
    enter(kActor0, call);
    enter(kActor1, call);
    complete(kActor0, call);
    complete(kActor1, call);
  }
  void fail_sync(std::uint32_t actor, std::string_view phase) {
    add(static_cast<std::uint16_t>(judge::Record::kCallEnd), actor,
        static_cast<std::uint64_t>(judge::Call::kSync), 0, 0,
        fmt::format(R"({{"kind":"{}","remedy":"{}","phase":"{}","rank":0,"subject":"runtime",)"
                    R"("detail":"of {}"}})",
                    to_string(ErrorKind::kEndOfFile), to_string(Remedy::kRebuildRuntime), phase,
                    numbers_.first_pid));
  }
  void fault(std::uint32_t process) {
    add(static_cast<std::uint16_t>(judge::Record::kFault), process, 0, 1, 0, "process.kill");
  }
  void exit(std::uint32_t process) { add(EventKind::kProcessExit, process); }

  sim::Trace trace;

 private:
  Numbers numbers_;
  std::int64_t now_;
};

// A command to the runtime that it passes on to both workers, and the replies.
void command(Tale& tale) {
  tale.write_to(kActor0, kRuntime, 100);
  tale.child_reads(kRuntime, 100);
  for (const std::uint32_t worker : {kWorker0, kWorker1}) {
    tale.write_to(kRuntime, worker, 50);
    tale.child_reads(worker, 50);
    tale.child_writes(worker, 20);
  }
  tale.read_from(kRuntime, kWorker0, 20);
  tale.read_from(kRuntime, kWorker1, 20);
  tale.child_writes(kRuntime, 40);
  tale.read_from(kActor0, kRuntime, 40);
}

std::vector<std::string> between(const Tale& one, const Tale& other) {
  return differences(project(one.trace), project(other.trace));
}

constexpr Numbers kOtherNumbers = {.first_pid = 77'123, .group = 9, .start = 1'000'000'000};

TEST(Projection, NumbersAndTimesOfAWorldAreNoDifference) {
  Tale one;
  Tale other(kOtherNumbers);
  for (Tale* tale : {&one, &other}) {
    tale->start_engine();
    tale->phase(kActor0, "native-init");
    command(*tale);
    tale->agree(0);
    tale->exit(kActor0);
  }
  EXPECT_THAT(between(one, other), IsEmpty());
  EXPECT_FALSE(project(one.trace).edges.empty());
}

TEST(Projection, AMessageIsOneStepHoweverItIsSplit) {
  Tale one;
  Tale other;
  for (Tale* tale : {&one, &other}) tale->start_engine();
  one.write_to(kActor0, kRuntime, 100);
  one.child_reads(kRuntime, 100);
  for (const std::uint64_t bytes : {1, 9, 90}) other.write_to(kActor0, kRuntime, bytes);
  for (const std::uint64_t bytes : {60, 40}) other.child_reads(kRuntime, bytes);
  EXPECT_THAT(between(one, other), IsEmpty());
}

TEST(Projection, RepliesOfTwoWorkersMayArriveInEitherOrder) {
  Tale one;
  Tale other;
  for (Tale* tale : {&one, &other}) {
    tale->start_engine();
    tale->child_writes(kWorker0, 20);
    tale->child_writes(kWorker1, 20);
  }
  one.read_from(kRuntime, kWorker0, 20);
  one.read_from(kRuntime, kWorker1, 20);
  other.read_from(kRuntime, kWorker1, 20);
  other.read_from(kRuntime, kWorker0, 20);
  EXPECT_THAT(between(one, other), IsEmpty());
}

TEST(Projection, AnotherOrderOfMessagesIsFound) {
  Tale one;
  Tale other;
  for (Tale* tale : {&one, &other}) tale->start_engine();
  one.write_to(kRuntime, kWorker0, 50);
  one.write_to(kRuntime, kWorker1, 50);
  other.write_to(kRuntime, kWorker1, 50);
  other.write_to(kRuntime, kWorker0, 50);
  for (Tale* tale : {&one, &other})
    for (const std::uint32_t worker : {kWorker0, kWorker1}) tale->child_reads(worker, 50);
  EXPECT_THAT(between(one, other),
              Contains(HasSubstr("runtime 0, step 3, after spawn worker 1: simulated send 1 to "
                                 "worker 0 (50 bytes), real send 1 to worker 1 (50 bytes)")));
}

TEST(Projection, AMissingMessageIsFoundWithItsEdge) {
  Tale one;
  Tale other;
  for (Tale* tale : {&one, &other}) {
    tale->start_engine();
    command(*tale);
  }
  command(one);
  const auto found = between(one, other);
  EXPECT_THAT(found, Contains(HasSubstr("real nothing more")));
  EXPECT_THAT(found, Contains("only simulated: actor 0: send 2 to runtime 0 before runtime 0: "
                              "receive 2 from actor 0"));
}

TEST(Projection, AMessageOfAnotherSizeIsFound) {
  Tale one;
  Tale other;
  for (Tale* tale : {&one, &other}) tale->start_engine();
  one.write_to(kActor0, kRuntime, 100);
  other.write_to(kActor0, kRuntime, 101);
  EXPECT_THAT(between(one, other), Contains(HasSubstr("(100 bytes), real send 1 to nobody (101")));
}

TEST(Projection, AnotherPhaseIsFound) {
  Tale one;
  Tale other;
  one.phase(kActor1, "native-init");
  other.phase(kActor1, "native-start");
  EXPECT_THAT(between(one, other),
              Contains("actor 1, step 1, after start (by the harness): simulated phase "
                       "native-init 0, real phase native-start 0"));
}

TEST(Projection, AProcessOfOneWorldOnlyIsFound) {
  Tale one;
  Tale other;
  one.start_engine();
  EXPECT_THAT(between(one, other), Contains("only simulated: worker 1"));
}

TEST(Projection, AnEventOfAnUnknownKindIsCompared) {
  Tale one;
  Tale other;
  one.add(EventKind::kViolation, kActor0, 7, 0, 0, "race.copy");
  EXPECT_THAT(between(one, other), Contains(HasSubstr("simulated violation (7 0 0 race.copy)")));
}

TEST(Projection, AnAgreementThatIsOverBeforeAllEnteredIsFoundInItsOwnTrace) {
  Tale one;
  Tale other;
  one.agree(0);
  other.enter(kActor0, 0);
  other.complete(kActor0, 0);
  other.enter(kActor1, 0);
  other.complete(kActor1, 0);
  EXPECT_THAT(between(one, other),
              Contains("real contradicts: actor 1: enter control group 1, call 1 before actor 0: "
                       "complete control group 1, call 1"));
}

TEST(Projection, AMessageThatIsReadBeforeItIsSentIsFoundInItsOwnTrace) {
  Tale one;
  Tale other;
  for (Tale* tale : {&one, &other}) tale->start_engine();
  one.write_to(kActor0, kRuntime, 100);
  one.child_reads(kRuntime, 100);
  other.child_reads(kRuntime, 100);
  other.write_to(kActor0, kRuntime, 100);
  EXPECT_THAT(between(one, other), Contains(HasSubstr("real contradicts: actor 0: send 1")));
}

// The runtime is killed at its second command, with actor 1 free to go on or not.
Tale killed_runtime(std::string_view actor_1_is_in, std::string_view failed_in) {
  Tale tale;
  tale.start_engine();
  tale.phase(kActor1, "native-init");
  tale.agree(0);
  tale.phase(kActor0, "native-start");
  tale.phase(kActor1, actor_1_is_in);
  tale.write_to(kActor0, kRuntime, 100);
  tale.child_reads(kRuntime, 100);
  tale.fault(kRuntime);
  tale.add(EventKind::kProcessKill, kRuntime, 9);
  tale.fail_sync(kActor0, failed_in);
  tale.exit(kActor0);
  tale.exit(kActor1);
  return tale;
}

std::vector<std::string> failures_between(const Tale& one, const Tale& other) {
  return differences(project_failures(one.trace), project_failures(other.trace));
}

TEST(ProjectionOfFailures, WhatASurvivorDidBesideTheFaultIsNoDifference) {
  const Tale one = killed_runtime("native-start", "native-start");
  const Tale other = killed_runtime("native-transfer", "native-start");
  EXPECT_THAT(failures_between(one, other), IsEmpty());
  EXPECT_FALSE(between(one, other).empty());
}

TEST(ProjectionOfFailures, AnotherFailureOfASurvivorIsFound) {
  const Tale one = killed_runtime("native-start", "native-start");
  const Tale other = killed_runtime("native-start", "native-init");
  EXPECT_THAT(failures_between(one, other),
              Contains(HasSubstr("phase native-start, rank 0, runtime), real return of sync")));
}

TEST(ProjectionOfFailures, AnotherPhaseInThePastOfTheFaultIsFound) {
  const Tale one = killed_runtime("native-start", "native-start");
  Tale other;
  other.start_engine();
  other.agree(0);  // actor 1 never entered native-init
  other.phase(kActor0, "native-start");
  other.write_to(kActor0, kRuntime, 100);
  other.child_reads(kRuntime, 100);
  other.fault(kRuntime);
  other.add(EventKind::kProcessKill, kRuntime, 9);
  other.fail_sync(kActor0, "native-start");
  other.exit(kActor0);
  other.exit(kActor1);
  EXPECT_THAT(failures_between(one, other),
              Contains(HasSubstr("actor 1, step 0, after nothing: simulated phase native-init")));
}

TEST(ProjectionOfFailures, AnotherEndOfAProcessIsFound) {
  const Tale one = killed_runtime("native-start", "native-start");
  Tale other = killed_runtime("native-start", "native-start");
  for (sim::Event& event : other.trace.events)
    if (event.kind == static_cast<std::uint16_t>(EventKind::kProcessKill))
      event.kind = static_cast<std::uint16_t>(EventKind::kProcessExit);
  EXPECT_THAT(failures_between(one, other),
              Contains(HasSubstr("simulated end (killed), real end (exit 9)")));
}

// "- `name`: reason", over as many lines as it takes.
std::vector<std::pair<std::string, std::string>> listed_differences() {
  std::ifstream file(std::string(TPSYNC_SOURCE_DIR) + "/sim/README.md");
  std::string page(std::istreambuf_iterator<char>(file), {});
  page.erase(0, page.find("## Accepted differences"));
  page.resize(page.find("\n## ", 1));
  std::vector<std::pair<std::string, std::string>> listed;
  for (std::size_t at = 0; (at = page.find("\n- `", at)) != std::string::npos;) {
    at += 4;
    const std::size_t name_end = page.find("`: ", at);
    const std::size_t end = std::min(page.find("\n- `", at), page.find("\n\n", at));
    std::string reason;
    for (const char letter : page.substr(name_end + 3, end - name_end - 3)) {
      const bool space = std::isspace(static_cast<unsigned char>(letter)) != 0;
      if (!space || (!reason.empty() && reason.back() != ' ')) reason += space ? ' ' : letter;
    }
    while (!reason.empty() && reason.back() == ' ') reason.pop_back();
    listed.emplace_back(page.substr(at, name_end - at), reason);
  }
  return listed;
}

TEST(AcceptedDifferences, AreThoseThatTheSimulatorsPageLists) {
  std::vector<std::pair<std::string, std::string>> accepted;
  for (const AcceptedDifference& difference : accepted_differences())
    accepted.emplace_back(difference.name, difference.reason);
  EXPECT_EQ(listed_differences(), accepted);
  EXPECT_FALSE(accepted.empty());
}

}  // namespace
}  // namespace tpsync::conformance
