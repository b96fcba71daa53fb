// Reads who waits for whom from the operations that were entered and not left.
#include "conformance/judge/hang.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "conformance/judge/view.h"

namespace tpsync::judge {
namespace {

using sim::Event;
using sim::EventKind;
using sim::Op;

constexpr std::int64_t kFirstPid = 1000;

struct Wait {
  std::uint32_t process = kNone;
  std::uint32_t event = kNoEvent;
  std::set<std::uint32_t> on;  // processes
};

class Hang {
 public:
  explicit Hang(const sim::Trace& trace) : trace_(trace) {
    view_.read(trace);
    for (const Event& event : trace.events) {
      if (is_op(event, Op::kChannelRead) || is_op(event, Op::kChannelWrite)) {
        owners_[event.a] = event.process;
      }
    }
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
      if (is_op(trace.events[i], Op::kChannelPair)) add_unused_ends(i);
    }
  }

  std::string text() {
    find_waits();
    std::string text;
    for (const Wait& wait : waits_) text += line(wait);
    const std::string going = livelock();
    if (!going.empty()) return text + going;
    return waits_.empty() ? text : text + deadlock();
  }

 private:
  static bool is_kind(const Event& event, EventKind kind) {
    return event.kind == static_cast<std::uint16_t>(kind);
  }
  static bool is_op(const Event& event, Op op) {
    return is_kind(event, EventKind::kOp) && event.op == static_cast<std::uint16_t>(op);
  }

  // An end that nobody used belongs to whoever made the pair, or to the child that it then made.
  void add_unused_ends(std::size_t pair) {
    const Event& made = trace_.events[pair];
    std::uint32_t child = made.process;
    for (std::size_t i = pair; i < trace_.events.size() && child == made.process; ++i) {
      const Event& event = trace_.events[i];
      if (is_kind(event, EventKind::kProcessStart) && event.b == std::uint64_t{made.process} + 1) {
        child = event.process;
      }
    }
    owners_.emplace(made.a, made.process);
    owners_.emplace(made.b, owners_[made.a] == made.process ? child : made.process);
  }

  bool lives(std::uint32_t process) const {
    const ProcessView* view = view_.process(process);
    return view != nullptr && view->start != kNoEvent && view->end == kNoEvent;
  }

  bool stopped(std::uint32_t process) const {
    const ProcessView* view = view_.process(process);
    return view != nullptr && view->stop != kNoEvent;
  }

  // The last operation of each living thread, if it is still inside.
  void find_waits() {
    std::map<std::pair<std::uint32_t, std::uint16_t>, std::uint32_t> last;
    for (std::uint32_t i = 0; i < trace_.events.size(); ++i) {
      const Event& event = trace_.events[i];
      if (is_kind(event, EventKind::kOp)) last[{event.process, event.thread}] = i;
    }
    for (const auto& [thread, i] : last) {
      if (!lives(thread.first) || trace_.events[i].result != sim::kPending) continue;
      waits_.push_back({thread.first, i, waited_for(trace_.events[i])});
    }
  }

  std::set<std::uint32_t> waited_for(const Event& event) const {
    std::set<std::uint32_t> on;
    switch (static_cast<Op>(event.op)) {
      case Op::kChannelRead:
      case Op::kChannelWrite:
      case Op::kChannelReceiveDescriptors:
      case Op::kChannelSendDescriptors:
        if (const auto peer = owners_.find(event.a ^ 1); peer != owners_.end()) {
          on.insert(peer->second);
        }
        break;
      case Op::kChannelWaitReadable:
        // Which channels it asks for is not recorded: it listens to whoever it talks to.
        for (const auto& [end, process] : owners_) {
          const auto peer = owners_.find(end ^ 1);
          if (process == event.process && peer != owners_.end()) on.insert(peer->second);
        }
        break;
      case Op::kProcessWait:
        on.insert(static_cast<std::uint32_t>(static_cast<std::int64_t>(event.a) - kFirstPid));
        break;
      case Op::kControlWord:
      case Op::kControlGather:
      case Op::kControlBroadcast:
      case Op::kShardGather:
      case Op::kShardWait:
        on = absent_members(event);
        break;
      case Op::kMutexLock:
      case Op::kConditionWait:
      case Op::kThreadJoin:
        on.insert(event.process);  // another of its threads
        break;
      default:
        break;
    }
    on.erase(kNone);
    return on;
  }

  // Members of the group that did not enter the collective of this sequence number.
  std::set<std::uint32_t> absent_members(const Event& event) const {
    std::set<std::uint32_t> absent;
    for (const Event& other : trace_.events) {
      if (other.a != event.a) continue;
      if (is_kind(other, EventKind::kGroupMember)) absent.insert(other.process);
    }
    for (const Event& other : trace_.events) {
      if (other.a == event.a && is_kind(other, EventKind::kGroupEnter) && other.b >= event.b) {
        absent.erase(other.process);
      }
    }
    return absent;
  }

  std::string name(std::uint32_t process) const {
    const ProcessView* view = view_.process(process);
    std::string text = view_.name_of(process);
    if (view == nullptr || view->start == kNoEvent) return text;
    if (view->end != kNoEvent) return text + " (which ended)";
    return stopped(process) ? text + " (which is stopped)" : text;
  }

  std::string names(const std::set<std::uint32_t>& processes) const {
    std::string text;
    for (const std::uint32_t process : processes) {
      text += (text.empty() ? "" : " and ") + name(process);
    }
    return text.empty() ? "nobody that can be told" : text;
  }

  std::string line(const Wait& wait) const {
    const Event& event = trace_.events[wait.event];
    const bool own = wait.on.size() == 1 && wait.on.contains(wait.process);
    return fmt::format("{} waits in {} for {}, since {}.{:09} s, in {}/{}\n", name(wait.process),
                       sim::to_string(static_cast<Op>(event.op)),
                       own ? "another of its threads" : names(wait.on), event.time / 1'000'000'000,
                       event.time % 1'000'000'000, view_.text(event.phase), event.chunk);
  }

  // Many operations at the end by threads that nobody stops: what the last of them repeats.
  std::string livelock() const {
    constexpr std::size_t kLooked = 2000;
    std::size_t last_wait = 0;
    for (const Wait& wait : waits_) last_wait = std::max<std::size_t>(last_wait, wait.event);
    const std::size_t begin = trace_.events.size() > kLooked ? trace_.events.size() - kLooked : 0;
    std::map<std::pair<std::uint32_t, std::uint16_t>, std::uint64_t> repeated;
    std::uint64_t operations = 0;
    for (std::size_t i = std::max(begin, last_wait + 1); i < trace_.events.size(); ++i) {
      const Event& event = trace_.events[i];
      if (!is_kind(event, EventKind::kOp) || !lives(event.process)) continue;
      ++operations;
      ++repeated[{event.process, event.op}];
    }
    bool all_wait = true;
    for (std::uint32_t p = 0; p < view_.processes().size(); ++p) {
      const bool waits = std::any_of(waits_.begin(), waits_.end(),
                                     [&](const Wait& wait) { return wait.process == p; });
      all_wait &= !lives(p) || waits || stopped(p);
    }
    constexpr std::uint64_t kMany = 100;
    if (operations < kMany || all_wait) return "";
    const auto most =
        std::max_element(repeated.begin(), repeated.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return fmt::format("livelock: {} goes round, with {} of the last {} operations in {}\n",
                       name(most->first.first), most->second, operations,
                       sim::to_string(static_cast<Op>(most->first.second)));
  }

  // From the first that waits along those it waits for: a ring, or somebody who does not wait.
  std::string deadlock() const {
    std::vector<std::uint32_t> path = {waits_.front().process};
    for (;;) {
      const Wait* wait = nullptr;
      for (const Wait& other : waits_) {
        if (other.process == path.back() && !stopped(path.back())) wait = &other;
      }
      if (wait == nullptr) {
        return fmt::format("deadlock: all wait for {}, which waits for nobody: likely to blame\n",
                           name(path.back()));
      }
      if (wait->on.empty()) {
        return fmt::format("deadlock: {} waits for what nobody gives: likely to blame\n",
                           name(path.back()));
      }
      const std::uint32_t next = *wait->on.begin();
      const auto met = std::find(path.begin(), path.end(), next);
      if (met == path.end()) {
        path.push_back(next);
        continue;
      }
      std::string ring;
      for (auto at = met; at != path.end(); ++at) ring += name(*at) + " -> ";
      return fmt::format("deadlock: {}{}; {} is the first of them that waits\n", ring, name(next),
                         name(earliest(met, path.end())));
    }
  }

  template <typename Iterator>
  std::uint32_t earliest(Iterator begin, Iterator end) const {
    std::uint32_t first = *begin;
    std::uint32_t at = kNoEvent;
    for (const Wait& wait : waits_) {
      if (std::find(begin, end, wait.process) == end || wait.event >= at) continue;
      at = wait.event;
      first = wait.process;
    }
    return first;
  }

  const sim::Trace& trace_;
  View view_;
  std::map<std::uint64_t, std::uint32_t> owners_;  // of channel ends
  std::vector<Wait> waits_;                        // by process and thread
};

}  // namespace

std::string explain_hang(const sim::Trace& trace) { return Hang(trace).text(); }

}  // namespace tpsync::judge
