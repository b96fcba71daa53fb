#include "tpsync/collective/os_rendezvous.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "tpsync/base/errors.h"

namespace tpsync::collective {

namespace {

constexpr Duration kFirstLook = std::chrono::milliseconds(1);
constexpr Duration kLongestLook = std::chrono::milliseconds(20);
constexpr std::uint64_t kHello = 0x7470'7379'6e63'0001ULL;
constexpr std::uint64_t kBlobMax = 16 * kMiB;

[[noreturn]] void refuse(std::string_view subject, std::string_view detail) {
  throw_invalid(ErrorKind::kInvalidConfig, subject, detail);
}

void put(ByteBuffer& into, std::uint64_t value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  for (const std::byte byte : bytes) into.push_back(byte);
}

void put(ByteBuffer& into, ByteView bytes) {
  put(into, bytes.size());
  for (const std::byte byte : bytes) into.push_back(byte);
}

// Takes values off the front; nullopt once too few bytes are left.
std::optional<std::uint64_t> take(ByteView& from) {
  std::uint64_t value = 0;
  if (from.size() < sizeof(value)) return std::nullopt;
  std::memcpy(&value, from.data(), sizeof(value));
  from = from.subspan(sizeof(value));
  return value;
}

std::optional<ByteView> take_bytes(ByteView& from) {
  const auto length = take(from);
  if (!length || *length > from.size()) return std::nullopt;
  const ByteView bytes = from.first(*length);
  from = from.subspan(*length);
  return bytes;
}

bool good_name(const std::string& name) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 100 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), good);
}

// Waits that grow from one look to the next.
class Pace {
 public:
  explicit Pace(Clock& clock) : clock_(clock) {}
  void rest(Deadline deadline) {
    clock_.sleep_until(deadline.earlier(Deadline::after(clock_, next_)).time());
    next_ = std::min(next_ * 2, kLongestLook);
  }

 private:
  Clock& clock_;
  Duration next_ = kFirstLook;
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int number) : number_(number) {}
  Socket(Socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Socket() {
    if (number_ >= 0) close(number_);
  }
  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

// Blocks until the socket is ready, in slices that end with the deadline; false once it passed.
bool ready(Clock& clock, const Socket& socket, short events, Deadline deadline) {
  for (;;) {
    pollfd polled{socket.number(), events, 0};
    const Duration left =
        std::clamp<Duration>(deadline.time() - clock.now(), Duration(0), std::chrono::seconds(1));
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    if (poll(&polled, 1, static_cast<int>(ms)) > 0) return true;
    if (deadline.passed(clock.now())) return false;
  }
}

// Both return false if the other end is gone or the deadline passed.
bool send_all(Clock& clock, const Socket& socket, ByteView bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent =
        send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno != EINTR && (errno != EAGAIN || !ready(clock, socket, POLLOUT, deadline))) {
      return false;
    }
  }
  return true;
}

bool receive_all(Clock& clock, const Socket& socket, MutableByteView into, Deadline deadline) {
  while (!into.empty()) {
    const ssize_t got = recv(socket.number(), into.data(), into.size(), MSG_DONTWAIT);
    if (got == 0) return false;
    if (got > 0) {
      into = into.subspan(static_cast<std::size_t>(got));
    } else if (errno != EINTR && (errno != EAGAIN || !ready(clock, socket, POLLIN, deadline))) {
      return false;
    }
  }
  return true;
}

// A length, then as many bytes.
bool send_blob(Clock& clock, const Socket& socket, ByteView bytes, Deadline deadline) {
  ByteBuffer framed;
  put(framed, bytes);
  return send_all(clock, socket, framed, deadline);
}

std::optional<ByteBuffer> receive_blob(Clock& clock, const Socket& socket, Deadline deadline) {
  std::uint64_t length = 0;
  if (!receive_all(clock, socket, std::as_writable_bytes(std::span(&length, 1)), deadline) ||
      length > kBlobMax) {
    return std::nullopt;
  }
  ByteBuffer bytes(length);
  if (!receive_all(clock, socket, bytes, deadline)) return std::nullopt;
  return bytes;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) found = nullptr;
  return {found, &freeaddrinfo};
}

}  // namespace

bool can_listen_at_host(const std::string& host) {
  const Addresses found = resolve(host, 0, AI_PASSIVE);
  for (const addrinfo* address = found.get(); address != nullptr; address = address->ai_next) {
    const Socket probe(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (probe && bind(probe.number(), address->ai_addr, address->ai_addrlen) == 0) return true;
  }
  return false;
}

bool can_listen_at_interface(const std::string& interface) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return false;
  bool can = false;
  for (const ifaddrs* each = found; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || interface != each->ifa_name) continue;
    can |= each->ifa_addr->sa_family == AF_INET || each->ifa_addr->sa_family == AF_INET6;
  }
  freeifaddrs(found);
  return can;
}

Rendezvous::Rendezvous(RendezvousOptions options, Clock& clock, Random& random)
    : options_(std::move(options)), clock_(clock) {
  if (options_.size < 1 || options_.rank < 0 || options_.rank >= options_.size)
    refuse("rank", "must be below the group's size");
  if (!good_name(options_.group))
    refuse("group", "must be a name of 1 to 100 letters, digits, '.', '_' and '-'");
  if (options_.store == RendezvousStore::kFile) {
    std::error_code error;
    if (!std::filesystem::is_directory(options_.folder, error))
      refuse("folder", "must be a folder that exists and that all ranks see");
  } else if (options_.host.empty() || options_.port == 0) {
    refuse("host", "and port must say where rank 0 listens");
  }
  random.fill(std::as_writable_bytes(std::span(&nonce_, 1)));
}

Rendezvous::~Rendezvous() {
  std::error_code ignored;
  for (const std::string& path : written_) std::filesystem::remove(path, ignored);
}

std::vector<ByteBuffer> Rendezvous::meet(ByteView blob, Deadline deadline) {
  return options_.store == RendezvousStore::kFile ? meet_in_folder(blob, deadline)
                                                  : meet_at_port(blob, deadline);
}

void Rendezvous::give_up(int missing) const {
  ErrorRecord record;
  record.kind = ErrorKind::kPeerLost;
  record.rank = missing;
  record.subject = "rendezvous";
  record.detail = "no rank of the group '" + options_.group + "' came before the deadline";
  if (missing >= 0) record.detail = "did not come before the deadline";
  throw RuntimeBroken(std::move(record));
}

// ---- files --------------------------------------------------------------------------------------
//
// Each rank writes a card: its number and its blob. Rank 0 lists the numbers of all cards; each
// rank that finds its own number there confirms the list. When all have confirmed the list as it
// stands, rank 0 declares it final. A card, list or confirmation of an earlier run lacks a number
// of this one, so it is replaced before a list can become final.

std::string Rendezvous::path_of(const std::string& name) const {
  return options_.folder + "/" + options_.group + "." + name;
}

void Rendezvous::write_file(const std::string& name, ByteView content) {
  const std::string path = path_of(name);
  const std::string fresh = path + "." + std::to_string(nonce_) + ".new";
  std::ofstream out(fresh, std::ios::binary);
  out.write(reinterpret_cast<const char*>(content.data()),
            static_cast<std::streamsize>(content.size()));
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(fresh, path, error);
  if (!out || error) throw_broken(ErrorKind::kIo, options_.folder, "cannot be written to");
  if (std::find(written_.begin(), written_.end(), path) == written_.end()) written_.push_back(path);
}

ByteBuffer Rendezvous::read_file(const std::string& name) const {
  std::ifstream in(path_of(name), std::ios::binary);
  if (!in) return {};
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const ByteView bytes = as_view(text);
  return {bytes.begin(), bytes.end()};
}

std::vector<ByteBuffer> Rendezvous::meet_in_folder(ByteView blob, Deadline deadline) {
  const auto size = static_cast<std::size_t>(options_.size);
  const auto mine = static_cast<std::size_t>(options_.rank);
  ByteBuffer card;
  put(card, nonce_);
  put(card, blob);
  const auto named = [](const char* what, std::size_t rank) { return what + std::to_string(rank); };
  write_file(named("card-", mine), card);

  const auto holds_mine = [&](ByteView list) {
    if (list.size() != size * sizeof(nonce_)) return false;
    ByteView at = list.subspan(mine * sizeof(nonce_));
    return take(at) == nonce_;
  };
  ByteBuffer list;
  Pace pace(clock_);
  for (int missing = -1;; pace.rest(deadline)) {
    if (mine == 0) {
      ByteBuffer found;
      missing = -1;
      for (std::size_t rank = 0; rank < size && missing < 0; ++rank) {
        const ByteBuffer theirs = read_file(named("card-", rank));
        ByteView view = theirs;
        const auto number = take(view);
        if (number) put(found, *number);
        if (!number) missing = static_cast<int>(rank);
      }
      if (missing < 0 && found != list) {
        list = std::move(found);
        write_file("list", list);
      }
      for (std::size_t rank = 1; rank < size && missing < 0; ++rank)
        if (read_file(named("confirmed-", rank)) != list) missing = static_cast<int>(rank);
      if (missing < 0) {
        write_file("final", list);
        break;
      }
    } else {
      missing = 0;
      ByteBuffer finished = read_file("final");
      if (holds_mine(finished)) {
        list = std::move(finished);
        break;
      }
      ByteBuffer offered = read_file("list");
      if (holds_mine(offered) && offered != list) {
        list = std::move(offered);
        write_file(named("confirmed-", mine), list);
      }
    }
    if (deadline.passed(clock_.now())) give_up(list.empty() || mine == 0 ? missing : -1);
  }

  std::vector<ByteBuffer> blobs;
  ByteView numbers = list;
  for (std::size_t rank = 0; rank < size; ++rank) {
    const ByteBuffer theirs = read_file(named("card-", rank));
    ByteView view = theirs;
    const auto number = take(view);
    const auto bytes = take_bytes(view);
    // A failed peer takes its card back.
    if (!number || number != take(numbers) || !bytes) give_up(static_cast<int>(rank));
    blobs.emplace_back(bytes->begin(), bytes->end());
  }
  return blobs;
}

// ---- TCP ----------------------------------------------------------------------------------------

std::vector<ByteBuffer> Rendezvous::meet_at_port(ByteView blob, Deadline deadline) {
  if (options_.size == 1) return {ByteBuffer(blob.begin(), blob.end())};
  return options_.rank == 0 ? serve(blob, deadline) : ask(blob, deadline);
}

// Connections that say nothing, or something else, are somebody else's and are dropped.
std::vector<ByteBuffer> Rendezvous::serve(ByteView blob, Deadline deadline) {
  const auto size = static_cast<std::size_t>(options_.size);
  const Addresses address = resolve(options_.host, options_.port, AI_PASSIVE);
  Socket listening;
  if (address) {
    listening = Socket(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (!listening ||
        setsockopt(listening.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(listening.number(), address->ai_addr, address->ai_addrlen) != 0 ||
        listen(listening.number(), options_.size) != 0) {
      listening = Socket();
    }
  }
  if (!listening) {
    throw_broken(ErrorKind::kIo, options_.host + ":" + std::to_string(options_.port),
                 "rank 0 cannot listen there");
  }
  std::vector<ByteBuffer> blobs(size);
  std::vector<Socket> peers(size);
  blobs[0].assign(blob.begin(), blob.end());
  const auto missing = [&] {
    for (std::size_t rank = 1; rank < size; ++rank)
      if (!peers[rank]) return static_cast<int>(rank);
    return -1;
  };
  Pace pace(clock_);
  while (missing() >= 0) {
    if (!ready(clock_, listening, POLLIN, deadline) || deadline.passed(clock_.now()))
      give_up(missing());
    Socket peer(accept4(listening.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!peer) {
      pace.rest(deadline);  // it stays ready where this process has no descriptor left
      continue;
    }
    const auto patience = deadline.earlier(Deadline::after(clock_, std::chrono::seconds(5)));
    const auto said = receive_blob(clock_, peer, patience);
    if (!said) continue;
    ByteView view = *said;
    const auto hello = take(view);
    const auto group = take_bytes(view);
    const auto rank = take(view);
    const auto their_size = take(view);
    const auto theirs = take_bytes(view);
    if (hello != kHello || !theirs || as_text(*group) != options_.group || their_size != size ||
        *rank == 0 || *rank >= size) {
      continue;
    }
    blobs[*rank].assign(theirs->begin(), theirs->end());
    peers[*rank] = std::move(peer);
  }
  ByteBuffer table;
  for (const ByteBuffer& each : blobs) put(table, each);
  for (std::size_t rank = 1; rank < size; ++rank)
    if (!send_blob(clock_, peers[rank], table, deadline)) give_up(static_cast<int>(rank));
  return blobs;
}

std::vector<ByteBuffer> Rendezvous::ask(ByteView blob, Deadline deadline) {
  ByteBuffer card;
  put(card, kHello);
  put(card, as_view(options_.group));
  put(card, static_cast<std::uint64_t>(options_.rank));
  put(card, static_cast<std::uint64_t>(options_.size));
  put(card, blob);
  Pace pace(clock_);
  for (;; pace.rest(deadline)) {
    if (deadline.passed(clock_.now())) give_up(0);
    const Addresses address = resolve(options_.host, options_.port, 0);
    if (!address) continue;
    const Socket server(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!server) throw_broken(ErrorKind::kIo, "socket", "the system has none left");
    if (connect(server.number(), address->ai_addr, address->ai_addrlen) != 0) {
      int error = errno;
      if (error == EINPROGRESS && ready(clock_, server, POLLOUT, deadline)) {
        socklen_t length = sizeof(error);
        if (getsockopt(server.number(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) continue;
      }
      if (error != 0) continue;  // rank 0 does not listen yet
    }
    if (!send_blob(clock_, server, card, deadline)) continue;
    const auto table = receive_blob(clock_, server, deadline);
    if (!table) continue;
    std::vector<ByteBuffer> blobs;
    ByteView view = *table;
    for (auto bytes = take_bytes(view); bytes; bytes = take_bytes(view))
      blobs.emplace_back(bytes->begin(), bytes->end());
    if (blobs.size() == static_cast<std::size_t>(options_.size)) return blobs;
  }
}

}  // namespace tpsync::collective
