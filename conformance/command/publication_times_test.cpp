#include "conformance/command/publication_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace tpsync::conformance {
namespace {

using judge::Call;
using judge::Record;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr std::uint64_t kPhaseEntered = 1;  // as the trace's format numbers it
constexpr const char* kError = R"({"kind":"end of file"})";

class Story {
 public:
  sim::Trace trace;
  std::int64_t now = 0;

  void add(Record record, std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0,
           std::string_view text = {}) {
    add(static_cast<std::uint16_t>(record), a, b, c, text);
  }
  void begin(Call call) { add(Record::kCallBegin, static_cast<std::uint64_t>(call)); }
  void end(Call call, std::uint64_t version = 0) {
    add(Record::kCallEnd, static_cast<std::uint64_t>(call), 1, version);
  }
  void fail(Call call) { add(Record::kCallEnd, static_cast<std::uint64_t>(call), 0, 0, kError); }
  void call(Call call, std::int64_t ns) {
    begin(call);
    now += ns;
    op(0);
    end(call);
  }
  void phase(std::string_view name, std::uint64_t index, std::int64_t ns) {
    add(static_cast<std::uint16_t>(sim::EventKind::kLog), index, 0, kPhaseEntered, name);
    now += ns;
  }
  // An operation that begins now and lasts so long; time goes on with its end.
  void op(std::int64_t ns, std::uint32_t process = 0) {
    add(static_cast<std::uint16_t>(sim::EventKind::kOp), 0, 0, 0, {});
    now += ns;
    trace.events.back().end = now;
    trace.events.back().process = process;
  }

 private:
  void add(std::uint16_t kind, std::uint64_t a, std::uint64_t b, std::uint64_t c,
           std::string_view text) {
    sim::Event event;
    event.time = event.end = now;
    event.kind = kind;
    event.process = 0;
    event.a = a;
    event.b = b;
    event.c = c;
    event.text = trace.texts.intern(text);
    trace.events.push_back(event);
  }
};

Story two_chunks() {
  Story story;
  story.begin(Call::kSync);
  story.now += 1;
  story.phase("expected-schema", 0, 9);
  for (std::uint64_t chunk = 0; chunk < 2; ++chunk) {
    story.phase("native-materialize", chunk, 20);
    story.phase("native-transfer", chunk, 30);
  }
  story.op(5);
  story.now += 1000;  // of the harness
  story.end(Call::kSync, 7);
  return story;
}

TEST(PublicationTimes, PhasesOfChunksAreSummedAndAllPhasesAddUpToThePublication) {
  const auto rounds = read_rounds(two_chunks().trace);
  ASSERT_THAT(rounds, SizeIs(1));
  const Round& round = rounds[0];
  ASSERT_THAT(round.phases, SizeIs(3));
  EXPECT_EQ(round.phases[0].phase, "expected-schema");
  EXPECT_EQ(round.phases[0].ns, 10);  // with what came before it
  EXPECT_EQ(round.phases[1].phase, "native-materialize");
  EXPECT_EQ(round.phases[1].count, 2U);
  EXPECT_EQ(round.phases[1].ns, 40);
  EXPECT_EQ(round.phases[2].count, 2U);
  EXPECT_EQ(round.phases[2].ns, 65);
  ASSERT_NE(round.publication(), nullptr);
  EXPECT_EQ(round.publication()->ns, 115);  // without the harness's part
  EXPECT_TRUE(round.publication()->ok);
  EXPECT_EQ(round.version, 7);
}

TEST(PublicationTimes, ARoundBeginsWithTheSleepAfterAGeneration) {
  Story story;
  story.call(Call::kStartEngine, 100);
  story.call(Call::kSetup, 10);
  story.call(Call::kSleep, 1);
  story.call(Call::kWakeAll, 2);
  story.call(Call::kGenerate, 3);
  for (int version = 0; version < 2; ++version) {
    story.call(Call::kSleep, 4);
    story.call(Call::kWakeWeights, 5);
    story.call(Call::kSync, 6);
    story.call(Call::kWakeAll, 7);
    story.call(Call::kGenerate, 8);
  }
  const auto rounds = read_rounds(story.trace);
  ASSERT_THAT(rounds, SizeIs(3));
  EXPECT_EQ(rounds[0].publication(), nullptr);
  EXPECT_EQ(rounds[0].find(Call::kStartEngine)->ns, 100);
  EXPECT_EQ(rounds[0].find(Call::kSleep)->ns, 1);
  for (const std::size_t i : {1, 2}) {
    EXPECT_EQ(rounds[i].find(Call::kSleep)->ns, 4);
    EXPECT_EQ(rounds[i].find(Call::kWakeWeights)->ns, 5);
    EXPECT_EQ(rounds[i].publication()->ns, 6);
    EXPECT_EQ(rounds[i].find(Call::kWakeAll)->ns, 7);
    EXPECT_EQ(rounds[i].find(Call::kGenerate)->ns, 8);
  }
}

TEST(PublicationTimes, CallsOnABrokenEngineBelongToNoRound) {
  Story story;
  story.call(Call::kSleep, 4);
  story.begin(Call::kSync);
  story.phase("native-init", 0, 50);
  story.fail(Call::kSync);
  for (const Call refused : {Call::kGenerate, Call::kSleep, Call::kWakeAll}) {
    story.begin(refused);
    story.fail(refused);
  }
  story.call(Call::kStartEngine, 100);
  story.call(Call::kSetup, 10);
  story.call(Call::kSync, 6);
  story.call(Call::kGenerate, 8);
  const auto rounds = read_rounds(story.trace);
  ASSERT_THAT(rounds, SizeIs(2));
  EXPECT_FALSE(rounds[0].publication()->ok);
  EXPECT_TRUE(rounds[0].publication()->returned);
  EXPECT_EQ(rounds[0].error, kError);
  EXPECT_EQ(rounds[0].find(Call::kGenerate), nullptr);
  EXPECT_EQ(rounds[1].find(Call::kStartEngine)->ns, 100);
  EXPECT_TRUE(rounds[1].publication()->ok);
}

TEST(PublicationTimes, AProcessThatDiedInAPublicationLeavesThePhasesThatItReached) {
  Story story;
  story.begin(Call::kSync);
  story.phase("native-init", 0, 50);
  story.op(3);
  const auto rounds = read_rounds(story.trace);
  ASSERT_THAT(rounds, SizeIs(1));
  EXPECT_FALSE(rounds[0].publication()->returned);
  EXPECT_EQ(rounds[0].publication()->ns, 53);
  ASSERT_THAT(rounds[0].phases, SizeIs(1));
  EXPECT_EQ(rounds[0].phases[0].ns, 53);
  EXPECT_THAT(loop_table(rounds, {}), HasSubstr("(died)"));
}

TEST(PublicationTimes, OtherProcessesDoNotCount) {
  Story story = two_chunks();
  sim::Trace trace = std::move(story.trace);
  for (sim::Event& event : trace.events) event.process = 1;
  EXPECT_THAT(read_rounds(trace), SizeIs(0));
}

TEST(PublicationTimes, TheTableHasARowPerPhaseAndARateInRealTimeAlone) {
  const auto rounds = read_rounds(two_chunks().trace);
  const std::string real = phase_table(rounds[0], {.bytes = 230, .chunks = 2, .real_time = true});
  EXPECT_THAT(real, HasSubstr("version 7"));
  EXPECT_THAT(real, HasSubstr("native-materialize"));
  EXPECT_THAT(real, HasSubstr("34.8 %"));
  EXPECT_THAT(real, HasSubstr("230 bytes in 2 chunks, 2 GB/s"));
  const std::string simulated = phase_table(rounds[0], {.bytes = 230, .chunks = 2});
  EXPECT_THAT(simulated, Not(HasSubstr("GB/s")));
}

TEST(PublicationTimes, RatesAndSharesOfNoTimeAreZero) {
  EXPECT_EQ(gigabytes_per_second(5, 0), 0);
  EXPECT_EQ(percent_of(5, 0), 0);
  EXPECT_EQ(gigabytes_per_second(3'000'000'000, 1'000'000'000), 3);
  EXPECT_EQ(percent_of(1, 4), 25);
}

}  // namespace
}  // namespace tpsync::conformance
