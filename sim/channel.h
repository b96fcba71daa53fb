// Simulated duplex byte streams: two pipes with capacity, latency, short reads and writes, end of
// file, and descriptors in order beside the bytes.
//
// Accepted bytes stay readable after the writer's end was closed or its process ended; then comes
// end of file. Each arrival carries its sender's vector clock.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "sim/world.h"

namespace tpsync::sim {

class Pipe final : public TimerTarget {
 public:
  struct Segment {
    std::int64_t arrival = 0;
    std::size_t bytes = 0;  // 0: a descriptor
    std::uint64_t object = 0;
    VectorClock clock;
  };

  bool timer_live(std::uint64_t) const override;
  void on_timer(std::uint64_t) override;

  SimWorld* world = nullptr;
  SimProcess* reader = nullptr;
  std::vector<std::byte> buffer;  // bytes [head, size) are in the pipe
  std::size_t head = 0;
  std::vector<Segment> segments;  // from first
  std::size_t first = 0;
  bool writer_closed = false;
  bool reader_closed = false;
  std::int64_t last_arrival = 0;
  std::int64_t end_arrival = 0;
  std::uint64_t key = 0;
  std::uint64_t writes = 0;
  std::uint64_t reads = 0;
  std::uint64_t shorts = 0;
  WaitQueue readers;
  WaitQueue writers;

  bool empty() const { return first == segments.size(); }
  std::size_t occupied() const { return buffer.size() - head; }
  bool readable(std::int64_t now) const;
  std::int64_t next_change() const;  // when something in flight arrives; INT64_MAX if nothing is
};

class SimChannel final : public Channel {
 public:
  SimChannel(ChannelSystem& system, std::size_t link, int side, SimProcess& owner)
      : system_(system), link_(link), side_(side), owner_(&owner) {}
  ~SimChannel() override { close(); }

  std::size_t read_some(MutableByteView into, Deadline deadline) override;
  std::size_t write_some(ByteView from, Deadline deadline) override;
  void send_descriptors(std::span<const int> descriptors, Deadline deadline) override;
  std::vector<int> receive_descriptors(std::size_t count, Deadline deadline) override;
  void close() noexcept override;

  std::uint64_t id() const { return link_ * 2 + static_cast<std::uint64_t>(side_); }
  SimProcess& owner() { return *owner_; }

 private:
  friend class ChannelSystem;
  class Raw;
  std::size_t raw_read(MutableByteView into, Deadline deadline);
  std::size_t raw_write(ByteView from, Deadline deadline);
  void raw_send(std::span<const int> descriptors, Deadline deadline);
  std::vector<int> raw_receive(std::size_t count, Deadline deadline);
  void raw_close() noexcept;
  Pipe& incoming();
  Pipe& outgoing();

  ChannelSystem& system_;
  std::size_t link_;
  int side_;
  SimProcess* owner_;
  bool closing_ = false;
  std::unique_ptr<Channel> decorator_;  // forwards to a Raw of this channel
  ReadinessOverride* readiness_ = nullptr;
};

// All channels of a world.
class ChannelSystem {
 public:
  explicit ChannelSystem(SimWorld& world) : world_(world) {}
  ~ChannelSystem();

  std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_pair(SimProcess& owner);
  std::size_t wait_readable(SimProcess& process, std::span<Channel* const> channels,
                            Deadline deadline);
  // The end goes over to `child`; both ends are wrapped by the hook.
  std::unique_ptr<Channel> hand_over(std::unique_ptr<Channel> channel, SimProcess& child);
  void process_ended(SimProcess& process);
  std::size_t open_ends() const;

 private:
  friend class SimChannel;
  struct Link {
    Pipe pipes[2];  // pipes[s] is read by side s
    SimProcess* owners[2] = {nullptr, nullptr};
    bool closed[2] = {false, false};
    SimChannel* ends[2] = {nullptr, nullptr};
  };
  void wrap(SimChannel& channel, SimProcess& owner, const SimProcess& peer);
  void close_end(std::size_t link, int side, std::uint64_t why);

  SimWorld& world_;
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace tpsync::sim
