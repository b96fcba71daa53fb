// I5 (lockstep), I6 (release), and what the world itself reported.
#include <fmt/format.h>

#include <algorithm>

#include "conformance/judge/invariants.h"

namespace tpsync::judge {
namespace {

using sim::Event;
using sim::EventKind;

struct Entry {
  std::uint64_t group = 0;
  std::uint64_t sequence = 0;
  std::uint64_t what = 0;  // what must be equal on all ranks: kind and root; of weights all of it
  std::uint32_t event = kNoEvent;
  bool completed = false;
  bool left = false;  // by a failure
  bool counts = true;

  bool same(const Entry& other) const {
    return group == other.group && sequence == other.sequence && what == other.what;
  }
};

struct Sequence {
  std::uint32_t process = kNone;
  bool excused = false;  // it raised an alarm, failed in a group or left one
  std::vector<Entry> entries;
};

struct Member {
  std::uint64_t group = 0;
  std::uint32_t process = kNone;
};

class Lockstep {
 public:
  explicit Lockstep(const View& view) : view_(view) {}

  Verdict judge() {
    read();
    if (sequences_.empty()) {
      for (const CallView& call : view_.calls()) {
        if (call.call == Call::kSync && call.ok) {
          return inconclusive("I5", "a sync committed, and no collective is seen");
        }
      }
      return not_applicable("I5", "no collective was entered");
    }
    if (auto verdict = check_inside()) return *verdict;
    for (Sequence& sequence : sequences_) {
      for (Entry& entry : sequence.entries) {
        if (is_shard(entry) && !entry.completed) entry.counts = !abandoned(entry);
      }
    }
    for (Sequence& sequence : sequences_) {
      std::erase_if(sequence.entries, [](const Entry& entry) { return !entry.counts; });
    }
    return check_order();
  }

 private:
  static constexpr std::uint64_t kShardGather = 4;
  static bool is_shard(const Entry& entry) { return entry.what >> 56 == kShardGather; }

  Sequence& of(std::uint32_t process) {
    for (Sequence& sequence : sequences_) {
      if (sequence.process == process) return sequence;
    }
    Sequence& sequence = sequences_.emplace_back();
    sequence.process = process;
    sequence.entries.reserve(128);
    return sequence;
  }

  void read() {
    for (const std::uint32_t i : view_.lists().groups) {
      const Event& event = view_.event(i);
      switch (static_cast<EventKind>(event.kind)) {
        case EventKind::kGroupMember:
          members_.push_back({event.a, event.process});
          break;
        case EventKind::kGroupEnter: {
          const bool shard = event.c >> 56 == kShardGather;
          Entry entry;
          entry.group = event.a;
          entry.sequence = event.b;
          entry.what = shard ? event.c : event.c >> 48 << 48;
          entry.event = i;
          of(event.process).entries.push_back(entry);
          break;
        }
        case EventKind::kGroupComplete:
          leave(of(event.process), event.a, true);
          break;
        case EventKind::kGroupFail:
        case EventKind::kGroupLeave:
          leave(of(event.process), event.a, false);
          of(event.process).excused = true;
          break;
        case EventKind::kGroupAlarm:
          of(event.process).excused = true;
          break;
        default:
          break;
      }
    }
  }

  // A wait completes all gathers before it; a failure or abort leaves all of them.
  static void leave(Sequence& sequence, std::uint64_t group, bool completed) {
    for (auto entry = sequence.entries.rbegin(); entry != sequence.entries.rend(); ++entry) {
      if (entry->group != group) continue;
      if (entry->completed || entry->left) break;
      (completed ? entry->completed : entry->left) = true;
      // A rank is in one agreement at a time, but may have launched several gathers.
      if (!is_shard(*entry)) break;
    }
  }

  std::optional<Verdict> check_inside() const {
    for (const Sequence& sequence : sequences_) {
      const ProcessView* process = view_.process(sequence.process);
      if (process == nullptr || process->stop != kNoEvent) continue;
      if (process->end != kNoEvent && !process->exited) continue;
      for (const Entry& entry : sequence.entries) {
        if (entry.completed || entry.left) continue;
        return violation("I5", entry.event,
                         fmt::format("{} is still inside collective {} of group {}",
                                     view_.name_of(sequence.process), entry.sequence, entry.group));
      }
    }
    return std::nullopt;
  }

  // A weight collective that nobody completed, and that some ranks could not enter because they had
  // failed, died, or left: it is over for everybody, and the agreement after it says so.
  bool abandoned(const Entry& shard) const {
    bool missing = false;
    for (const Member& member : members_) {
      if (member.group != shard.group) continue;
      const auto found = std::find_if(
          sequences_.begin(), sequences_.end(),
          [&](const Sequence& sequence) { return sequence.process == member.process; });
      bool entered = false;
      if (found != sequences_.end()) {
        for (const Entry& entry : found->entries) {
          if (entry.group != shard.group || entry.sequence != shard.sequence) continue;
          if (entry.completed) return false;
          entered = true;
        }
      }
      if (entered) continue;
      const ProcessView* process = view_.process(member.process);
      const bool gone = process == nullptr || process->ever_stopped ||
                        (process->end != kNoEvent && !process->exited);
      if (!gone && (found == sequences_.end() || !found->excused)) return false;
      missing = true;
    }
    return missing;
  }

  // All ranks' sequences are prefixes of the longest one.
  Verdict check_order() const {
    const auto longest = std::max_element(
        sequences_.begin(), sequences_.end(),
        [](const Sequence& a, const Sequence& b) { return a.entries.size() < b.entries.size(); });
    for (const Sequence& sequence : sequences_) {
      for (std::size_t i = 0; i < sequence.entries.size(); ++i) {
        const Entry& entry = sequence.entries[i];
        const Entry& other = longest->entries[i];
        if (entry.same(other)) continue;
        return violation("I5", entry.event,
                         fmt::format("{} enters call {} of group {} where {} enters call {} of "
                                     "group {}",
                                     view_.name_of(sequence.process), entry.sequence, entry.group,
                                     view_.name_of(longest->process), other.sequence, other.group));
      }
    }
    return pass("I5");
  }

  const View& view_;
  std::vector<Sequence> sequences_;
  std::vector<Member> members_;
};

// A fault ended it in the middle of its work, by an exit that unwinds nothing.
bool was_made_to_exit(const View& view, std::uint32_t process) {
  return std::any_of(view.lists().faults.begin(), view.lists().faults.end(),
                     [&](std::uint32_t fault) {
                       return view.event(fault).process == process &&
                              view.text(view.event(fault).text) == "process.exit";
                     });
}

}  // namespace

// Evidence: the collectives that each rank entered and left, of both groups in one order.
// Inconclusive: a sync committed, and none is seen.
Verdict judge_lockstep(const Context& context) { return Lockstep(context.view).judge(); }

// Evidence: the kernel's counters at the end, the devices' memory, and what processes still had
// when they exited by themselves. A process that a fault stopped for good keeps what it has, and so
// does one that said so, in a call that failed, for a worker might still have its memory open, or
// beside an actor that was stopped, for that one might.
// Inconclusive: a trace without counters.
Verdict judge_release(const Context& context) {
  const View& view = context.view;
  for (const std::uint32_t i : view.lists().left) {
    const Event& event = view.event(i);
    const ProcessView* process = view.process(event.process);
    if (process == nullptr || !process->exited || process->excused_leak) continue;
    if (was_made_to_exit(view, event.process)) continue;
    return violation("I6", i,
                     fmt::format("{} exited with {} exports, {} imports and {} regions",
                                 view.name_of(event.process), event.a, event.b, event.c));
  }
  if (view.lists().counters.empty()) return inconclusive("I6", "the trace has no counters");
  for (const ProcessView& process : view.processes()) {
    if (process.stop != kNoEvent && process.end == kNoEvent) {
      return not_applicable("I6", "a stopped process keeps what it has");
    }
  }
  for (const std::uint32_t i : view.lists().counters) {
    const Event& event = view.event(i);
    if (event.a == 0) continue;
    return violation("I6", i, fmt::format("{} is {} at the end", view.text(event.text), event.a));
  }
  for (const std::uint32_t i : view.lists().peaks) {
    const Event& event = view.event(i);
    if (event.c == context.facts.device_baseline_bytes) continue;
    return violation("I6", i,
                     fmt::format("device {} has {} bytes in use at the end, {} at its baseline",
                                 event.a, event.c, context.facts.device_baseline_bytes));
  }
  return pass("I6");
}

// Evidence: violations that the world recorded, and processes that crashed.
Verdict judge_world(const Context& context) {
  const View& view = context.view;
  if (!view.lists().violations.empty()) {
    const std::uint32_t i = view.lists().violations.front();
    const Event& event = view.event(i);
    return violation("world", i,
                     fmt::format("{} by {} ({}, {}, {})", view.text(event.text),
                                 view.name_of(event.process), event.a, event.b, event.c));
  }
  if (!view.lists().crashes.empty()) {
    const std::uint32_t i = view.lists().crashes.front();
    return violation("world", i,
                     fmt::format("{} crashed: {}", view.name_of(view.event(i).process),
                                 view.text(view.event(i).text)));
  }
  return pass("world");
}

namespace {

// The first worker rank of whose weights nothing was recorded after `committed`, as that version.
std::optional<std::size_t> rank_nobody_looked_at(const Context& context,
                                                 const CallView& committed) {
  const View& view = context.view;
  const auto version = static_cast<std::uint64_t>(committed.value);
  std::vector<bool> seen(static_cast<std::size_t>(std::max(context.facts.tp, 0)), false);
  const auto look = [&](std::uint32_t i, std::uint64_t rank, std::uint64_t stamp) {
    if (i > committed.end && stamp == version && rank < seen.size()) seen[rank] = true;
  };
  for (const std::uint32_t i : view.lists().residents) {
    look(i, view.event(i).a, view.event(i).c);
  }
  // Tokens of a phantom world are masked: they show nothing of the weights.
  if (!context.facts.phantom) {
    for (const std::uint32_t i : view.lists().tokens) look(i, view.event(i).b, view.event(i).a);
  }
  const auto found = std::find(seen.begin(), seen.end(), false);
  if (found == seen.end()) return std::nullopt;
  return static_cast<std::size_t>(found - seen.begin());
}

bool struck_after(const View& view, const CallView& call) {
  const auto& faults = view.lists().faults;
  return !faults.empty() && faults.back() > call.begin;
}

}  // namespace

// Evidence that there is evidence: every actor that the parameters announce was started and, unless
// it was ended, recorded a call; somebody looked at what every rank holds of the last version, if
// all actors committed it and no fault struck after it.
Verdict judge_evidence(const Context& context) {
  const View& view = context.view;
  int actors = 0;
  for (std::uint32_t i = 0; i < view.processes().size(); ++i) {
    const ProcessView& process = view.processes()[i];
    if (process.role != Role::kActor) continue;
    ++actors;
    if (!process.exited) continue;
    const bool called = std::any_of(view.calls().begin(), view.calls().end(),
                                    [i](const CallView& call) { return call.process == i; });
    if (!called) return inconclusive("evidence", view.name_of(i) + " recorded no call");
  }
  if (actors != context.facts.actors) {
    return inconclusive("evidence", fmt::format("{} actors are announced, {} were started",
                                                context.facts.actors, actors));
  }
  // Of a version that all actors committed and after which nothing failed any more.
  if (view.rounds().empty() || !all_committed(context, view.rounds().back())) {
    return pass("evidence");
  }
  const CallView* committed = nullptr;
  for (const std::uint32_t c : view.rounds().back().calls) {
    if (view.calls()[c].rank == 0) committed = &view.calls()[c];
  }
  if (committed == nullptr || struck_after(view, *committed)) return pass("evidence");
  const auto rank = rank_nobody_looked_at(context, *committed);
  if (!rank) return pass("evidence");
  return inconclusive("evidence",
                      fmt::format("version {} was committed, and nobody looked at rank {}",
                                  committed->value, *rank));
}

}  // namespace tpsync::judge
