// Agreement through memory that all ranks share: a control group whose words travel over shared
// words, built on a general group (Gloo) that carries everything larger and serves its setup.
//
// Rules:
// 1. Each rank has a line of words that it alone writes: how many calls it has entered, of which
//    kind the latest is, and for its latest two calls with a word the word and what tells the call.
//    A third such call is not entered before all ranks have entered the second, and so are done
//    with the first: what a slow rank still reads is not written to.
// 2. Every call is entered in the words, those over the general group too, so that ranks that make
//    different calls are told so, whichever way these go.
// 3. A wait ends by the arrival of the last rank, who rings one bell for all, by what a rank that
//    leaves or gives up says, by the end of a process, or by the deadline. Processes are looked at
//    through handles of this group's own, each kLaneLook of a wait: the general group names one
//    lost rank at a time, which may have given its word while another is waited for.
// 4. What a rank had given before it was lost still counts. A rank that is stopped is found by the
//    deadline alone.
// 5. A rank that gives up says so in the words and leaves the general group: peers that wait in
//    either are freed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tpsync/base/world.h"
#include "tpsync/collective/control_group.h"
#include "tpsync/collective/shared_words.h"

namespace tpsync::collective {

inline constexpr int kLaneRanksMax = 64;
inline constexpr Duration kLaneLook = std::chrono::milliseconds(50);

// How many words a lane of so many ranks takes.
constexpr std::size_t lane_words(int size) { return 8 * (static_cast<std::size_t>(size) + 1); }

// The calls of ControlGroup are made by one thread at a time. all_gather and broadcast go over the
// general group, and cost what they cost there.
class LaneControlGroup final : public ControlGroup {
 public:
  struct Parts {
    std::unique_ptr<ControlGroup> general;  // its next call is the same on all ranks
    // At least lane_words(size); shared by all ranks, and used by no other group. Calls are
    // numbered on from what the words say, modulo 2^32.
    std::unique_ptr<SharedWords> words;
    // Handles of the ranks, in rank order; null for this rank, and for those that end with it.
    std::vector<std::unique_ptr<Process>> processes;
  };

  LaneControlGroup(Parts parts, Clock& clock);
  ~LaneControlGroup() override { leave(); }

  int rank() const override { return static_cast<int>(mine_); }
  int size() const override { return static_cast<int>(size_); }
  void all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                       Deadline deadline) override;
  std::vector<ByteBuffer> all_gather(ByteView bytes, Deadline deadline) override;
  void broadcast(ByteBuffer& bytes, int root, Deadline deadline) override;
  std::optional<int> lost_peer() override;
  void raise_alarm() noexcept override;
  std::optional<int> alarm() override;
  void leave() noexcept override;

 private:
  enum class Given : std::uint8_t { kHere, kMissing, kLost, kAstray };

  struct Missing {
    int count = 0;
    int rank = -1;  // one of them
  };

  std::uint32_t begin();
  Missing collect(std::uint32_t number, std::size_t half, std::span<std::uint64_t> words);
  Given look(std::size_t rank, std::uint32_t number, std::size_t half);
  void wait_for_words(std::uint32_t number, std::size_t half, std::span<std::uint64_t> words,
                      std::uint64_t bell, Missing missing, Deadline deadline);
  void watch(TimePoint now);
  template <typename Call>
  void call_general(std::uint64_t kind, int root, Call&& call);
  int rank_in_another_call(std::uint64_t own);
  void ring() noexcept;
  void give_up(std::uint64_t state) noexcept;
  [[noreturn]] void lose(int rank, std::string_view detail);
  [[noreturn]] void refuse(int rank);

  std::unique_ptr<ControlGroup> general_;
  std::unique_ptr<SharedWords> words_;
  std::vector<std::unique_ptr<Process>> processes_;
  Clock& clock_;
  std::size_t mine_;
  std::size_t size_;
  std::uint32_t sequence_ = 0;    // calls that were completed
  std::uint32_t history_ = 0;     // what kinds of calls they and the present one are, as a hash
  std::uint64_t word_calls_ = 0;  // those with a word
  std::vector<bool> given_;       // whose word this call has
  std::vector<bool> ended_;       // whose process has ended, or who left the general group
  bool broken_ = false;
  int lost_ = -1;
  bool told_ = false;  // the peers know that this rank takes part no more
  bool left_ = false;
};

struct OpenedLane {
  std::unique_ptr<ControlGroup> group;
  bool shared = false;  // false: `group` is the general group as it was
};

// Puts a lane on a group if host name and boot id of all ranks are equal and every rank can open
// the shared words and watch its peers; else all ranks go on with the general group, and a log
// record (kNote) says why. Collective: three calls of the general group, with one deadline. Throws
// what these throw (kPeerLost); then the group is gone, and this rank has left it. Clock and
// launcher of `world` outlive the result.
OpenedLane open_lane(std::unique_ptr<ControlGroup> general, const World& world,
                     SharedWordsFactory& factory, Deadline deadline);

}  // namespace tpsync::collective
