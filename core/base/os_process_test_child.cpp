// What os_process_test.cpp starts: small behaviours by name. Answers go to the inherited channel as
// text; a channel of "ready" says that the behaviour is in place.
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tpsync/base/clock.h"
#include "tpsync/base/os_channel.h"
#include "tpsync/base/os_process.h"

extern char** environ;

namespace {

using namespace tpsync;

void write_all(Channel& channel, std::string_view text) {
  ByteView left = as_view(text);
  while (!left.empty()) left = left.subspan(channel.write_some(left, Deadline::never()));
}

[[noreturn]] void pause_for_ever() {
  for (;;) pause();
}

void list_environment(Channel& channel) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    write_all(channel, std::string(*entry) + "\n");
  }
}

void list_descriptors(Channel& channel) {
  std::vector<int> numbers;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    const int number = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && number != dirfd(folder)) numbers.push_back(number);
  }
  closedir(folder);
  std::sort(numbers.begin(), numbers.end());
  for (const int number : numbers) write_all(channel, std::to_string(number) + " ");
}

void list_signals(Channel& channel) {
  sigset_t blocked;
  sigprocmask(SIG_SETMASK, nullptr, &blocked);
  struct sigaction pipe {};
  sigaction(SIGPIPE, nullptr, &pipe);
  write_all(channel, sigismember(&blocked, SIGUSR1) != 0 ? "blocked " : "open ");
  write_all(channel, pipe.sa_handler == SIG_DFL ? "default" : "changed");
}

// Starts a member of the own group that outlives this process, and reports its id.
void leave_a_grandchild(Channel& channel, bool stubborn) {
  const pid_t pid = fork();
  if (pid == 0) {
    if (stubborn) signal(SIGTERM, SIG_IGN);
    write_all(channel, std::to_string(getpid()) + "\n");
    pause_for_ever();
  }
}

enum class Group { kOwn, kParents };

// A child of this program that hangs, and has said that it does.
struct Hanging {
  Hanging(OsProcessLauncher& launcher, OsChannelFactory& channels, const char* program,
          Group group) {
    auto [mine, its] = channels.make_pair();
    channel = std::move(mine);
    SpawnRequest request;
    request.program = program;
    request.arguments = {"hang"};
    request.channel = std::move(its);
    request.own_group = group == Group::kOwn;
    process = launcher.spawn(std::move(request));
    std::byte ready{};
    channel->read_some({&ready, 1}, Deadline::never());
  }
  std::unique_ptr<Channel> channel;
  std::unique_ptr<Process> process;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view behaviour = argc > 1 ? argv[1] : "";
  if (behaviour == "exit") return std::atoi(argv[2]);
  if (behaviour == "say") {
    return write(1, "to stdout\n", 10) == 10 && write(2, "to stderr\n", 10) == 10 ? 0 : 1;
  }
  OsChannelFactory channels;
  const std::unique_ptr<Channel> channel = channels.adopt(kInheritedChannelDescriptor);
  if (behaviour == "environment") {
    list_environment(*channel);
  } else if (behaviour == "arguments") {
    for (int i = 2; i < argc; ++i) write_all(*channel, std::string(argv[i]) + "\n");
  } else if (behaviour == "descriptors") {
    list_descriptors(*channel);
  } else if (behaviour == "signals") {
    list_signals(*channel);
  } else if (behaviour == "ids") {
    write_all(*channel, std::to_string(getpid()) + " " + std::to_string(getpgrp()) + " " +
                            std::to_string(getsid(0)));
  } else if (behaviour == "hang") {
    write_all(*channel, "ready\n");
    pause_for_ever();
  } else if (behaviour == "ignore-term") {
    signal(SIGTERM, SIG_IGN);
    write_all(*channel, "ready\n");
    pause_for_ever();
  } else if (behaviour == "leave-grandchild" || behaviour == "leave-stubborn-grandchild") {
    leave_a_grandchild(*channel, behaviour == "leave-stubborn-grandchild");
    _exit(0);  // closing the channel in order would end it for the grandchild too
  } else if (behaviour == "stay-with-grandchild") {
    leave_a_grandchild(*channel, false);
    pause_for_ever();
  } else if (behaviour == "leader-with-member") {
    OsProcessLauncher launcher;
    const Hanging member(launcher, channels, argv[0], Group::kParents);
    const auto pid = static_cast<pid_t>(member.process->pid());
    write_all(*channel, std::to_string(pid) + " " + std::to_string(getpgid(pid)) + " " +
                            std::to_string(getsid(pid)) + "\n");
    pause_for_ever();
  } else if (behaviour == "parent-of-hanging") {
    OsProcessLauncher launcher;
    const Hanging child(launcher, channels, argv[0], Group::kOwn);
    write_all(*channel, std::to_string(child.process->pid()) + "\n");
    pause_for_ever();
  } else if (behaviour == "return-descriptor") {
    const std::vector<int> got = channel->receive_descriptors(1, Deadline::never());
    if (write(got[0], "through the descriptor", 22) != 22) return 1;
    ::close(got[0]);
  } else {
    return 64;
  }
  return 0;
}
