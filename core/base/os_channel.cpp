// The sockets block; every call on them says MSG_DONTWAIT and waits in poll. So a spawned process
// in any language receives an ordinary blocking socket.
#include "tpsync/base/os_channel.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_detail.h"

namespace tpsync {

namespace {

using os_detail::throw_io;

// The kernel's limit for one message (SCM_MAX_FD).
constexpr std::size_t kMaxDescriptors = 253;
constexpr char kMarker = 'D';

// A descriptor that one thread may close while another is inside a call on it: the number is given
// back to the system when the last user left, so it can't name something else meanwhile.
class SharedDescriptor {
 public:
  explicit SharedDescriptor(int number) : number_(number) {}
  ~SharedDescriptor() { close(); }
  SharedDescriptor(const SharedDescriptor&) = delete;
  SharedDescriptor& operator=(const SharedDescriptor&) = delete;

  bool enter() noexcept {
    std::uint32_t seen = state_.load();
    while ((seen & kClosed) == 0) {
      if (state_.compare_exchange_weak(seen, seen + 1)) return true;
    }
    return false;
  }
  void leave() noexcept {
    if (state_.fetch_sub(1) == (kClosed | 1)) ::close(number_);
  }
  void close() noexcept {
    if ((state_.fetch_or(kClosed) & kClosed) != 0) return;
    ::shutdown(number_, SHUT_RDWR);  // wakes whoever waits in poll
    leave();
  }
  bool closed() const noexcept { return (state_.load() & kClosed) != 0; }
  // Gives the number up without closing it; -1 if it was closed. Nobody may be inside.
  int release() noexcept {
    std::uint32_t idle = 1;
    return state_.compare_exchange_strong(idle, kClosed) ? number_ : -1;
  }
  int number() const noexcept { return number_; }

 private:
  static constexpr std::uint32_t kClosed = 0x80000000U;
  const int number_;
  std::atomic<std::uint32_t> state_{1};  // users, with one for the owner until it closes
};

class OsChannel final : public Channel {
 public:
  explicit OsChannel(int descriptor) : socket_(descriptor) {}
  ~OsChannel() override {
    close();
    for (const int descriptor : arrived_) ::close(descriptor);
  }

  std::size_t read_some(MutableByteView into, Deadline deadline) override;
  std::size_t write_some(ByteView from, Deadline deadline) override;
  void send_descriptors(std::span<const int> descriptors, Deadline deadline) override;
  std::vector<int> receive_descriptors(std::size_t count, Deadline deadline) override;
  void close() noexcept override { socket_.close(); }

  SharedDescriptor& socket() { return socket_; }
  bool has_descriptors() const { return !arrived_.empty(); }

 private:
  // Holds the socket open during a call; throws if this end was closed.
  class Use {
   public:
    explicit Use(SharedDescriptor& socket) : socket_(socket) {
      if (!socket_.enter()) throw_closed();
    }
    ~Use() { socket_.leave(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    SharedDescriptor& socket_;
  };

  [[noreturn]] static void throw_closed() {
    throw_broken(ErrorKind::kIo, "channel", "this end is closed");
  }
  void wait(short events, Deadline deadline, std::string_view what);
  std::size_t receive(MutableByteView into, Deadline deadline);
  std::size_t send(const msghdr& message, Deadline deadline);

  SharedDescriptor socket_;
  // Descriptors that came together with the bytes before them; the next thing in the stream.
  std::vector<int> arrived_;
};

void OsChannel::wait(short events, Deadline deadline, std::string_view what) {
  pollfd poll{socket_.number(), events, 0};
  const bool ready = os_detail::poll_until({&poll, 1}, deadline);
  if (socket_.closed()) throw_closed();
  if (!ready) {
    throw_broken(ErrorKind::kTimeout, "channel", fmt::format("the deadline passed {}", what));
  }
}

// Stores bytes in `into` and descriptors in arrived_. The kernel ends a read behind a message that
// carries descriptors, so the marker is the last byte, and is not counted. 0 at end of file, and
// where descriptors alone arrived.
std::size_t OsChannel::receive(MutableByteView into, Deadline deadline) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control;
  for (;;) {
    iovec bytes{into.data(), into.size()};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t count = recvmsg(socket_.number(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (socket_.closed()) throw_closed();
    if (count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        wait(POLLIN, deadline, "before a byte came");
      } else if (errno == ECONNRESET) {
        return 0;  // the other end closed with unread bytes, after all of its own were read here
      } else if (errno != EINTR) {
        throw_io("channel", "reading", errno);
      }
      continue;
    }
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t first = arrived_.size();
      const std::size_t arrived = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      arrived_.resize(first + arrived);
      std::memcpy(arrived_.data() + first, CMSG_DATA(header), arrived * sizeof(int));
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      throw_broken(ErrorKind::kIo, "channel", "descriptors were lost: this process has too many");
    }
    return static_cast<std::size_t>(count) - (arrived_.empty() ? 0 : 1);
  }
}

std::size_t OsChannel::read_some(MutableByteView into, Deadline deadline) {
  TPSYNC_ASSERT(!into.empty());
  const Use use(socket_);
  const std::size_t count = arrived_.empty() ? receive(into, deadline) : 0;
  if (count == 0 && !arrived_.empty()) {
    throw_violation(ErrorKind::kProtocol, "channel",
                    "descriptors are next where bytes were expected");
  }
  return count;
}

std::size_t OsChannel::send(const msghdr& message, Deadline deadline) {
  for (;;) {
    const ssize_t count = sendmsg(socket_.number(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) return static_cast<std::size_t>(count);
    if (socket_.closed()) throw_closed();
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait(POLLOUT, deadline, "before a byte was accepted");
    } else if (errno == EPIPE || errno == ECONNRESET) {
      throw_broken(ErrorKind::kEndOfFile, "channel", "the other end is closed");
    } else if (errno != EINTR) {
      throw_io("channel", "writing", errno);
    }
  }
}

std::size_t OsChannel::write_some(ByteView from, Deadline deadline) {
  TPSYNC_ASSERT(!from.empty());
  const Use use(socket_);
  iovec bytes{const_cast<std::byte*>(from.data()), from.size()};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  return send(message, deadline);
}

void OsChannel::send_descriptors(std::span<const int> descriptors, Deadline deadline) {
  if (descriptors.empty()) return;
  TPSYNC_ASSERT(descriptors.size() <= kMaxDescriptors);
  const Use use(socket_);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  char marker = kMarker;
  iovec bytes{&marker, 1};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  send(message, deadline);
}

std::vector<int> OsChannel::receive_descriptors(std::size_t count, Deadline deadline) {
  if (count == 0) return {};
  const Use use(socket_);
  if (arrived_.empty()) {
    std::byte marker{};
    const std::size_t bytes = receive({&marker, 1}, deadline);
    if (bytes != 0) {
      throw_violation(ErrorKind::kProtocol, "channel",
                      "bytes are next where descriptors were expected");
    }
    if (arrived_.empty()) {
      throw_broken(ErrorKind::kEndOfFile, "channel", "the other end is closed");
    }
  }
  if (arrived_.size() != count) {
    throw_violation(
        ErrorKind::kProtocol, "channel",
        fmt::format("{} descriptors came where {} were expected", arrived_.size(), count));
  }
  return std::exchange(arrived_, {});
}

OsChannel& os_channel(Channel& channel) {
  auto* os = dynamic_cast<OsChannel*>(&channel);
  TPSYNC_ASSERT(os != nullptr);
  return *os;
}

}  // namespace

std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> OsChannelFactory::make_pair() {
  std::array<int, 2> sockets{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    throw_io("channel", "making a socket pair", errno);
  }
  os_detail::Descriptor second(sockets[1]);
  auto one = std::make_unique<OsChannel>(sockets[0]);
  auto other = std::make_unique<OsChannel>(second.release());
  return {std::move(one), std::move(other)};
}

std::size_t OsChannelFactory::wait_readable(std::span<Channel* const> channels, Deadline deadline) {
  std::vector<pollfd> polls;
  polls.reserve(channels.size());
  for (std::size_t i = 0; i < channels.size(); ++i) {
    OsChannel& channel = os_channel(*channels[i]);
    if (channel.socket().closed()) {
      throw_broken(ErrorKind::kIo, "channel", "this end is closed");
    }
    if (channel.has_descriptors()) return i;
    polls.push_back({channel.socket().number(), POLLIN, 0});
  }
  if (!os_detail::poll_until(polls, deadline)) return channels.size();
  std::size_t ready = 0;
  while (polls[ready].revents == 0) ++ready;
  return ready;
}

std::unique_ptr<Channel> OsChannelFactory::adopt(int descriptor) {
  int type = 0;
  socklen_t length = sizeof type;
  if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM) {
    throw_invalid(ErrorKind::kInvalidState, "channel",
                  fmt::format("descriptor {} is no stream socket: this program is started by a "
                              "launcher that passes one",
                              descriptor));
  }
  return std::make_unique<OsChannel>(descriptor);
}

int os_detail::release_descriptor(Channel& channel) {
  return os_channel(channel).socket().release();
}

}  // namespace tpsync
