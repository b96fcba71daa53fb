// A world of fakes in virtual time, for tests of plain blocking code.
//
// A channel's far end is a Peer, which the test scripts; a process is a state that the test sets.
// Nothing waits: a wait that no event can end moves the clock to its deadline. Hooks run inside the
// call that they interrupt, as another thread would in the middle of it; core holds no lock there.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_threads.h"
#include "tpsync/base/world.h"

namespace tpsync::fakes {

// The record of the error that `action` throws; its remedy tells the class.
template <typename Action>
ErrorRecord failure_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.record();
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

class VirtualClock final : public Clock {
 public:
  TimePoint now() noexcept override { return now_; }
  void sleep_until(TimePoint until) noexcept override { now_ = std::max(now_, until); }

 private:
  TimePoint now_{1'000'000'000};
};

class RecordingLog final : public Log {
 public:
  struct Entry {
    LogEvent event;
    std::int64_t a, b;
    std::string subject, text;
  };
  bool wants(LogLevel) const noexcept override { return true; }
  void record(const LogRecord& r) noexcept override {
    entries.push_back({r.event, r.a, r.b, std::string(r.subject), std::string(r.text)});
  }
  const Entry* find(LogEvent event) const {
    for (const Entry& entry : entries) {
      if (entry.event == event) return &entry;
    }
    return nullptr;
  }
  std::vector<Entry> entries;
};

// The other end of a FakeChannel. Reads are short, three bytes at most.
struct Peer {
  std::function<void()> on_write;     // after every accepted write
  std::function<void()> before_read;  // before every read
  ByteBuffer from_it;                 // readable on the channel
  ByteBuffer to_it;                   // what was written
  bool gone = false;                  // end of file after from_it; writes fail
  bool closed = false;                // this side closed

  void send(ByteView bytes) { from_it.insert(from_it.end(), bytes.begin(), bytes.end()); }
};

class FakeChannel final : public Channel {
 public:
  FakeChannel(std::shared_ptr<Peer> peer, Clock& clock) : peer_(std::move(peer)), clock_(clock) {}
  ~FakeChannel() override { peer_->closed = true; }

  std::size_t read_some(MutableByteView into, Deadline deadline) override {
    if (peer_->before_read) peer_->before_read();
    check_open();
    if (peer_->from_it.empty()) {
      if (peer_->gone) return 0;
      give_up(deadline);
    }
    const std::size_t count = std::min({into.size(), peer_->from_it.size(), std::size_t{3}});
    const auto end = peer_->from_it.begin() + static_cast<std::ptrdiff_t>(count);
    std::copy(peer_->from_it.begin(), end, into.begin());
    peer_->from_it.erase(peer_->from_it.begin(), end);
    return count;
  }
  std::size_t write_some(ByteView from, Deadline) override {
    check_open();
    if (peer_->gone) throw_broken(ErrorKind::kEndOfFile, "", "the other end is gone");
    peer_->to_it.insert(peer_->to_it.end(), from.begin(), from.end());
    if (peer_->on_write) peer_->on_write();
    return from.size();
  }
  void send_descriptors(std::span<const int>, Deadline) override {
    throw_broken(ErrorKind::kIo, "", "a fake passes no descriptors");
  }
  std::vector<int> receive_descriptors(std::size_t, Deadline) override {
    throw_broken(ErrorKind::kIo, "", "a fake passes no descriptors");
  }
  void close() noexcept override { peer_->closed = true; }

  bool readable() const { return !peer_->from_it.empty() || peer_->gone; }

 private:
  void check_open() const {
    if (peer_->closed) throw_broken(ErrorKind::kIo, "", "this end is closed");
  }
  [[noreturn]] void give_up(Deadline deadline) {
    if (deadline.is_never()) {
      throw_broken(ErrorKind::kInternal, "", "this wait would never end");
    }
    clock_.sleep_until(deadline.time());
    throw_broken(ErrorKind::kTimeout, "", "nothing came");
  }

  std::shared_ptr<Peer> peer_;
  Clock& clock_;
};

class FakeChannels final : public ChannelFactory {
 public:
  explicit FakeChannels(Clock& clock) : clock_(clock) {}

  std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_pair() override {
    peers.push_back(std::make_shared<Peer>());
    if (on_pair) on_pair(*peers.back(), peers.size() - 1);
    auto ours = std::make_unique<FakeChannel>(peers.back(), clock_);
    auto theirs = std::make_unique<FakeChannel>(std::make_shared<Peer>(), clock_);
    return {std::move(ours), std::move(theirs)};
  }
  std::size_t wait_readable(std::span<Channel* const> channels, Deadline deadline) override {
    for (std::size_t i = 0; i < channels.size(); ++i) {
      if (dynamic_cast<FakeChannel&>(*channels[i]).readable()) return i;
    }
    clock_.sleep_until(deadline.time());
    return channels.size();
  }

  std::vector<std::shared_ptr<Peer>> peers;  // by order of make_pair
  std::function<void(Peer&, std::size_t)> on_pair;

 private:
  Clock& clock_;
};

struct ProcessState {
  std::int64_t pid = 0;
  bool alive = true;
  bool ignores_terminate = false;
  std::shared_ptr<Peer> leaves_when_closed;  // ends by itself once this channel is closed
  ExitStatus status;
  std::string log;
  std::vector<Signal> signals;
  std::string program;
  std::vector<std::string> arguments;
  bool own_group = true;
};

class FakeProcess final : public Process {
 public:
  FakeProcess(std::shared_ptr<ProcessState> state, Clock& clock)
      : state_(std::move(state)), clock_(clock) {}

  std::int64_t pid() const override { return state_->pid; }
  std::optional<ExitStatus> wait(Deadline deadline) noexcept override {
    if (state_->leaves_when_closed && state_->leaves_when_closed->closed) state_->alive = false;
    if (!state_->alive) return state_->status;
    clock_.sleep_until(deadline.time());
    return std::nullopt;
  }
  bool signal_group(Signal signal) noexcept override {
    TPSYNC_ASSERT(state_->own_group);
    return take(signal);
  }
  bool signal(Signal signal) noexcept override { return take(signal); }
  bool group_alive() noexcept override {
    TPSYNC_ASSERT(state_->own_group);
    return state_->alive;
  }
  std::string log_tail(std::size_t bytes) override {
    return state_->log.substr(state_->log.size() - std::min(bytes, state_->log.size()));
  }

 private:
  bool take(Signal signal) {
    if (!state_->alive) return false;
    state_->signals.push_back(signal);
    if (signal == Signal::kTerminate && state_->ignores_terminate) return true;
    state_->alive = false;
    state_->status = {true, signal == Signal::kKill ? 9 : 15};
    return true;
  }

  std::shared_ptr<ProcessState> state_;
  Clock& clock_;
};

class FakeLauncher final : public ProcessLauncher {
 public:
  explicit FakeLauncher(Clock& clock) : clock_(clock) {}

  std::unique_ptr<Process> spawn(SpawnRequest request) override {
    if (processes.size() == refused_spawn) {
      throw_broken(ErrorKind::kIo, request.program, "cannot be started");
    }
    auto state = std::make_shared<ProcessState>();
    state->pid = 100 + static_cast<std::int64_t>(processes.size());
    state->program = std::move(request.program);
    state->arguments = std::move(request.arguments);
    state->own_group = request.own_group;
    processes.push_back(state);
    return std::make_unique<FakeProcess>(std::move(state), clock_);
  }
  std::unique_ptr<Process> attach(std::int64_t pid) override {
    for (const auto& state : processes) {
      if (state->pid == pid && state->alive) return std::make_unique<FakeProcess>(state, clock_);
    }
    return nullptr;
  }

  std::vector<std::shared_ptr<ProcessState>> processes;  // by order of spawn
  std::size_t refused_spawn = SIZE_MAX;                  // the spawn of this number fails

 private:
  Clock& clock_;
};

class FakeHost final : public Host {
 public:
  std::string host_name() override { return "host"; }
  std::string boot_id() override { return "boot"; }
  std::int64_t pid() override { return 7; }
  std::optional<std::string> environment(std::string_view) override { return std::nullopt; }
  Environment environment() override { return {}; }
};

class CountingRandom final : public Random {
 public:
  void fill(MutableByteView into) override {
    for (std::byte& byte : into) byte = std::byte{next_++};
  }

 private:
  std::uint8_t next_ = 0;
};

struct FakeWorld {
  VirtualClock clock;
  FakeChannels channels{clock};
  FakeLauncher processes{clock};
  FakeHost host;
  CountingRandom random;
  RecordingLog log;
  OsThreads threads;

  World world() { return {clock, channels, processes, host, random, log, threads}; }
};

}  // namespace tpsync::fakes
