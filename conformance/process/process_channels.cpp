#include "conformance/process/process_channels.h"

#include <unistd.h>

#include <array>
#include <vector>

namespace tpsync::conformance {

using sim::Op;

namespace {

constexpr std::size_t kDrainBytes = 4096;

class TracedChannel final : public ForwardingChannel {
 public:
  TracedChannel(std::unique_ptr<Channel> inner, ProcessTracer& tracer)
      : ForwardingChannel(std::move(inner)), tracer_(tracer) {}
  ~TracedChannel() override {
    if (!closed_) close();
  }
  void set_end(std::uint64_t end) { end_ = end; }
  std::unique_ptr<Channel> hand_over() {
    closed_ = true;  // as far as this process is concerned
    return release();
  }

  std::size_t read_some(MutableByteView into, Deadline deadline) override {
    return tracer_.run(Op::kChannelRead, end_, 0, 0, [&](sim::Event& event) {
      const std::size_t count = inner().read_some(into, deadline);
      event.b = count;
      event.c = hash_of_bytes(into.first(count));
      return count;
    });
  }

  std::size_t write_some(ByteView from, Deadline deadline) override {
    return tracer_.run(Op::kChannelWrite, end_, 0, 0, [&](sim::Event& event) {
      const std::size_t count = inner().write_some(from, deadline);
      event.b = count;
      event.c = hash_of_bytes(from.first(count));
      return count;
    });
  }

  void close() noexcept override {
    if (std::exchange(closed_, true)) return inner().close();
    auto operation = tracer_.begin(Op::kChannelClose, end_);
    inner().close();
    tracer_.finish(operation);
  }

 private:
  ProcessTracer& tracer_;
  std::uint64_t end_ = 0;
  bool closed_ = false;
};

// Only the wait that saw the end is on record: how often others looked before is a matter of time.
class TracedProcess final : public ForwardingProcess {
 public:
  TracedProcess(std::unique_ptr<Process> inner, ProcessTracer& tracer)
      : ForwardingProcess(std::move(inner)), tracer_(tracer) {}

  std::optional<ExitStatus> wait(Deadline deadline) noexcept override {
    const auto status = inner().wait(deadline);
    if (!status || std::exchange(known_, true)) return status;
    auto operation =
        tracer_.begin(Op::kProcessWait, static_cast<std::uint64_t>(pid()),
                      static_cast<std::uint64_t>(status->code), status->signaled ? 1 : 0);
    tracer_.finish(operation);
    return status;
  }

 private:
  ProcessTracer& tracer_;
  bool known_ = false;
};

}  // namespace

// What core holds.
class WorldChannel final : public Channel {
 public:
  using Readiness = faults::HasReadiness::Readiness;

  WorldChannel(std::unique_ptr<Channel> system, ProcessTracer& tracer) : system_(system.get()) {
    auto traced = std::make_unique<TracedChannel>(std::move(system), tracer);
    traced_ = traced.get();
    top_ = std::move(traced);
  }
  ~WorldChannel() override { connect(nullptr); }
  WorldChannel(const WorldChannel&) = delete;
  WorldChannel& operator=(const WorldChannel&) = delete;

  std::size_t read_some(MutableByteView into, Deadline deadline) override {
    return top_->read_some(into, deadline);
  }
  std::size_t write_some(ByteView from, Deadline deadline) override {
    return top_->write_some(from, deadline);
  }
  void send_descriptors(std::span<const int> descriptors, Deadline deadline) override {
    top_->send_descriptors(descriptors, deadline);
  }
  std::vector<int> receive_descriptors(std::size_t count, Deadline deadline) override {
    return top_->receive_descriptors(count, deadline);
  }
  void close() noexcept override { top_->close(); }

  void decorate(const ChannelDecorator& decorate, faults::PeerName peer) {
    if (!decorate) return;
    auto decorated = decorate(std::move(peer), top_);
    if (!decorated) return;
    readiness_ = decorated.get();
    top_ = std::move(decorated);
  }

  // The other end, while both are of this process.
  void connect(WorldChannel* other) {
    if (other_ != nullptr) other_->other_ = nullptr;
    other_ = other;
    if (other_ != nullptr) other_->other_ = this;
  }
  WorldChannel* other() const { return other_; }

  void set_end(std::uint64_t end) { traced_->set_end(end); }
  Channel& system() { return *system_; }
  std::unique_ptr<Channel> release() { return traced_->hand_over(); }
  Readiness readiness() const {
    return readiness_ != nullptr ? readiness_->readiness() : Readiness::kAsInner;
  }
  // Takes what has arrived and forgets it; true at end of file.
  bool drain(Deadline deadline) {
    std::array<std::byte, kDrainBytes> lost;
    return system_->read_some(lost, deadline) == 0;
  }

 private:
  std::unique_ptr<Channel> top_;
  TracedChannel* traced_ = nullptr;
  Channel* system_;
  faults::HasReadiness* readiness_ = nullptr;
  WorldChannel* other_ = nullptr;
};

std::unique_ptr<WorldChannel> TracedChannels::make(std::unique_ptr<Channel> system) {
  return std::make_unique<WorldChannel>(std::move(system), tracer_);
}

std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> TracedChannels::make_pair() {
  auto [one_end, other_end] = inner_.make_pair();
  auto one = make(std::move(one_end));
  auto other = make(std::move(other_end));
  one->connect(other.get());
  return {std::move(one), std::move(other)};
}

std::unique_ptr<Channel> TracedChannels::inherited(faults::PeerName peer) {
  auto channel = make(inner_.adopt(kInheritedChannelDescriptor));
  channel->set_end(2 * static_cast<std::uint64_t>(getpid()) + 1);
  channel->decorate(decorate_, std::move(peer));
  return channel;
}

WorldChannel* TracedChannels::hand_over(std::unique_ptr<Channel>& channel, faults::PeerName peer) {
  auto& end = static_cast<WorldChannel&>(*channel);
  WorldChannel* const kept = end.other();
  if (kept != nullptr) kept->decorate(decorate_, std::move(peer));
  channel = end.release();
  return kept;
}

void TracedChannels::name_end(WorldChannel& kept, std::int64_t child_pid) {
  kept.set_end(2 * static_cast<std::uint64_t>(child_pid));
}

std::size_t TracedChannels::wait_readable(std::span<Channel* const> channels, Deadline deadline) {
  using Readiness = WorldChannel::Readiness;
  const std::size_t count = channels.size();
  std::vector<Channel*> system;
  std::size_t forced = count;  // a channel that a fault makes readable
  for (std::size_t i = 0; i < count; ++i) {
    auto& channel = static_cast<WorldChannel&>(*channels[i]);
    system.push_back(&channel.system());
    if (channel.readiness() == Readiness::kReadable && forced == count) forced = i;
  }
  return tracer_.run(Op::kChannelWaitReadable, count, count, 0, [&](sim::Event& event) {
    event.c = forced;
    while (forced == count) {
      event.c = inner_.wait_readable(system, deadline);
      if (event.c == count) break;
      auto& ready = static_cast<WorldChannel&>(*channels[event.c]);
      if (ready.readiness() != Readiness::kOnlyEndOfFile || ready.drain(deadline)) break;
    }
    return static_cast<std::size_t>(event.c);
  });
}

std::unique_ptr<Process> TracedLauncher::spawn(SpawnRequest request) {
  WorldChannel* kept = nullptr;
  if (request.channel) kept = channels_.hand_over(request.channel, peer_of_(request));
  return tracer_.run(Op::kProcessSpawn, 0, 0, 0, [&](sim::Event& event) {
    auto child = inner().spawn(std::move(request));
    event.a = static_cast<std::uint64_t>(child->pid());
    if (kept != nullptr) TracedChannels::name_end(*kept, child->pid());
    return std::unique_ptr<Process>(std::make_unique<TracedProcess>(std::move(child), tracer_));
  });
}

std::unique_ptr<Process> TracedLauncher::attach(std::int64_t pid) {
  return tracer_.run(Op::kProcessAttach, static_cast<std::uint64_t>(pid), 0, 0,
                     [&](sim::Event& event) {
                       auto process = inner().attach(pid);
                       event.c = process ? 1 : 0;
                       return process;
                     });
}

}  // namespace tpsync::conformance
