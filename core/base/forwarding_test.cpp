// Wrappers around real objects: what goes in comes out, ownership included.
#include "tpsync/base/forwarding.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tpsync/base/os_world.h"
#include "tpsync/base/spdlog_sink.h"

namespace tpsync {
namespace {

// The unwrapping that a decorator of the factory does.
class WrappingFactory final : public ForwardingChannelFactory {
 public:
  using ForwardingChannelFactory::ForwardingChannelFactory;
  std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_pair() override {
    auto [one, other] = ForwardingChannelFactory::make_pair();
    return {std::make_unique<ForwardingChannel>(std::move(one)),
            std::make_unique<ForwardingChannel>(std::move(other))};
  }
  std::size_t wait_readable(std::span<Channel* const> channels, Deadline deadline) override {
    std::vector<Channel*> inner;
    for (Channel* channel : channels) {
      inner.push_back(&static_cast<ForwardingChannel*>(channel)->inner());
    }
    return ForwardingChannelFactory::wait_readable(inner, deadline);
  }
};

TEST(Forwarding, ChannelsOfAWrappedFactoryWorkAndCloseWithTheirWrapper) {
  OsChannelFactory factory;
  WrappingFactory wrapped(factory);
  auto [one, other] = wrapped.make_pair();
  one->write_some(as_view("text"), Deadline::never());
  const std::array<Channel*, 1> channels{other.get()};
  EXPECT_EQ(wrapped.wait_readable(channels, Deadline::never()), 0u);
  ByteBuffer into(16);
  EXPECT_EQ(other->read_some(into, Deadline::never()), 4u);
  one.reset();
  EXPECT_EQ(other->read_some(into, Deadline::never()), 0u);
}

TEST(Forwarding, ReleaseHandsAnOwnedObjectOverAndABorrowedOneStays) {
  OsChannelFactory factory;
  auto [one, other] = factory.make_pair();
  Channel* raw = one.get();
  ForwardingChannel owning(std::move(one));
  ForwardingChannel borrowing(*other);
  EXPECT_EQ(owning.release().get(), raw);
  EXPECT_EQ(borrowing.release(), nullptr);
}

TEST(Forwarding, EverySeamOfAWorldCanBeWrapped) {
  SpdlogOptions options;
  options.minimum = LogLevel::kError;
  const auto log = make_spdlog_log(options);
  OsWorld os(*log);
  World inner = os.world();
  ForwardingClock clock(inner.clock);
  ForwardingChannelFactory channels(inner.channels);
  ForwardingProcessLauncher processes(inner.processes);
  ForwardingHost host(inner.host);
  ForwardingRandom random(inner.random);
  ForwardingLog wrapped_log(inner.log);
  ForwardingThreads threads(inner.threads);
  World world{clock, channels, processes, host, random, wrapped_log, threads};

  const TimePoint before = inner.clock.now();
  EXPECT_LE(before, world.clock.now());
  EXPECT_EQ(world.host.pid(), inner.host.pid());
  EXPECT_EQ(world.host.host_name(), inner.host.host_name());
  EXPECT_EQ(world.host.boot_id(), inner.host.boot_id());
  EXPECT_EQ(world.host.environment("PATH"), inner.host.environment("PATH"));
  EXPECT_EQ(world.host.environment(), inner.host.environment());
  EXPECT_TRUE(world.log.wants(LogLevel::kError));
  EXPECT_FALSE(world.log.wants(LogLevel::kWarning));
  ByteBuffer bytes(32);
  world.random.fill(bytes);
  EXPECT_NE(bytes, ByteBuffer(32));
  const auto self = world.processes.attach(world.host.pid());
  ASSERT_NE(self, nullptr);
  EXPECT_EQ(ForwardingProcess(*self).pid(), world.host.pid());

  ForwardingMutex mutex(world.threads.make_mutex());
  ForwardingCondition condition(world.threads.make_condition());
  bool done = false;
  ForwardingThread thread(world.threads.spawn("worker", [&] {
    const MutexLock lock(mutex);
    done = true;
    condition.notify_all();
  }));
  {
    const MutexLock lock(mutex);
    while (!done) condition.wait(mutex.inner(), Deadline::never());
  }
  thread.join();
}

}  // namespace
}  // namespace tpsync
