// I5 (lockstep), I6 (release), and what the world itself reported.
#include <fmt/format.h>

#include <algorithm>

#include "conformance/judge/invariants.h"

namespace tpsync::judge {
namespace {

using sim::Event;
using sim::EventKind;

struct Entry {
  std::uint32_t process = kNone;
  std::uint64_t group = 0;
  std::uint64_t sequence = 0;
  std::uint64_t what = 0;  // what must be equal on all ranks: kind and root; of weights all of it
  std::uint32_t event = kNoEvent;
  bool completed = false;
  bool counts = true;

  bool same(const Entry& other) const {
    return group == other.group && sequence == other.sequence && what == other.what;
  }
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
    if (entries_.empty()) {
      for (const CallView& call : view_.calls()) {
        if (call.call == Call::kSync && call.ok) {
          return inconclusive("I5", "a sync committed, and no collective is seen");
        }
      }
      return not_applicable("I5", "no collective was entered");
    }
    if (auto verdict = check_inside()) return *verdict;
    for (Entry& entry : entries_) {
      if (is_shard(entry)) entry.counts = !abandoned(entry);
    }
    return check_order();
  }

 private:
  static bool is_shard(const Entry& entry) { return entry.what >> 56 == kShardGather; }

  void read() {
    for (const std::uint32_t i : view_.lists().groups) {
      const Event& event = view_.event(i);
      switch (static_cast<EventKind>(event.kind)) {
        case EventKind::kGroupMember:
          members_.push_back({event.a, event.process});
          break;
        case EventKind::kGroupEnter: {
          const bool shard = event.c >> 56 == kShardGather;
          const std::uint64_t what = shard ? event.c : event.c >> 48 << 48;
          entries_.push_back({event.process, event.a, event.b, what, i});
          break;
        }
        case EventKind::kGroupComplete:
          leave(event, true);
          break;
        case EventKind::kGroupFail:
        case EventKind::kGroupLeave:
          leave(event, false);
          excused_.push_back(event.process);
          break;
        case EventKind::kGroupAlarm:
          excused_.push_back(event.process);
          break;
        default:
          break;
      }
    }
  }

  // A wait completes all gathers before it; a failure or abort leaves all of them.
  void leave(const Event& event, bool completed) {
    for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
      if (entry->process != event.process || entry->group != event.a) continue;
      if (entry->completed || left(*entry)) break;
      if (completed) {
        entry->completed = true;
      } else {
        left_.push_back(entry->event);
      }
    }
  }

  bool left(const Entry& entry) const {
    return std::find(left_.begin(), left_.end(), entry.event) != left_.end();
  }

  std::optional<Verdict> check_inside() const {
    for (const Entry& entry : entries_) {
      if (entry.completed || left(entry)) continue;
      const ProcessView* process = view_.process(entry.process);
      if (process == nullptr || process->stop != kNoEvent) continue;
      if (process->end != kNoEvent && !process->exited) continue;
      return violation("I5", entry.event,
                       fmt::format("{} is still inside collective {} of group {}",
                                   view_.name_of(entry.process), entry.sequence, entry.group));
    }
    return std::nullopt;
  }

  // A weight collective that nobody completed, and that some ranks could not enter because they had
  // failed, died, or left: it is over for everybody, and the agreement after it says so.
  bool abandoned(const Entry& shard) const {
    bool missing = false;
    for (const Member& member : members_) {
      if (member.group != shard.group) continue;
      bool entered = false;
      for (const Entry& entry : entries_) {
        if (entry.process != member.process || entry.group != shard.group ||
            entry.sequence != shard.sequence) {
          continue;
        }
        if (entry.completed) return false;
        entered = true;
      }
      if (entered) continue;
      const ProcessView* process = view_.process(member.process);
      const bool gone = process == nullptr || process->ever_stopped ||
                        (process->end != kNoEvent && !process->exited);
      const bool excused =
          gone || std::find(excused_.begin(), excused_.end(), member.process) != excused_.end();
      if (!excused) return false;
      missing = true;
    }
    return missing;
  }

  // All ranks' sequences are prefixes of the longest one.
  Verdict check_order() const {
    std::vector<std::uint32_t> processes;
    for (const Entry& entry : entries_) {
      if (std::find(processes.begin(), processes.end(), entry.process) == processes.end()) {
        processes.push_back(entry.process);
      }
    }
    std::vector<std::vector<const Entry*>> sequences(processes.size());
    std::size_t longest = 0;
    for (std::size_t p = 0; p < processes.size(); ++p) {
      for (const Entry& entry : entries_) {
        if (entry.process == processes[p] && entry.counts) sequences[p].push_back(&entry);
      }
      if (sequences[p].size() > sequences[longest].size()) longest = p;
    }
    for (std::size_t p = 0; p < processes.size(); ++p) {
      for (std::size_t i = 0; i < sequences[p].size(); ++i) {
        const Entry& entry = *sequences[p][i];
        const Entry& other = *sequences[longest][i];
        if (entry.same(other)) continue;
        return violation(
            "I5", entry.event,
            fmt::format("{} enters call {} of group {} where {} enters call {} of "
                        "group {}",
                        view_.name_of(processes[p]), entry.sequence, entry.group,
                        view_.name_of(processes[longest]), other.sequence, other.group));
      }
    }
    return pass("I5");
  }

  static constexpr std::uint64_t kShardGather = 4;

  const View& view_;
  std::vector<Entry> entries_;
  std::vector<Member> members_;
  std::vector<std::uint32_t> excused_;
  std::vector<std::uint32_t> left_;
};

}  // namespace

// Evidence: the collectives that each rank entered and left, of both groups in one order.
// Inconclusive: a sync committed, and none is seen.
Verdict judge_lockstep(const Context& context) { return Lockstep(context.view).judge(); }

// Evidence: the kernel's counters at the end, the devices' memory, and what processes still had
// when they exited by themselves. A process that a fault stopped for good keeps what it has.
// Inconclusive: a trace without counters.
Verdict judge_release(const Context& context) {
  const View& view = context.view;
  for (const std::uint32_t i : view.lists().left) {
    const Event& event = view.event(i);
    const ProcessView* process = view.process(event.process);
    if (process == nullptr || !process->exited || process->announced_leak) continue;
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

}  // namespace tpsync::judge
