// Child processes of the operating system.
//
// A child starts in a session of its own (or, without own_group, in this process's) with exactly
// the given environment, no other descriptor than 0 (/dev/null), 1, 2 and, where it is given a
// channel, kInheritedChannelDescriptor, all signals at their default and unblocked. It gets SIGKILL
// when this process ends, and also when the launcher is destroyed. (The kernel ties that signal to
// the thread that forked, so the launcher forks from a thread of its own.)
//
// A group's leader that ended stays a zombie until nothing of its group is left or its Process is
// destroyed: until then its id, and with it the id of its group, can't be reused, so no signal hits
// strangers.
#pragma once

#include <memory>

#include "tpsync/base/process.h"

namespace tpsync {

// spawn() and attach() may be called from any thread; each blocks until the child runs its program
// or failed to. A Process is used by one thread at a time. After a `wait` in a process that ignores
// SIGCHLD, or whose other parts reap its children, a status may be unknown: {false, -1}.
class OsProcessLauncher final : public ProcessLauncher {
 public:
  OsProcessLauncher();
  ~OsProcessLauncher() override;
  OsProcessLauncher(const OsProcessLauncher&) = delete;
  OsProcessLauncher& operator=(const OsProcessLauncher&) = delete;

  std::unique_ptr<Process> spawn(SpawnRequest request) override;
  std::unique_ptr<Process> attach(std::int64_t pid) override;

 private:
  class Forker;
  std::unique_ptr<Forker> forker_;
};

}  // namespace tpsync
