#include "conformance/process/resident_service.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>

#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

constexpr int kAnswerLimitMs = 5000;

// The first word is 1 if the second is a lane.
using Answer = std::array<std::int64_t, 2>;

class Socket {
 public:
  Socket() : number_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {}
  explicit Socket(int number) : number_(number) {}
  ~Socket() {
    if (number_ >= 0) ::close(number_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int number() const { return number_; }

 private:
  int number_;
};

std::optional<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return std::nullopt;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

bool readable(int number, int limit_ms) {
  pollfd one{number, POLLIN, 0};
  return poll(&one, 1, limit_ms) == 1;
}

}  // namespace

class ResidentService::Impl {
 public:
  Impl(const std::string& path, std::function<std::optional<std::int64_t>()> lane)
      : lane_(std::move(lane)) {
    const auto address = address_of(path);
    if (!address) throw_broken(ErrorKind::kIo, path, "is too long for a socket; set TMPDIR");
    unlink(path.c_str());
    if (::bind(listener_.number(), reinterpret_cast<const sockaddr*>(&*address),
               sizeof(*address)) != 0 ||
        ::listen(listener_.number(), 64) != 0 || ::pipe(stop_.data()) != 0) {
      throw_broken(ErrorKind::kIo, path, fmt::format("no socket can be made (errno {})", errno));
    }
    thread_ = std::thread([this] { serve(); });
  }

  ~Impl() {
    ::close(stop_[1]);
    thread_.join();
    ::close(stop_[0]);
  }

 private:
  void serve() {
    for (;;) {
      std::array<pollfd, 2> both{{{listener_.number(), POLLIN, 0}, {stop_[0], POLLIN, 0}}};
      if (poll(both.data(), both.size(), -1) < 0) continue;
      if (both[1].revents != 0) return;
      const Socket asker(::accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC));
      if (asker.number() < 0) continue;
      const std::optional<std::int64_t> lane = lane_();
      const Answer answer{lane ? 1 : 0, lane.value_or(0)};
      // Whoever asked may have gone.
      static_cast<void>(::send(asker.number(), answer.data(), sizeof(answer), MSG_NOSIGNAL));
    }
  }

  std::function<std::optional<std::int64_t>()> lane_;
  Socket listener_;
  std::array<int, 2> stop_{-1, -1};
  std::thread thread_;
};

ResidentService::ResidentService(const std::string& path,
                                 std::function<std::optional<std::int64_t>()> lane)
    : impl_(std::make_unique<Impl>(path, std::move(lane))) {}
ResidentService::~ResidentService() = default;

std::optional<std::int64_t> ask_resident(const std::string& path) {
  const auto address = address_of(path);
  const Socket socket;
  if (!address || ::connect(socket.number(), reinterpret_cast<const sockaddr*>(&*address),
                            sizeof(*address)) != 0)
    return std::nullopt;
  Answer answer{};
  if (!readable(socket.number(), kAnswerLimitMs) ||
      ::recv(socket.number(), answer.data(), sizeof(answer), 0) != sizeof(answer) || answer[0] != 1)
    return std::nullopt;
  return answer[1];
}

}  // namespace tpsync::conformance
