#include "tpsync/collective/lane_control_group.h"

#include <utility>

#include "tpsync/base/errors.h"
#include "tpsync/collective/rank_identity.h"

namespace tpsync::collective {

namespace {

constexpr std::string_view kLaneSubject = "control group";

// ---- the words ----------------------------------------------------------------------------------

// The first line holds the bell, each other one what a rank says: a line per cache line, so that
// nobody's writing delays the reader of another.
constexpr std::size_t kLine = 8;
constexpr std::size_t kBell = 0;
constexpr std::size_t line_of(std::size_t rank) { return kLine * (rank + 1); }

// Root (from bit 40), kind (from bit 32) and number of the latest call that the rank entered, from
// 1; calls are numbered modulo 2^32.
constexpr std::size_t position_of(std::size_t rank) { return line_of(rank); }
constexpr std::size_t state_of(std::size_t rank) { return line_of(rank) + 1; }
// The call that the rank's alarm concerns.
constexpr std::size_t alarm_of(std::size_t rank) { return line_of(rank) + 2; }
// Of the latest two calls with a word, by turns: the word, and what tells the call.
constexpr std::size_t value_of(std::size_t rank, std::size_t half) {
  return line_of(rank) + 3 + 2 * half;
}
constexpr std::size_t mark_of(std::size_t rank, std::size_t half) {
  return value_of(rank, half) + 1;
}

constexpr std::uint64_t kTakesPart = 0;
constexpr std::uint64_t kGone = 1;    // left, or gave up
constexpr std::uint64_t kAstray = 2;  // gave up because ranks make different calls

constexpr std::uint64_t kLaneWord = 1;
constexpr std::uint64_t kLaneGather = 2;
constexpr std::uint64_t kLaneBroadcast = 3;

std::uint64_t position(std::uint64_t kind, int root, std::uint32_t number) {
  return static_cast<std::uint64_t>(root) << 40 | kind << 32 | number;
}
std::uint32_t number_of(std::uint64_t position) { return static_cast<std::uint32_t>(position); }
// Differs from a word that was never written.
std::uint64_t alarm_for(std::uint32_t number) { return std::uint64_t{1} << 32 | number; }
// Tells the call, and that all calls before it were the same: two roots that each sent a broadcast
// of their own have passed one another unseen.
std::uint64_t mark(std::uint32_t history, std::uint32_t number) {
  return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(history) << 32 | number;
}
// 31 bits.
std::uint32_t history_after(std::uint32_t history, std::uint64_t kind, int root) {
  std::uint64_t mixed =
      (std::uint64_t{history} << 16 | kind << 8) + static_cast<std::uint64_t>(root);
  mixed = (mixed + 1) * 0x9e3779b97f4a7c15ULL;
  return static_cast<std::uint32_t>((mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ULL >> 33);
}
// Ranks are never so many calls apart that the order of their numbers is in doubt.
bool has_reached(std::uint64_t position, std::uint32_t number) {
  return static_cast<std::int32_t>(number_of(position) - number) >= 0;
}

void say_gone(SharedWords& words, std::size_t rank) noexcept {
  words.store(state_of(rank), kGone);
  words.add(kBell, 1);
  words.wake(kBell);
}

}  // namespace

LaneControlGroup::LaneControlGroup(Parts parts, Clock& clock)
    : general_(std::move(parts.general)),
      words_(std::move(parts.words)),
      processes_(std::move(parts.processes)),
      clock_(clock),
      mine_(static_cast<std::size_t>(general_->rank())),
      size_(static_cast<std::size_t>(general_->size())),
      sequence_(number_of(words_->load(position_of(mine_)))),
      given_(size_),
      ended_(size_) {
  TPSYNC_ASSERT(size_ <= static_cast<std::size_t>(kLaneRanksMax));
  TPSYNC_ASSERT(words_->size() >= lane_words(general_->size()) && processes_.size() == size_);
}

// ---- calls --------------------------------------------------------------------------------------

// The number of this rank's next call, unless it can make none.
std::uint32_t LaneControlGroup::begin() {
  if (left_) throw_invalid(ErrorKind::kInvalidState, kLaneSubject, "this rank has left the group");
  if (broken_) lose(lost_, "a rank was lost in an earlier call");
  return sequence_ + 1;
}

void LaneControlGroup::all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                                       Deadline deadline) {
  TPSYNC_ASSERT(words.size() == size_);
  const std::uint32_t number = begin();
  const std::size_t half = word_calls_ % 2;
  history_ = history_after(history_, kLaneWord, 0);
  words_->store(value_of(mine_, half), word);
  words_->store(mark_of(mine_, half), mark(history_, number));
  words_->store(position_of(mine_), position(kLaneWord, 0, number));
  words[mine_] = word;
  given_.assign(size_, false);
  given_[mine_] = true;
  const std::uint64_t bell = words_->load(kBell);
  if (const Missing missing = collect(number, half, words); missing.count > 0) {
    wait_for_words(number, half, words, bell, missing, deadline);
  } else {
    ring();  // this rank may be the last, and the others asleep
  }
  ++word_calls_;
  ++sequence_;
}

// The bell was read before the words that are `missing` were looked for.
void LaneControlGroup::wait_for_words(std::uint32_t number, std::size_t half,
                                      std::span<std::uint64_t> words, std::uint64_t bell,
                                      Missing missing, Deadline deadline) {
  TimePoint now = clock_.now();
  TimePoint look_at = now + kLaneLook;
  while (missing.count > 0) {
    if (deadline.passed(now))
      lose(missing.count == 1 ? missing.rank : -1, "no contribution before the deadline");
    words_->wait(kBell, bell, deadline.earlier(Deadline::at(look_at)));
    now = clock_.now();
    if (now >= look_at) {
      watch(now);
      look_at = now + kLaneLook;
    }
    bell = words_->load(kBell);
    missing = collect(number, half, words);
  }
}

// Takes the words that are there. Throws if one never will be.
LaneControlGroup::Missing LaneControlGroup::collect(std::uint32_t number, std::size_t half,
                                                    std::span<std::uint64_t> words) {
  Missing missing;
  int lost = -1;
  int astray = -1;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    if (given_[rank]) continue;
    switch (look(rank, number, half)) {
      case Given::kHere:
        words[rank] = words_->load(value_of(rank, half));
        given_[rank] = true;
        break;
      case Given::kMissing:
        ++missing.count;
        missing.rank = static_cast<int>(rank);
        break;
      case Given::kLost:
        if (lost < 0) lost = static_cast<int>(rank);
        break;
      case Given::kAstray:
        if (astray < 0) astray = static_cast<int>(rank);
        break;
    }
  }
  if (astray >= 0) refuse(astray);
  if (lost >= 0) lose(lost, "a rank died or left the group");
  return missing;
}

LaneControlGroup::Given LaneControlGroup::look(std::size_t rank, std::uint32_t number,
                                               std::size_t half) {
  if (!has_reached(words_->load(position_of(rank)), number)) {
    const std::uint64_t state = words_->load(state_of(rank));
    if (state == kTakesPart && !ended_[rank]) return Given::kMissing;
    // It may have come after the first look, and gone before the second.
    if (!has_reached(words_->load(position_of(rank)), number))
      return state == kAstray ? Given::kAstray : Given::kLost;
  }
  return words_->load(mark_of(rank, half)) == mark(history_, number) ? Given::kHere
                                                                     : Given::kAstray;
}

void LaneControlGroup::watch(TimePoint now) {
  for (std::size_t rank = 0; rank < size_; ++rank)
    if (!ended_[rank] && processes_[rank] && processes_[rank]->wait(Deadline::at(now)))
      ended_[rank] = true;
  // It knows of a rank that failed before it came to have the words.
  if (const auto lost = general_->lost_peer()) ended_[static_cast<std::size_t>(*lost)] = true;
}

template <typename Call>
void LaneControlGroup::call_general(std::uint64_t kind, int root, Call&& call) {
  const std::uint64_t own = position(kind, root, begin());
  history_ = history_after(history_, kind, root);
  words_->store(position_of(mine_), own);
  ring();  // whoever is in a call with a word sees that this rank is in another
  if (const int astray = rank_in_another_call(own); astray >= 0) refuse(astray);
  try {
    call();
  } catch (const std::exception& error) {
    // Who finds out in the words that the calls differ leaves the general group, and would be taken
    // for lost.
    if (const int astray = rank_in_another_call(own); astray >= 0) refuse(astray);
    const ErrorRecord record = record_of(error);
    broken_ = true;
    lost_ = record.rank >= 0 ? record.rank : general_->lost_peer().value_or(-1);
    give_up(record.kind == ErrorKind::kProtocol ? kAstray : kGone);
    throw;
  }
  ++sequence_;
}

int LaneControlGroup::rank_in_another_call(std::uint64_t own) {
  for (std::size_t rank = 0; rank < size_; ++rank) {
    const std::uint64_t theirs = words_->load(position_of(rank));
    if (number_of(theirs) == number_of(own) && theirs != own) return static_cast<int>(rank);
  }
  return -1;
}

std::vector<ByteBuffer> LaneControlGroup::all_gather(ByteView bytes, Deadline deadline) {
  std::vector<ByteBuffer> gathered;
  call_general(kLaneGather, 0, [&] { gathered = general_->all_gather(bytes, deadline); });
  return gathered;
}

void LaneControlGroup::broadcast(ByteBuffer& bytes, int root, Deadline deadline) {
  TPSYNC_ASSERT(root >= 0 && root < size());
  call_general(kLaneBroadcast, root, [&] { general_->broadcast(bytes, root, deadline); });
}

// ---- what is known without a call ---------------------------------------------------------------

std::optional<int> LaneControlGroup::lost_peer() {
  if (broken_ && lost_ >= 0) return lost_;
  for (std::size_t rank = 0; rank < size_; ++rank)
    if (rank != mine_ && (ended_[rank] || words_->load(state_of(rank)) != kTakesPart))
      return static_cast<int>(rank);
  return general_->lost_peer();
}

void LaneControlGroup::raise_alarm() noexcept {
  if (!left_ && !broken_) words_->store(alarm_of(mine_), alarm_for(sequence_ + 1));
}

std::optional<int> LaneControlGroup::alarm() {
  for (std::size_t rank = 0; rank < size_; ++rank)
    if (rank != mine_ && words_->load(alarm_of(rank)) == alarm_for(sequence_ + 1))
      return static_cast<int>(rank);
  return std::nullopt;
}

// ---- the end ------------------------------------------------------------------------------------

void LaneControlGroup::ring() noexcept {
  words_->add(kBell, 1);
  words_->wake(kBell);
}

void LaneControlGroup::give_up(std::uint64_t state) noexcept {
  if (std::exchange(told_, true)) return;
  words_->store(state_of(mine_), state);
  ring();
  general_->leave();
}

void LaneControlGroup::lose(int rank, std::string_view detail) {
  broken_ = true;
  lost_ = rank;
  give_up(kGone);
  ErrorRecord record;
  record.kind = ErrorKind::kPeerLost;
  record.rank = rank;
  record.subject = kLaneSubject;
  record.detail = detail;
  throw RuntimeBroken(std::move(record));
}

void LaneControlGroup::refuse(int rank) {
  broken_ = true;
  lost_ = rank;
  give_up(kAstray);
  throw_violation(ErrorKind::kProtocol, kLaneSubject, "ranks make different calls");
}

void LaneControlGroup::leave() noexcept {
  if (!std::exchange(left_, true)) give_up(kGone);
}

// ---- the beginning ------------------------------------------------------------------------------

namespace {

// Ranks of which each may be at home elsewhere, and what they need of one another.
class LaneOpening {
 public:
  LaneOpening(ControlGroup& general, const World& world, SharedWordsFactory& factory,
              Deadline deadline)
      : general_(general), world_(world), factory_(factory), deadline_(deadline) {}

  // True on all ranks or on none. Throws what calls of the general group throw.
  bool open() {
    if (general_.size() > kLaneRanksMax) return refused("there are too many ranks");
    if (!on_one_host(meet())) return refused("the ranks are not on one host");
    share();
    watch_peers();
    std::vector<std::uint64_t> opened(static_cast<std::size_t>(general_.size()));
    try {
      general_.all_gather_word(error_ ? 0 : 1, opened, deadline_);
    } catch (const std::exception&) {
      // A peer may hold the agreement, and wait for this rank in the words.
      if (words_) say_gone(*words_, static_cast<std::size_t>(general_.rank()));
      throw;
    }
    for (const std::uint64_t one : opened)
      if (one != 1) return refused("a rank could not open the shared words");
    return true;
  }

  std::string_view reason() const { return reason_; }
  std::unique_ptr<SharedWords> take_words() { return std::move(words_); }
  std::vector<std::unique_ptr<Process>> take_processes() { return std::move(processes_); }

 private:
  bool refused(std::string_view reason) {
    reason_ = reason;
    return false;
  }

  std::span<const RankIdentity> meet() {
    ByteBuffer own;
    attempt(error_, [&] {
      own_ = own_identity(world_.host);
      own = encode_identity(own_);
    });
    for (const ByteBuffer& said : general_.all_gather(own, deadline_))
      ranks_.push_back(decode_identity(said));
    return ranks_;
  }

  void share() {
    ByteBuffer handle;
    if (general_.rank() == 0) {
      attempt(error_, [&] {
        SharedWordsFactory::Made made = factory_.make(lane_words(general_.size()));
        words_ = std::move(made.words);
        handle = std::move(made.handle);
      });
    }
    general_.broadcast(handle, 0, deadline_);
    if (general_.rank() != 0) attempt(error_, [&] { words_ = factory_.open(handle); });
    if (words_ && words_->size() < lane_words(general_.size())) {
      attempt(error_,
              [] { throw_broken(ErrorKind::kIo, kLaneSubject, "there are too few words"); });
      words_.reset();
    }
  }

  void watch_peers() {
    processes_.resize(ranks_.size());
    attempt(error_, [&] {
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        // A rank that is a thread of this process ends with it.
        if (ranks_[rank].pid == own_.pid) continue;
        processes_[rank] = world_.processes.attach(ranks_[rank].pid);
        if (!processes_[rank]) throw_broken(ErrorKind::kPeerLost, kLaneSubject, "a rank has ended");
      }
    });
  }

  ControlGroup& general_;
  const World& world_;
  SharedWordsFactory& factory_;
  Deadline deadline_;
  std::optional<ErrorRecord> error_;  // of this rank
  RankIdentity own_;
  std::vector<RankIdentity> ranks_;
  std::unique_ptr<SharedWords> words_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::string_view reason_;
};

}  // namespace

OpenedLane open_lane(std::unique_ptr<ControlGroup> general, const World& world,
                     SharedWordsFactory& factory, Deadline deadline) {
  LaneOpening opening(*general, world, factory, deadline);
  const bool shared = opening.open();
  world.log.record({.level = LogLevel::kInfo,
                    .event = LogEvent::kNote,
                    .a = general->size(),
                    .subject = kLaneSubject,
                    .text = shared ? "agreement over shared memory" : opening.reason()});
  if (!shared) return {std::move(general), false};
  auto lane = std::make_unique<LaneControlGroup>(
      LaneControlGroup::Parts{.general = std::move(general),
                              .words = opening.take_words(),
                              .processes = opening.take_processes()},
      world.clock);
  return {std::move(lane), true};
}

}  // namespace tpsync::collective
