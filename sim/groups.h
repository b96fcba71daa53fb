// Simulated groups of actors. ControlGroup: contributions travel one by one, so that a death, a
// leave or a deadline in between completes a call on some ranks only. ShardGroup: stream-ordered,
// pieces land one by one, a dead peer means silence.
//
// Lockstep is checked: ranks whose calls with one sequence number differ in kind, root or (words)
// size are the violation "lockstep".
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/vector_clock.h"
#include "sim/world.h"

namespace tpsync::sim {

inline constexpr std::size_t kMaxRanks = 32;

// What the members of a group share. Outlives the world in the hands of its members, but does
// nothing then.
class ControlHub final : public TimerTarget {
 public:
  ControlHub(SimWorld& world, std::uint64_t id, std::span<SimProcess* const> members);

  bool timer_live(std::uint64_t argument) const override;
  void on_timer(std::uint64_t argument) override;  // argument: rank to wake

  enum class Call : std::uint8_t { kWord = 1, kGather = 2, kBroadcast = 3 };

  // One collective call, as all ranks see it.
  struct Round {
    Call call = Call::kWord;
    int root = 0;
    std::uint64_t entered = 0;  // mask of ranks
    std::uint64_t left = 0;     // ranks that completed or failed
    std::vector<std::uint64_t> words;
    std::vector<ByteBuffer> bytes;
    std::vector<VectorClock> clocks;
    std::vector<std::int64_t> arrivals;  // [from * size + to]; INT64_MAX: never
  };

  struct Member {
    SimProcess* process = nullptr;
    std::uint64_t sequence = 0;  // of its next call
    bool gone = false;           // dead, left, or gave up
    std::int64_t gone_at = 0;
    bool broken = false;  // this rank's own calls fail from now on
    int lost = -1;
    std::uint64_t alarm_sequence = 0;  // + 1; the call that its alarm concerns
    std::vector<std::int64_t> known;   // when this rank learns that rank r is gone
    std::vector<std::int64_t> alarm_known;
    WaitQueue waiters;
  };

  Round& round(std::uint64_t sequence);
  // When rank `to` has everything that it needs of a call; INT64_MAX while something never comes.
  std::int64_t complete_at(const Round& open, std::size_t to) const;
  void forget_rounds();
  void rank_gone(int rank, bool died);

  SimWorld* world;
  std::uint64_t id;
  std::uint64_t key;
  std::vector<Member> members;
  std::vector<Round> rounds;  // rounds[i] has sequence first + i
  std::uint64_t first = 0;
  std::uint64_t draws = 0;
};

class SimControlGroup final : public collective::ControlGroup {
 public:
  SimControlGroup(std::shared_ptr<ControlHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~SimControlGroup() override { leave(); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hub_->members.size()); }
  void all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                       Deadline deadline) override;
  std::vector<ByteBuffer> all_gather(ByteView bytes, Deadline deadline) override;
  void broadcast(ByteBuffer& bytes, int root, Deadline deadline) override;
  std::optional<int> lost_peer() override;
  void raise_alarm() noexcept override;
  std::optional<int> alarm() override;
  void leave() noexcept override;

 private:
  using Call = ControlHub::Call;
  // Enters the next call and waits for what it needs; the round stays until this rank marks it.
  ControlHub::Round& exchange(std::size_t op, Call call, int root, std::uint64_t word,
                              ByteView bytes, Deadline deadline);
  void complete(std::size_t op, std::uint64_t received_hash);
  [[noreturn]] void lose(std::size_t op, int lost, std::string_view detail);
  std::uint64_t delivered(const ControlHub::Round& round) const;
  int known_lost(std::uint64_t needed) const;
  ControlHub::Member& self() const { return hub_->members[static_cast<std::size_t>(rank_)]; }

  std::shared_ptr<ControlHub> hub_;
  int rank_;
  bool left_ = false;
};

class ShardHub;
struct WordsHub;

class GroupSystem {
 public:
  explicit GroupSystem(SimWorld& world);
  ~GroupSystem();

  std::vector<std::unique_ptr<collective::ControlGroup>> make_control(
      std::span<SimProcess* const> members);
  std::vector<std::unique_ptr<collective::ShardGroup>> make_shard(
      std::span<SimProcess* const> members);
  std::shared_ptr<WordsHub> make_words(SimProcess& maker, std::size_t count);
  std::shared_ptr<WordsHub> find_words(std::uint64_t id) const;  // null if there are none
  void process_ended(SimProcess& process);
  void closing();  // the world ends: groups that outlive it do nothing any more

 private:
  SimWorld& world_;
  std::vector<std::shared_ptr<ControlHub>> control_;
  std::vector<std::shared_ptr<ShardHub>> shard_;
  std::vector<std::shared_ptr<WordsHub>> words_;  // words_[i] has id i + 1
  std::uint64_t made_ = 0;
};

}  // namespace tpsync::sim
