#include "tpsync/collective/gloo_control_group.h"

#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "tpsync/base/errors.h"

namespace tpsync::collective {

namespace {

using GlooBuffer = gloo::transport::UnboundBuffer;

constexpr std::uint64_t kHeaderSlot = 2;
constexpr std::uint64_t kPayloadSlot = 3;

// A peer that has not taken so many messages is waited for; a receiver that has taken so many
// contributions in advance takes no more.
constexpr std::size_t kUntakenMax = 64;
constexpr std::size_t kInAdvanceMax = 64;
constexpr std::uint64_t kAcknowledgeEvery = 16;
// Between looks at the processes of peers.
constexpr Duration kProcessLook = std::chrono::milliseconds(100);
// What a process sent before it ended is read within this time.
constexpr Duration kLastWords = std::chrono::milliseconds(250);

enum Kind : std::uint32_t {
  kWord = 1,
  kGather = 2,
  kBroadcast = 3,
  kPayloadEnd = 4,  // follows each payload
  kAlarm = 5,
  kLeave = 6,
  kAcknowledge = 7,
};

// Every message, in host order: all ranks run one build on one kind of machine.
struct Header {
  std::uint32_t kind = 0;
  std::uint32_t root = 0;
  std::uint64_t sequence = 0;  // of the call
  std::uint64_t value = 0;     // the word, or the payload's length
  std::uint64_t taken = 0;     // how many messages the sender has taken from the receiver
};
static_assert(sizeof(Header) == 32);

struct Contribution {
  Header header;
  ByteBuffer bytes;
};

// A message under way; Gloo reads it until the peer has taken it.
struct Outgoing {
  Header header;
  std::unique_ptr<GlooBuffer> buffer;
  std::shared_ptr<const ByteBuffer> payload;  // of the message whose end this is
  std::unique_ptr<GlooBuffer> payload_buffer;
};

bool is_contribution(std::uint32_t kind) { return kind >= kWord && kind <= kBroadcast; }

}  // namespace

class GlooControlGroup::Impl {
 public:
  Impl(const GlooControlOptions& options, const World& world);
  ~Impl() { leave(); }

  std::size_t size() const { return size_; }
  std::size_t rank() const { return mine_; }

  // Contributes and waits for the contributions that the call needs: in rank order, with an empty
  // one for the ranks that give nothing. This rank's own is left to the caller.
  std::vector<Contribution> call(Kind kind, int root, std::uint64_t word, ByteView bytes,
                                 Deadline deadline);
  std::optional<int> lost_peer();
  void raise_alarm() noexcept;
  std::optional<int> alarm();
  void leave() noexcept;

  std::vector<RankIdentity> identities;

 private:
  struct Peer {
    int rank = -1;
    Header incoming;
    std::unique_ptr<GlooBuffer> in;
    std::unique_ptr<Thread> reader;
    std::unique_ptr<Process> process;  // null where it can't be watched; the caller's thread alone
    std::optional<TimePoint> ended;    // when its process was seen to have ended; likewise

    // Below: guarded by mutex_.
    std::deque<Contribution> contributions;
    std::deque<Outgoing> untaken;
    std::uint64_t taken = 0;         // messages from it
    std::uint64_t acknowledged = 0;  // of these, how many it has been told of
    std::uint64_t sent = 0;          // messages to it
    std::uint64_t alarm = 0;         // sequence + 1 of the call that its alarm concerns
    bool gone = false;               // it left or gave up, or its connection ended
    bool cut = false;                // its connection ended
  };

  void read(Peer& peer) noexcept;
  // False once the group closes.
  bool read_one(Peer& peer);
  bool deliver(Peer& peer, Header header, ByteBuffer bytes);
  void retire(Peer& peer, std::uint64_t taken);
  void send(Peer& peer, Header header, std::shared_ptr<const ByteBuffer> payload);
  void tell_everyone(Header header);
  void watch_processes();
  bool is_lost(const Peer& peer, TimePoint now) const;
  template <typename Finds>
  void wait_for(Deadline deadline, std::string_view late, Finds&& finds);
  void cut(Peer& peer);
  void close() noexcept;
  void give_up();
  [[noreturn]] void lose(int rank, std::string_view detail);

  Clock& clock_;
  std::size_t mine_;
  std::size_t size_;
  std::unique_ptr<GlooMesh> mesh_;
  std::vector<std::unique_ptr<Peer>> peers_;  // null at this rank's own place
  std::unique_ptr<Mutex> mutex_;
  std::unique_ptr<Condition> changed_;
  bool closing_ = false;  // guarded by mutex_

  // The caller's thread alone.
  std::uint64_t sequence_ = 0;
  std::uint64_t alarmed_ = 0;  // sequence + 1 of this rank's latest alarm
  TimePoint looked_{INT64_MIN};
  bool broken_ = false;
  int lost_ = -1;
  bool told_ = false;  // the peers know that this rank takes part no more
  bool left_ = false;
};

GlooControlGroup::Impl::Impl(const GlooControlOptions& options, const World& world)
    : clock_(world.clock),
      mine_(static_cast<std::size_t>(options.meeting.rank)),
      size_(static_cast<std::size_t>(options.meeting.size)),
      mutex_(world.threads.make_mutex()),
      changed_(world.threads.make_condition()) {
  const BlockedSigpipe no_sigpipe;  // the readers inherit it
  const Deadline deadline = Deadline::after(clock_, options.timeout);
  Rendezvous rendezvous(options.meeting, clock_, world.random);
  const RankIdentity own = own_identity(world.host);
  if (size_ == 1) {
    identities.push_back(own);
    return;
  }
  mesh_ = std::make_unique<GlooMesh>(
      GlooMeshOptions{options.meeting.rank, options.meeting.size, options.address}, clock_,
      world.random, [&](ByteView card, Deadline until) { return rendezvous.meet(card, until); },
      deadline);
  peers_.resize(size_);
  try {
    for (std::size_t rank = 0; rank < size_; ++rank) {
      if (rank == mine_) continue;
      peers_[rank] = std::make_unique<Peer>();
      Peer& peer = *peers_[rank];
      peer.rank = static_cast<int>(rank);
      peer.in = mesh_->buffer(&peer.incoming, sizeof(peer.incoming));
      peer.in->recv(peer.rank, kHeaderSlot, 0, sizeof(peer.incoming));
      peer.reader =
          world.threads.spawn("gloo-rank-" + std::to_string(rank), [this, &peer] { read(peer); });
    }
    const ByteBuffer introduction = encode_identity(own);
    auto said = call(kGather, 0, 0, introduction, deadline);
    for (std::size_t rank = 0; rank < size_; ++rank)
      identities.push_back(rank == mine_ ? own : decode_identity(said[rank].bytes));
    for (std::size_t rank = 0; rank < size_; ++rank) {
      const std::array<RankIdentity, 2> both{own, identities[rank]};
      // A rank that is a thread of this process ends with it.
      if (!on_one_host(both) || identities[rank].pid == own.pid) continue;
      peers_[rank]->process = world.processes.attach(identities[rank].pid);
      if (!peers_[rank]->process) peers_[rank]->ended = clock_.now();
    }
  } catch (const Error&) {
    close();
    throw;
  } catch (const std::exception&) {
    close();
    throw_broken(ErrorKind::kPeerLost, "control group", "a rank was lost while the ranks met");
  }
}

// ---- what peers send ----------------------------------------------------------------------------

void GlooControlGroup::Impl::read(Peer& peer) noexcept {
  const BlockedSigpipe no_sigpipe;
  try {
    while (read_one(peer)) continue;
  } catch (const std::exception&) {
    // The connection ended. What was taken before stays.
    const MutexLock lock(*mutex_);
    cut(peer);
  }
}

bool GlooControlGroup::Impl::read_one(Peer& peer) {
  const auto next = [&] { return peer.in->waitRecv(nullptr, kGlooForEver); };
  const auto post = [&] { peer.in->recv(peer.rank, kHeaderSlot, 0, sizeof(peer.incoming)); };
  if (!next()) return false;
  const Header header = peer.incoming;
  if (!is_contribution(header.kind) || header.kind == kWord || header.value == 0) {
    post();
    return deliver(peer, header, {});
  }
  // If the connection ends, Gloo fails the buffers that it has not begun to fill. So the payload is
  // asked for first, and what is waited for is the message behind it.
  ByteBuffer bytes(header.value);
  const auto payload = mesh_->buffer(bytes.data(), bytes.size());
  payload->recv(peer.rank, kPayloadSlot, 0, bytes.size());
  post();
  if (!next()) return false;
  if (!payload->waitRecv(nullptr, kGlooForEver)) return false;
  const Header end = peer.incoming;
  post();
  return deliver(peer, header, std::move(bytes)) && deliver(peer, end, {});
}

bool GlooControlGroup::Impl::deliver(Peer& peer, Header header, ByteBuffer bytes) {
  const MutexLock lock(*mutex_);
  ++peer.taken;
  retire(peer, header.taken);
  if (header.kind == kAlarm) peer.alarm = header.sequence + 1;
  if (header.kind == kLeave) peer.gone = true;
  if (is_contribution(header.kind)) {
    while (peer.contributions.size() >= kInAdvanceMax && !closing_)
      changed_->wait(*mutex_, Deadline::never());
    peer.contributions.push_back({header, std::move(bytes)});
  }
  changed_->notify_all();
  if (closing_) return false;
  if (header.kind == kLeave || peer.taken - peer.acknowledged >= kAcknowledgeEvery)
    send(peer, {.kind = kAcknowledge}, nullptr);
  return true;
}

// Frees the messages that the peer has taken. Gloo is done with them, or about to be, which the
// buffer's destructor waits for.
void GlooControlGroup::Impl::retire(Peer& peer, std::uint64_t taken) {
  while (!peer.untaken.empty() && peer.sent - peer.untaken.size() < taken) peer.untaken.pop_front();
}

// ---- what peers are sent ------------------------------------------------------------------------

// mutex_ is held. Never blocks: what the peer does not take yet stays with Gloo.
void GlooControlGroup::Impl::send(Peer& peer, Header header,
                                  std::shared_ptr<const ByteBuffer> payload) {
  if (peer.cut) return;
  try {
    const auto post = [&](Header what) -> Outgoing& {
      what.taken = peer.acknowledged = peer.taken;
      Outgoing& message = peer.untaken.emplace_back();
      ++peer.sent;
      message.header = what;
      message.buffer = mesh_->buffer(&message.header, sizeof(message.header));
      message.buffer->send(peer.rank, kHeaderSlot, 0, sizeof(message.header));
      return message;
    };
    post(header);
    if (!payload || payload->empty()) return;
    auto payload_buffer = mesh_->buffer(payload->data(), payload->size());
    payload_buffer->send(peer.rank, kPayloadSlot, 0, payload->size());
    header.kind = kPayloadEnd;
    Outgoing& end = post(header);
    end.payload = std::move(payload);
    end.payload_buffer = std::move(payload_buffer);
  } catch (const std::exception&) {
    cut(peer);
  }
}

void GlooControlGroup::Impl::cut(Peer& peer) {
  peer.gone = peer.cut = true;
  changed_->notify_all();
}

void GlooControlGroup::Impl::tell_everyone(Header header) {
  const BlockedSigpipe no_sigpipe;
  const MutexLock lock(*mutex_);
  for (const auto& peer : peers_)
    if (peer) send(*peer, header, nullptr);
}

// ---- calls --------------------------------------------------------------------------------------

void GlooControlGroup::Impl::watch_processes() {
  const TimePoint now = clock_.now();
  looked_ = now;
  for (const auto& peer : peers_)
    if (peer && peer->process && !peer->ended && peer->process->wait(Deadline::at(now)))
      peer->ended = now;
}

bool GlooControlGroup::Impl::is_lost(const Peer& peer, TimePoint now) const {
  return peer.gone || (peer.ended && now >= *peer.ended + kLastWords);
}

void GlooControlGroup::Impl::lose(int rank, std::string_view detail) {
  broken_ = true;
  lost_ = rank;
  give_up();
  ErrorRecord record;
  record.kind = ErrorKind::kPeerLost;
  record.rank = rank;
  record.subject = "control group";
  record.detail = detail;
  throw RuntimeBroken(std::move(record));
}

void GlooControlGroup::Impl::give_up() {
  if (!std::exchange(told_, true)) tell_everyone({.kind = kLeave});
}

// Blocks until every rank that has something for this call, as `finds` says, is there or lost.
template <typename Finds>
void GlooControlGroup::Impl::wait_for(Deadline deadline, std::string_view late, Finds&& finds) {
  for (;;) {
    TimePoint now = clock_.now();
    if (now >= looked_ + kProcessLook) watch_processes();
    now = clock_.now();
    int lost = -1;
    int missing = -1;
    int count = 0;
    {
      const MutexLock lock(*mutex_);
      for (const auto& peer : peers_) {
        if (!peer || finds(*peer)) continue;
        if (lost < 0 && is_lost(*peer, now)) lost = peer->rank;
        missing = peer->rank;
        ++count;
      }
      if (count == 0) return;
      if (lost < 0 && !deadline.passed(now)) {
        changed_->wait(*mutex_, deadline.earlier(Deadline::at(now + kProcessLook)));
        continue;
      }
    }
    if (lost >= 0) lose(lost, "a rank died or left the group");
    lose(count == 1 ? missing : -1, late);
  }
}

std::vector<Contribution> GlooControlGroup::Impl::call(Kind kind, int root, std::uint64_t word,
                                                       ByteView bytes, Deadline deadline) {
  if (left_)
    throw_invalid(ErrorKind::kInvalidState, "control group", "this rank has left the group");
  if (broken_) lose(lost_, "a rank was lost in an earlier call");
  std::vector<Contribution> received(size_);
  const auto needs = [&](const Peer& peer) { return kind != kBroadcast || peer.rank == root; };
  if (kind != kBroadcast || static_cast<std::size_t>(root) == mine_) {
    // A lost rank is no obstacle here: who needs something from it finds out below.
    wait_for(deadline, "took no message before the deadline",
             [&](const Peer& peer) { return peer.untaken.size() < kUntakenMax || peer.gone; });
    const auto payload =
        bytes.empty() ? nullptr : std::make_shared<const ByteBuffer>(bytes.begin(), bytes.end());
    const Header header{.kind = kind,
                        .root = static_cast<std::uint32_t>(root),
                        .sequence = sequence_,
                        .value = kind == kWord ? word : bytes.size()};
    const BlockedSigpipe no_sigpipe;
    const MutexLock lock(*mutex_);
    for (const auto& peer : peers_)
      if (peer) send(*peer, header, payload);
  }
  wait_for(deadline, "no contribution before the deadline",
           [&](const Peer& peer) { return !needs(peer) || !peer.contributions.empty(); });
  int astray = -1;
  {
    const MutexLock lock(*mutex_);
    for (const auto& peer : peers_) {
      if (!peer || !needs(*peer)) continue;
      Contribution& given = received[static_cast<std::size_t>(peer->rank)];
      given = std::move(peer->contributions.front());
      peer->contributions.pop_front();
      const bool same = given.header.kind == kind && given.header.sequence == sequence_ &&
                        given.header.root == static_cast<std::uint32_t>(root);
      if (!same && astray < 0) astray = peer->rank;
    }
    changed_->notify_all();  // a reader may wait for room
  }
  if (astray >= 0) {
    broken_ = true;
    lost_ = astray;
    give_up();
    throw_violation(ErrorKind::kProtocol, "control group", "ranks make different calls");
  }
  ++sequence_;
  return received;
}

std::optional<int> GlooControlGroup::Impl::lost_peer() {
  if (broken_ && lost_ >= 0) return lost_;
  watch_processes();
  const MutexLock lock(*mutex_);
  for (const auto& peer : peers_)
    if (peer && (peer->gone || peer->ended)) return peer->rank;
  return std::nullopt;
}

void GlooControlGroup::Impl::raise_alarm() noexcept {
  if (left_ || broken_ || alarmed_ == sequence_ + 1) return;
  alarmed_ = sequence_ + 1;
  tell_everyone({.kind = kAlarm, .sequence = sequence_});
}

std::optional<int> GlooControlGroup::Impl::alarm() {
  const MutexLock lock(*mutex_);
  for (const auto& peer : peers_)
    if (peer && peer->alarm == sequence_ + 1) return peer->rank;
  return std::nullopt;
}

// ---- the end ------------------------------------------------------------------------------------

void GlooControlGroup::Impl::leave() noexcept {
  if (std::exchange(left_, true)) return;
  give_up();
  {
    const MutexLock lock(*mutex_);
    std::uint64_t bytes = 0;
    for (const auto& peer : peers_) {
      if (!peer || peer->cut) continue;
      for (const Outgoing& sent : peer->untaken)
        if (sent.payload) bytes += sent.payload->size();
    }
    const auto moving = std::chrono::milliseconds(bytes * 1000 / kGlooFarewellBytesPerSecond);
    const Deadline deadline = Deadline::after(clock_, kGlooFarewell + moving);
    const auto all_taken = [&] {
      return std::all_of(peers_.begin(), peers_.end(), [](const auto& peer) {
        return !peer || peer->cut ||
               std::all_of(peer->untaken.begin(), peer->untaken.end(),
                           [](const Outgoing& sent) { return sent.header.kind == kAcknowledge; });
      });
    };
    while (!all_taken() && changed_->wait(*mutex_, deadline)) continue;
  }
  close();
}

// Nothing of the group is left afterwards: no connection, no thread, no message.
void GlooControlGroup::Impl::close() noexcept {
  {
    const MutexLock lock(*mutex_);
    closing_ = true;
    changed_->notify_all();
  }
  for (const auto& peer : peers_)
    if (peer && peer->in) peer->in->abortWaitRecv();
  for (const auto& peer : peers_)
    if (peer && peer->reader) peer->reader->join();
  if (mesh_) mesh_->close();
  for (const auto& peer : peers_) {
    if (!peer) continue;
    peer->in.reset();
    peer->reader.reset();
    peer->process.reset();
    peer->untaken.clear();
  }
  mesh_.reset();
}

// ---- the seam -----------------------------------------------------------------------------------

GlooControlGroup::GlooControlGroup(const GlooControlOptions& options, const World& world)
    : impl_(std::make_unique<Impl>(options, world)) {}

GlooControlGroup::~GlooControlGroup() = default;

int GlooControlGroup::rank() const { return static_cast<int>(impl_->rank()); }
int GlooControlGroup::size() const { return static_cast<int>(impl_->size()); }

void GlooControlGroup::all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                                       Deadline deadline) {
  TPSYNC_ASSERT(words.size() == impl_->size());
  const auto received = impl_->call(kWord, 0, word, {}, deadline);
  for (std::size_t rank = 0; rank < words.size(); ++rank)
    words[rank] = rank == impl_->rank() ? word : received[rank].header.value;
}

std::vector<ByteBuffer> GlooControlGroup::all_gather(ByteView bytes, Deadline deadline) {
  auto received = impl_->call(kGather, 0, 0, bytes, deadline);
  std::vector<ByteBuffer> gathered;
  for (Contribution& given : received) gathered.push_back(std::move(given.bytes));
  gathered[impl_->rank()].assign(bytes.begin(), bytes.end());
  return gathered;
}

void GlooControlGroup::broadcast(ByteBuffer& bytes, int root, Deadline deadline) {
  TPSYNC_ASSERT(root >= 0 && root < size());
  const bool sends = root == rank();
  auto received = impl_->call(kBroadcast, root, 0, sends ? ByteView(bytes) : ByteView(), deadline);
  if (!sends) bytes = std::move(received[static_cast<std::size_t>(root)].bytes);
}

std::optional<int> GlooControlGroup::lost_peer() { return impl_->lost_peer(); }
void GlooControlGroup::raise_alarm() noexcept { impl_->raise_alarm(); }
std::optional<int> GlooControlGroup::alarm() { return impl_->alarm(); }
void GlooControlGroup::leave() noexcept { impl_->leave(); }
std::span<const RankIdentity> GlooControlGroup::identities() const { return impl_->identities; }

}  // namespace tpsync::collective
