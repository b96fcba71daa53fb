// The simulated group that moves weights: see groups.h for its rules.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "sim/groups.h"
#include "sim/stream.h"
#include "tpsync/collective/forwarding_groups.h"

namespace tpsync::sim {

class ShardHub final : public TimerTarget {
 public:
  ShardHub(SimWorld& world, std::uint64_t id, std::span<SimProcess* const> members);

  // One rank's part in one gather.
  struct Entry {
    bool entered = false;
    bool reached = false;  // its stream has come to it: its own part is complete
    Stream* stream = nullptr;
    StreamOperation* operation = nullptr;  // until complete or dropped
    Memory* buffer = nullptr;
    std::vector<collective::GatherPart> parts;
    std::size_t outstanding = 0;  // pieces in and out that have not landed
    VectorClock clock;
  };
  struct Gather {
    std::vector<Entry> entries;
  };
  struct Member {
    SimProcess* process = nullptr;
    std::uint64_t sequence = 0;
    bool dead = false;
    bool aborted = false;
  };

  // argument: sequence << 16 | from << 8 | to, one piece that lands.
  bool timer_live(std::uint64_t argument) const override;
  void on_timer(std::uint64_t argument) override;

  Gather& gather(std::uint64_t sequence);
  void reach(std::uint64_t sequence, int rank);
  void start_piece(std::uint64_t sequence, std::size_t from, std::size_t to);
  void finish_piece(Entry& entry);
  void process_ended(SimProcess& process);
  bool usable(int rank) const { return !members[static_cast<std::size_t>(rank)].aborted; }

  SimWorld* world;
  std::uint64_t id;
  std::uint64_t key;
  std::uint64_t draws = 0;
  std::vector<Member> members;
  std::vector<Gather> gathers;
};

class SimShardGroup final : public collective::ShardGroup {
 public:
  SimShardGroup(std::shared_ptr<ShardHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~SimShardGroup() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hub_->members.size()); }
  void all_gather(device::StreamId stream, device::RegionId buffer,
                  std::span<const collective::GatherPart> parts) override;
  void wait(device::StreamId stream, Deadline deadline, collective::ControlGroup& watch) override;
  void abort() noexcept override;
  bool usable() const noexcept override { return hub_->usable(rank_); }

 private:
  ShardHub::Member& self() const { return hub_->members[static_cast<std::size_t>(rank_)]; }
  void drop() noexcept;

  std::shared_ptr<ShardHub> hub_;
  int rank_;
};

// Another shard group's calls as operations of the world: they cost time, may switch, are counted
// and recorded as those of a simulated group. What the inner group does lies inside them.
class RecordedShardGroup final : public collective::ForwardingShardGroup {
 public:
  // `id`: the same for all ranks of the group, and no other group's.
  RecordedShardGroup(std::unique_ptr<collective::ShardGroup> inner, SimProcess& process,
                     std::uint64_t id);
  ~RecordedShardGroup() override;

  void all_gather(device::StreamId stream, device::RegionId buffer,
                  std::span<const collective::GatherPart> parts) override;
  void wait(device::StreamId stream, Deadline deadline, collective::ControlGroup& watch) override;
  void abort() noexcept override;

 private:
  // Runs the inner call as the operation that was begun; an error is recorded with it.
  template <typename Call>
  void finish(std::size_t op, const Call& call);
  void note_leave() noexcept;

  SimProcess& process_;
  std::uint64_t id_;
  std::uint64_t sequence_ = 0;
  bool left_ = false;
};

}  // namespace tpsync::sim
