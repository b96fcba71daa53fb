// The simulated control group: see groups.h for its rules.
#include <algorithm>
#include <bit>

#include "sim/groups.h"
#include "sim/sanitizers.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tpsync::sim {

namespace {

std::uint64_t bit(int rank) { return std::uint64_t{1} << rank; }

// Contributions of one rank leave one after the other.
constexpr std::int64_t kSendGapNs = 200;

}  // namespace

ControlHub::ControlHub(SimWorld& of, std::uint64_t number, std::span<SimProcess* const> processes)
    : world(&of), id(number), key(component_key("control", number)), members(processes.size()) {
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    members[rank].process = processes[rank];
    members[rank].known.assign(members.size(), INT64_MAX);
    members[rank].alarm_known.assign(members.size(), INT64_MAX);
  }
}

bool ControlHub::timer_live(std::uint64_t argument) const {
  return world != nullptr && !members[argument].waiters.empty();
}

void ControlHub::on_timer(std::uint64_t argument) {
  world->scheduler().wake(members[argument].waiters);
}

ControlHub::Round& ControlHub::round(std::uint64_t sequence) {
  while (sequence >= first + rounds.size()) {
    Round& made = rounds.emplace_back();
    made.words.resize(members.size());
    made.bytes.resize(members.size());
    made.clocks.resize(members.size());
    made.arrivals.assign(members.size() * members.size(), INT64_MAX);
  }
  return rounds[sequence - first];
}

std::int64_t ControlHub::complete_at(const Round& open, std::size_t to) const {
  if (open.call == Call::kBroadcast)
    return open.arrivals[static_cast<std::size_t>(open.root) * members.size() + to];
  std::int64_t last = 0;
  for (std::size_t from = 0; from < members.size(); ++from)
    last = std::max(last, open.arrivals[from * members.size() + to]);
  return last;
}

void ControlHub::forget_rounds() {
  std::uint64_t lowest = UINT64_MAX;
  for (const Member& member : members)
    if (!member.gone) lowest = std::min(lowest, member.sequence);
  if (lowest == UINT64_MAX || lowest <= first) return;
  // Keeps what it can: a round's storage is used again for a later call.
  while (first < lowest && !rounds.empty()) {
    std::rotate(rounds.begin(), rounds.begin() + 1, rounds.end());
    Round& reused = rounds.back();
    reused.entered = 0;
    reused.left = 0;
    std::fill(reused.arrivals.begin(), reused.arrivals.end(), INT64_MAX);
    ++first;
  }
}

// A rank that died, left or gave up: what it had under way arrives or not, and the others learn.
void ControlHub::rank_gone(int rank, bool died) {
  if (world == nullptr) return;
  const auto from = static_cast<std::size_t>(rank);
  Member& member = members[from];
  if (member.gone) return;
  member.gone = true;
  const std::int64_t now = world->now();
  member.gone_at = now;
  const SimConfig& config = world->config();
  for (Round& open : rounds) {
    if ((open.entered & bit(rank)) == 0) continue;
    for (std::size_t to = 0; to < members.size(); ++to) {
      std::int64_t& arrival = open.arrivals[from * members.size() + to];
      if (!died || !config.cruelty.partial_groups || arrival == INT64_MAX || arrival <= now)
        continue;
      if (draw(config.seed, key, Purpose::kGroupSurvives, draws++) & 1) arrival = INT64_MAX;
    }
  }
  for (std::size_t to = 0; to < members.size(); ++to) {
    if (to == from || members[to].gone) continue;
    const std::int64_t notice =
        now + (config.cruelty.latency
                   ? within(draw(config.seed, key, Purpose::kDeathNotice, draws++),
                            config.death_notice_ns)
                   : 0);
    members[to].known[from] = notice;
    world->scheduler().add_timer(notice, *this, to);
    // Others may have completed on this rank's contribution; who waits looks again.
    world->scheduler().wake(members[to].waiters);
  }
}

std::uint64_t SimControlGroup::delivered(const ControlHub::Round& round) const {
  const std::int64_t now = hub_->world->now();
  const std::size_t size = hub_->members.size();
  std::uint64_t mask = 0;
  for (std::size_t from = 0; from < size; ++from)
    if (round.arrivals[from * size + static_cast<std::size_t>(rank_)] <= now)
      mask |= std::uint64_t{1} << from;
  return mask;
}

// The lowest rank of `needed` that this rank knows to be lost, or -1.
int SimControlGroup::known_lost(std::uint64_t needed) const {
  const std::int64_t now = hub_->world->now();
  for (std::size_t rank = 0; rank < hub_->members.size(); ++rank)
    if ((needed >> rank & 1) != 0 && self().known[rank] <= now) return static_cast<int>(rank);
  return -1;
}

void SimControlGroup::lose(std::size_t op, int lost, std::string_view detail) {
  ControlHub& hub = *hub_;
  SimProcess& process = *self().process;
  self().broken = true;
  self().lost = lost;
  process.finish(op, static_cast<std::uint16_t>(ErrorKind::kPeerLost));
  hub.world->record_for(&process, EventKind::kGroupFail, hub.id, self().sequence,
                        static_cast<std::uint64_t>(lost + 1), 0,
                        static_cast<std::uint16_t>(ErrorKind::kPeerLost));
  // It contributes nothing any more.
  hub.rank_gone(rank_, false);
  ErrorRecord record;
  record.kind = ErrorKind::kPeerLost;
  record.rank = lost;
  record.subject = "control group";
  record.detail = detail;
  throw RuntimeBroken(std::move(record));
}

ControlHub::Round& SimControlGroup::exchange(std::size_t op, Call call, int root,
                                             std::uint64_t word, ByteView bytes,
                                             Deadline deadline) {
  ControlHub& hub = *hub_;
  SimWorld& world = *hub.world;
  const SimConfig& config = world.config();
  ControlHub::Member& me = self();
  SimProcess& process = *me.process;
  const std::size_t size = hub.members.size();
  const auto mine = static_cast<std::size_t>(rank_);
  if (left_) {
    process.finish(op, static_cast<std::uint16_t>(ErrorKind::kInvalidState));
    throw_invalid(ErrorKind::kInvalidState, "control group", "this rank has left the group");
  }
  if (me.broken) lose(op, me.lost, "a rank was lost in an earlier call");

  const std::uint64_t sequence = me.sequence;
  {
    ControlHub::Round& round = hub.round(sequence);
    const bool sends = call != Call::kBroadcast || rank_ == root;
    world.record_for(&process, EventKind::kGroupEnter, hub.id, sequence,
                     static_cast<std::uint64_t>(call) << 56 |
                         static_cast<std::uint64_t>(root) << 48 |
                         (call == Call::kWord ? 8 : (sends ? bytes.size() : 0)));
    if (round.entered == 0) {
      round.call = call;
      round.root = root;
    } else if (round.call != call || round.root != root) {
      world.violation(&process, "lockstep", hub.id, sequence, static_cast<std::uint64_t>(rank_));
      process.refuse(op, "control group", "ranks make different calls");
    }
    round.entered |= bit(rank_);
    round.words[mine] = word;
    if (call != Call::kWord) round.bytes[mine].assign(bytes.begin(), bytes.end());
    process.release_clock(round.clocks[mine]);
    std::int64_t* arrivals = &round.arrivals[mine * size];
    arrivals[mine] = world.now();
    if (sends) {
      for (std::size_t to = 0, sent = 0; to < size; ++to) {
        if (to == mine) continue;
        const std::int64_t latency =
            config.cruelty.latency
                ? within(draw(config.seed, hub.key, Purpose::kGroupLatency, hub.draws++),
                         config.group_latency_ns)
                : 0;
        const std::int64_t gap =
            config.cruelty.partial_groups ? static_cast<std::int64_t>(sent++) * kSendGapNs : 0;
        arrivals[to] = world.now() + gap + latency;
      }
      // Who waits is woken once, by the last contribution that it needs.
      for (std::size_t to = 0; to < size; ++to) {
        if (to == mine || hub.members[to].waiters.empty() || hub.members[to].sequence != sequence)
          continue;
        const std::int64_t complete = hub.complete_at(round, to);
        if (complete != INT64_MAX) world.scheduler().add_timer(complete, hub, to);
      }
    }
    sanitizer_release(&hub);
  }

  const std::uint64_t everyone = size == 64 ? ~std::uint64_t{0} : bit(static_cast<int>(size)) - 1;
  const std::uint64_t needed = call == Call::kBroadcast ? bit(root) : everyone;
  for (;;) {
    ControlHub::Round& round = hub.round(sequence);
    const std::uint64_t have = delivered(round);
    if ((have & needed) == needed) break;
    const auto record_delivered = [&] {
      world.record_for(&process, EventKind::kGroupDelivered, hub.id, sequence, have);
    };
    // A contribution that is still under way may yet come; only one that never will is lost.
    std::uint64_t never = 0;
    for (std::size_t from = 0; from < size; ++from)
      if ((needed >> from & 1) != 0 && round.arrivals[from * size + mine] == INT64_MAX)
        never |= std::uint64_t{1} << from;
    const int lost = known_lost(never);
    if (lost >= 0) {
      record_delivered();
      lose(op, lost, "a rank died or left the group");
    }
    if (deadline.passed(TimePoint{world.now()})) {
      record_delivered();
      const std::uint64_t missing = needed & ~have;
      lose(op, std::popcount(missing) == 1 ? std::countr_zero(missing) : -1,
           "no contribution before the deadline");
    }
    if (never == 0) world.scheduler().add_timer(hub.complete_at(round, mine), hub, mine);
    process.block(me.waiters, deadline);
  }
  ControlHub::Round& round = hub.round(sequence);
  world.record_for(&process, EventKind::kGroupDelivered, hub.id, sequence, delivered(round));
  for (std::size_t from = 0; from < size; ++from)
    if ((needed >> from & 1) != 0) process.clock().join(round.clocks[from]);
  sanitizer_acquire(&hub);
  return round;
}

void SimControlGroup::complete(std::size_t op, std::uint64_t received_hash) {
  ControlHub& hub = *hub_;
  hub.world->record_for(self().process, EventKind::kGroupComplete, hub.id, self().sequence,
                        received_hash);
  ++self().sequence;
  hub.forget_rounds();
  self().process->finish(op);
}

void SimControlGroup::all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                                      Deadline deadline) {
  const HarnessAccess harness;
  TPSYNC_ASSERT(words.size() == hub_->members.size());
  const std::size_t op = self().process->begin(Op::kControlWord, hub_->id, self().sequence, word);
  const ControlHub::Round& round = exchange(op, Call::kWord, 0, word, {}, deadline);
  std::copy(round.words.begin(), round.words.end(), words.begin());
  complete(op, XXH3_64bits(words.data(), words.size_bytes()));
}

std::vector<ByteBuffer> SimControlGroup::all_gather(ByteView bytes, Deadline deadline) {
  const HarnessAccess harness;
  const std::size_t op = self().process->begin(Op::kControlGather, hub_->id, self().sequence,
                                               XXH3_64bits(bytes.data(), bytes.size()));
  const ControlHub::Round& round = exchange(op, Call::kGather, 0, 0, bytes, deadline);
  std::vector<ByteBuffer> gathered = round.bytes;
  std::uint64_t hash = 0;
  for (const ByteBuffer& part : gathered) hash = mix(hash ^ XXH3_64bits(part.data(), part.size()));
  complete(op, hash);
  return gathered;
}

void SimControlGroup::broadcast(ByteBuffer& bytes, int root, Deadline deadline) {
  const HarnessAccess harness;
  TPSYNC_ASSERT(root >= 0 && root < size());
  const bool sends = root == rank_;
  const std::size_t op = self().process->begin(Op::kControlBroadcast, hub_->id, self().sequence,
                                               sends ? XXH3_64bits(bytes.data(), bytes.size()) : 0);
  const ControlHub::Round& round =
      exchange(op, Call::kBroadcast, root, 0, sends ? ByteView(bytes) : ByteView{}, deadline);
  if (!sends) bytes = round.bytes[static_cast<std::size_t>(root)];
  complete(op, XXH3_64bits(bytes.data(), bytes.size()));
}

std::optional<int> SimControlGroup::lost_peer() {
  const HarnessAccess harness;
  const std::size_t op = self().process->begin(Op::kControlLostPeer, hub_->id);
  int lost = self().broken ? self().lost : -1;
  if (lost < 0) lost = known_lost(~std::uint64_t{0});
  Event& event = self().process->event(op);
  event.b = lost >= 0 ? 1 : 0;
  event.c = lost >= 0 ? static_cast<std::uint64_t>(lost) : 0;
  self().process->finish(op);
  return lost >= 0 ? std::optional<int>(lost) : std::nullopt;
}

void SimControlGroup::raise_alarm() noexcept {
  const HarnessAccess harness;
  const auto op = self().process->begin_quiet(Op::kControlRaiseAlarm, hub_->id);
  if (!op) return;
  ControlHub& hub = *hub_;
  SimWorld& world = *hub.world;
  self().alarm_sequence = self().sequence + 1;
  world.record_for(self().process, EventKind::kGroupAlarm, hub.id,
                   static_cast<std::uint64_t>(rank_));
  for (std::size_t to = 0; to < hub.members.size(); ++to) {
    if (to == static_cast<std::size_t>(rank_)) continue;
    const std::int64_t latency =
        world.config().cruelty.latency
            ? within(draw(world.config().seed, hub.key, Purpose::kGroupLatency, hub.draws++),
                     world.config().group_latency_ns)
            : 0;
    const std::int64_t known = world.now() + latency;
    hub.members[to].alarm_known[static_cast<std::size_t>(rank_)] = known;
    world.scheduler().add_timer(known, hub, to);
  }
  self().process->finish(*op);
}

std::optional<int> SimControlGroup::alarm() {
  const HarnessAccess harness;
  const std::size_t op = self().process->begin(Op::kControlAlarm, hub_->id);
  const std::int64_t now = hub_->world->now();
  std::optional<int> found;
  for (std::size_t rank = 0; rank < hub_->members.size() && !found; ++rank)
    if (rank != static_cast<std::size_t>(rank_) && self().alarm_known[rank] <= now &&
        hub_->members[rank].alarm_sequence == self().sequence + 1)
      found = static_cast<int>(rank);
  Event& event = self().process->event(op);
  event.b = found ? 1 : 0;
  event.c = found ? static_cast<std::uint64_t>(*found) : 0;
  self().process->finish(op);
  return found;
}

void SimControlGroup::leave() noexcept {
  const HarnessAccess harness;
  if (left_ || hub_->world == nullptr) return;
  const auto op = self().process->begin_quiet(Op::kControlLeave, hub_->id);
  if (!op) return;
  left_ = true;
  hub_->world->record_for(self().process, EventKind::kGroupLeave, hub_->id,
                          static_cast<std::uint64_t>(rank_));
  hub_->rank_gone(rank_, false);
  self().process->finish(*op);
}

std::vector<std::unique_ptr<collective::ControlGroup>> GroupSystem::make_control(
    std::span<SimProcess* const> members) {
  const HarnessAccess harness;
  TPSYNC_ASSERT(!members.empty() && members.size() <= kMaxRanks);
  const std::uint64_t id = ++made_;
  auto hub = std::make_shared<ControlHub>(world_, id, members);
  control_.push_back(hub);
  world_.record_for(nullptr, EventKind::kGroupMade, id, members.size(), 1);
  std::vector<std::unique_ptr<collective::ControlGroup>> groups;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    world_.record_for(members[rank], EventKind::kGroupMember, id, rank);
    std::unique_ptr<collective::ControlGroup> group =
        std::make_unique<SimControlGroup>(hub, static_cast<int>(rank));
    if (world_.hooks().wrap_control_group)
      group = world_.hooks().wrap_control_group(*members[rank], std::move(group));
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace tpsync::sim
