// The simulated seams of one process: see the header for their rules.
#include "sim/seams.h"

#include <algorithm>
#include <cstring>

#include "sim/channel.h"
#include "sim/sanitizers.h"

namespace tpsync::sim {

namespace {

class SimProcessHandle final : public Process {
 public:
  SimProcessHandle(SimProcess& owner, SimProcess& target, bool child)
      : owner_(owner), target_(target), child_(child) {}

  std::int64_t pid() const override { return target_.pid(); }

  std::optional<ExitStatus> wait(Deadline deadline) noexcept override {
    const HarnessAccess harness;
    if (status_) return status_;
    SimWorld& world = owner_.sim();
    const auto op = owner_.begin_quiet(Op::kProcessWait, static_cast<std::uint64_t>(pid()));
    if (!op) return std::nullopt;
    while (!world.ended(target_)) {
      if (deadline.passed(TimePoint{world.now()})) {
        owner_.finish(*op, static_cast<std::uint16_t>(ErrorKind::kTimeout));
        return std::nullopt;
      }
      owner_.block_quiet(world.exit_queue(target_), deadline);
      if (owner_.dead()) return std::nullopt;
    }
    owner_.clock().join(target_.clock());
    sanitizer_acquire(&target_);
    ExitStatus status;
    if (child_) {
      status = {target_.outcome().kind != Outcome::Kind::kExited, target_.outcome().code};
      world.reap(target_, owner_);
    }
    Event& event = owner_.event(*op);
    event.b = static_cast<std::uint64_t>(status.code);
    event.c = status.signaled ? 1 : 0;
    owner_.finish(*op);
    status_ = status;
    return status;
  }

  bool signal_group(Signal signal) noexcept override {
    TPSYNC_ASSERT(leads_a_group());
    return act(Op::kProcessSignalGroup, number_of(signal),
               [&] { return owner_.sim().signal_group(pid(), signal); });
  }
  bool signal(Signal signal) noexcept override {
    return act(Op::kProcessSignal, number_of(signal),
               [&] { return owner_.sim().signal(target_, signal); });
  }
  bool group_alive() noexcept override {
    TPSYNC_ASSERT(leads_a_group());
    return act(Op::kProcessGroupAlive, 0, [&] { return owner_.sim().group_alive(pid()); });
  }

 private:
  bool leads_a_group() const { return child_ && target_.group() == target_.pid(); }
  static int number_of(Signal signal) {
    return signal == Signal::kTerminate ? kSignalTerminate : kSignalKill;
  }
  template <typename Action>
  bool act(Op kind, int number, const Action& action) noexcept {
    const HarnessAccess harness;
    const auto op = owner_.begin_quiet(kind, static_cast<std::uint64_t>(pid()),
                                       static_cast<std::uint64_t>(number));
    if (!op) return false;
    const bool result = action();
    if (owner_.dead()) return result;
    owner_.event(*op).c = result ? 1 : 0;
    owner_.finish(*op);
    return result;
  }

  SimProcess& owner_;
  SimProcess& target_;
  bool child_;
  std::optional<ExitStatus> status_;
};

class SimMutex final : public Mutex {
 public:
  explicit SimMutex(SimProcess& process) : process_(process) {}
  void lock() noexcept override {
    const HarnessAccess harness;
    const auto op = process_.begin_quiet(Op::kMutexLock);
    while (op && held_ && !process_.dead()) process_.block_quiet(waiters_, Deadline::never());
    if (!op || process_.dead()) return;
    held_ = true;
    sanitizer_acquire(this);
    process_.finish(*op);
  }
  void unlock() noexcept override {
    const HarnessAccess harness;
    if (process_.dead()) return;
    sanitizer_release(this);
    held_ = false;
    process_.sim().scheduler().wake(waiters_);
    const auto op = process_.begin_quiet(Op::kMutexUnlock);
    if (op) process_.finish(*op);
  }

 private:
  friend class SimCondition;
  SimProcess& process_;
  bool held_ = false;
  WaitQueue waiters_;
};

class SimCondition final : public Condition {
 public:
  explicit SimCondition(SimProcess& process) : process_(process) {}
  bool wait(Mutex& mutex, Deadline deadline) noexcept override {
    const HarnessAccess harness;
    auto& held = static_cast<SimMutex&>(mutex);
    const auto op = process_.begin_quiet(Op::kConditionWait);
    if (!op) return false;
    sanitizer_release(&held);
    held.held_ = false;
    process_.sim().scheduler().wake(held.waiters_);
    bool notified = true;
    if (deadline.passed(TimePoint{process_.sim().now()}))
      notified = false;
    else
      notified = process_.block_quiet(waiters_, deadline);
    while (held.held_ && !process_.dead()) process_.block_quiet(held.waiters_, Deadline::never());
    if (process_.dead()) return false;
    held.held_ = true;
    sanitizer_acquire(&held);
    process_.finish(*op, notified ? kOk : static_cast<std::uint16_t>(ErrorKind::kTimeout));
    return notified;
  }
  void notify_all() noexcept override {
    const HarnessAccess harness;
    const auto op = process_.begin_quiet(Op::kConditionNotify);
    if (!op) return;
    process_.sim().scheduler().wake(waiters_);
    process_.finish(*op);
  }

 private:
  SimProcess& process_;
  WaitQueue waiters_;
};

class SimThread final : public Thread {
 public:
  explicit SimThread(SimProcess& process) : process_(process) {}
  ~SimThread() override { TPSYNC_ASSERT(joined_ || process_.dead()); }
  void join() override {
    const HarnessAccess harness;
    const std::size_t op = process_.begin(Op::kThreadJoin, fiber_->thread);
    while (fiber_->state != Fiber::State::kEnded) process_.block(fiber_->ended, Deadline::never());
    sanitizer_acquire(fiber_);
    joined_ = true;
    process_.finish(op);
  }

  Fiber* fiber_ = nullptr;

 private:
  SimProcess& process_;
  bool joined_ = false;
};

}  // namespace

TimePoint SimClock::now() noexcept {
  const HarnessAccess harness;
  const auto op = process_.begin_quiet(Op::kClockNow);
  if (!op) return TimePoint{INT64_MAX / 2};
  const std::int64_t now = process_.sim().now();
  process_.finish(*op);
  return TimePoint{now};
}

void SimClock::sleep_until(TimePoint until) noexcept {
  const HarnessAccess harness;
  SimWorld& world = process_.sim();
  const auto op = process_.begin_quiet(Op::kClockSleep, static_cast<std::uint64_t>(until.ns));
  if (!op) return;
  WaitQueue nobody;
  while (world.now() < until.ns && !process_.dead())
    process_.block_quiet(nobody, Deadline::at(until));
  if (!process_.dead()) process_.finish(*op);
}

std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> SimChannelFactory::make_pair() {
  return process_.sim().channels().make_pair(process_);
}
std::size_t SimChannelFactory::wait_readable(std::span<Channel* const> channels,
                                             Deadline deadline) {
  return process_.sim().channels().wait_readable(process_, channels, deadline);
}

std::unique_ptr<Process> SimLauncher::spawn(SpawnRequest request) {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kProcessSpawn);
  SimProcess* child = nullptr;
  try {
    child = &process_.sim().spawn(process_, request);
  } catch (const Error& error) {
    process_.finish(op, static_cast<std::uint16_t>(error.kind()));
    throw;
  }
  process_.event(op).a = static_cast<std::uint64_t>(child->pid());
  process_.finish(op);
  return std::make_unique<SimProcessHandle>(process_, *child, true);
}

std::unique_ptr<Process> SimLauncher::attach(std::int64_t pid) {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kProcessAttach, static_cast<std::uint64_t>(pid));
  SimProcess* target = process_.sim().by_pid(pid);
  const bool found = target != nullptr && target->alive();
  process_.event(op).c = found ? 1 : 0;
  process_.finish(op);
  return found ? std::make_unique<SimProcessHandle>(process_, *target, false) : nullptr;
}

std::string SimHost::host_name() {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kHostQuery, 1);
  process_.finish(op);
  return process_.sim().config().host_name;
}

std::string SimHost::boot_id() {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kHostQuery, 2);
  process_.finish(op);
  return process_.sim().config().boot_id;
}

std::optional<std::string> SimHost::environment(std::string_view name) {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kHostQuery, 3);
  process_.finish(op);
  for (const auto& [key, value] : *variables_)
    if (key == name) return value;
  return std::nullopt;
}

Environment SimHost::environment() {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kHostQuery, 4);
  process_.finish(op);
  return by_name(*variables_);
}

void SimRandom::fill(MutableByteView into) {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kRandomFill, 0, into.size());
  for (std::size_t at = 0; at < into.size(); at += 8) {
    const std::uint64_t word = process_.next_draw(Purpose::kRandomBytes);
    for (std::size_t i = 0; i < 8 && at + i < into.size(); ++i)
      into[at + i] = static_cast<std::byte>(word >> (8 * i));
  }
  process_.finish(op);
}

bool SimLog::wants(LogLevel level) const noexcept {
  return level != LogLevel::kDebug || process_.sim().config().log_debug;
}

void SimLog::record(const LogRecord& record) noexcept {
  const HarnessAccess harness;
  SimWorld& world = process_.sim();
  if (process_.dead()) return;
  if (record.event == LogEvent::kPhaseEntered)
    process_.set_phase(record.subject, static_cast<std::int32_t>(record.a));
  else if (record.event == LogEvent::kCommandReceived)
    process_.set_phase(record.subject, static_cast<std::int32_t>(record.b));
  TextTable& texts = world.trace().texts;
  world.record_for(&process_, EventKind::kLog, static_cast<std::uint64_t>(record.a),
                   static_cast<std::uint64_t>(record.b), static_cast<std::uint64_t>(record.event),
                   texts.intern(record.subject));
  if (!record.text.empty())
    world.record_for(&process_, EventKind::kLogText, 0, 0, static_cast<std::uint64_t>(record.event),
                     texts.intern(record.text));
}

std::unique_ptr<Mutex> SimThreads::make_mutex() { return std::make_unique<SimMutex>(process_); }
std::unique_ptr<Condition> SimThreads::make_condition() {
  return std::make_unique<SimCondition>(process_);
}

std::unique_ptr<Thread> SimThreads::spawn(std::string, std::function<void()> body) {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kThreadSpawn);
  auto thread = std::make_unique<SimThread>(process_);
  process_.sim().start_thread(process_, std::move(body), thread->fiber_);
  process_.event(op).a = thread->fiber_->thread;
  process_.finish(op);
  return thread;
}

SeamBundle::SeamBundle(SimProcess& process)
    : clock(process),
      channels(process),
      processes(process),
      host(process),
      random(process),
      log(process),
      threads(process) {
  host.variables_ = &process.environment_;
}

}  // namespace tpsync::sim
