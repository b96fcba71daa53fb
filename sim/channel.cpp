// Simulated channels: see the header for their rules.
#include "sim/channel.h"

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "sim/sanitizers.h"

namespace tpsync::sim {

bool Pipe::timer_live(std::uint64_t) const {
  return !readers.empty() || (reader != nullptr && !reader->readable().empty());
}

void Pipe::on_timer(std::uint64_t) {
  world->scheduler().wake(readers);
  if (reader != nullptr) world->scheduler().wake(reader->readable());
}

bool Pipe::readable(std::int64_t now) const {
  if (!empty()) return segments[first].arrival <= now;
  return writer_closed && end_arrival <= now;
}

std::int64_t Pipe::next_change() const {
  if (!empty()) return segments[first].arrival;
  return writer_closed ? end_arrival : INT64_MAX;
}

// What decorators wrap: the channel without its decorator.
class SimChannel::Raw final : public Channel {
 public:
  explicit Raw(SimChannel& channel) : channel_(channel) {}
  std::size_t read_some(MutableByteView into, Deadline deadline) override {
    return channel_.raw_read(into, deadline);
  }
  std::size_t write_some(ByteView from, Deadline deadline) override {
    return channel_.raw_write(from, deadline);
  }
  void send_descriptors(std::span<const int> descriptors, Deadline deadline) override {
    channel_.raw_send(descriptors, deadline);
  }
  std::vector<int> receive_descriptors(std::size_t count, Deadline deadline) override {
    return channel_.raw_receive(count, deadline);
  }
  void close() noexcept override { channel_.raw_close(); }

 private:
  SimChannel& channel_;
};

std::size_t SimChannel::read_some(MutableByteView into, Deadline deadline) {
  return decorator_ ? decorator_->read_some(into, deadline) : raw_read(into, deadline);
}
std::size_t SimChannel::write_some(ByteView from, Deadline deadline) {
  return decorator_ ? decorator_->write_some(from, deadline) : raw_write(from, deadline);
}
void SimChannel::send_descriptors(std::span<const int> descriptors, Deadline deadline) {
  if (decorator_)
    decorator_->send_descriptors(descriptors, deadline);
  else
    raw_send(descriptors, deadline);
}
std::vector<int> SimChannel::receive_descriptors(std::size_t count, Deadline deadline) {
  return decorator_ ? decorator_->receive_descriptors(count, deadline)
                    : raw_receive(count, deadline);
}
void SimChannel::close() noexcept {
  if (decorator_ && !closing_) {
    closing_ = true;
    decorator_->close();
  }
  raw_close();
}

Pipe& SimChannel::incoming() { return system_.links_[link_]->pipes[side_]; }
Pipe& SimChannel::outgoing() { return system_.links_[link_]->pipes[1 - side_]; }

std::size_t SimChannel::raw_read(MutableByteView into, Deadline deadline) {
  const HarnessAccess harness;
  SimProcess& process = *owner_;
  SimWorld& world = system_.world_;
  TPSYNC_ASSERT(!into.empty());
  const std::size_t op = process.begin(Op::kChannelRead, id());
  Pipe& pipe = incoming();
  for (;;) {
    if (pipe.reader_closed) process.fail(op, ErrorKind::kIo, "channel", "this end is closed");
    if (pipe.readable(world.now())) break;
    if (deadline.passed(TimePoint{world.now()}))
      process.fail(op, ErrorKind::kTimeout, "channel", "no byte came before the deadline");
    const std::int64_t change = pipe.next_change();
    if (change != INT64_MAX) world.scheduler().add_timer(change, pipe, 0);
    process.block(pipe.readers, deadline);
  }
  if (pipe.empty()) {  // end of file
    process.finish(op);
    return 0;
  }
  if (pipe.segments[pipe.first].bytes == 0) {
    process.refuse(op, "channel", "descriptors are next, not bytes");
  }
  std::size_t limit = into.size();
  const SimConfig& config = world.config();
  if (config.cruelty.short_io && limit > 1) {
    const std::uint64_t word = draw(config.seed, pipe.key, Purpose::kShortRead, pipe.reads++);
    if (below(word, 1000) < config.short_io_per_mille)
      limit = 1 + below(mix(word), std::min(limit, pipe.occupied()));
  }
  std::size_t count = 0;
  while (count < limit && !pipe.empty()) {
    Pipe::Segment& segment = pipe.segments[pipe.first];
    if (segment.bytes == 0 || segment.arrival > world.now()) break;
    const std::size_t take = std::min(segment.bytes, limit - count);
    process.clock().join(segment.clock);
    count += take;
    segment.bytes -= take;
    if (segment.bytes == 0) ++pipe.first;
  }
  std::memcpy(into.data(), pipe.buffer.data() + pipe.head, count);
  pipe.head += count;
  if (pipe.head == pipe.buffer.size()) {
    pipe.buffer.clear();
    pipe.head = 0;
  }
  if (pipe.empty()) {
    pipe.segments.clear();
    pipe.first = 0;
  }
  sanitizer_acquire(&pipe);
  world.scheduler().wake(pipe.writers);
  Event& event = process.event(op);
  event.b = count;
  event.c = XXH3_64bits(into.data(), count);
  process.finish(op);
  return count;
}

std::size_t SimChannel::raw_write(ByteView from, Deadline deadline) {
  const HarnessAccess harness;
  SimProcess& process = *owner_;
  SimWorld& world = system_.world_;
  const SimConfig& config = world.config();
  TPSYNC_ASSERT(!from.empty());
  const std::size_t op = process.begin(Op::kChannelWrite, id());
  Pipe& pipe = outgoing();
  for (;;) {
    if (pipe.writer_closed) process.fail(op, ErrorKind::kIo, "channel", "this end is closed");
    if (pipe.reader_closed)
      process.fail(op, ErrorKind::kEndOfFile, "channel", "the other end is closed");
    if (pipe.occupied() < config.pipe_capacity) break;
    if (deadline.passed(TimePoint{world.now()}))
      process.fail(op, ErrorKind::kTimeout, "channel", "no byte was taken before the deadline");
    process.block(pipe.writers, deadline);
  }
  std::size_t count = std::min<std::size_t>(from.size(), config.pipe_capacity - pipe.occupied());
  if (config.cruelty.short_io && count > 1) {
    const std::uint64_t word = draw(config.seed, pipe.key, Purpose::kShortWrite, pipe.shorts++);
    if (below(word, 1000) < config.short_io_per_mille) count = 1 + below(mix(word), count);
  }
  const std::int64_t latency =
      config.cruelty.latency
          ? within(draw(config.seed, pipe.key, Purpose::kChannelLatency, pipe.writes++),
                   config.channel_latency_ns)
          : 0;
  pipe.last_arrival = std::max(pipe.last_arrival, world.now() + latency);
  if (pipe.head > 4096 && pipe.head * 2 > pipe.buffer.size()) {
    pipe.buffer.erase(pipe.buffer.begin(),
                      pipe.buffer.begin() + static_cast<std::ptrdiff_t>(pipe.head));
    pipe.head = 0;
  }
  pipe.buffer.insert(pipe.buffer.end(), from.begin(),
                     from.begin() + static_cast<std::ptrdiff_t>(count));
  Pipe::Segment& segment = pipe.segments.emplace_back();
  segment.arrival = pipe.last_arrival;
  segment.bytes = count;
  process.release_clock(segment.clock);
  sanitizer_release(&pipe);
  if (pipe.timer_live(0)) world.scheduler().add_timer(segment.arrival, pipe, 0);
  Event& event = process.event(op);
  event.b = count;
  event.c = XXH3_64bits(from.data(), count);
  process.finish(op);
  return count;
}

void SimChannel::raw_send(std::span<const int> descriptors, Deadline) {
  const HarnessAccess harness;
  SimProcess& process = *owner_;
  SimWorld& world = system_.world_;
  const std::size_t op = process.begin(Op::kChannelSendDescriptors, id(), descriptors.size());
  Pipe& pipe = outgoing();
  if (pipe.writer_closed) process.fail(op, ErrorKind::kIo, "channel", "this end is closed");
  if (pipe.reader_closed)
    process.fail(op, ErrorKind::kEndOfFile, "channel", "the other end is closed");
  std::uint64_t hash = 0;
  for (const int descriptor : descriptors) {
    const auto object = process.descriptor_object(descriptor);
    if (!object) process.fail(op, ErrorKind::kIo, "channel", "no such descriptor");
    hash = mix(hash ^ *object);
  }
  pipe.last_arrival = std::max(pipe.last_arrival, world.now());
  for (const int descriptor : descriptors) {
    Pipe::Segment& segment = pipe.segments.emplace_back();
    segment.arrival = pipe.last_arrival;
    segment.object = *process.descriptor_object(descriptor);
    process.release_clock(segment.clock);
  }
  sanitizer_release(&pipe);
  if (pipe.timer_live(0)) world.scheduler().add_timer(pipe.last_arrival, pipe, 0);
  process.event(op).c = hash;
  process.finish(op);
}

std::vector<int> SimChannel::raw_receive(std::size_t count, Deadline deadline) {
  const HarnessAccess harness;
  SimProcess& process = *owner_;
  SimWorld& world = system_.world_;
  const std::size_t op = process.begin(Op::kChannelReceiveDescriptors, id(), count);
  Pipe& pipe = incoming();
  std::vector<int> received;
  std::uint64_t hash = 0;
  while (received.size() < count) {
    if (pipe.reader_closed) process.fail(op, ErrorKind::kIo, "channel", "this end is closed");
    if (pipe.readable(world.now())) {
      if (pipe.empty())
        process.fail(op, ErrorKind::kEndOfFile, "channel", "the other end is closed");
      Pipe::Segment& segment = pipe.segments[pipe.first];
      if (segment.bytes != 0) {
        process.refuse(op, "channel", "bytes are next, not descriptors");
      }
      process.clock().join(segment.clock);
      hash = mix(hash ^ segment.object);
      const std::uint64_t object = segment.object;
      ++pipe.first;
      if (pipe.empty()) {
        pipe.segments.clear();
        pipe.first = 0;
      }
      received.push_back(process.open_descriptor(object));
      continue;
    }
    if (deadline.passed(TimePoint{world.now()}))
      process.fail(op, ErrorKind::kTimeout, "channel", "no descriptor came before the deadline");
    const std::int64_t change = pipe.next_change();
    if (change != INT64_MAX) world.scheduler().add_timer(change, pipe, 0);
    process.block(pipe.readers, deadline);
  }
  sanitizer_acquire(&pipe);
  process.event(op).c = hash;
  process.finish(op);
  return received;
}

void SimChannel::raw_close() noexcept {
  const HarnessAccess harness;
  ChannelSystem::Link& link = *system_.links_[link_];
  if (link.closed[side_]) {
    if (link.ends[side_] == this) link.ends[side_] = nullptr;
    return;
  }
  const auto op = owner_->begin_quiet(Op::kChannelClose, id());
  if (link.ends[side_] == this) link.ends[side_] = nullptr;
  if (!op) return;
  if (!link.closed[side_]) system_.close_end(link_, side_, 1);
  owner_->finish(*op);
}

ChannelSystem::~ChannelSystem() {
  for (auto& link : links_)
    for (Pipe& pipe : link->pipes) world_.pools().give_buffer(std::move(pipe.buffer));
}

std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> ChannelSystem::make_pair(
    SimProcess& owner) {
  const HarnessAccess harness;
  const std::size_t op = owner.begin(Op::kChannelPair);
  const std::size_t index = links_.size();
  Link& link = *links_.emplace_back(std::make_unique<Link>());
  std::unique_ptr<SimChannel> ends[2];
  for (int side = 0; side < 2; ++side) {
    Pipe& pipe = link.pipes[side];
    pipe.world = &world_;
    pipe.reader = &owner;
    pipe.buffer = world_.pools().take_buffer(0);
    pipe.key = mix(owner.key() ^ (index * 2 + static_cast<std::size_t>(side) + 1));
    link.owners[side] = &owner;
    ends[side] = std::make_unique<SimChannel>(*this, index, side, owner);
    link.ends[side] = ends[side].get();
  }
  Event& event = owner.event(op);
  event.a = index * 2;
  event.b = index * 2 + 1;
  owner.finish(op);
  return {std::move(ends[0]), std::move(ends[1])};
}

std::size_t ChannelSystem::wait_readable(SimProcess& process, std::span<Channel* const> channels,
                                         Deadline deadline) {
  const HarnessAccess harness;
  const std::size_t op = process.begin(Op::kChannelWaitReadable, channels.size(), channels.size());
  using Readiness = ReadinessOverride::Readiness;
  for (;;) {
    std::int64_t change = INT64_MAX;
    for (std::size_t i = 0; i < channels.size(); ++i) {
      auto& channel = static_cast<SimChannel&>(*channels[i]);
      Pipe& pipe = channel.incoming();
      const Readiness readiness =
          channel.readiness_ != nullptr ? channel.readiness_->readiness() : Readiness::kAsInner;
      if (readiness == Readiness::kOnlyEndOfFile && !pipe.writer_closed && !pipe.reader_closed)
        continue;
      if (readiness == Readiness::kReadable || pipe.reader_closed || pipe.readable(world_.now())) {
        process.event(op).a = channel.id();
        process.event(op).c = i;
        process.finish(op);
        return i;
      }
      const std::int64_t next = pipe.next_change();
      if (next < change) change = next;
    }
    if (deadline.passed(TimePoint{world_.now()})) {
      process.finish(op, static_cast<std::uint16_t>(ErrorKind::kTimeout));
      return channels.size();
    }
    // A timer of its own: whatever arrives first wakes the whole wait.
    if (change != INT64_MAX) {
      for (Channel* const listed : channels) {
        Pipe& pipe = static_cast<SimChannel&>(*listed).incoming();
        if (pipe.next_change() == change) {
          world_.scheduler().add_timer(change, pipe, 0);
          break;
        }
      }
    }
    process.block(process.readable(), deadline);
  }
}

void ChannelSystem::wrap(SimChannel& channel, SimProcess& owner, const SimProcess& peer) {
  if (!world_.hooks().wrap_channel) return;
  channel.decorator_ = world_.hooks().wrap_channel(owner, PeerName{peer.role(), peer.rank()},
                                                   std::make_unique<SimChannel::Raw>(channel));
  channel.readiness_ = dynamic_cast<ReadinessOverride*>(channel.decorator_.get());
}

std::unique_ptr<Channel> ChannelSystem::hand_over(std::unique_ptr<Channel> channel,
                                                  SimProcess& child) {
  auto* end = static_cast<SimChannel*>(channel.get());
  SimProcess& parent = end->owner();
  Link& link = *links_[end->link_];
  end->owner_ = &child;
  link.owners[end->side_] = &child;
  link.pipes[end->side_].reader = &child;
  wrap(*end, child, parent);
  SimChannel* other = link.ends[1 - end->side_];
  if (other != nullptr) wrap(*other, other->owner(), child);
  return channel;
}

void ChannelSystem::close_end(std::size_t index, int side, std::uint64_t why) {
  Link& link = *links_[index];
  link.closed[side] = true;
  Pipe& in = link.pipes[side];
  Pipe& out = link.pipes[1 - side];
  world_.record_for(link.owners[side], EventKind::kChannelEnd,
                    index * 2 + static_cast<std::uint64_t>(side), why);
  in.reader_closed = true;
  out.writer_closed = true;
  const SimConfig& config = world_.config();
  const std::int64_t latency =
      config.cruelty.latency
          ? within(draw(config.seed, out.key, Purpose::kChannelLatency, out.writes++),
                   config.channel_latency_ns)
          : 0;
  out.end_arrival = std::max(out.last_arrival, world_.now() + latency);
  world_.scheduler().wake(in.writers);  // the other process: it gets an error now
  world_.scheduler().wake(in.readers);  // another thread of this process
  world_.scheduler().wake(out.writers);
  if (out.timer_live(0)) world_.scheduler().add_timer(out.next_change(), out, 0);
}

void ChannelSystem::process_ended(SimProcess& process) {
  for (std::size_t i = 0; i < links_.size(); ++i)
    for (int side = 0; side < 2; ++side)
      if (links_[i]->owners[side] == &process && !links_[i]->closed[side]) close_end(i, side, 2);
}

std::size_t ChannelSystem::open_ends() const {
  std::size_t count = 0;
  for (const auto& link : links_) count += (link->closed[0] ? 0 : 1) + (link->closed[1] ? 0 : 1);
  return count;
}

}  // namespace tpsync::sim
