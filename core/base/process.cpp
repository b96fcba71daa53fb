// The kill routine, over the seam: the same code ends real and simulated process trees.
#include "tpsync/base/process.h"

#include <algorithm>

namespace tpsync {

namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(1);
constexpr Duration kLongestPause = std::chrono::milliseconds(50);

// True as soon as no member of the group lives; false at the deadline.
bool wait_for_group(Process& leader, Clock& clock, Deadline deadline) noexcept {
  Duration pause = kFirstPause;
  while (leader.group_alive()) {
    const TimePoint now = clock.now();
    if (deadline.passed(now)) return false;
    clock.sleep_until(Deadline::at(now + pause).earlier(deadline).time());
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

void signal_all(Process& leader, Signal signal) noexcept {
  // A leader that could not get a group of its own is reached alone.
  if (!leader.signal_group(signal)) leader.signal(signal);
}

}  // namespace

bool kill_tree(Process& leader, Clock& clock, const KillBudget& budget) noexcept {
  const TimePoint start = clock.now();
  const Deadline end = Deadline::at(start + total(budget));
  if (!leader.wait(Deadline::at(start))) {
    signal_all(leader, Signal::kTerminate);
    if (!leader.wait(Deadline::at(start + budget.terminate))) {
      signal_all(leader, Signal::kKill);
      leader.wait(Deadline::at(start + budget.terminate + budget.kill));
    }
  }
  if (!leader.group_alive()) return true;
  // The leader's end says nothing about its children: what is left gets a last chance.
  signal_all(leader, Signal::kTerminate);
  if (wait_for_group(leader, clock, Deadline::after(clock, budget.stragglers).earlier(end))) {
    return true;
  }
  signal_all(leader, Signal::kKill);
  return wait_for_group(leader, clock, end);
}

}  // namespace tpsync
