// Situations read out of small traces: each test tells a story and says which states it was in.
#include "conformance/judge/situations.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "conformance/judge/situation_count.h"

namespace tpsync::judge {
namespace {

using sim::EventKind;
using sim::Op;

class Story {
 public:
  sim::Event& event(std::uint16_t kind, std::uint32_t process) {
    sim::Event& event = trace_.events.emplace_back();
    event.time = static_cast<std::int64_t>(trace_.events.size()) * 1000;
    event.end = event.time;
    event.kind = kind;
    event.process = process;
    return event;
  }
  sim::Event& event(EventKind kind, std::uint32_t process) {
    return event(static_cast<std::uint16_t>(kind), process);
  }
  sim::Event& operation(Op op, std::uint32_t process, std::uint64_t a, std::uint64_t b) {
    sim::Event& made = event(EventKind::kOp, process);
    made.op = static_cast<std::uint16_t>(op);
    made.a = a;
    made.b = b;
    return made;
  }
  std::uint32_t process(std::string_view role, std::uint64_t rank, std::uint32_t parent) {
    sim::Event& start = event(EventKind::kProcessStart, processes_);
    start.text = trace_.texts.intern(role);
    start.a = rank;
    start.b = parent;
    return processes_++;
  }
  sim::Trace& trace() { return trace_; }

  SituationSet reached() {
    View view;
    view.read(trace_);
    return reader_.read(view);
  }
  bool reaches(Situation situation) { return (reached() & bit_of(situation)) != 0; }

 private:
  sim::Trace trace_;
  std::uint32_t processes_ = 0;
  SituationReader reader_;
};

TEST(Situations, HaveDistinctIdsInTheOrderOfTheirNumbers) {
  std::set<std::string_view> ids;
  std::size_t number = 0;
  for (const SituationRow& row : all_situations()) {
    EXPECT_EQ(static_cast<std::size_t>(row.situation), number++) << row.id;
    EXPECT_TRUE(ids.insert(row.id).second) << row.id;
    EXPECT_TRUE(row.what.ends_with('.')) << row.id;
  }
  EXPECT_GE(ids.size(), 40u);
}

TEST(Situations, AnEmptyTraceReachesNone) { EXPECT_EQ(Story().reached(), 0u); }

TEST(Situations, AnEndBehindBytesIsOneOnlyWhileTheyAreUnread) {
  for (const bool read : {false, true}) {
    Story story;
    const auto actor = story.process("actor", 0, 0);
    const auto runtime = story.process("runtime", 0, 1);
    story.operation(Op::kChannelWrite, runtime, 3, 10);
    if (read) story.operation(Op::kChannelRead, actor, 2, 10);
    story.event(EventKind::kChannelEnd, runtime).a = 3;
    EXPECT_EQ(story.reaches(Situation::kEndBehindBytes), !read);
  }
}

TEST(Situations, ACollectiveThatFailsOnAllItsRanksIsNotPartial) {
  for (const bool partial : {false, true}) {
    Story story;
    for (std::uint64_t rank = 0; rank < 2; ++rank) story.process("actor", rank, 0);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      sim::Event& enter = story.event(EventKind::kGroupEnter, rank);
      enter.a = 1;
      enter.b = 7;
    }
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      sim::Event& end = story.event(
          partial && rank == 0 ? EventKind::kGroupComplete : EventKind::kGroupFail, rank);
      end.a = 1;
      end.b = 7;
    }
    EXPECT_EQ(story.reaches(Situation::kCollectivePartial), partial);
  }
}

TEST(Situations, AnAddressIsReusedOnceItsMemoryWasFreed) {
  Story story;
  const auto actor = story.process("actor", 0, 0);
  const auto memory = [&](EventKind kind, std::uint64_t key, std::uint64_t b) {
    sim::Event& event = story.event(kind, actor);
    event.a = key;
    event.b = b;
  };
  memory(EventKind::kDeviceAllocated, 1, 4096);
  memory(EventKind::kDeviceAllocated, 2, 8192);
  EXPECT_FALSE(story.reaches(Situation::kAddressReused));
  memory(EventKind::kDeviceImported, 1, 1);
  memory(EventKind::kDeviceFreed, 1, 1);  // one import is open
  EXPECT_TRUE(story.reaches(Situation::kFreedWhileMapped));
  memory(EventKind::kDeviceAllocated, 3, 4096);
  EXPECT_TRUE(story.reaches(Situation::kAddressReused));
  EXPECT_TRUE(story.reaches(Situation::kAddressReusedWhileMapped));
}

TEST(Situations, CountsAddUp) {
  SituationCount one;
  one.add(bit_of(Situation::kCommitted) | bit_of(Situation::kFaultInRelease));
  one.add(bit_of(Situation::kCommitted));
  SituationCount both = one;
  both.merge(one);
  EXPECT_EQ(both.runs(Situation::kCommitted), 4u);
  EXPECT_EQ(both.runs(Situation::kFaultInRelease), 2u);
  EXPECT_EQ(both.reached(), 2u);
}

}  // namespace
}  // namespace tpsync::judge
