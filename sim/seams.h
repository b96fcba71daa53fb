// The simulated seams of one process: clock, channel factory, launcher, host, random, log, threads.
//
// On a dead process the clock stands at the end of time and waiting for a process returns at once:
// these two never throw, so that a bounded kill routine ends on its own even inside a destructor.
#pragma once

#include <memory>
#include <string>

#include "sim/world.h"

namespace tpsync::sim {

class SimClock final : public Clock {
 public:
  explicit SimClock(SimProcess& process) : process_(process) {}
  TimePoint now() noexcept override;
  void sleep_until(TimePoint until) noexcept override;

 private:
  SimProcess& process_;
};

class SimChannelFactory final : public ChannelFactory {
 public:
  explicit SimChannelFactory(SimProcess& process) : process_(process) {}
  std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_pair() override;
  std::size_t wait_readable(std::span<Channel* const> channels, Deadline deadline) override;

 private:
  SimProcess& process_;
};

class SimLauncher final : public ProcessLauncher {
 public:
  explicit SimLauncher(SimProcess& process) : process_(process) {}
  std::unique_ptr<Process> spawn(SpawnRequest request) override;
  std::unique_ptr<Process> attach(std::int64_t pid) override;

 private:
  SimProcess& process_;
};

class SimHost final : public Host {
 public:
  explicit SimHost(SimProcess& process) : process_(process) {}
  std::string host_name() override;
  std::string boot_id() override;
  std::int64_t pid() override { return process_.pid(); }
  // What the process was spawned with; empty for a process that the world started.
  std::optional<std::string> environment(std::string_view name) override;
  Environment environment() override;

 private:
  friend class SeamBundle;
  SimProcess& process_;
  const Environment* variables_ = nullptr;
};

class SimRandom final : public Random {
 public:
  explicit SimRandom(SimProcess& process) : process_(process) {}
  void fill(MutableByteView into) override;

 private:
  SimProcess& process_;
};

class SimLog final : public Log {
 public:
  explicit SimLog(SimProcess& process) : process_(process) {}
  bool wants(LogLevel level) const noexcept override;
  void record(const LogRecord& record) noexcept override;

 private:
  SimProcess& process_;
};

class SimThreads final : public Threads {
 public:
  explicit SimThreads(SimProcess& process) : process_(process) {}
  std::unique_ptr<Mutex> make_mutex() override;
  std::unique_ptr<Condition> make_condition() override;
  std::unique_ptr<Thread> spawn(std::string name, std::function<void()> body) override;

 private:
  SimProcess& process_;
};

class SeamBundle {
 public:
  explicit SeamBundle(SimProcess& process);

  SimClock clock;
  SimChannelFactory channels;
  SimLauncher processes;
  SimHost host;
  SimRandom random;
  SimLog log;
  SimThreads threads;
};

}  // namespace tpsync::sim
