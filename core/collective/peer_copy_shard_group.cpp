#include "tpsync/collective/peer_copy_shard_group.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/collective/rank_identity.h"
#include "tpsync/device/handles.h"

namespace tpsync::collective {

namespace {

constexpr std::string_view kShardSubject = "shard group";

// Between looks at the control group; what a peer says is known at once.
constexpr Duration kGroupLook = std::chrono::milliseconds(10);
// From the loss of a killed process's files to its end, at most.
constexpr Duration kPeerDying = std::chrono::milliseconds(200);
// Between looks for peers that died, while nothing is waited for but them.
constexpr Duration kDeathLook = std::chrono::milliseconds(50);

// ---- the words ----------------------------------------------------------------------------------

constexpr std::size_t kHandleWords = 64;
constexpr std::size_t kHandleBytesMax = 8 * kHandleWords;
// A buffer is told by its serial number modulo this: a bit of what a rank has open.
constexpr std::uint64_t kBuffersMax = 64;

constexpr std::uint64_t kTakesPart = 0;
constexpr std::uint64_t kGone = 1;

// The first line holds the bell, which rings at each change; behind it, what each rank says.
class Layout {
 public:
  static constexpr std::size_t kBell = 0;

  explicit Layout(std::size_t ranks) : stride_(kMasks + align_up(ranks, kLine)), ranks_(ranks) {}
  std::size_t words() const { return kLine + ranks_ * stride_; }
  // The latest gather for which the rank's part is complete, or that it has pulled; from 1.
  std::size_t ready(std::size_t rank) const { return at(rank, 0); }
  std::size_t pulled(std::size_t rank) const { return at(rank, 1); }
  std::size_t state(std::size_t rank) const { return at(rank, 2); }
  // Of the buffer of the gather that is ready: serial number (0: withdrawn, or nothing to pull),
  // the handle's length, and a hash of the gather's parts.
  std::size_t serial(std::size_t rank) const { return at(rank, 3); }
  std::size_t handle_bytes(std::size_t rank) const { return at(rank, 4); }
  std::size_t parts(std::size_t rank) const { return at(rank, 5); }
  std::size_t handle(std::size_t rank) const { return at(rank, kLine); }
  // Which buffers of `owner` the rank has open, or is about to open.
  std::size_t open(std::size_t rank, std::size_t owner) const { return at(rank, kMasks + owner); }

 private:
  static constexpr std::size_t kLine = 8;
  static constexpr std::size_t kMasks = kLine + kHandleWords;
  std::size_t at(std::size_t rank, std::size_t word) const { return kLine + rank * stride_ + word; }

  std::size_t stride_;
  std::size_t ranks_;
};

constexpr std::uint64_t bit_of(std::uint64_t serial) {
  return std::uint64_t{1} << (serial % kBuffersMax);
}

std::uint64_t hash_of(std::span<const GatherPart> parts) {
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325ULL;
  const auto add = [&hash](std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8)
      hash = (hash ^ ((value >> shift) & 0xff)) * 0x100'0000'01b3ULL;
  };
  for (const GatherPart& part : parts) {
    add(part.offset);
    add(part.bytes);
  }
  return hash;
}

// ---- who takes part -----------------------------------------------------------------------------

// What a rank says of itself; nothing, if it can't take part.
struct Card {
  RankIdentity identity;
  std::string device_uuid;
};

ByteBuffer encode_card(const Card& card) {
  const ByteBuffer identity = encode_identity(card.identity);
  ByteBuffer bytes;
  for (int shift = 0; shift < 32; shift += 8)
    bytes.push_back(static_cast<std::byte>(identity.size() >> shift & 0xff));
  std::copy(identity.begin(), identity.end(), std::back_inserter(bytes));
  const ByteView uuid = as_view(card.device_uuid);
  std::copy(uuid.begin(), uuid.end(), std::back_inserter(bytes));
  return bytes;
}

std::optional<Card> decode_card(ByteView bytes) {
  if (bytes.size() < 4) return std::nullopt;
  std::size_t length = 0;
  for (std::size_t i = 4; i > 0; --i)
    length = length << 8 | std::to_integer<std::size_t>(bytes[i - 1]);
  bytes = bytes.subspan(4);
  if (bytes.size() < length) return std::nullopt;
  return Card{decode_identity(bytes.first(length)), std::string(as_text(bytes.subspan(length)))};
}

[[noreturn]] void fail(ErrorKind kind, int rank, std::string_view detail) {
  ErrorRecord record;
  record.kind = kind;
  record.rank = rank;
  record.subject = kShardSubject;
  record.detail = detail;
  throw RuntimeBroken(std::move(record));
}

[[noreturn]] void accuse(std::size_t rank, std::string_view detail) {
  ErrorRecord record;
  record.kind = ErrorKind::kMismatch;
  record.rank = static_cast<int>(rank);
  record.subject = kShardSubject;
  record.detail = detail;
  throw PeerViolation(std::move(record));
}

}  // namespace

// ---- the group ----------------------------------------------------------------------------------

class PeerCopyShardGroup::Impl {
 public:
  Impl(ControlGroup& control, device::Device& device, SharedWordsFactory& factory,
       const World& world, Deadline deadline);
  ~Impl();

  void all_gather(device::StreamId stream, device::RegionId buffer,
                  std::span<const GatherPart> parts);
  void wait(device::StreamId stream, Deadline deadline, ControlGroup& watch);
  void attach(device::RegionId buffer, ByteView handle);
  bool detach(device::RegionId buffer, Deadline deadline);
  void abort() noexcept;
  bool usable() const noexcept { return !aborted_; }
  int rank() const { return static_cast<int>(mine_); }
  int size() const { return static_cast<int>(size_); }

 private:
  struct Buffer {
    device::RegionId region = device::RegionId::kNone;
    std::uint64_t serial = 0;
    ByteBuffer handle;
    device::Export own_export;  // unless the owner of the buffer has exported it
  };
  // A peer's buffer, and with which of this rank's buffers it is gathered.
  struct Opened {
    std::size_t rank = 0;
    std::uint64_t serial = 0;
    std::uint64_t bytes = 0;
    device::Import import;
    std::vector<device::RegionId> used_with;
  };
  struct Gather {
    device::StreamId stream = device::StreamId::kNone;
    device::RegionId buffer = device::RegionId::kNone;
    std::vector<GatherPart> parts;
  };
  // What a wait watches.
  struct Watch {
    ControlGroup& control;
    Deadline deadline;
    Deadline explanation = Deadline::never();
  };

  void meet(ControlGroup& control, const World& world, Deadline deadline);
  void share(ControlGroup& control, SharedWordsFactory& factory, const World& world,
             Deadline deadline);
  void complete(const Gather& gather, Watch& watch);
  void publish(const Gather& gather);
  bool pull(const Gather& gather, std::size_t rank, Watch& watch);
  Opened* open(std::size_t rank, device::RegionId buffer);
  device::ImportedRegion import_from(std::size_t rank);
  ByteBuffer handle_of(std::size_t rank);
  void close(Opened& opened) noexcept;
  template <typename Done>
  void wait_for_peers(Watch& watch, Done&& done);
  void drain(device::StreamId stream, Watch& watch);
  void look_out(Watch& watch);
  void explain_end_of(std::size_t rank, Watch& watch);
  std::optional<std::size_t> gone_peer();
  bool is_held(std::uint64_t bit, TimePoint now);
  Buffer* find(device::RegionId region);
  void ring() noexcept;

  Clock& clock_;
  Log& log_;
  device::Device& device_;
  std::size_t mine_;
  std::size_t size_;
  Layout layout_;
  std::vector<std::string> device_uuids_;
  std::vector<std::int64_t> pids_;
  std::unique_ptr<SharedWords> words_;  // null in a group of one
  // In rank order; null for this rank, and for those that end with it.
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<Buffer> buffers_;
  std::vector<Opened> opened_;
  std::deque<Gather> pending_;
  std::uint64_t next_serial_ = 1;
  std::uint64_t sequence_ = 0;  // of the latest gather that was begun in wait()
  // Whose copies were launched and not waited for.
  device::RegionId unsettled_ = device::RegionId::kNone;
  bool aborted_ = false;
};

PeerCopyShardGroup::Impl::Impl(ControlGroup& control, device::Device& device,
                               SharedWordsFactory& factory, const World& world, Deadline deadline)
    : clock_(world.clock),
      log_(world.log),
      device_(device),
      mine_(static_cast<std::size_t>(control.rank())),
      size_(static_cast<std::size_t>(control.size())),
      layout_(size_) {
  if (size_ == 1) return;
  if (size_ > static_cast<std::size_t>(kPeerCopyRanksMax))
    throw_invalid(ErrorKind::kUnsupported, kShardSubject, "there are too many ranks");
  meet(control, world, deadline);
  share(control, factory, world, deadline);
}

void PeerCopyShardGroup::Impl::meet(ControlGroup& control, const World& world, Deadline deadline) {
  std::optional<ErrorRecord> error;
  ByteBuffer own;
  attempt(error, [&] { own = encode_card({own_identity(world.host), device_.uuid()}); });
  const std::vector<ByteBuffer> said = control.all_gather(own, deadline);
  if (error) throw_record(*error);
  std::vector<RankIdentity> identities;
  for (std::size_t r = 0; r < size_; ++r) {
    std::optional<Card> card = decode_card(said[r]);
    if (!card) fail(ErrorKind::kPeerFailed, static_cast<int>(r), "a rank could not take part");
    identities.push_back(card->identity);
    pids_.push_back(card->identity.pid);
    device_uuids_.push_back(std::move(card->device_uuid));
  }
  if (!on_one_host(identities)) {
    throw_invalid(ErrorKind::kUnsupported, kShardSubject,
                  "the ranks are not on one host: copies between hosts are not possible");
  }
}

void PeerCopyShardGroup::Impl::share(ControlGroup& control, SharedWordsFactory& factory,
                                     const World& world, Deadline deadline) {
  std::optional<ErrorRecord> error;
  ByteBuffer handle;
  if (mine_ == 0) {
    attempt(error, [&] {
      SharedWordsFactory::Made made = factory.make(layout_.words());
      words_ = std::move(made.words);
      handle = std::move(made.handle);
    });
  }
  control.broadcast(handle, 0, deadline);
  attempt(error, [&] {
    if (mine_ != 0) words_ = factory.open(handle);
    if (words_->size() < layout_.words())
      throw_broken(ErrorKind::kIo, kShardSubject, "there are too few shared words");
    processes_.resize(size_);
    for (std::size_t r = 0; r < size_; ++r) {
      if (pids_[r] == pids_[mine_]) continue;
      processes_[r] = world.processes.attach(pids_[r]);
      if (!processes_[r]) fail(ErrorKind::kPeerLost, static_cast<int>(r), "a rank has ended");
    }
  });
  std::vector<std::uint64_t> able(size_);
  try {
    control.all_gather_word(error ? 0 : 1, able, deadline);
  } catch (const std::exception&) {
    if (words_ && !error) abort();  // a peer may hold the agreement, and gather with this rank
    throw;
  }
  if (error) throw_record(*error);
  for (std::size_t r = 0; r < size_; ++r)
    if (able[r] != 1)
      fail(ErrorKind::kPeerFailed, static_cast<int>(r), "a rank could not take part");
}

// ---- buffers ------------------------------------------------------------------------------------

PeerCopyShardGroup::Impl::Buffer* PeerCopyShardGroup::Impl::find(device::RegionId region) {
  for (Buffer& buffer : buffers_)
    if (buffer.region == region) return &buffer;
  return nullptr;
}

void PeerCopyShardGroup::Impl::attach(device::RegionId region, ByteView handle) {
  if (size_ == 1 || aborted_) return;
  TPSYNC_ASSERT(find(region) == nullptr);
  if (handle.size() > kHandleBytesMax) {
    throw_broken(ErrorKind::kIpc, kShardSubject,
                 "the export's handle has " + std::to_string(handle.size()) + " bytes, at most " +
                     std::to_string(kHandleBytesMax) + " can be told to the peers");
  }
  std::uint64_t taken = 0;
  for (const Buffer& buffer : buffers_) taken |= bit_of(buffer.serial);
  for (std::size_t r = 0; r < size_; ++r)
    if (r != mine_) taken |= words_->load(layout_.open(r, mine_));
  if (taken == UINT64_MAX)
    throw_broken(ErrorKind::kIpc, kShardSubject, "too many buffers are open at the peers");
  while ((taken & bit_of(next_serial_)) != 0) ++next_serial_;
  buffers_.push_back({region, next_serial_++, ByteBuffer(handle.begin(), handle.end()), {}});
}

bool PeerCopyShardGroup::Impl::detach(device::RegionId region, Deadline deadline) {
  Buffer* const found = find(region);
  if (found == nullptr) return true;
  const std::uint64_t serial = found->serial;
  const auto uses = [&](const Gather& gather) { return gather.buffer == region; };
  if (std::any_of(pending_.begin(), pending_.end(), uses)) abort();
  if (unsettled_ == region) unsettled_ = device::RegionId::kNone;
  for (Opened& opened : opened_) {
    auto& users = opened.used_with;
    users.erase(std::remove(users.begin(), users.end(), region), users.end());
    if (users.empty()) close(opened);
  }
  opened_.erase(std::remove_if(opened_.begin(), opened_.end(),
                               [](const Opened& opened) { return !opened.import; }),
                opened_.end());
  // A peer says that it opens, and then looks whether it still may; so one of the two sees it.
  if (words_->load(layout_.serial(mine_)) == serial) words_->store(layout_.serial(mine_), 0);
  ring();
  for (;;) {
    const std::uint64_t bell = words_->load(Layout::kBell);
    const TimePoint now = clock_.now();
    if (!is_held(bit_of(serial), now)) {
      buffers_.erase(buffers_.begin() + (found - buffers_.data()));  // with its export, if own
      return true;
    }
    if (deadline.passed(now)) return false;
    words_->wait(Layout::kBell, bell, deadline.earlier(Deadline::at(now + kDeathLook)));
  }
}

bool PeerCopyShardGroup::Impl::is_held(std::uint64_t bit, TimePoint now) {
  for (std::size_t r = 0; r < size_; ++r) {
    if (r == mine_ || (words_->load(layout_.open(r, mine_)) & bit) == 0) continue;
    if (!processes_[r] || !processes_[r]->wait(Deadline::at(now))) return true;
  }
  return false;
}

// The rank's buffer of its present gather; null if it withdrew it.
PeerCopyShardGroup::Impl::Opened* PeerCopyShardGroup::Impl::open(std::size_t rank,
                                                                 device::RegionId buffer) {
  const std::uint64_t serial = words_->load(layout_.serial(rank));
  if (serial == 0) return nullptr;
  auto found = std::find_if(opened_.begin(), opened_.end(), [&](const Opened& opened) {
    return opened.rank == rank && opened.serial == serial;
  });
  if (found == opened_.end()) {
    const std::size_t mask = layout_.open(mine_, rank);
    const std::uint64_t before = words_->load(mask);
    words_->store(mask, before | bit_of(serial));
    if (words_->load(layout_.serial(rank)) != serial) {
      words_->store(mask, before);
      return nullptr;
    }
    Opened opened;
    opened.rank = rank;
    opened.serial = serial;
    try {
      const device::ImportedRegion imported = import_from(rank);
      opened.import = device::Import(device_, imported.region);
      opened.bytes = imported.bytes;
      if (imported.device_uuid != device_uuids_[rank])
        accuse(rank, "the handle of this rank's buffer opened memory of device " +
                         imported.device_uuid + ", the rank is on " + device_uuids_[rank]);
      opened_.push_back(std::move(opened));
    } catch (const std::exception&) {
      opened.import.reset();
      words_->store(mask, before);
      ring();
      throw;
    }
    found = opened_.end() - 1;
  }
  if (std::find(found->used_with.begin(), found->used_with.end(), buffer) ==
      found->used_with.end()) {
    found->used_with.push_back(buffer);
  }
  return &*found;
}

device::ImportedRegion PeerCopyShardGroup::Impl::import_from(std::size_t rank) {
  try {
    return device_.import_region(handle_of(rank));
  } catch (const RuntimeBroken& broken) {
    ErrorRecord record = broken.record();
    record.detail = "the buffer of rank " + std::to_string(rank) + ": " + record.detail;
    throw RuntimeBroken(std::move(record));
  }
}

ByteBuffer PeerCopyShardGroup::Impl::handle_of(std::size_t rank) {
  const std::uint64_t bytes = words_->load(layout_.handle_bytes(rank));
  if (bytes > kHandleBytesMax) accuse(rank, "this rank's handle is longer than there is room");
  ByteBuffer handle(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    const std::uint64_t word = words_->load(layout_.handle(rank) + i / 8);
    handle[i] = static_cast<std::byte>(word >> (8 * (i % 8)) & 0xff);
  }
  return handle;
}

// Says so once it is closed.
void PeerCopyShardGroup::Impl::close(Opened& opened) noexcept {
  opened.import.reset();
  // Sums, since a load may throw; the bit is set.
  words_->add(layout_.open(mine_, opened.rank), ~bit_of(opened.serial) + 1);
}

// ---- a gather -----------------------------------------------------------------------------------

void PeerCopyShardGroup::Impl::all_gather(device::StreamId stream, device::RegionId buffer,
                                          std::span<const GatherPart> parts) {
  TPSYNC_ASSERT(parts.size() == size_);
  if (aborted_) fail(ErrorKind::kPeerLost, -1, "the group was aborted");
  if (size_ == 1) return;
  if (find(buffer) == nullptr) {
    const ByteBuffer handle = device_.export_region(buffer);
    device::Export exported(device_, buffer);
    attach(buffer, handle);
    buffers_.back().own_export = std::move(exported);
  }
  pending_.push_back({stream, buffer, {parts.begin(), parts.end()}});
}

void PeerCopyShardGroup::Impl::wait(device::StreamId stream, Deadline deadline,
                                    ControlGroup& control) {
  if (aborted_) fail(ErrorKind::kPeerLost, -1, "the group was aborted");
  Watch watch{control, deadline};
  try {
    // All ranks complete gathers in the order of the calls.
    const auto concerns = [&](const Gather& gather) { return gather.stream == stream; };
    while (std::any_of(pending_.begin(), pending_.end(), concerns)) {
      complete(pending_.front(), watch);
      pending_.pop_front();
    }
    drain(stream, watch);
  } catch (const std::exception&) {
    abort();
    throw;
  }
}

void PeerCopyShardGroup::Impl::complete(const Gather& gather, Watch& watch) {
  drain(gather.stream, watch);
  ++sequence_;
  publish(gather);
  // Each rank begins at another peer, so that no device is read by all at once.
  std::vector<bool> pulled(size_, false);
  std::size_t missing = size_ - 1;
  wait_for_peers(watch, [&] {
    for (std::size_t step = 1; step < size_; ++step) {
      const std::size_t rank = (mine_ + step) % size_;
      if (pulled[rank] || words_->load(layout_.ready(rank)) < sequence_) continue;
      if (!pull(gather, rank, watch)) continue;
      pulled[rank] = true;
      --missing;
    }
    return missing == 0;
  });
  drain(gather.stream, watch);
  unsettled_ = device::RegionId::kNone;
  words_->store(layout_.pulled(mine_), sequence_);
  ring();
  wait_for_peers(watch, [&] {
    for (std::size_t rank = 0; rank < size_; ++rank)
      if (rank != mine_ && words_->load(layout_.pulled(rank)) < sequence_) return false;
    return true;
  });
}

// Nobody reads what the gather before said any more: all ranks have pulled it.
void PeerCopyShardGroup::Impl::publish(const Gather& gather) {
  const Buffer* const buffer = find(gather.buffer);
  TPSYNC_ASSERT(buffer != nullptr);
  const bool gives = gather.parts[mine_].bytes != 0;
  if (gives && words_->load(layout_.serial(mine_)) != buffer->serial) {
    const ByteBuffer& handle = buffer->handle;
    words_->store(layout_.handle_bytes(mine_), handle.size());
    for (std::size_t begin = 0; begin < handle.size(); begin += 8) {
      std::uint64_t word = 0;
      for (std::size_t i = begin; i < std::min(begin + 8, handle.size()); ++i)
        word |= std::to_integer<std::uint64_t>(handle[i]) << (8 * (i - begin));
      words_->store(layout_.handle(mine_) + begin / 8, word);
    }
    words_->store(layout_.serial(mine_), buffer->serial);
  }
  words_->store(layout_.parts(mine_), hash_of(gather.parts));
  words_->store(layout_.ready(mine_), sequence_);
  ring();
}

// False if the rank withdrew its buffer, and so is gone.
bool PeerCopyShardGroup::Impl::pull(const Gather& gather, std::size_t rank, Watch& watch) {
  if (words_->load(layout_.parts(rank)) != hash_of(gather.parts))
    accuse(rank, "this rank gathers other parts than rank " + std::to_string(mine_) + " does");
  const GatherPart& part = gather.parts[rank];
  if (part.bytes == 0) return true;
  const Opened* opened = nullptr;
  try {
    opened = open(rank, gather.buffer);
  } catch (const std::exception&) {
    explain_end_of(rank, watch);
    throw;
  }
  if (opened == nullptr) return false;
  if (part.offset > opened->bytes || part.bytes > opened->bytes - part.offset)
    accuse(rank, "this rank's buffer has " + std::to_string(opened->bytes) +
                     " bytes and ends before its part");
  unsettled_ = gather.buffer;
  device_.copy(gather.stream, {.dst = gather.buffer,
                               .src = opened->import.id(),
                               .dst_offset = part.offset,
                               .src_offset = part.offset,
                               .bytes = part.bytes});
  return true;
}

// ---- waiting ------------------------------------------------------------------------------------

template <typename Done>
void PeerCopyShardGroup::Impl::wait_for_peers(Watch& watch, Done&& done) {
  for (;;) {
    const std::uint64_t bell = words_->load(Layout::kBell);
    if (done()) return;
    look_out(watch);
    words_->wait(Layout::kBell, bell, watch.deadline.earlier(Deadline::after(clock_, kGroupLook)));
  }
}

void PeerCopyShardGroup::Impl::drain(device::StreamId stream, Watch& watch) {
  for (;;) {
    try {
      device_.synchronize(stream, watch.deadline.earlier(Deadline::after(clock_, kGroupLook)));
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kTimeout) throw;
    }
    look_out(watch);
  }
}

void PeerCopyShardGroup::Impl::look_out(Watch& watch) {
  if (const auto lost = watch.control.lost_peer())
    fail(ErrorKind::kPeerLost, *lost, "a rank died or left while weights were moving");
  if (const auto alarm = watch.control.alarm())
    fail(ErrorKind::kPeerFailed, *alarm, "a rank reported a failure while weights were moving");
  const TimePoint now = clock_.now();
  if (watch.deadline.passed(now))
    fail(ErrorKind::kTimeout, -1, "the weights did not arrive before the deadline");
  if (const auto gone = gone_peer()) {
    if (watch.explanation.is_never()) watch.explanation = Deadline::at(now + kPeerCopyExplanation);
    if (watch.explanation.passed(now))
      fail(ErrorKind::kDevice, static_cast<int>(*gone), "a rank left the group");
  }
}

// A rank's buffer that can't be opened because the rank has died is a lost peer, as soon as the
// control group knows. A process that is being killed loses its files a moment before it has ended.
void PeerCopyShardGroup::Impl::explain_end_of(std::size_t rank, Watch& watch) {
  const Deadline dying = Deadline::after(clock_, kPeerDying);
  const Deadline until = Deadline::after(clock_, kPeerCopyExplanation);
  bool ended = false;
  for (TimePoint now = clock_.now(); !until.passed(now); now = clock_.now()) {
    ended = ended || (processes_[rank] && processes_[rank]->wait(Deadline::at(now)));
    if (!ended && dying.passed(now)) return;
    look_out(watch);
    clock_.sleep_until(now + kGroupLook);
  }
}

std::optional<std::size_t> PeerCopyShardGroup::Impl::gone_peer() {
  for (std::size_t rank = 0; words_ && rank < size_; ++rank)
    if (rank != mine_ && words_->load(layout_.state(rank)) != kTakesPart) return rank;
  return std::nullopt;
}

void PeerCopyShardGroup::Impl::ring() noexcept {
  words_->add(Layout::kBell, 1);
  words_->wake(Layout::kBell);
}

// ---- the end ------------------------------------------------------------------------------------

void PeerCopyShardGroup::Impl::abort() noexcept {
  if (std::exchange(aborted_, true)) return;
  pending_.clear();
  if (!words_) return;
  words_->store(layout_.state(mine_), kGone);
  ring();
}

PeerCopyShardGroup::Impl::~Impl() {
  if (!words_) return;  // of a group of one, or that never came to be
  bool kept = false;
  for (Opened& opened : opened_) {
    const auto& users = opened.used_with;
    if (unsettled_ != device::RegionId::kNone &&
        std::find(users.begin(), users.end(), unsettled_) != users.end()) {
      opened.import.leak();
      kept = true;
    } else {
      close(opened);
    }
  }
  if (kept) {
    log_.record({.level = LogLevel::kError,
                 .event = LogEvent::kNote,
                 .subject = kShardSubject,
                 .text = "peers' buffers stay open until the process ends: copies may still run"});
  }
  for (Buffer& buffer : buffers_) buffer.own_export.leak();
  abort();
}

// ---- the seam -----------------------------------------------------------------------------------

PeerCopyShardGroup::PeerCopyShardGroup(ControlGroup& control, device::Device& device,
                                       SharedWordsFactory& factory, const World& world,
                                       Deadline deadline)
    : impl_(std::make_unique<Impl>(control, device, factory, world, deadline)) {}
PeerCopyShardGroup::~PeerCopyShardGroup() = default;

int PeerCopyShardGroup::rank() const { return impl_->rank(); }
int PeerCopyShardGroup::size() const { return impl_->size(); }
void PeerCopyShardGroup::all_gather(device::StreamId stream, device::RegionId buffer,
                                    std::span<const GatherPart> parts) {
  impl_->all_gather(stream, buffer, parts);
}
void PeerCopyShardGroup::wait(device::StreamId stream, Deadline deadline, ControlGroup& watch) {
  impl_->wait(stream, deadline, watch);
}
void PeerCopyShardGroup::attach(device::RegionId buffer, ByteView handle) {
  impl_->attach(buffer, handle);
}
bool PeerCopyShardGroup::detach(device::RegionId buffer, Deadline deadline) {
  return impl_->detach(buffer, deadline);
}
void PeerCopyShardGroup::abort() noexcept { impl_->abort(); }
bool PeerCopyShardGroup::usable() const noexcept { return impl_->usable(); }

}  // namespace tpsync::collective
