#include "conformance/process/child.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

constexpr int kFailed = 70;

}  // namespace

pid_t fork_child(const std::string& name, const std::function<int()>& body) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    const char* const symbol = strerrorname_np(errno);
    throw_broken(ErrorKind::kIo, name,
                 fmt::format("forking failed ({})", symbol != nullptr ? symbol : "unknown"));
  }
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int status = kFailed;
  try {
    if (getppid() == parent) status = body();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, to_text(record_of(error)));
  }
  fflush(nullptr);
  _exit(status);
}

void collect_children() {
  struct sigaction found {};
  sigaction(SIGCHLD, nullptr, &found);
  const bool ignored = (found.sa_flags & SA_SIGINFO) == 0 && found.sa_handler == SIG_IGN;
  if (ignored || (found.sa_flags & SA_NOCLDWAIT) != 0) signal(SIGCHLD, SIG_DFL);
}

}  // namespace tpsync::conformance
