#include "conformance/command/publication_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tpsync::conformance {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint64_t kTotal = 1000;

class Story {
 public:
  sim::Trace trace;

  void actor(std::uint32_t process, std::uint64_t rank) {
    sim::Event& event = add(sim::EventKind::kProcessStart, process);
    event.a = rank;
    event.text = trace.texts.intern("actor");
  }
  void preflight(std::uint32_t process, std::uint64_t free) {
    sim::Event& event = op(sim::Op::kDeviceMemory, process, "topology-memory-preflight");
    event.a = free;
    event.b = kTotal;
  }
  void gives_back(std::uint32_t process, std::uint64_t used) {
    op(sim::Op::kDeviceFree, process, "native-ipc-release").b = used;
  }

 private:
  sim::Event& add(sim::EventKind kind, std::uint32_t process) {
    sim::Event event;
    event.kind = static_cast<std::uint16_t>(kind);
    event.process = process;
    trace.events.push_back(event);
    return trace.events.back();
  }
  sim::Event& op(sim::Op op, std::uint32_t process, std::string_view phase) {
    sim::Event& event = add(sim::EventKind::kOp, process);
    event.op = static_cast<std::uint16_t>(op);
    event.phase = trace.texts.intern(phase);
    return event;
  }
};

TEST(DeviceUse, IsTheMostThatAnyPublicationNeededBeyondItsPreflight) {
  Story story;
  story.actor(0, 0);
  story.actor(1, 1);
  story.gives_back(0, 900);  // before any preflight
  story.preflight(0, 800);
  story.preflight(1, 700);
  story.gives_back(0, 210);
  story.gives_back(0, 260);
  story.gives_back(1, 290);  // less than before
  story.gives_back(7, 999);  // no actor
  story.preflight(0, 500);
  story.gives_back(0, 530);
  const std::vector<DeviceUse> uses = read_device_use(story.trace);
  ASSERT_THAT(uses, SizeIs(2));
  EXPECT_EQ(uses[0].rank, 0);
  EXPECT_EQ(uses[0].free_bytes, 800u);
  EXPECT_EQ(uses[0].more_bytes, 60u);
  EXPECT_EQ(uses[1].rank, 1);
  EXPECT_EQ(uses[1].more_bytes, 0u);
}

TEST(DeviceUse, IsUnknownWhereDevicesDoNotSayIt) {
  Story story;
  story.actor(0, 0);
  story.preflight(0, 800);
  story.gives_back(0, 0);
  EXPECT_THAT(read_device_use(story.trace), IsEmpty());
  EXPECT_EQ(device_use_table({}, 5), "");
}

TEST(DeviceUse, BeyondThePreflightIsSaidWithTheRank) {
  const std::vector<DeviceUse> uses = {{0, 800, 60}, {1, 800, 61}};
  EXPECT_THAT(beyond_preflight(uses, 61), IsEmpty());
  const auto sentences = beyond_preflight(uses, 60);
  ASSERT_THAT(sentences, SizeIs(1));
  EXPECT_THAT(sentences[0], HasSubstr("rank 1: 61 bytes more"));
  EXPECT_THAT(device_use_table(uses, 3 << 20), HasSubstr("3.0"));
}

}  // namespace
}  // namespace tpsync::conformance
