// The wire format: a byte that says what follows, then fixed binary fields. Both ends are of one
// build on one host.
#include "conformance/process/event_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <tuple>
#include <utility>

#include "conformance/judge/records.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

enum Message : char { kHello = 'h', kText = 't', kEvent = 'e', kBarrier = 'b', kPassed = 'p' };

template <typename Value>
void put(std::string& out, const Value& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    throw_invalid(ErrorKind::kInvalidConfig, path,
                  "is too long for a local socket, which takes " +
                      std::to_string(sizeof address.sun_path - 1) +
                      " bytes; let TMPDIR name a folder with a shorter path");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

[[noreturn]] void fail(const std::string& what) {
  throw_broken(ErrorKind::kIo, "event stream", what + ": " + std::strerror(errno));
}

int role_order(std::string_view role) { return role == "actor" ? 0 : role == "runtime" ? 1 : 2; }

}  // namespace

std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

EventStream::EventStream(const std::string& socket_path, const Hello& hello) {
  const sockaddr_un address = address_of(socket_path);
  socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_ < 0 ||
      connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail("no harness listens at " + socket_path);
  std::string out(1, kHello);
  put(out, hello.rank);
  put(out, hello.device);
  put(out, hello.pid);
  put(out, hello.parent);
  put(out, monotonic_ns());
  put(out, static_cast<std::uint32_t>(hello.role.size()));
  out += hello.role;
  write_all(out);
}

EventStream::~EventStream() { ::close(socket_); }

void EventStream::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) _exit(3);
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

std::uint32_t EventStream::number_of(std::string_view text, std::string& out) {
  if (text.empty()) return 0;
  const auto known = texts_.find(text);
  if (known != texts_.end()) return known->second;
  const auto number = static_cast<std::uint32_t>(texts_.size() + 1);
  texts_.emplace(text, number);
  out += kText;
  put(out, number);
  put(out, static_cast<std::uint32_t>(text.size()));
  out += text;
  return number;
}

void EventStream::send(sim::Event event, std::string_view phase, std::string_view text) {
  const std::lock_guard lock(mutex_);
  std::string out;
  event.phase = number_of(phase, out);
  event.text = number_of(text, out);
  out += kEvent;
  put(out, event);
  write_all(out);
}

void EventStream::barrier() {
  const std::lock_guard lock(mutex_);
  write_all(std::string(1, kBarrier));
  char answer = 0;
  ssize_t got = 0;
  do {
    got = recv(socket_, &answer, 1, 0);
  } while (got < 0 && errno == EINTR);
  if (got != 1 || answer != kPassed) _exit(3);
}

struct EventCollector::Connection {
  int socket = -1;
  bool known = false;  // it said hello
  bool waits = false;  // at a barrier
  Process process;
  std::string unread;
  std::vector<std::string> texts = {""};
  std::vector<sim::Event> events;
};

EventCollector::EventCollector(std::string socket_path) : path_(std::move(socket_path)) {
  const sockaddr_un address = address_of(path_);
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener_ < 0 ||
      bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener_, 256) != 0 || (spare_ = fcntl(listener_, F_DUPFD_CLOEXEC, 0)) < 0 ||
      pipe2(wake_, O_CLOEXEC) != 0) {
    const int error = errno;
    for (const int descriptor : {listener_, spare_})
      if (descriptor >= 0) ::close(descriptor);
    errno = error;
    fail("can't listen at " + path_);
  }
}

void EventCollector::start() {
  thread_ = std::thread([this] { run(); });
}

EventCollector::~EventCollector() {
  if (thread_.joinable()) {
    ::close(std::exchange(wake_[1], -1));
    thread_.join();
  }
  for (const auto& connection : connections_)
    if (connection->socket >= 0) ::close(connection->socket);
  for (const int descriptor : {listener_, spare_, wake_[0], wake_[1]})
    if (descriptor >= 0) ::close(descriptor);
  unlink(path_.c_str());
}

// Whatever arrived is taken in before anybody at a barrier is let go.
void EventCollector::run() {
  for (bool last = false; !last;) {
    std::vector<pollfd> polled = {{listener_, POLLIN, 0}, {wake_[0], POLLIN, 0}};
    for (const auto& connection : connections_)
      if (connection->socket >= 0) polled.push_back({connection->socket, POLLIN, 0});
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    last = polled[1].revents != 0;
    const std::lock_guard lock(mutex_);
    accept_all();
    for (const auto& connection : connections_) take(*connection);
    for (const auto& connection : connections_) {
      if (!std::exchange(connection->waits, false) || connection->socket < 0) continue;
      const char passed = kPassed;
      static_cast<void>(::send(connection->socket, &passed, 1, MSG_NOSIGNAL));
    }
  }
}

// Whoever cannot be taken in must not wait for an answer for ever. So one descriptor is kept back:
// with it a connection is accepted where there is no other left, and ended.
void EventCollector::accept_all() {
  for (;;) {
    int made = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (made >= 0) {
      connections_.push_back(std::make_unique<Connection>());
      connections_.back()->socket = made;
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EMFILE && errno != ENFILE) return;
    const char* const symbol = strerrorname_np(errno);
    failure_ = std::string("a process could not be taken in (") + symbol + ")";
    ::close(std::exchange(spare_, -1));
    made = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (made >= 0) ::close(made);
    spare_ = fcntl(listener_, F_DUPFD_CLOEXEC, 0);
    if (made < 0) return;
  }
}

std::string EventCollector::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void EventCollector::take(Connection& connection) {
  if (connection.socket < 0) return;
  char bytes[1 << 16];
  for (;;) {
    const ssize_t got = recv(connection.socket, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0) {
      ::close(std::exchange(connection.socket, -1));
      connection.process.ended_ns = monotonic_ns();
      break;
    }
    connection.unread.append(bytes, static_cast<std::size_t>(got));
  }
  while (parse_one(connection)) {
  }
}

bool EventCollector::parse_one(Connection& connection) {
  std::string& unread = connection.unread;
  if (unread.empty()) return false;
  std::size_t at = 1;
  const auto get = [&](auto& value) {
    if (unread.size() < at + sizeof value) return false;
    std::memcpy(&value, unread.data() + at, sizeof value);
    at += sizeof value;
    return true;
  };
  const auto get_text = [&](std::string& text) {
    std::uint32_t size = 0;
    if (!get(size) || unread.size() < at + size) return false;
    text.assign(unread, at, size);
    at += size;
    return true;
  };
  switch (unread[0]) {
    case kHello: {
      Hello hello;
      std::int64_t started = 0;
      if (!get(hello.rank) || !get(hello.device) || !get(hello.pid) || !get(hello.parent) ||
          !get(started) || !get_text(hello.role))
        return false;
      connection.known = true;
      connection.process.hello = hello;
      connection.process.started_ns = started;
      break;
    }
    case kText: {
      std::uint32_t number = 0;
      std::string text;
      if (!get(number) || !get_text(text)) return false;
      TPSYNC_ASSERT(number == connection.texts.size());
      connection.texts.push_back(std::move(text));
      break;
    }
    case kEvent: {
      sim::Event event;
      if (!get(event)) return false;
      connection.process.said_goodbye |=
          event.kind == static_cast<std::uint16_t>(sim::EventKind::kProcessExit);
      connection.events.push_back(event);
      break;
    }
    default:
      TPSYNC_ASSERT(unread[0] == kBarrier);
      connection.waits = true;
  }
  unread.erase(0, at);
  return true;
}

std::vector<EventCollector::Process> EventCollector::processes() {
  const std::lock_guard lock(mutex_);
  std::vector<Process> found;
  for (const auto& connection : connections_)
    if (connection->known) found.push_back(connection->process);
  return found;
}

std::vector<std::int64_t> EventCollector::living() {
  std::vector<std::int64_t> pids;
  for (const Process& process : processes())
    if (process.ended_ns == 0) pids.push_back(process.hello.pid);
  return pids;
}

std::uint64_t EventCollector::killer(const Connection& connection, std::uint64_t index,
                                     std::uint64_t parent) {
  constexpr auto kFault = static_cast<std::uint16_t>(judge::Record::kFault);
  const bool by_fault = !connection.events.empty() && connection.events.back().kind == kFault;
  return by_fault ? index + 1 : parent;
}

void EventCollector::merge_into(sim::Trace& trace) {
  if (thread_.joinable()) {
    ::close(std::exchange(wake_[1], -1));
    thread_.join();
  }
  std::erase_if(connections_, [](const auto& connection) { return !connection->known; });
  std::sort(connections_.begin(), connections_.end(), [](const auto& a, const auto& b) {
    const auto key = [](const Connection& c) {
      return std::tuple(role_order(c.process.hello.role), c.process.started_ns,
                        c.process.hello.rank);
    };
    // Actors by rank: they are numbered as their ranks.
    if (a->process.hello.role == "actor" && b->process.hello.role == "actor")
      return a->process.hello.rank < b->process.hello.rank;
    return key(*a) < key(*b);
  });
  const auto index_of = [&](std::int64_t pid) -> std::uint64_t {
    for (std::size_t i = 0; i < connections_.size(); ++i)
      if (connections_[i]->process.hello.pid == pid) return i + 1;
    return 0;
  };
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Connection& connection = *connections_[i];
    const Process& process = connection.process;
    std::vector<std::uint32_t> numbers;
    for (const std::string& text : connection.texts) numbers.push_back(trace.texts.intern(text));
    const auto index = static_cast<std::uint32_t>(i);
    sim::Event start;
    start.time = start.end = process.started_ns;
    start.kind = static_cast<std::uint16_t>(sim::EventKind::kProcessStart);
    start.a = static_cast<std::uint64_t>(process.hello.rank);
    start.b = index_of(process.hello.parent);
    start.c = static_cast<std::uint64_t>(process.hello.device);
    start.text = trace.texts.intern(process.hello.role);
    start.process = index;
    trace.events.push_back(start);
    for (sim::Event event : connection.events) {
      event.process = index;
      event.text = numbers[event.text];
      event.phase = numbers[event.phase];
      trace.events.push_back(event);
    }
    if (process.ended_ns == 0 || process.said_goodbye) continue;
    sim::Event killed;
    killed.time = killed.end = process.ended_ns;
    killed.kind = static_cast<std::uint16_t>(sim::EventKind::kProcessKill);
    killed.a = 9;
    killed.b = killer(connection, index, start.b);
    killed.process = index;
    trace.events.push_back(killed);
  }
  // By time; what one process sent stays in its order.
  std::stable_sort(trace.events.begin(), trace.events.end(),
                   [](const sim::Event& a, const sim::Event& b) { return a.time < b.time; });
}

}  // namespace tpsync::conformance
