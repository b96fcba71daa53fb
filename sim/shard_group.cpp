// The simulated shard group: pieces between every pair of ranks, landing one by one.
#include "sim/shard_group.h"

#include <algorithm>
#include <cstring>

#include "sim/sanitizers.h"

namespace tpsync::sim {

namespace {

constexpr std::int64_t kFirstPollNs = 50'000;
constexpr std::int64_t kLongestPollNs = 100'000'000;

}  // namespace

ShardHub::ShardHub(SimWorld& of, std::uint64_t number, std::span<SimProcess* const> processes)
    : world(&of), id(number), key(component_key("shard", number)), members(processes.size()) {
  for (std::size_t rank = 0; rank < members.size(); ++rank) members[rank].process = processes[rank];
}

ShardHub::Gather& ShardHub::gather(std::uint64_t sequence) {
  while (gathers.size() <= sequence) gathers.emplace_back().entries.resize(members.size());
  return gathers[sequence];
}

bool ShardHub::timer_live(std::uint64_t argument) const {
  if (world == nullptr) return false;
  const Gather& gather = gathers[argument >> 16];
  const std::size_t from = argument >> 8 & 0xff;
  const std::size_t to = argument & 0xff;
  return gather.entries[to].operation != nullptr && !members[from].aborted;
}

void ShardHub::reach(std::uint64_t sequence, int rank) {
  Gather& shared = gather(sequence);
  const auto mine = static_cast<std::size_t>(rank);
  Entry& entry = shared.entries[mine];
  entry.reached = true;
  for (std::size_t other = 0; other < members.size(); ++other) {
    if (other == mine || !shared.entries[other].reached) continue;
    start_piece(sequence, mine, other);
    start_piece(sequence, other, mine);
  }
  if (entry.outstanding == 0 && entry.operation != nullptr) {
    entry.operation->complete = true;  // a group of one, or nothing to move
    entry.operation = nullptr;
  }
}

void ShardHub::start_piece(std::uint64_t sequence, std::size_t from, std::size_t to) {
  if (members[from].dead || members[from].aborted) return;
  const Gather& shared = gathers[sequence];
  const SimConfig& config = world->config();
  const std::uint64_t bytes = shared.entries[from].parts[from].bytes;
  std::int64_t delay = static_cast<std::int64_t>(bytes * 1000 / config.gather_bytes_per_us);
  if (config.cruelty.latency)
    delay += within(draw(config.seed, key, Purpose::kPieceDelay, draws++), config.group_latency_ns);
  world->scheduler().add_timer(world->now() + delay, *this, sequence << 16 | from << 8 | to);
}

void ShardHub::finish_piece(Entry& entry) {
  if (--entry.outstanding != 0 || entry.operation == nullptr) return;
  entry.operation->complete = true;
  entry.operation = nullptr;
  entry.stream->land(false);
  world->scheduler().wake(entry.stream->progress);
}

void ShardHub::on_timer(std::uint64_t argument) {
  const std::uint64_t sequence = argument >> 16;
  const std::size_t from = argument >> 8 & 0xff;
  const std::size_t to = argument & 0xff;
  const SimConfig& config = world->config();
  Gather& shared = gathers[sequence];
  Entry& source = shared.entries[from];
  Entry& target = shared.entries[to];
  // What a dead rank had under way arrives or not; never once its memory is gone.
  if (members[from].dead && (!source.buffer->physical ||
                             (config.cruelty.lost_copies &&
                              (draw(config.seed, key, Purpose::kGroupSurvives, draws++) & 1) != 0)))
    return;
  // Each rank moves what its own list of parts says.
  const collective::GatherPart& part = source.parts[from];
  const collective::GatherPart& place = target.parts[from];
  const std::uint64_t bytes = std::min(part.bytes, place.bytes);
  if (bytes != 0) {
    const HarnessAccess harness;
    if (config.phantom)
      target.buffer->extents.copy(Rect{place.offset, bytes, 1, 0}, source.buffer->extents,
                                  Rect{part.offset, bytes, 1, 0});
    else if (!target.buffer->data.empty() && !source.buffer->data.empty())
      std::memcpy(target.buffer->data.data() + place.offset,
                  source.buffer->data.data() + part.offset, bytes);
  }
  world->record_for(members[to].process, EventKind::kGroupPiece, id, sequence,
                    static_cast<std::uint64_t>(from) << 56 | bytes);
  finish_piece(target);
  finish_piece(source);
}

void ShardHub::process_ended(SimProcess& process) {
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].process != &process) continue;
    members[rank].dead = true;
    for (Gather& shared : gathers) shared.entries[rank].operation = nullptr;
  }
}

SimShardGroup::~SimShardGroup() {
  const HarnessAccess harness;
  if (hub_->world != nullptr && !self().process->dead()) drop();
}

void SimShardGroup::all_gather(device::StreamId stream_id, device::RegionId region,
                               std::span<const collective::GatherPart> parts) {
  const HarnessAccess harness;
  ShardHub& hub = *hub_;
  SimProcess& process = *self().process;
  SimWorld& world = *hub.world;
  TPSYNC_ASSERT(parts.size() == hub.members.size());
  std::uint64_t total = 0;
  std::uint64_t end = 0;
  for (const collective::GatherPart& part : parts) {
    total += part.bytes;
    if (part.bytes != 0) end = std::max(end, part.offset + part.bytes);
  }
  const std::uint64_t sequence = self().sequence;
  const std::size_t op = process.begin(Op::kShardGather, hub.id, sequence, total);
  if (self().aborted)
    process.fail(op, ErrorKind::kPeerLost, "shard group", "the group was aborted");
  SimDevice& device = process.sim_device();
  Stream& stream = device.stream_of(stream_id);
  Memory* buffer = nullptr;
  try {
    buffer = &device.usable(region, 0, end);
  } catch (const Error& error) {
    process.finish(op, static_cast<std::uint16_t>(error.kind()));
    throw;
  }
  world.record_for(&process, EventKind::kGroupEnter, hub.id, sequence,
                   std::uint64_t{4} << 56 | total);
  ShardHub::Gather& shared = hub.gather(sequence);
  const auto mine = static_cast<std::size_t>(rank_);
  for (const ShardHub::Entry& other : shared.entries) {
    if (!other.entered) continue;
    const bool same = std::equal(
        other.parts.begin(), other.parts.end(), parts.begin(), parts.end(),
        [](const auto& a, const auto& b) { return a.offset == b.offset && a.bytes == b.bytes; });
    if (!same)
      world.violation(&process, "lockstep", hub.id, sequence, static_cast<std::uint64_t>(rank_));
    break;
  }
  ++self().sequence;
  auto operation = world.devices().take_operation();
  operation->kind = StreamOperation::Kind::kGather;
  operation->memories.push_back(buffer);
  ShardHub::Entry& entry = shared.entries[mine];
  entry.entered = true;
  entry.stream = &stream;
  entry.operation = operation.get();
  entry.buffer = buffer;
  entry.parts.assign(parts.begin(), parts.end());
  entry.outstanding = 2 * (hub.members.size() - 1);
  process.release_clock(entry.clock);
  Access access;
  access.process = process.index();
  access.stream = stream.number();
  access.operation = operation->serial;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    access.write = rank != mine;
    access.begin = parts[rank].offset;
    access.end = parts[rank].offset + parts[rank].bytes;
    world.devices().note_access(process, *buffer, access);
  }
  operation->reached = [hub = hub_.get(), sequence, rank = rank_] { hub->reach(sequence, rank); };
  sanitizer_release(&hub);
  stream.push(std::move(operation), 0);
  process.finish(op);
}

void SimShardGroup::drop() noexcept {
  ShardHub& hub = *hub_;
  if (self().aborted) return;
  self().aborted = true;
  const auto mine = static_cast<std::size_t>(rank_);
  for (ShardHub::Gather& shared : hub.gathers) {
    ShardHub::Entry& entry = shared.entries[mine];
    if (entry.operation == nullptr) continue;
    entry.operation = nullptr;
    entry.stream->drop_gathers();
  }
  hub.world->record_for(self().process, EventKind::kGroupLeave, hub.id,
                        static_cast<std::uint64_t>(rank_));
}

void SimShardGroup::abort() noexcept {
  const HarnessAccess harness;
  if (hub_->world == nullptr) return;
  const auto op = self().process->begin_quiet(Op::kShardAbort, hub_->id);
  if (!op) return;
  drop();
  self().process->finish(*op);
}

void SimShardGroup::wait(device::StreamId stream_id, Deadline deadline,
                         collective::ControlGroup& watch) {
  const HarnessAccess harness;
  ShardHub& hub = *hub_;
  SimProcess& process = *self().process;
  SimWorld& world = *hub.world;
  const std::size_t op = process.begin(Op::kShardWait, hub.id, self().sequence);
  if (self().aborted)
    process.fail(op, ErrorKind::kPeerLost, "shard group", "the group was aborted");
  SimDevice& device = process.sim_device();
  Stream& stream = device.stream_of(stream_id);
  const auto give_up = [&](ErrorKind kind, int rank, std::string_view detail) {
    drop();
    world.record_for(&process, EventKind::kGroupFail, hub.id, self().sequence,
                     static_cast<std::uint64_t>(rank + 1), 0, static_cast<std::uint16_t>(kind));
    process.finish(op, static_cast<std::uint16_t>(kind));
    ErrorRecord record;
    record.kind = kind;
    record.rank = rank;
    record.subject = "shard group";
    record.detail = detail;
    throw RuntimeBroken(std::move(record));
  };
  std::int64_t poll = kFirstPollNs;
  for (;;) {
    // Short looks at the stream, and at who is known to be gone in between.
    const Deadline look = deadline.earlier(Deadline::at(TimePoint{world.now() + poll}));
    if (device.drain(stream, look)) break;
    if (const auto lost = watch.lost_peer())
      give_up(ErrorKind::kPeerLost, *lost, "a rank died or left while weights were moving");
    if (const auto alarm = watch.alarm())
      give_up(ErrorKind::kPeerFailed, *alarm,
              "a rank reported a failure while weights were moving");
    if (deadline.passed(TimePoint{world.now()}))
      give_up(ErrorKind::kTimeout, -1, "the weights did not arrive before the deadline");
    poll = std::min(poll * 2, kLongestPollNs);
  }
  if (std::exchange(stream.failed, false))
    give_up(ErrorKind::kDevice, rank_, "work of the stream failed");
  device.settle_stream(stream);
  for (ShardHub::Gather& shared : hub.gathers)
    for (const ShardHub::Entry& entry : shared.entries)
      if (entry.entered && shared.entries[static_cast<std::size_t>(rank_)].entered)
        process.clock().join(entry.clock);
  sanitizer_acquire(&hub);
  world.record_for(&process, EventKind::kGroupComplete, hub.id, self().sequence);
  process.finish(op);
}

RecordedShardGroup::RecordedShardGroup(std::unique_ptr<collective::ShardGroup> inner,
                                       SimProcess& process, std::uint64_t id)
    : ForwardingShardGroup(std::move(inner)), process_(process), id_(id) {
  const HarnessAccess harness;
  process_.sim().record_for(&process_, EventKind::kGroupMember, id_,
                            static_cast<std::uint64_t>(rank()), 2);
}

RecordedShardGroup::~RecordedShardGroup() { note_leave(); }

template <typename Call>
void RecordedShardGroup::finish(std::size_t op, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    const HarnessAccess harness;
    note_leave();
    process_.sim().record_for(&process_, EventKind::kGroupFail, id_, sequence_,
                              static_cast<std::uint64_t>(error.record().rank + 1), 0,
                              static_cast<std::uint16_t>(error.kind()));
    process_.finish(op, static_cast<std::uint16_t>(error.kind()));
    throw;
  }
  const HarnessAccess harness;
  process_.finish(op);
}

void RecordedShardGroup::all_gather(device::StreamId stream, device::RegionId buffer,
                                    std::span<const collective::GatherPart> parts) {
  std::uint64_t total = 0;
  for (const collective::GatherPart& part : parts) total += part.bytes;
  std::size_t op = 0;
  {
    const HarnessAccess harness;
    op = process_.begin(Op::kShardGather, id_, sequence_, total);
    process_.sim().record_for(&process_, EventKind::kGroupEnter, id_, sequence_,
                              std::uint64_t{4} << 56 | total);
  }
  ++sequence_;
  finish(op, [&] { inner().all_gather(stream, buffer, parts); });
}

void RecordedShardGroup::wait(device::StreamId stream, Deadline deadline,
                              collective::ControlGroup& watch) {
  std::size_t op = 0;
  {
    const HarnessAccess harness;
    op = process_.begin(Op::kShardWait, id_, sequence_);
  }
  finish(op, [&] {
    inner().wait(stream, deadline, watch);
    const HarnessAccess harness;
    process_.sim().record_for(&process_, EventKind::kGroupComplete, id_, sequence_);
  });
}

void RecordedShardGroup::abort() noexcept {
  std::optional<std::size_t> op;
  {
    const HarnessAccess harness;
    op = process_.begin_quiet(Op::kShardAbort, id_);
  }
  note_leave();
  inner().abort();
  const HarnessAccess harness;
  if (op) process_.finish(*op);
}

void RecordedShardGroup::note_leave() noexcept {
  if (process_.dead() || std::exchange(left_, true)) return;
  const HarnessAccess harness;
  process_.sim().record_for(&process_, EventKind::kGroupLeave, id_,
                            static_cast<std::uint64_t>(rank()));
}

std::vector<std::unique_ptr<collective::ShardGroup>> GroupSystem::make_shard(
    std::span<SimProcess* const> members) {
  const HarnessAccess harness;
  TPSYNC_ASSERT(!members.empty() && members.size() <= kMaxRanks);
  const std::uint64_t id = ++made_;
  auto hub = std::make_shared<ShardHub>(world_, id, members);
  shard_.push_back(hub);
  world_.record_for(nullptr, EventKind::kGroupMade, id, members.size(), 2);
  std::vector<std::unique_ptr<collective::ShardGroup>> groups;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    world_.record_for(members[rank], EventKind::kGroupMember, id, rank);
    std::unique_ptr<collective::ShardGroup> group =
        std::make_unique<SimShardGroup>(hub, static_cast<int>(rank));
    if (world_.hooks().wrap_shard_group)
      group = world_.hooks().wrap_shard_group(*members[rank], std::move(group));
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace tpsync::sim
