// A forwarding wrapper for every seam of core/base: each call goes to the wrapped object, so that a
// decorator overrides only what it changes.
//
// Constructed from a reference, a wrapper borrows and the object must outlive it; constructed from
// a unique_ptr, it owns. Handing a wrapper to the implementation that its object came from (a
// Channel in a SpawnRequest or in wait_readable, a Mutex in Condition::wait) is the decorator's
// business: the implementation knows only its own objects, so the decorator of the factory unwraps
// them with inner().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tpsync/base/world.h"

namespace tpsync {

// The wrapped object: borrowed, or owned where it came as a unique_ptr.
template <typename Interface>
class Wrapped {
 public:
  explicit Wrapped(Interface& borrowed) : object_(&borrowed) {}
  explicit Wrapped(std::unique_ptr<Interface> owned)
      : owned_(std::move(owned)), object_(owned_.get()) {}

  Interface& operator*() const noexcept { return *object_; }
  Interface* operator->() const noexcept { return object_; }
  // Hands an owned object over; the wrapper is unusable afterwards. nullptr if it was borrowed.
  std::unique_ptr<Interface> release() noexcept { return std::move(owned_); }

 private:
  std::unique_ptr<Interface> owned_;
  Interface* object_;
};

class ForwardingClock : public Clock {
 public:
  explicit ForwardingClock(Clock& inner) : inner_(inner) {}
  TimePoint now() noexcept override { return inner_.now(); }
  void sleep_until(TimePoint until) noexcept override { inner_.sleep_until(until); }
  Clock& inner() noexcept { return inner_; }

 private:
  Clock& inner_;
};

class ForwardingChannel : public Channel {
 public:
  explicit ForwardingChannel(Channel& inner) : inner_(inner) {}
  explicit ForwardingChannel(std::unique_ptr<Channel> inner) : inner_(std::move(inner)) {}
  std::size_t read_some(MutableByteView into, Deadline deadline) override {
    return inner_->read_some(into, deadline);
  }
  std::size_t write_some(ByteView from, Deadline deadline) override {
    return inner_->write_some(from, deadline);
  }
  void send_descriptors(std::span<const int> descriptors, Deadline deadline) override {
    inner_->send_descriptors(descriptors, deadline);
  }
  std::vector<int> receive_descriptors(std::size_t count, Deadline deadline) override {
    return inner_->receive_descriptors(count, deadline);
  }
  void close() noexcept override { inner_->close(); }
  Channel& inner() noexcept { return *inner_; }
  std::unique_ptr<Channel> release() noexcept { return inner_.release(); }

 private:
  Wrapped<Channel> inner_;
};

class ForwardingChannelFactory : public ChannelFactory {
 public:
  explicit ForwardingChannelFactory(ChannelFactory& inner) : inner_(inner) {}
  std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_pair() override {
    return inner_.make_pair();
  }
  std::size_t wait_readable(std::span<Channel* const> channels, Deadline deadline) override {
    return inner_.wait_readable(channels, deadline);
  }
  ChannelFactory& inner() noexcept { return inner_; }

 private:
  ChannelFactory& inner_;
};

class ForwardingProcess : public Process {
 public:
  explicit ForwardingProcess(Process& inner) : inner_(inner) {}
  explicit ForwardingProcess(std::unique_ptr<Process> inner) : inner_(std::move(inner)) {}
  std::int64_t pid() const override { return inner_->pid(); }
  std::optional<ExitStatus> wait(Deadline deadline) noexcept override {
    return inner_->wait(deadline);
  }
  bool signal_group(Signal signal) noexcept override { return inner_->signal_group(signal); }
  bool signal(Signal signal) noexcept override { return inner_->signal(signal); }
  bool group_alive() noexcept override { return inner_->group_alive(); }
  std::string log_tail(std::size_t bytes) override { return inner_->log_tail(bytes); }
  Process& inner() noexcept { return *inner_; }

 private:
  Wrapped<Process> inner_;
};

class ForwardingProcessLauncher : public ProcessLauncher {
 public:
  explicit ForwardingProcessLauncher(ProcessLauncher& inner) : inner_(inner) {}
  std::unique_ptr<Process> spawn(SpawnRequest request) override {
    return inner_.spawn(std::move(request));
  }
  std::unique_ptr<Process> attach(std::int64_t pid) override { return inner_.attach(pid); }
  ProcessLauncher& inner() noexcept { return inner_; }

 private:
  ProcessLauncher& inner_;
};

class ForwardingHost : public Host {
 public:
  explicit ForwardingHost(Host& inner) : inner_(inner) {}
  std::string host_name() override { return inner_.host_name(); }
  std::string boot_id() override { return inner_.boot_id(); }
  std::int64_t pid() override { return inner_.pid(); }
  std::optional<std::string> environment(std::string_view name) override {
    return inner_.environment(name);
  }
  Environment environment() override { return inner_.environment(); }
  Host& inner() noexcept { return inner_; }

 private:
  Host& inner_;
};

class ForwardingRandom : public Random {
 public:
  explicit ForwardingRandom(Random& inner) : inner_(inner) {}
  void fill(MutableByteView into) override { inner_.fill(into); }
  Random& inner() noexcept { return inner_; }

 private:
  Random& inner_;
};

class ForwardingLog : public Log {
 public:
  explicit ForwardingLog(Log& inner) : inner_(inner) {}
  bool wants(LogLevel level) const noexcept override { return inner_.wants(level); }
  void record(const LogRecord& record) noexcept override { inner_.record(record); }
  Log& inner() noexcept { return inner_; }

 private:
  Log& inner_;
};

class ForwardingMutex : public Mutex {
 public:
  explicit ForwardingMutex(Mutex& inner) : inner_(inner) {}
  explicit ForwardingMutex(std::unique_ptr<Mutex> inner) : inner_(std::move(inner)) {}
  void lock() noexcept override { inner_->lock(); }
  void unlock() noexcept override { inner_->unlock(); }
  Mutex& inner() noexcept { return *inner_; }

 private:
  Wrapped<Mutex> inner_;
};

class ForwardingCondition : public Condition {
 public:
  explicit ForwardingCondition(Condition& inner) : inner_(inner) {}
  explicit ForwardingCondition(std::unique_ptr<Condition> inner) : inner_(std::move(inner)) {}
  bool wait(Mutex& mutex, Deadline deadline) noexcept override {
    return inner_->wait(mutex, deadline);
  }
  void notify_all() noexcept override { inner_->notify_all(); }
  Condition& inner() noexcept { return *inner_; }

 private:
  Wrapped<Condition> inner_;
};

class ForwardingThread : public Thread {
 public:
  explicit ForwardingThread(Thread& inner) : inner_(inner) {}
  explicit ForwardingThread(std::unique_ptr<Thread> inner) : inner_(std::move(inner)) {}
  void join() override { inner_->join(); }
  Thread& inner() noexcept { return *inner_; }

 private:
  Wrapped<Thread> inner_;
};

class ForwardingThreads : public Threads {
 public:
  explicit ForwardingThreads(Threads& inner) : inner_(inner) {}
  std::unique_ptr<Mutex> make_mutex() override { return inner_.make_mutex(); }
  std::unique_ptr<Condition> make_condition() override { return inner_.make_condition(); }
  std::unique_ptr<Thread> spawn(std::string name, std::function<void()> body) override {
    return inner_.spawn(std::move(name), std::move(body));
  }
  Threads& inner() noexcept { return inner_; }

 private:
  Threads& inner_;
};

}  // namespace tpsync
