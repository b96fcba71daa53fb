// Decorators of the seams at which a fault can only end or stop the process: clock, channel
// factory, launcher, host, random, threads. Each operation passes, then forwards.
#include <utility>

#include "faults/injector.h"

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
    return std::make_unique<FaultProcess>(faults_, inner().spawn(std::move(request)));
  }
  std::unique_ptr<Process> attach(std::int64_t pid) override {
    faults_.pass("process.attach");
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
    faults_.pass("host.query");
    return ForwardingHost::host_name();
  }
  std::string boot_id() override {
    faults_.pass("host.query");
    return ForwardingHost::boot_id();
  }
  std::optional<std::string> environment(std::string_view name) override {
    faults_.pass("host.query");
    return ForwardingHost::environment(name);
  }
  Environment environment() override {
    faults_.pass("host.query");
    return ForwardingHost::environment();
  }

 private:
  ProcessFaults& faults_;
};

class FaultRandom final : public ForwardingRandom {
 public:
  FaultRandom(ProcessFaults& faults, Random& inner) : ForwardingRandom(inner), faults_(faults) {}
  void fill(MutableByteView into) override {
    faults_.pass("random.fill");
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
