// fork and exec, with nothing but async-signal-safe calls in between: other threads may hold any
// lock at the moment of the fork. Process handles are pidfds, called through syscall() because C
// libraries before glibc 2.36 have no wrappers.
#include "tpsync/base/os_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_channel.h"
#include "tpsync/base/os_detail.h"

namespace tpsync {

namespace {

using os_detail::Descriptor;
using os_detail::throw_io;

constexpr int kErrorDescriptor = kInheritedChannelDescriptor + 1;
// Above everything that the child places, so that placing overwrites nothing that is still needed.
constexpr int kFirstSpare = kErrorDescriptor + 1;

int pidfd_open(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

int pidfd_send_signal(int pidfd, int signal) {
  return static_cast<int>(syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0));
}

int number_of(Signal signal) { return signal == Signal::kKill ? SIGKILL : SIGTERM; }

std::optional<std::int64_t> parse(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Whether /proc/<pid>/stat shows a member of `group` that still runs code. A process whose first
// thread ended shows as a zombie while others of its threads run.
bool runs_in_group(int proc, const char* pid, pid_t group) {
  const std::string path = fmt::format("{}/stat", pid);
  const Descriptor file(openat(proc, path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return false;  // it ended meanwhile
  std::array<char, 1024> buffer{};
  const ssize_t count = read(file.number(), buffer.data(), buffer.size());
  if (count <= 0) return false;
  std::string_view text(buffer.data(), static_cast<std::size_t>(count));
  // "pid (name) state parent group ... threads ...": the name may hold anything, so its end is the
  // last parenthesis.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 > text.size()) return false;
  text.remove_prefix(name_end + 2);
  constexpr std::size_t kState = 0, kGroup = 2, kThreads = 17;
  std::array<std::string_view, kThreads + 1> fields;
  for (std::string_view& field : fields) {
    const std::size_t end = std::min(text.find(' '), text.size());
    field = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (parse(fields[kGroup]) != std::int64_t{group}) return false;
  const bool zombie = fields[kState] == "Z" || fields[kState] == "X";
  return !zombie || parse(fields[kThreads]).value_or(0) > 1;
}

bool group_runs(pid_t group) {
  DIR* proc = opendir("/proc");
  // Without the process file system a zombie can't be told from a living member.
  if (proc == nullptr) return kill(-group, 0) == 0;
  bool found = false;
  while (const dirent* entry = readdir(proc)) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    found = runs_in_group(dirfd(proc), entry->d_name, group);
    if (found) break;
  }
  closedir(proc);
  return found;
}

class OsProcess final : public Process {
 public:
  // What this process may do with it: only a parent learns the status, and only a group's leader
  // stands for its group.
  enum class Role : std::uint8_t { kLeader, kMember, kAttached };

  OsProcess(pid_t pid, Descriptor pidfd, Role role, std::string log_path = {})
      : pid_(pid), pidfd_(std::move(pidfd)), role_(role), log_path_(std::move(log_path)) {}
  ~OsProcess() override {
    if (role_ != Role::kAttached && !reaped_) reap(WEXITED | WNOHANG);
  }

  std::int64_t pid() const override { return pid_; }

  std::optional<ExitStatus> wait(Deadline deadline) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      if (status_ && (role_ != Role::kLeader || reaped_)) return status_;
    }
    pollfd poll{pidfd_.number(), POLLIN, 0};
    if (os_detail::poll_events({&poll, 1}, deadline) != os_detail::Polled::kReady) {
      return std::nullopt;
    }
    const std::lock_guard lock(mutex_);
    if (!status_) {
      switch (role_) {
        case Role::kLeader:
          status_ = reap(WEXITED | WNOWAIT);
          break;
        case Role::kMember:
          status_ = reap(WEXITED);
          reaped_ = true;
          break;
        case Role::kAttached:
          status_ = ExitStatus{};
          break;
      }
    }
    if (role_ == Role::kLeader) any_of_group_runs();  // reaps where the group is empty
    return status_;
  }

  bool signal_group(Signal signal) noexcept override {
    TPSYNC_ASSERT(role_ == Role::kLeader);
    const std::lock_guard lock(mutex_);
    if (!any_of_group_runs()) return false;
    return kill(-pid_, number_of(signal)) == 0;
  }

  bool signal(Signal signal) noexcept override {
    if (ended()) return false;
    return pidfd_send_signal(pidfd_.number(), number_of(signal)) == 0;
  }

  bool group_alive() noexcept override {
    TPSYNC_ASSERT(role_ == Role::kLeader);
    const std::lock_guard lock(mutex_);
    return any_of_group_runs();
  }

  std::string log_tail(std::size_t bytes) override {
    const Descriptor file(open(log_path_.c_str(), O_RDONLY | O_CLOEXEC));
    const off_t end = file ? lseek(file.number(), 0, SEEK_END) : 0;
    if (end <= 0) return {};
    std::string tail(std::min(bytes, static_cast<std::size_t>(end)), '\0');
    const ssize_t got =
        pread(file.number(), tail.data(), tail.size(), end - static_cast<off_t>(tail.size()));
    tail.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return tail;
  }

 private:
  // The mutex is held: while it is, nobody reaps the leader, so its group's id stays its own.
  bool any_of_group_runs() noexcept {
    if (reaped_) return false;
    if (group_runs(pid_)) return true;
    // The leader is a zombie and alone: nobody can enter its group any more.
    if (!status_) status_ = reap(WEXITED | WNOWAIT | WNOHANG);
    if (status_) {
      reap(WEXITED | WNOHANG);
      reaped_ = true;
    }
    return false;
  }

  bool ended() noexcept {
    pollfd poll{pidfd_.number(), POLLIN, 0};
    return ::poll(&poll, 1, 0) > 0;
  }

  // nullopt only with WNOHANG, while the child lives.
  std::optional<ExitStatus> reap(int options) noexcept {
    siginfo_t info{};
    int result = 0;
    do {
      result = waitid(P_PID, static_cast<id_t>(pid_), &info, options);
    } while (result != 0 && errno == EINTR);
    if (result != 0) return ExitStatus{false, -1};
    if (info.si_pid == 0) return std::nullopt;
    return ExitStatus{info.si_code != CLD_EXITED, info.si_status};
  }

  pid_t pid_;
  Descriptor pidfd_;
  Role role_;
  std::string log_path_;
  std::mutex mutex_;  // guards what follows, and reaping
  bool reaped_ = false;
  std::optional<ExitStatus> status_;
};

// What the child needs, all of it made before the fork.
struct Image {
  std::vector<std::string> texts;
  std::vector<char*> argv;
  std::vector<char*> envp;
  int null = -1;
  int log = -1;  // -1: keep 1 and 2
  int channel = -1;
  int error = -1;  // write end of a close-on-exec pipe
  pid_t parent = 0;
  bool own_session = true;
  unsigned descriptor_limit = 0;
};

// What the child writes into the pipe if it can't start.
struct StartFailure {
  std::int32_t step = 0;
  std::int32_t error = 0;
};
constexpr std::array<std::string_view, 4> kSteps = {"leading a session",
                                                    "asking for a signal at the parent's end",
                                                    "placing descriptors", "executing the program"};

// Runs in the child between fork and exec.
[[noreturn]] void become(const Image& image) noexcept {
  int error_descriptor = image.error;
  const auto fail = [&error_descriptor](int step) {
    const StartFailure failure{step, errno};
    [[maybe_unused]] const ssize_t written = write(error_descriptor, &failure, sizeof failure);
    _exit(127);
  };
  if (image.own_session && setsid() < 0) fail(0);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail(1);
  if (getppid() != image.parent) _exit(127);  // it ended before the signal was asked for
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);

  if (dup2(image.null, 0) < 0) fail(2);
  if (image.log >= 0 && (dup2(image.log, 1) < 0 || dup2(image.log, 2) < 0)) fail(2);
  if (image.channel >= 0) {
    if (dup2(image.channel, kInheritedChannelDescriptor) < 0) fail(2);
  } else {
    ::close(kInheritedChannelDescriptor);
  }
  if (dup3(image.error, kErrorDescriptor, O_CLOEXEC) < 0) fail(2);
  error_descriptor = kErrorDescriptor;
  if (syscall(SYS_close_range, kFirstSpare, ~0U, 0) != 0) {
    for (unsigned i = kFirstSpare; i < image.descriptor_limit; ++i) ::close(static_cast<int>(i));
  }
  execve(image.argv[0], image.argv.data(), image.envp.data());
  fail(3);
  _exit(127);
}

// A duplicate above the numbers that the child places.
Descriptor spare_copy(int descriptor) {
  Descriptor copy(fcntl(descriptor, F_DUPFD_CLOEXEC, kFirstSpare));
  if (!copy) throw_io("spawn", "duplicating a descriptor", errno);
  return copy;
}

Descriptor open_spare(const char* path, int flags, std::string_view what) {
  const Descriptor file(open(path, flags | O_CLOEXEC, 0644));
  if (!file) throw_io("spawn", what, errno);
  return spare_copy(file.number());
}

void refuse_nul(std::string_view text, std::string_view what) {
  if (text.find('\0') != std::string_view::npos) {
    throw_invalid(ErrorKind::kInvalidConfig, "spawn", fmt::format("{} holds a NUL byte", what));
  }
}

std::unique_ptr<Process> fork_and_exec(SpawnRequest& request, Descriptor channel) {
  Image image;
  image.texts.push_back(request.program);
  for (const std::string& argument : request.arguments) image.texts.push_back(argument);
  for (const auto& [name, value] : request.environment) image.texts.push_back(name + "=" + value);
  for (const std::string& text : image.texts) refuse_nul(text, "a text");
  for (std::size_t i = 0; i < image.texts.size(); ++i) {
    (i <= request.arguments.size() ? image.argv : image.envp).push_back(image.texts[i].data());
  }
  image.argv.push_back(nullptr);
  image.envp.push_back(nullptr);

  const Descriptor null = open_spare("/dev/null", O_RDONLY, "opening /dev/null");
  Descriptor log;
  if (!request.log_path.empty()) {
    log = open_spare(request.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, "opening the log");
  }
  if (channel) channel = spare_copy(channel.number());
  std::array<int, 2> pipe_ends{};
  if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) throw_io("spawn", "making a pipe", errno);
  const Descriptor read_end(pipe_ends[0]);
  Descriptor write_end(pipe_ends[1]);
  write_end = spare_copy(write_end.number());
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  image.null = null.number();
  image.log = log.number();
  image.channel = channel.number();
  image.error = write_end.number();
  image.parent = getpid();
  image.own_session = request.own_group;
  image.descriptor_limit = static_cast<unsigned>(std::min<rlim_t>(limit.rlim_cur, 1U << 20));

  const pid_t pid = fork();
  if (pid < 0) throw_io("spawn", "forking", errno);
  if (pid == 0) become(image);

  write_end.reset();
  Descriptor pidfd(pidfd_open(pid));
  const int pidfd_error = errno;
  StartFailure failure;
  ssize_t count = 0;
  do {
    count = read(read_end.number(), &failure, sizeof failure);
  } while (count < 0 && errno == EINTR);
  if (pidfd && count == 0) {
    return std::make_unique<OsProcess>(
        pid, std::move(pidfd),
        request.own_group ? OsProcess::Role::kLeader : OsProcess::Role::kMember, request.log_path);
  }
  kill(pid, SIGKILL);  // not reaped yet, so the id is still its own
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!pidfd) throw_io("spawn", "opening a process handle", pidfd_error);
  const auto step = static_cast<std::size_t>(failure.step);
  if (count != static_cast<ssize_t>(sizeof failure) || step >= kSteps.size()) {
    throw_broken(ErrorKind::kIo, "spawn", "the child ended before it ran its program");
  }
  throw_io(request.program, kSteps[step], failure.error);
}

}  // namespace

// A thread that runs one task at a time for whoever asks, and lives as long as the launcher.
class OsProcessLauncher::Forker {
 public:
  Forker() : thread_([this] { loop(); }) {}
  ~Forker() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Forker(const Forker&) = delete;
  Forker& operator=(const Forker&) = delete;

  // `task` must not throw.
  void run(std::function<void()> task) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !task_; });
    task_ = std::move(task);
    const std::uint64_t ticket = ++asked_;
    changed_.notify_all();
    changed_.wait(lock, [this, ticket] { return done_ >= ticket; });
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || task_; });
      if (!task_) return;
      lock.unlock();
      task_();
      lock.lock();
      task_ = nullptr;
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  std::uint64_t asked_ = 0;
  std::uint64_t done_ = 0;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

OsProcessLauncher::OsProcessLauncher() : forker_(std::make_unique<Forker>()) {}
OsProcessLauncher::~OsProcessLauncher() = default;

std::unique_ptr<Process> OsProcessLauncher::spawn(SpawnRequest request) {
  Descriptor channel;
  if (request.channel) {
    channel = Descriptor(os_detail::release_descriptor(*request.channel));
    if (!channel) throw_broken(ErrorKind::kIo, "spawn", "the child's end of the channel is closed");
  }
  std::unique_ptr<Process> process;
  std::exception_ptr failure;
  forker_->run([&] {
    try {
      process = fork_and_exec(request, std::move(channel));
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
  return process;
}

std::unique_ptr<Process> OsProcessLauncher::attach(std::int64_t pid) {
  if (pid <= 0 || pid > INT32_MAX) return nullptr;
  Descriptor pidfd(pidfd_open(static_cast<pid_t>(pid)));
  if (!pidfd) {
    if (errno == ESRCH || errno == EINVAL) return nullptr;
    throw_io("attach", "opening a process handle", errno);
  }
  auto process = std::make_unique<OsProcess>(static_cast<pid_t>(pid), std::move(pidfd),
                                             OsProcess::Role::kAttached);
  // A zombie still has an id, but is no living process.
  if (process->wait(Deadline::at(TimePoint{0}))) return nullptr;
  return process;
}

}  // namespace tpsync
