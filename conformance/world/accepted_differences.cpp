#include "conformance/world/accepted_differences.h"

#include <set>
#include <utility>
#include <vector>

#include "tpsync/base/log.h"

namespace tpsync::conformance {

namespace {

using sim::EventKind;
using sim::Op;

struct Rule {
  AcceptedDifference accepted;
  // Operations and events that this rule leaves out; what it lets differ within others is done
  // where they are projected.
  std::vector<Op> ops;
  std::vector<EventKind> kinds;
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      {{"effects",
        "The simulator records what its world does besides the processes (how contributions, "
        "pieces of gathers and copies land, what the driver and the kernel keep); a real system "
        "does it unseen."},
       {},
       {EventKind::kChannelEnd,      EventKind::kDescriptorGot,   EventKind::kDescriptorClosed,
        EventKind::kProcessReaped,   EventKind::kProcessOrphaned, EventKind::kGroupMade,
        EventKind::kGroupDelivered,  EventKind::kGroupLost,       EventKind::kGroupPiece,
        EventKind::kDeviceAllocated, EventKind::kDeviceFreed,     EventKind::kDeviceExported,
        EventKind::kDeviceRevoked,   EventKind::kDeviceImported,  EventKind::kDeviceImportClosed,
        EventKind::kDeviceSlept,     EventKind::kDeviceWoken,     EventKind::kDeviceLanding,
        EventKind::kDeviceVanished,  EventKind::kDeviceGone}},
      {{"local seams",
        "Operations on the clock, the host, random numbers, threads and locks, and the making of a "
        "pair of channel ends, concern no other process; real processes do not record them."},
       {Op::kClockNow, Op::kClockSleep, Op::kHostQuery, Op::kRandomFill, Op::kThreadSpawn,
        Op::kThreadJoin, Op::kMutexLock, Op::kMutexUnlock, Op::kConditionWait, Op::kConditionNotify,
        Op::kChannelPair},
       {}},
      {{"signals",
        "How often a process that ends is signalled and looked at depends on how long it takes; "
        "what is compared is how it ended and when its parent knew."},
       {Op::kProcessSignal, Op::kProcessSignalGroup, Op::kProcessGroupAlive},
       {}},
      {{"polls",
        "How often a rank asks for a lost peer, for an alarm or for something to read depends on "
        "how long it waits."},
       {Op::kControlLostPeer, Op::kControlAlarm, Op::kChannelWaitReadable},
       {}},
      {{"membership",
        "A simulated group exists for all its members when the first of them asks for it; the "
        "members of a real one meet, watch each other's processes, and note how they agree."},
       {Op::kProcessAttach},
       {EventKind::kGroupMember}},
      {{"totals",
        "Counters at the end of a run and peaks of device memory are measures of a world, not "
        "steps of a process; invariants judge them in each world."},
       {},
       {EventKind::kKernelCounter, EventKind::kDevicePeak}},
      {{"splits",
        "Reads and writes of one message are split as the system likes: its bytes are added up, "
        "and its place is that of the first write and of the last read."},
       {},
       {}},
      {{"arrivals",
        "Messages that a process takes from several others while it does nothing else arrive in "
        "any order: they are put into the order of their senders."},
       {},
       {}},
      {{"names",
        "Numbers of processes, channels, groups, regions and streams are each world's own: they "
        "are replaced by who it is and how many there were before."},
       {},
       {}},
      {{"handles",
        "A handle of device memory is as large as each world makes it: commands that carry handles "
        "are compared without their bytes."},
       {},
       {}},
      {{"hashes",
        "Handles, process numbers, publication ids and host names differ, and with them the hash "
        "of every message and contribution that carries one; what weights became is compared by "
        "generated tokens and resident lanes."},
       {},
       {}},
      {{"hosts",
        "How much memory a device has, how much of it is free while other processes allocate, and "
        "what a host is called is each world's own, and so is the size of what ranks tell each "
        "other of it."},
       {},
       {}},
      {{"failure texts",
        "The wording of a local failure names descriptors, errno texts or amounts of memory of its "
        "world; kind, remedy, phase, rank and subject are compared."},
       {},
       {}},
      {{"killed how",
        "A real world sees that a process was killed, later than it happened, and not by which "
        "signal; an operation is recorded when it is over, so that the last one may be missing."},
       {},
       {}},
      {{"given up",
        "In a world with faults, a runtime or worker whose parent was killed or gave up on it "
        "leaves "
        "because its channel is closed, or is killed, whichever comes first: that it ended is "
        "compared."},
       {},
       {}},
      {{"noticed",
        "Who survives a lost peer notices where it needs it next, before or after its last "
        "contribution arrived: failures that name a lost rank are compared without their phase, "
        "and an unknown outcome is one of them."},
       {},
       {}},
      {{"killed by a script",
        "Where a script kills an actor, its peers' calls end as the news finds them: only what had "
        "returned in the past of the kill is compared."},
       {},
       {}},
  };
  return all;
}

}  // namespace

bool is_left_out(const sim::Event& event) {
  // A note belongs to "membership": only groups make notes.
  if ((event.kind == static_cast<std::uint16_t>(EventKind::kLog) ||
       event.kind == static_cast<std::uint16_t>(EventKind::kLogText)) &&
      event.c == static_cast<std::uint64_t>(LogEvent::kNote))
    return true;
  static const std::pair<std::set<Op>, std::set<EventKind>> left_out = [] {
    std::pair<std::set<Op>, std::set<EventKind>> sets;
    for (const Rule& rule : rules()) {
      sets.first.insert(rule.ops.begin(), rule.ops.end());
      sets.second.insert(rule.kinds.begin(), rule.kinds.end());
    }
    return sets;
  }();
  const auto kind = static_cast<EventKind>(event.kind);
  if (kind == EventKind::kOp) return left_out.first.contains(static_cast<Op>(event.op));
  return left_out.second.contains(kind);
}

std::span<const AcceptedDifference> accepted_differences() {
  static const std::vector<AcceptedDifference> all = [] {
    std::vector<AcceptedDifference> list;
    for (const Rule& rule : rules()) list.push_back(rule.accepted);
    return list;
  }();
  return all;
}

}  // namespace tpsync::conformance
