#include "tpsync/collective/gloo_shard_group.h"

#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "tpsync/base/errors.h"

namespace tpsync::collective {

namespace {

using GlooBuffer = gloo::transport::UnboundBuffer;

// Between looks at the control group; the end of a gather is known at once.
constexpr Duration kGroupLook = std::chrono::milliseconds(10);

// How far the group's gathers are, for streams that outlive it.
struct Finished {
  explicit Finished(Threads& threads)
      : mutex(threads.make_mutex()), changed(threads.make_condition()) {}
  void wait_for(std::uint64_t sequence, Deadline deadline);

  const std::unique_ptr<Mutex> mutex;
  const std::unique_ptr<Condition> changed;
  std::uint64_t gathers = 0;  // over, in the order of the calls
  bool given_up = false;
};

struct Gather {
  device::StreamId stream = device::StreamId::kNone;
  std::byte* base = nullptr;
  std::vector<GatherPart> parts;
  std::uint64_t slot = 0;
};

[[noreturn]] void fail(ErrorKind kind, int rank, std::string_view detail);

void Finished::wait_for(std::uint64_t sequence, Deadline deadline) {
  const MutexLock lock(*mutex);
  while (gathers <= sequence && !given_up) {
    if (!changed->wait(*mutex, deadline))
      fail(ErrorKind::kTimeout, -1, "the weights did not arrive before the deadline");
  }
}

[[noreturn]] void fail(ErrorKind kind, int rank, std::string_view detail) {
  ErrorRecord record;
  record.kind = kind;
  record.rank = rank;
  record.subject = "shard group";
  record.detail = detail;
  throw RuntimeBroken(std::move(record));
}

// Names a gather by its place in the order and by its parts.
std::uint64_t slot_of(std::uint64_t sequence, std::span<const GatherPart> parts) {
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325ULL;
  const auto add = [&hash](std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8)
      hash = (hash ^ ((value >> shift) & 0xff)) * 0x100'0000'01b3ULL;
  };
  add(sequence);
  for (const GatherPart& part : parts) {
    add(part.offset);
    add(part.bytes);
  }
  return hash;
}

}  // namespace

class GlooShardGroup::Impl {
 public:
  Impl(ControlGroup& control, device::HostDevice& device, const GlooAddress& address,
       const World& world, Deadline deadline);
  ~Impl() { abort(); }

  void all_gather(device::StreamId stream, device::RegionId buffer,
                  std::span<const GatherPart> parts);
  void wait(device::StreamId stream, Deadline deadline, ControlGroup& watch);
  void abort() noexcept;
  bool usable() const noexcept { return !aborted_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  enum class Progress : std::uint8_t { kMoving, kDone, kFailed };

  void move() noexcept;
  bool move_one(const Gather& gather);
  Progress look(device::StreamId stream, Deadline until, int& failed_rank);
  [[noreturn]] void give_up(ErrorKind kind, int rank, std::string_view detail);

  Clock& clock_;
  device::HostDevice& device_;
  int rank_;
  int size_;
  std::unique_ptr<GlooMesh> mesh_;
  std::unique_ptr<Mutex> mutex_;
  std::unique_ptr<Condition> changed_;
  std::shared_ptr<Finished> finished_;
  std::unique_ptr<Thread> mover_;

  // Guarded by mutex_.
  std::deque<Gather> enqueued_;  // the first is being moved
  std::vector<std::unique_ptr<GlooBuffer>> receiving_;
  std::vector<std::unique_ptr<GlooBuffer>> sending_;
  bool stopping_ = false;
  bool failed_ = false;  // a connection ended
  int failed_rank_ = -1;

  // The caller's thread alone.
  std::uint64_t sequence_ = 0;
  bool aborted_ = false;
};

GlooShardGroup::Impl::Impl(ControlGroup& control, device::HostDevice& device,
                           const GlooAddress& address, const World& world, Deadline deadline)
    : clock_(world.clock),
      device_(device),
      rank_(control.rank()),
      size_(control.size()),
      mutex_(world.threads.make_mutex()),
      changed_(world.threads.make_condition()),
      finished_(std::make_shared<Finished>(world.threads)) {
  if (size_ == 1) return;
  const BlockedSigpipe no_sigpipe;  // the mover inherits it
  mesh_ = std::make_unique<GlooMesh>(
      GlooMeshOptions{rank_, size_, address}, clock_, world.random,
      [&](ByteView card, Deadline until) { return control.all_gather(card, until); }, deadline);
  mover_ = world.threads.spawn("gloo-mover", [this] { move(); });
}

void GlooShardGroup::Impl::all_gather(device::StreamId stream, device::RegionId buffer,
                                      std::span<const GatherPart> parts) {
  TPSYNC_ASSERT(parts.size() == static_cast<std::size_t>(size_));
  if (aborted_) fail(ErrorKind::kPeerLost, -1, "the group was aborted");
  std::uint64_t end = 0;
  for (const GatherPart& part : parts)
    if (part.bytes != 0) end = std::max(end, part.offset + part.bytes);
  std::byte* base = device_.host_pointer(buffer, 0, end);
  try {
    // This rank's own part is work of the stream. This thread does it, so it ends.
    device_.synchronize(stream, Deadline::never());
  } catch (const Error&) {
    abort();
    throw;
  }
  const std::uint64_t sequence = sequence_++;
  if (size_ == 1) return;
  Gather gather{stream, base, {parts.begin(), parts.end()}, slot_of(sequence, parts)};
  device_.await(stream, [finished = finished_, sequence](Deadline deadline) {
    finished->wait_for(sequence, deadline);
  });
  const MutexLock lock(*mutex_);
  enqueued_.push_back(std::move(gather));
  changed_->notify_all();
}

// ---- the mover ----------------------------------------------------------------------------------

void GlooShardGroup::Impl::move() noexcept {
  const BlockedSigpipe no_sigpipe;
  bool moving = true;
  while (moving) {
    Gather next;
    {
      const MutexLock lock(*mutex_);
      while (enqueued_.empty() && !stopping_) changed_->wait(*mutex_, Deadline::never());
      if (stopping_) break;
      next = enqueued_.front();
    }
    moving = move_one(next);
    if (moving) {
      const MutexLock lock(*finished_->mutex);
      ++finished_->gathers;
      finished_->changed->notify_all();
    }
    const MutexLock lock(*mutex_);
    if (moving) {
      receiving_.clear();
      sending_.clear();
      enqueued_.pop_front();
    }
    changed_->notify_all();
  }
  // Peers see the end at once. The buffers go after the connections, so that nothing is read into
  // memory that is no longer theirs.
  mesh_->close();
  const MutexLock lock(*mutex_);
  receiving_.clear();
  sending_.clear();
}

// False if it failed or was stopped; its buffers then stay for the caller.
bool GlooShardGroup::Impl::move_one(const Gather& gather) {
  int at = -1;
  try {
    std::vector<GlooBuffer*> receives;
    std::vector<GlooBuffer*> sends;
    std::vector<int> ranks;
    const GatherPart& own = gather.parts[static_cast<std::size_t>(rank_)];
    {
      const MutexLock lock(*mutex_);
      if (stopping_) return false;
      for (int rank = 0; rank < size_; ++rank) {
        if (rank == rank_) continue;
        at = rank;
        const GatherPart& part = gather.parts[static_cast<std::size_t>(rank)];
        if (part.bytes != 0) {
          receiving_.push_back(mesh_->buffer(gather.base + part.offset, part.bytes));
          receives.push_back(receiving_.back().get());
          ranks.push_back(rank);
          receives.back()->recv(rank, gather.slot, 0, part.bytes);
        }
        if (own.bytes != 0) {
          sending_.push_back(mesh_->buffer(gather.base + own.offset, own.bytes));
          sends.push_back(sending_.back().get());
          sends.back()->send(rank, gather.slot, 0, own.bytes);
        }
      }
    }
    for (std::size_t i = 0; i < receives.size(); ++i) {
      at = ranks[i];
      if (!receives[i]->waitRecv(nullptr, kGlooForEver)) return false;
    }
    at = -1;
    for (GlooBuffer* send : sends)
      if (!send->waitSend(nullptr, kGlooForEver)) return false;
    return true;
  } catch (const std::exception&) {
    const MutexLock lock(*mutex_);
    failed_ = true;
    failed_rank_ = at;
    return false;
  }
}

// ---- the waiting side ---------------------------------------------------------------------------

GlooShardGroup::Impl::Progress GlooShardGroup::Impl::look(device::StreamId stream, Deadline until,
                                                          int& failed_rank) {
  const MutexLock lock(*mutex_);
  const auto moving = [&] {
    return std::any_of(enqueued_.begin(), enqueued_.end(),
                       [&](const Gather& gather) { return gather.stream == stream; });
  };
  while (moving() && !failed_ && changed_->wait(*mutex_, until)) continue;
  failed_rank = failed_rank_;
  if (!moving()) return Progress::kDone;
  return failed_ ? Progress::kFailed : Progress::kMoving;
}

void GlooShardGroup::Impl::wait(device::StreamId stream, Deadline deadline, ControlGroup& watch) {
  if (aborted_) fail(ErrorKind::kPeerLost, -1, "the group was aborted");
  Deadline explanation = Deadline::never();
  for (;;) {
    const Deadline until = deadline.earlier(Deadline::after(clock_, kGroupLook));
    int failed_rank = -1;
    const Progress progress = look(stream, until, failed_rank);
    if (progress == Progress::kDone) break;
    if (progress == Progress::kFailed && explanation.is_never())
      explanation = Deadline::after(clock_, kGlooExplanation);
    if (const auto lost = watch.lost_peer())
      give_up(ErrorKind::kPeerLost, *lost, "a rank died or left while weights were moving");
    if (const auto alarm = watch.alarm())
      give_up(ErrorKind::kPeerFailed, *alarm,
              "a rank reported a failure while weights were moving");
    const TimePoint now = clock_.now();
    if (deadline.passed(now))
      give_up(ErrorKind::kTimeout, -1, "the weights did not arrive before the deadline");
    if (explanation.passed(now))
      give_up(ErrorKind::kDevice, failed_rank, "the connection to a rank ended");
    if (progress == Progress::kFailed) clock_.sleep_until(until.time());
  }
  try {
    device_.synchronize(stream, deadline);
  } catch (const Error&) {
    abort();
    throw;
  }
}

void GlooShardGroup::Impl::give_up(ErrorKind kind, int rank, std::string_view detail) {
  abort();
  fail(kind, rank, detail);
}

void GlooShardGroup::Impl::abort() noexcept {
  if (std::exchange(aborted_, true)) return;
  {
    const MutexLock lock(*finished_->mutex);
    finished_->given_up = true;
    finished_->changed->notify_all();
  }
  if (!mover_) return;
  {
    const MutexLock lock(*mutex_);
    stopping_ = true;
    for (const auto& buffer : receiving_) buffer->abortWaitRecv();
    for (const auto& buffer : sending_) buffer->abortWaitSend();
    changed_->notify_all();
  }
  mover_->join();
  mesh_.reset();
}

// ---- the seam -----------------------------------------------------------------------------------

GlooShardGroup::GlooShardGroup(ControlGroup& control, device::HostDevice& device,
                               const GlooAddress& address, const World& world, Deadline deadline)
    : impl_(std::make_unique<Impl>(control, device, address, world, deadline)) {}
GlooShardGroup::~GlooShardGroup() = default;

int GlooShardGroup::rank() const { return impl_->rank(); }
int GlooShardGroup::size() const { return impl_->size(); }
void GlooShardGroup::all_gather(device::StreamId stream, device::RegionId buffer,
                                std::span<const GatherPart> parts) {
  impl_->all_gather(stream, buffer, parts);
}
void GlooShardGroup::wait(device::StreamId stream, Deadline deadline, ControlGroup& watch) {
  impl_->wait(stream, deadline, watch);
}
void GlooShardGroup::abort() noexcept { impl_->abort(); }
bool GlooShardGroup::usable() const noexcept { return impl_->usable(); }

}  // namespace tpsync::collective
