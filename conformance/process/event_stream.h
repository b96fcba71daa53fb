// How the processes of a real world tell what they do: each sends its events over a local socket to
// the harness, which also learns of a process's end there, because the kernel closes the socket.
//
// What was sent before a SIGKILL arrives. Times are of the host's monotonic clock, which all
// processes share. A barrier makes the harness look at every connection before it answers: whoever
// ended before it was asked has its end on record with an earlier time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sim/trace.h"

namespace tpsync::conformance {

std::int64_t monotonic_ns();

// What a process says first.
struct Hello {
  std::string role;  // "actor", "runtime", "worker"
  std::int32_t rank = 0;
  std::int32_t device = 0;
  std::int64_t pid = 0;
  std::int64_t parent = 0;  // pid
};

// A process's end. May be used by several threads. A harness that has gone ends the process, since
// nobody would judge what it does.
class EventStream {
 public:
  EventStream(const std::string& socket_path, const Hello& hello);
  ~EventStream();
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;

  // `event.text` and `event.phase` are filled in from the texts; its process is this one.
  void send(sim::Event event, std::string_view phase, std::string_view text);
  // Returns when the harness has looked at all connections.
  void barrier();

 private:
  std::uint32_t number_of(std::string_view text, std::string& out);
  void write_all(std::string_view bytes);

  std::mutex mutex_;
  int socket_ = -1;
  std::map<std::string, std::uint32_t, std::less<>> texts_;
};

// The harness's end: a thread that takes in what all processes of one world send.
class EventCollector {
 public:
  // Listens at `socket_path`, which must not exist. Throws InvalidInput kInvalidConfig if the path
  // is longer than a local socket's may be (TMPDIR is too deep), RuntimeBroken kIo otherwise.
  explicit EventCollector(std::string socket_path);
  // Begins to take in. Apart from the constructor because the harness forks in between, and a
  // process forks while it has one thread.
  void start();
  ~EventCollector();
  EventCollector(const EventCollector&) = delete;
  EventCollector& operator=(const EventCollector&) = delete;

  struct Process {
    Hello hello;
    std::int64_t started_ns = 0;
    std::int64_t ended_ns = 0;  // 0: still connected
    bool said_goodbye = false;  // it recorded its own exit
  };
  std::vector<Process> processes();
  // Of every process that is still connected.
  std::vector<std::int64_t> living();
  // Why a process was turned away, such as for lack of descriptors: what was taken in does not tell
  // the world's story then. Empty if none was.
  std::string failure();

  // Ends the collection and merges everything into one trace, ordered by time. Processes are
  // numbered by role (actors, runtimes, workers), rank and start.
  void merge_into(sim::Trace& trace);

 private:
  struct Connection;
  void run();
  void accept_all();
  void take(Connection& connection);
  bool parse_one(Connection& connection);
  // Who ended a process that did not end by itself, as a trace numbers them: a fault that was the
  // last thing it recorded, else its parent, by signal or by its own end (0: the harness).
  static std::uint64_t killer(const Connection& connection, std::uint64_t index,
                              std::uint64_t parent);

  std::string path_;
  int listener_ = -1;
  int spare_ = -1;  // given up for a moment to end a connection when no other is left
  int wake_[2] = {-1, -1};
  std::mutex mutex_;  // guards the connections' content, and the failure
  std::vector<std::unique_ptr<Connection>> connections_;
  std::string failure_;
  std::thread thread_;
};

}  // namespace tpsync::conformance
