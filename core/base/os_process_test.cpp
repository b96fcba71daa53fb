// Real processes: what a child is given, how its end is seen, and what is left of its group.
#include "tpsync/base/os_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_channel.h"
#include "tpsync/base/os_clock.h"

namespace tpsync {
namespace {

template <typename Function>
ErrorRecord failure_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.record();
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

class OsProcess : public testing::Test {
 protected:
  // A bound on hanging, not an expectation.
  Deadline soon() { return Deadline::after(clock_, std::chrono::seconds(60)); }

  std::unique_ptr<Process> spawn(std::vector<std::string> arguments,
                                 std::vector<std::pair<std::string, std::string>> env = {}) {
    auto [mine, its] = channels_.make_pair();
    channel_ = std::move(mine);
    SpawnRequest request;
    request.program = TPSYNC_TEST_CHILD;
    request.arguments = std::move(arguments);
    request.environment = std::move(env);
    request.channel = std::move(its);
    return launcher_.spawn(std::move(request));
  }

  // Everything up to end of file, or up to and without a line's end.
  std::string read_text(bool one_line = false) {
    std::string text;
    std::byte next{};
    while (channel_->read_some({&next, 1}, soon()) == 1) {
      const char letter = static_cast<char>(next);
      if (one_line && letter == '\n') break;
      text.push_back(letter);
    }
    return text;
  }

  KillBudget short_budget() {
    KillBudget budget;
    budget.terminate = std::chrono::milliseconds(20);
    return budget;
  }

  OsClock clock_;
  OsChannelFactory channels_;
  OsProcessLauncher launcher_;
  std::unique_ptr<Channel> channel_;
};

TEST_F(OsProcess, ExitCodeIsReportedAndRemembered) {
  const auto child = spawn({"exit", "7"});
  const ExitStatus expected{false, 7};
  EXPECT_EQ(child->wait(soon()), expected);
  EXPECT_EQ(child->wait(soon()), expected);
  EXPECT_FALSE(child->group_alive());
  EXPECT_FALSE(child->signal(Signal::kKill));
  EXPECT_FALSE(child->signal_group(Signal::kKill));
  EXPECT_EQ(kill(static_cast<pid_t>(child->pid()), 0), -1) << "the child was not reaped";
}

TEST_F(OsProcess, WaitReturnsNothingAtTheDeadlineWhileTheChildLives) {
  const auto child = spawn({"hang"});
  EXPECT_EQ(read_text(true), "ready");
  EXPECT_EQ(child->wait(Deadline::after(clock_, std::chrono::milliseconds(1))), std::nullopt);
  EXPECT_TRUE(child->group_alive());
  EXPECT_TRUE(child->signal(Signal::kKill));
  EXPECT_EQ(child->wait(soon()), (ExitStatus{true, SIGKILL}));
}

TEST_F(OsProcess, ChildGetsExactlyTheGivenEnvironment) {
  ASSERT_EQ(setenv("TPSYNC_TEST_NOT_INHERITED", "1", 1), 0);
  spawn({"environment"}, {{"FIRST", "1"}, {"SECOND", "two = 2"}, {"EMPTY", ""}});
  EXPECT_EQ(read_text(), "FIRST=1\nSECOND=two = 2\nEMPTY=\n");
}

TEST_F(OsProcess, ChildGetsItsArgumentsUnchanged) {
  spawn({"arguments", "", "with space", "--flag=\"x\""});
  EXPECT_EQ(read_text(), "\nwith space\n--flag=\"x\"\n");
}

TEST_F(OsProcess, ChildHasNoDescriptorButTheStandardOnesAndItsChannel) {
  const int inheritable = open("/dev/null", O_RDONLY);  // without close-on-exec
  ASSERT_GE(inheritable, 0);
  spawn({"descriptors"});
  EXPECT_EQ(read_text(), "0 1 2 3 ");
  ::close(inheritable);
}

TEST_F(OsProcess, ChildHasDefaultSignalsWhateverTheParentChanged) {
  sigset_t set;
  sigset_t before;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &set, &before), 0);
  const auto handler = signal(SIGPIPE, SIG_IGN);
  OsProcessLauncher launcher;  // its thread inherits the mask
  auto [mine, its] = channels_.make_pair();
  channel_ = std::move(mine);
  SpawnRequest request;
  request.program = TPSYNC_TEST_CHILD;
  request.arguments = {"signals"};
  request.channel = std::move(its);
  const auto child = launcher.spawn(std::move(request));
  EXPECT_EQ(read_text(), "open default");
  signal(SIGPIPE, handler);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST_F(OsProcess, ChildLeadsASessionAndAGroupOfItsOwn) {
  const auto child = spawn({"ids"});
  const std::string pid = std::to_string(child->pid());
  EXPECT_EQ(read_text(), pid + " " + pid + " " + pid);
}

TEST_F(OsProcess, OutputGoesToTheEndOfTheLogFile) {
  std::string path = testing::TempDir() + "tpsync-log-XXXXXX";
  ::close(mkstemp(path.data()));
  std::ofstream(path) << "before\n";
  SpawnRequest request;
  request.program = TPSYNC_TEST_CHILD;
  request.arguments = {"say"};
  request.log_path = path;
  const auto child = launcher_.spawn(std::move(request));
  EXPECT_EQ(child->wait(soon()), (ExitStatus{false, 0}));
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), "before\nto stdout\nto stderr\n");
  EXPECT_EQ(child->log_tail(1000), text.str());
  EXPECT_EQ(child->log_tail(10), "to stderr\n");
  unlink(path.c_str());
  EXPECT_EQ(child->log_tail(10), "");
}

TEST_F(OsProcess, ProgramThatCannotBeExecutedIsAnErrorThatLeavesNothing) {
  auto [mine, its] = channels_.make_pair();
  SpawnRequest request;
  request.program = "/nonexistent/program";
  request.channel = std::move(its);
  const ErrorRecord record = failure_of([&] { launcher_.spawn(std::move(request)); });
  EXPECT_EQ(record.kind, ErrorKind::kIo);
  EXPECT_EQ(record.subject, "/nonexistent/program");
  EXPECT_EQ(record.detail, "executing the program failed (ENOENT)");
  std::byte byte{};
  EXPECT_EQ(mine->read_some({&byte, 1}, soon()), 0u) << "the channel was not closed";
}

TEST_F(OsProcess, LogFileThatCannotBeOpenedIsAnError) {
  SpawnRequest request;
  request.program = TPSYNC_TEST_CHILD;
  request.log_path = "/nonexistent/folder/log";
  const ErrorRecord record = failure_of([&] { launcher_.spawn(std::move(request)); });
  EXPECT_EQ(record.kind, ErrorKind::kIo);
  EXPECT_EQ(record.detail, "opening the log failed (ENOENT)");
}

TEST_F(OsProcess, EndOfTheChildIsEndOfFileOnItsChannel) {
  const auto child = spawn({"hang"});
  EXPECT_EQ(read_text(true), "ready");
  EXPECT_TRUE(child->signal_group(Signal::kKill));
  EXPECT_EQ(read_text(), "");
  const ErrorRecord record = failure_of([&] { channel_->write_some(as_view("late"), soon()); });
  EXPECT_EQ(record.kind, ErrorKind::kEndOfFile);
}

TEST_F(OsProcess, DescriptorPassedToAChildIsTheSameOpenFile) {
  const auto child = spawn({"return-descriptor"});
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  channel_->send_descriptors({&ends[1], 1}, soon());
  ::close(ends[1]);
  std::array<char, 64> text{};
  EXPECT_EQ(read(ends[0], text.data(), text.size()), 22);
  EXPECT_STREQ(text.data(), "through the descriptor");
  ::close(ends[0]);
  EXPECT_EQ(child->wait(soon()), (ExitStatus{false, 0}));
}

TEST_F(OsProcess, KillTreeEndsAnObedientChildBySigterm) {
  const auto child = spawn({"hang"});
  EXPECT_EQ(read_text(true), "ready");
  EXPECT_TRUE(kill_tree(*child, clock_));
  EXPECT_EQ(child->wait(soon()), (ExitStatus{true, SIGTERM}));
}

TEST_F(OsProcess, KillTreeEndsAChildThatIgnoresSigtermBySigkill) {
  const auto child = spawn({"ignore-term"});
  EXPECT_EQ(read_text(true), "ready");
  EXPECT_TRUE(kill_tree(*child, clock_, short_budget()));
  EXPECT_EQ(child->wait(soon()), (ExitStatus{true, SIGKILL}));
}

TEST_F(OsProcess, KillTreeEndsAStoppedChild) {
  const auto child = spawn({"hang"});
  EXPECT_EQ(read_text(true), "ready");
  ASSERT_EQ(kill(static_cast<pid_t>(child->pid()), SIGSTOP), 0);
  siginfo_t stopped{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child->pid()), &stopped, WSTOPPED), 0);
  EXPECT_TRUE(kill_tree(*child, clock_, short_budget()));
  EXPECT_EQ(child->wait(soon()), (ExitStatus{true, SIGKILL}));
}

TEST_F(OsProcess, KillTreeEndsAGrandchildTogetherWithItsLeader) {
  const auto child = spawn({"stay-with-grandchild"});
  const auto grandchild = launcher_.attach(std::stoll(read_text(true)));
  ASSERT_NE(grandchild, nullptr);
  EXPECT_TRUE(kill_tree(*child, clock_));
  EXPECT_TRUE(grandchild->wait(soon()).has_value());
}

TEST_F(OsProcess, ChildWithoutAGroupOfItsOwnIsAMemberOfItsParents) {
  const auto child = spawn({"leader-with-member"});
  std::istringstream ids(read_text(true));
  std::int64_t pid = 0, group = 0, session = 0;
  ids >> pid >> group >> session;
  EXPECT_EQ(group, child->pid());
  EXPECT_EQ(session, child->pid());
  const auto member = launcher_.attach(pid);
  ASSERT_NE(member, nullptr);
  EXPECT_TRUE(child->signal_group(Signal::kTerminate));
  EXPECT_TRUE(member->wait(soon()).has_value());
  EXPECT_EQ(child->wait(soon()), (ExitStatus{true, SIGTERM}));
}

TEST_F(OsProcess, MemberOfTheOwnGroupIsSignalledAndReapedAlone) {
  auto [mine, its] = channels_.make_pair();
  SpawnRequest request;
  request.program = TPSYNC_TEST_CHILD;
  request.arguments = {"hang"};
  request.channel = std::move(its);
  request.own_group = false;
  const auto member = launcher_.spawn(std::move(request));
  channel_ = std::move(mine);
  EXPECT_EQ(read_text(true), "ready");
  EXPECT_TRUE(member->signal(Signal::kKill));
  EXPECT_EQ(member->wait(soon()), (ExitStatus{true, SIGKILL}));
  EXPECT_FALSE(member->signal(Signal::kKill));
  EXPECT_EQ(kill(static_cast<pid_t>(member->pid()), 0), -1) << "it is still a zombie";
}

TEST_F(OsProcess, KillTreeEndsAGrandchildWhoseLeaderIsGone) {
  for (const char* behaviour : {"leave-grandchild", "leave-stubborn-grandchild"}) {
    const auto child = spawn({behaviour});
    const std::string pid = read_text(true);
    const auto grandchild = launcher_.attach(std::stoll(pid));
    ASSERT_NE(grandchild, nullptr);
    EXPECT_EQ(child->wait(soon()), (ExitStatus{false, 0}));
    EXPECT_TRUE(child->group_alive());
    EXPECT_EQ(kill(static_cast<pid_t>(child->pid()), 0), 0)
        << "the group's id may be reused while a member lives";
    EXPECT_TRUE(kill_tree(*child, clock_));
    EXPECT_FALSE(child->group_alive());
    EXPECT_TRUE(grandchild->wait(soon()).has_value());
  }
}

TEST_F(OsProcess, ChildrenEndAlsoWhereTheParentIgnoresTheirEnds) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  const auto child = spawn({"exit", "7"});
  EXPECT_EQ(child->wait(soon()), (ExitStatus{false, -1}));
  EXPECT_FALSE(child->group_alive());
  const auto stubborn = spawn({"ignore-term"});
  EXPECT_EQ(read_text(true), "ready");
  EXPECT_TRUE(kill_tree(*stubborn, clock_, short_budget()));
  EXPECT_FALSE(stubborn->signal_group(Signal::kKill));
  ::signal(SIGCHLD, before);
}

TEST_F(OsProcess, KillTreeOfAnEndedChildIsDoneAndMayBeRepeated) {
  const auto child = spawn({"exit", "0"});
  EXPECT_TRUE(child->wait(soon()).has_value());
  EXPECT_TRUE(kill_tree(*child, clock_));
  EXPECT_TRUE(kill_tree(*child, clock_));
}

TEST_F(OsProcess, DeathOfTheParentEndsTheChild) {
  const auto parent = spawn({"parent-of-hanging"});
  const auto grandchild = launcher_.attach(std::stoll(read_text(true)));
  ASSERT_NE(grandchild, nullptr);
  EXPECT_EQ(grandchild->wait(Deadline::at(TimePoint{0})), std::nullopt);
  EXPECT_TRUE(parent->signal(Signal::kKill));
  EXPECT_TRUE(grandchild->wait(soon()).has_value());
}

TEST_F(OsProcess, ChildOutlivesTheThreadThatSpawnedIt) {
  std::unique_ptr<Process> child;
  std::thread([&] { child = spawn({"hang"}); }).join();
  EXPECT_EQ(read_text(true), "ready");
  EXPECT_EQ(child->wait(Deadline::after(clock_, std::chrono::milliseconds(20))), std::nullopt);
  EXPECT_TRUE(kill_tree(*child, clock_));
}

TEST_F(OsProcess, AttachToAProcessThatDoesNotLiveGivesNothing) {
  const auto child = spawn({"exit", "0"});
  const std::int64_t pid = child->pid();
  EXPECT_EQ(launcher_.attach(-1), nullptr);
  EXPECT_EQ(launcher_.attach(0), nullptr);
  EXPECT_TRUE(child->wait(soon()).has_value());
  EXPECT_EQ(launcher_.attach(pid), nullptr);
}

TEST_F(OsProcess, AttachedProcessEndsWithAnUnknownStatus) {
  const auto child = spawn({"hang"});
  const auto attached = launcher_.attach(child->pid());
  ASSERT_NE(attached, nullptr);
  EXPECT_EQ(attached->pid(), child->pid());
  EXPECT_TRUE(attached->signal(Signal::kTerminate));
  EXPECT_EQ(attached->wait(soon()), (ExitStatus{false, 0}));
  EXPECT_FALSE(attached->signal(Signal::kTerminate));
  EXPECT_EQ(child->wait(soon()), (ExitStatus{true, SIGTERM}));
}

}  // namespace
}  // namespace tpsync
