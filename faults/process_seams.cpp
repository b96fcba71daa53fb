// Decorators of clock, channel factory, launcher, host, random and threads: each operation passes,
// then forwards, unless the launcher, the host or the source of entropy refuses or misreports it.
#include <utility>

#include "faults/injector.h"
#include "tpsync/base/errors.h"

namespace tpsync::faults {
namespace {

class FaultClock final : public ForwardingClock {
 public:
  FaultClock(ProcessFaults& faults, Clock& inner) : ForwardingClock(inner), faults_(faults) {}
  TimePoint now() noexcept override {
    faults_.pass("clock.now");
    return ForwardingClock::now();
  }
  void sleep_until(TimePoint until) noexcept override {
    faults_.pass("clock.sleep");
    ForwardingClock::sleep_until(until);
  }

 private:
  ProcessFaults& faults_;
};

class FaultFactory final : public ForwardingChannelFactory {
 public:
  FaultFactory(ProcessFaults& faults, ChannelFactory& inner)
      : ForwardingChannelFactory(inner), faults_(faults) {}
  std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_pair() override {
    faults_.pass("channel.pair");
    return ForwardingChannelFactory::make_pair();
  }
  std::size_t wait_readable(std::span<Channel* const> channels, Deadline deadline) override {
    faults_.pass("channel.wait_readable");
    return ForwardingChannelFactory::wait_readable(channels, deadline);
  }

 private:
  ProcessFaults& faults_;
};

class FaultProcess final : public ForwardingProcess {
 public:
  FaultProcess(ProcessFaults& faults, std::unique_ptr<Process> inner)
      : ForwardingProcess(std::move(inner)), faults_(faults) {}
  std::optional<ExitStatus> wait(Deadline deadline) noexcept override {
    faults_.pass("process.wait");
    return ForwardingProcess::wait(deadline);
  }
  bool signal_group(Signal signal) noexcept override {
    faults_.pass("process.signal_group");
    if (signal == Signal::kTerminate &&
        faults_.fire(Action::kIgnoreTerminate, "process.signal_group") != nullptr) {
      return true;
    }
    return ForwardingProcess::signal_group(signal);
  }
  bool signal(Signal signal) noexcept override {
    faults_.pass("process.signal");
    return ForwardingProcess::signal(signal);
  }
  bool group_alive() noexcept override {
    faults_.pass("process.group_alive");
    return ForwardingProcess::group_alive();
  }

 private:
  ProcessFaults& faults_;
};

class FaultLauncher final : public ForwardingProcessLauncher {
 public:
  FaultLauncher(ProcessFaults& faults, ProcessLauncher& inner)
      : ForwardingProcessLauncher(inner), faults_(faults) {}
  std::unique_ptr<Process> spawn(SpawnRequest request) override {
    faults_.pass("process.spawn");
    if (faults_.fire(Action::kRefuseSpawn, "process.spawn") != nullptr) {
      throw_broken(ErrorKind::kIo, request.program, "the system starts no more processes");
    }
    return std::make_unique<FaultProcess>(faults_, inner().spawn(std::move(request)));
  }
  std::unique_ptr<Process> attach(std::int64_t pid) override {
    faults_.pass("process.attach");
    if (faults_.fire(Action::kHideProcess, "process.attach") != nullptr) return nullptr;
    auto process = inner().attach(pid);
    if (!process) return nullptr;
    return std::make_unique<FaultProcess>(faults_, std::move(process));
  }

 private:
  ProcessFaults& faults_;
};

class FaultHost final : public ForwardingHost {
 public:
  FaultHost(ProcessFaults& faults, Host& inner) : ForwardingHost(inner), faults_(faults) {}
  std::string host_name() override {
    return query("host name", [this] { return ForwardingHost::host_name(); });
  }
  std::string boot_id() override {
    return query("boot id", [this] { return ForwardingHost::boot_id(); });
  }
  std::optional<std::string> environment(std::string_view name) override {
    faults_.pass("host.query");
    const Fault* fault = misreport("host.visible_devices");
    auto value = ForwardingHost::environment(name);
    if (fault == nullptr || name != "CUDA_VISIBLE_DEVICES") return value;
    faults_.apply(*fault);
    return "0,1";
  }
  Environment environment() override {
    faults_.pass("host.query");
    return ForwardingHost::environment();
  }

 private:
  // Asked before the call: afterwards the query has its number.
  const Fault* misreport(std::string_view name) {
    const Fault* fault = faults_.due(Action::kMisreportHost, "host.query");
    return fault != nullptr && fault->name == name ? fault : nullptr;
  }

  template <typename Call>
  std::string query(std::string_view what, Call&& call) {
    faults_.pass("host.query");
    if (const Fault* failure = misreport("host.query_fails")) {
      faults_.apply(*failure);
      throw_broken(ErrorKind::kIo, what, "the system does not tell");
    }
    const Fault* fault = misreport("host.other_host");
    std::string answer = call();
    if (fault != nullptr) {
      faults_.apply(*fault);
      answer += "-other";
    }
    return answer;
  }

  ProcessFaults& faults_;
};

class FaultRandom final : public ForwardingRandom {
 public:
  FaultRandom(ProcessFaults& faults, Random& inner) : ForwardingRandom(inner), faults_(faults) {}
  void fill(MutableByteView into) override {
    faults_.pass("random.fill");
    if (faults_.fire(Action::kRefuseEntropy, "random.fill") != nullptr) {
      throw_broken(ErrorKind::kIo, "entropy", "the system has no random bytes");
    }
    ForwardingRandom::fill(into);
  }

 private:
  ProcessFaults& faults_;
};

class FaultMutex final : public ForwardingMutex {
 public:
  FaultMutex(ProcessFaults& faults, std::unique_ptr<Mutex> inner)
      : ForwardingMutex(std::move(inner)), faults_(faults) {}
  void lock() noexcept override {
    faults_.pass("mutex.lock");
    ForwardingMutex::lock();
  }
  void unlock() noexcept override {
    faults_.pass("mutex.unlock");
    ForwardingMutex::unlock();
  }

 private:
  ProcessFaults& faults_;
};

class FaultCondition final : public ForwardingCondition {
 public:
  FaultCondition(ProcessFaults& faults, std::unique_ptr<Condition> inner)
      : ForwardingCondition(std::move(inner)), faults_(faults) {}
  // Every mutex of a decorated process is a FaultMutex.
  bool wait(Mutex& mutex, Deadline deadline) noexcept override {
    faults_.pass("condition.wait");
    return inner().wait(static_cast<FaultMutex&>(mutex).inner(), deadline);
  }
  void notify_all() noexcept override {
    faults_.pass("condition.notify");
    ForwardingCondition::notify_all();
  }

 private:
  ProcessFaults& faults_;
};

class FaultThread final : public ForwardingThread {
 public:
  FaultThread(ProcessFaults& faults, std::unique_ptr<Thread> inner)
      : ForwardingThread(std::move(inner)), faults_(faults) {}
  void join() override {
    faults_.pass("thread.join");
    ForwardingThread::join();
  }

 private:
  ProcessFaults& faults_;
};

class FaultThreads final : public ForwardingThreads {
 public:
  FaultThreads(ProcessFaults& faults, Threads& inner) : ForwardingThreads(inner), faults_(faults) {}
  std::unique_ptr<Mutex> make_mutex() override {
    return std::make_unique<FaultMutex>(faults_, inner().make_mutex());
  }
  std::unique_ptr<Condition> make_condition() override {
    return std::make_unique<FaultCondition>(faults_, inner().make_condition());
  }
  std::unique_ptr<Thread> spawn(std::string name, std::function<void()> body) override {
    faults_.pass("thread.spawn");
    return std::make_unique<FaultThread>(faults_, inner().spawn(std::move(name), std::move(body)));
  }

 private:
  ProcessFaults& faults_;
};

template <typename Decorator, typename Interface>
std::unique_ptr<Interface> decorate(ProcessFaults& faults, Seam seam, Interface& inner) {
  if (!faults.wants(seam)) return nullptr;
  return std::make_unique<Decorator>(faults, inner);
}

}  // namespace

std::unique_ptr<Clock> ProcessFaults::clock(Clock& inner) {
  return decorate<FaultClock>(*this, Seam::kClock, inner);
}
std::unique_ptr<ChannelFactory> ProcessFaults::channel_factory(ChannelFactory& inner) {
  return decorate<FaultFactory>(*this, Seam::kChannelFactory, inner);
}
std::unique_ptr<ProcessLauncher> ProcessFaults::processes(ProcessLauncher& inner) {
  return decorate<FaultLauncher>(*this, Seam::kProcesses, inner);
}
std::unique_ptr<Host> ProcessFaults::host(Host& inner) {
  return decorate<FaultHost>(*this, Seam::kHost, inner);
}
std::unique_ptr<Random> ProcessFaults::random(Random& inner) {
  return decorate<FaultRandom>(*this, Seam::kRandom, inner);
}
std::unique_ptr<Threads> ProcessFaults::threads(Threads& inner) {
  return decorate<FaultThreads>(*this, Seam::kThreads, inner);
}

}  // namespace tpsync::faults
