#include "tpsync/collective/gloo_mesh.h"

#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "tpsync/base/errors.h"
#include "tpsync/collective/os_rendezvous.h"

namespace tpsync::collective {

namespace {

constexpr std::uint64_t kConfirmSlot = 1;
constexpr std::chrono::milliseconds kShortest{1000};

[[noreturn]] void lost(ErrorKind kind, int rank, std::string_view detail) {
  ErrorRecord record;
  record.kind = kind;
  record.rank = rank;
  record.subject = "gloo mesh";
  record.detail = detail;
  throw RuntimeBroken(std::move(record));
}

std::chrono::milliseconds left(Clock& clock, Deadline deadline) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline.time() - std::min(clock.now(), deadline.time()));
  return std::clamp(ms, std::chrono::milliseconds(1),
                    std::chrono::milliseconds(std::chrono::hours(24)));
}

void append(ByteBuffer& into, const void* bytes, std::size_t size) {
  const auto* first = static_cast<const std::byte*>(bytes);
  into.insert(into.end(), first, first + size);
}

// One rank's card: a random number, then for each rank the address at which this one waits for it.
struct Card {
  std::uint64_t number = 0;
  std::vector<std::vector<char>> addresses;
};

ByteBuffer encode(const Card& card) {
  ByteBuffer bytes;
  append(bytes, &card.number, sizeof(card.number));
  for (const std::vector<char>& address : card.addresses) {
    const std::uint64_t length = address.size();
    append(bytes, &length, sizeof(length));
    append(bytes, address.data(), address.size());
  }
  return bytes;
}

std::optional<Card> decode(ByteView bytes, std::size_t size) {
  Card card;
  const auto take = [&bytes](void* into, std::size_t count) {
    if (bytes.size() < count) return false;
    if (count != 0) std::memcpy(into, bytes.data(), count);
    bytes = bytes.subspan(count);
    return true;
  };
  if (!take(&card.number, sizeof(card.number))) return std::nullopt;
  for (std::size_t rank = 0; rank < size; ++rank) {
    std::uint64_t length = 0;
    if (!take(&length, sizeof(length)) || length > bytes.size()) return std::nullopt;
    card.addresses.emplace_back(length);
    if (!take(card.addresses.back().data(), length)) return std::nullopt;
  }
  return bytes.empty() ? std::optional(std::move(card)) : std::nullopt;
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e37'79b9'7f4a'7c15ULL;
  return hash ^ (hash >> 29);
}

}  // namespace

GlooMesh::GlooMesh(const GlooMeshOptions& options, Clock& clock, Random& random,
                   const Exchange& exchange, Deadline deadline)
    : options_(options) {
  const BlockedSigpipe no_sigpipe;
  const auto size = static_cast<std::size_t>(options_.size);
  const auto mine = static_cast<std::size_t>(options_.rank);
  // A rank whose own part fails brings nothing, so that its peers don't wait for it.
  std::optional<ErrorRecord> error;
  Card card;
  card.addresses.resize(size);
  random.fill(std::as_writable_bytes(std::span(&card.number, 1)));
  try {
    const GlooAddress& address = options_.address;
    const bool can = address.interface.empty() ? can_listen_at_host(address.host)
                                               : can_listen_at_interface(address.interface);
    if (!can) {
      throw_invalid(ErrorKind::kInvalidConfig,
                    address.interface.empty() ? address.host : address.interface,
                    "is no address or interface of this host");
    }
    gloo::transport::tcp::attr attributes;
    attributes.hostname = options_.address.host;
    attributes.iface = options_.address.interface;
    device_ = gloo::transport::tcp::CreateDevice(attributes);
    context_ = device_->createContext(options_.rank, options_.size);
    // Gloo waits five times as long for a pair to connect.
    context_->setTimeout(std::max(left(clock, deadline) / 5, kShortest));
    for (std::size_t rank = 0; rank < size; ++rank) {
      if (rank == mine) continue;
      card.addresses[rank] = context_->createPair(static_cast<int>(rank))->address().bytes();
    }
  } catch (const std::exception& own) {
    error = record_of(own);
    // Gloo's own words differ between builds.
    if (error->kind == ErrorKind::kInternal) {
      error->kind = ErrorKind::kIo;
      error->remedy = Remedy::kRebuildRuntime;
      error->subject = "gloo mesh";
      error->detail = "Gloo cannot listen for the peers";
    }
  }
  const auto gathered = exchange(error ? ByteBuffer() : encode(card), deadline);
  if (error) throw_record(*error);
  std::vector<Card> cards;
  std::uint64_t session = 0;
  for (std::size_t rank = 0; rank < size; ++rank) {
    auto theirs = rank < gathered.size() ? decode(gathered[rank], size) : std::nullopt;
    if (!theirs) lost(ErrorKind::kPeerFailed, static_cast<int>(rank), "could not listen");
    session = mix(session, theirs->number);
    cards.push_back(std::move(*theirs));
  }
  for (std::size_t rank = 0; rank < size; ++rank) {
    if (rank == mine) continue;
    try {
      context_->getPair(static_cast<int>(rank))->connect(cards[rank].addresses[mine]);
    } catch (const std::exception&) {
      lost(ErrorKind::kPeerLost, static_cast<int>(rank), "did not connect before the deadline");
    }
  }
  confirm(session, clock, deadline);
}

// Every rank tells every other the number of this mesh, so that all know that all have connected,
// and to whom.
void GlooMesh::confirm(std::uint64_t session, Clock& clock, Deadline deadline) {
  const auto size = static_cast<std::size_t>(options_.size);
  const auto mine = static_cast<std::size_t>(options_.rank);
  std::vector<std::array<std::uint64_t, 2>> said(size);
  const std::array<std::uint64_t, 2> own{session, static_cast<std::uint64_t>(options_.rank)};
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> in(size);
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> out(size);
  std::size_t rank = 0;
  try {
    for (rank = 0; rank < size; ++rank) {
      if (rank == mine) continue;
      in[rank] = buffer(said[rank].data(), sizeof(said[rank]));
      out[rank] = buffer(own.data(), sizeof(own));
      in[rank]->recv(static_cast<int>(rank), kConfirmSlot, 0, sizeof(own));
      out[rank]->send(static_cast<int>(rank), kConfirmSlot, 0, sizeof(own));
    }
    for (rank = 0; rank < size; ++rank)
      if (rank != mine) in[rank]->waitRecv(nullptr, left(clock, deadline));
    for (rank = 0; rank < size; ++rank)
      if (rank != mine) out[rank]->waitSend(nullptr, left(clock, deadline));
  } catch (const std::exception&) {
    close();
    lost(ErrorKind::kPeerLost, static_cast<int>(rank), "was lost while the ranks connected");
  }
  for (rank = 0; rank < size; ++rank) {
    if (rank == mine || (said[rank][0] == session && said[rank][1] == rank)) continue;
    close();
    lost(ErrorKind::kPeerFailed, static_cast<int>(rank), "is a stranger");
  }
}

GlooMesh::~GlooMesh() { close(); }

std::unique_ptr<gloo::transport::UnboundBuffer> GlooMesh::buffer(const void* bytes,
                                                                 std::size_t size) {
  return context_->createUnboundBuffer(const_cast<void*>(bytes), size);
}

void GlooMesh::close() noexcept {
  if (std::exchange(closed_, true) || !context_) return;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank) continue;
    try {
      if (const auto& pair = context_->getPair(rank)) pair->close();
    } catch (const std::exception&) {
      // The system refused to reset the connection; it is closed with the pair.
      continue;
    }
  }
}

}  // namespace tpsync::collective
