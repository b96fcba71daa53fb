// Fake seams for the tests of decorators: each counts its operations as a world does, and records
// what reached it.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "faults/injector.h"
#include "tpsync/base/errors.h"

namespace tpsync::faults::testing {

// Counts operations and remembers what faults did to the process.
class FakeProcess final : public MomentSource, public ProcessControl {
 public:
  void enter(std::string_view op) {
    ++counts_[std::string(op)];
    log.emplace_back(op);
  }
  void set_phase(std::string phase, std::int64_t chunk = 0) {
    phase_ = std::move(phase);
    chunk_ = chunk;
    counts_.clear();
  }
  bool has_done(std::string_view op) const {
    return std::find(log.begin(), log.end(), op) != log.end();
  }

  std::string_view phase() override { return phase_; }
  std::int64_t chunk() override { return chunk_; }
  std::uint64_t occurrence(std::string_view op) override {
    const auto found = counts_.find(std::string(op));
    return found == counts_.end() ? 0 : found->second;
  }
  void kill_self() noexcept override { log.emplace_back("KILL"); }
  void stop_self() noexcept override { log.emplace_back("STOP"); }
  void exit_self(int status) noexcept override {
    log.emplace_back(status == 0 ? "EXIT 0" : "EXIT 1");
  }
  void mark(std::size_t fault, Visibility visibility) noexcept override {
    marks.emplace_back(fault, visibility);
  }

  std::vector<std::string> log;
  std::vector<std::pair<std::size_t, Visibility>> marks;

 private:
  std::string phase_;
  std::int64_t chunk_ = 0;
  std::map<std::string, std::uint64_t> counts_;
};

// What a FakeChannel shares with its test, which outlives it.
struct Wire {
  ByteBuffer incoming;
  ByteBuffer written;
  bool is_closed = false;
  bool is_peer_closed = false;
  std::size_t write_limit = SIZE_MAX;  // bytes that one write takes
};

class FakeChannel final : public Channel {
 public:
  FakeChannel(FakeProcess& process, Wire& wire) : process_(process), wire_(wire) {}
  std::size_t read_some(MutableByteView into, Deadline) override {
    process_.enter("channel.read");
    if (wire_.is_closed) throw_broken(ErrorKind::kIo, "channel", "this end is closed");
    const std::size_t count = std::min(into.size(), wire_.incoming.size());
    if (count == 0 && !wire_.is_peer_closed) {
      throw_broken(ErrorKind::kTimeout, "channel", "nothing came");
    }
    std::copy_n(wire_.incoming.begin(), count, into.begin());
    wire_.incoming.erase(wire_.incoming.begin(),
                         wire_.incoming.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  std::size_t write_some(ByteView from, Deadline) override {
    process_.enter("channel.write");
    if (wire_.is_closed) throw_broken(ErrorKind::kIo, "channel", "this end is closed");
    const std::size_t count = std::min(from.size(), wire_.write_limit);
    wire_.written.insert(wire_.written.end(), from.begin(),
                         from.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  void send_descriptors(std::span<const int>, Deadline) override {
    process_.enter("channel.send_descriptors");
  }
  std::vector<int> receive_descriptors(std::size_t count, Deadline) override {
    process_.enter("channel.receive_descriptors");
    return std::vector<int>(count, 3);
  }
  void close() noexcept override { wire_.is_closed = true; }

 private:
  FakeProcess& process_;
  Wire& wire_;
};

inline Fault fault_at(std::string name, std::string role, int rank, std::string phase,
                      std::string op, std::uint64_t occurrence = 0, Arguments arguments = {}) {
  return {std::move(name),
          {std::move(role), rank, std::move(phase), 0, std::move(op), occurrence},
          std::move(arguments)};
}

// One process with one fault.
struct Victim {
  explicit Victim(Fault fault, Clock* clock = nullptr) : injector(Plan{1, {fault}}) {
    process.set_phase(fault.moment.phase, fault.moment.chunk);
    faults = injector.enter(fault.moment.role, fault.moment.rank, {process, process, {}, clock});
  }
  bool took_effect() const { return injector.applied() == 1 && process.marks.size() == 1; }

  FakeProcess process;
  Injector injector;
  std::unique_ptr<ProcessFaults> faults;
};

// The record of the Error that `call` throws; kind kInternal and an empty subject if it throws
// none.
template <typename Call>
ErrorRecord error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.record();
  }
  return {};
}

}  // namespace tpsync::faults::testing
