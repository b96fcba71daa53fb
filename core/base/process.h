// Seam: child processes and handles of other processes of this host.
//
// spawn() starts a program in a session and process group of its own, so the group id equals its
// process id, or as a member of this process's group. The child is told to die when its parent
// dies. The kill routine (kill_tree) is core code above the seam.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tpsync/base/channel.h"
#include "tpsync/base/clock.h"
#include "tpsync/base/host.h"

namespace tpsync {

enum class Signal : std::uint8_t { kTerminate, kKill };

struct ExitStatus {
  bool signaled = false;
  int code = 0;  // exit code, or the signal's number
  friend bool operator==(const ExitStatus&, const ExitStatus&) = default;
};

struct SpawnRequest {
  std::string program;                 // path in production
  std::vector<std::string> arguments;  // without the program's name
  Environment environment;             // complete: nothing else is inherited
  std::unique_ptr<Channel> channel;    // the child's end; from the launcher's ChannelFactory
  // false: a member of this process's group and session, as a runtime's workers are
  bool own_group = true;
  std::string log_path;  // stdout and stderr; empty inherits
};

// A handle of one process, free of pid reuse (pidfd in production). May be used by several threads.
class Process {
 public:
  virtual ~Process() = default;  // closes the handle; the process goes on

  virtual std::int64_t pid() const = 0;

  // Blocks until the process ended or the deadline passed (nullopt). A child's status is
  // remembered, so that it may be asked for again; for an attached process it is {false, 0}, and
  // for a child that somebody else has collected {false, -1}: the system, where this process
  // ignores SIGCHLD, or a wait() of it for any child.
  virtual std::optional<ExitStatus> wait(Deadline deadline) noexcept = 0;

  // Signals every process of the group that this child leads; false if no member is left. Only for
  // children with own_group; others assert.
  virtual bool signal_group(Signal signal) noexcept = 0;
  // Signals the process itself; false if it has ended.
  virtual bool signal(Signal signal) noexcept = 0;
  // True while any member of the group lives, zombies excluded. Only for children with own_group;
  // others assert.
  virtual bool group_alive() noexcept = 0;

  // The end of what a child wrote to its log_path, at most so many bytes; empty where there is no
  // log or it can't be read.
  virtual std::string log_tail(std::size_t) { return {}; }
};

class ProcessLauncher {
 public:
  virtual ~ProcessLauncher() = default;
  // Throws RuntimeBroken kIo if the program cannot be started; then no process is left and the
  // channel is closed.
  virtual std::unique_ptr<Process> spawn(SpawnRequest request) = 0;
  // A handle of a living process that is not a child; nullptr if there is no such process.
  virtual std::unique_ptr<Process> attach(std::int64_t pid) = 0;
};

struct KillBudget {
  Duration terminate = std::chrono::seconds(5);
  Duration kill = std::chrono::seconds(5);
  Duration stragglers = std::chrono::milliseconds(500);
};
// The kill routine at its longest.
constexpr Duration total(const KillBudget& budget) {
  return budget.terminate + budget.kill + budget.stragglers;
}
// Longer than any kill routine with the usual budget: for whoever waits until another has run it.
inline constexpr Duration kKillAllowance = total(KillBudget{}) + std::chrono::milliseconds(500);

// Ends a child with own_group (others assert) and its whole group: SIGTERM to the group and wait;
// SIGKILL and wait; then the same for members that outlived the leader. Returns true if nothing of
// the group is left, within the sum of the budget. Never throws: destructors may call it.
bool kill_tree(Process& leader, Clock& clock, const KillBudget& budget = {}) noexcept;

}  // namespace tpsync
