// I4 (no hang) and I4b (prompt): budgets from the configuration alone.
#include <fmt/format.h>

#include <algorithm>

#include "conformance/judge/invariants.h"

namespace tpsync::judge {
namespace {

using sim::EventKind;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kAllowance = 11 * kSecond;  // detection to the end of the tree

std::string seconds(std::int64_t ns) {
  return fmt::format("{}.{:03} s", ns / kSecond, ns % kSecond / 1'000'000);
}

bool is_silent(const View& view, std::uint32_t fault) { return view.event(fault).b == 0; }

bool silent_before(const View& view, std::uint32_t event) {
  return std::any_of(view.lists().faults.begin(), view.lists().faults.end(),
                     [&](std::uint32_t fault) { return fault < event && is_silent(view, fault); });
}

class NoHang {
 public:
  explicit NoHang(const Context& context) : facts_(context.facts), view_(context.view) {}

  Verdict judge() {
    if (view_.calls().empty()) return not_applicable("I4", "no call was made");
    for (const CallView& call : view_.calls()) {
      if (auto verdict = check_returns(call)) return *verdict;
    }
    for (const std::uint32_t kill : view_.lists().kills) {
      if (auto verdict = check_noticed(kill)) return *verdict;
    }
    if (auto verdict = check_orphans()) return *verdict;
    if (!unreturned_.empty()) return inconclusive("I4", unreturned_);
    if (!facts_.control_timeout_ns && !view_.rounds().empty()) {
      return inconclusive("I4", "the trace does not give the control timeout");
    }
    return pass("I4");
  }

 private:
  std::optional<Verdict> check_returns(const CallView& call) {
    const ProcessView& process = view_.processes()[call.process];
    if (call.end == kNoEvent) {
      if (!view_.survived(call)) return std::nullopt;
      if (view_.lists().counters.empty()) {
        unreturned_ = View::name_of(call) + " did not return, and the trace has no end";
        return std::nullopt;
      }
      return violation("I4", call.begin, View::name_of(call) + " never returned");
    }
    if (process.ever_stopped) return std::nullopt;
    if (call.call != Call::kSync) return check_command(call);
    if (!facts_.control_timeout_ns) return std::nullopt;
    // From the last fault, since each may begin another wait.
    std::uint32_t from = call.begin;
    for (const std::uint32_t fault : view_.lists().faults) {
      if (fault > call.begin && fault < call.end) from = fault;
    }
    const std::int64_t took = view_.time(call.end) - view_.time(from);
    const std::int64_t budget = *facts_.control_timeout_ns + kAllowance + facts_.slack_ns;
    if (took > budget) {
      return violation("I4", call.end,
                       fmt::format("{} took {}, at most {} are allowed", View::name_of(call),
                                   seconds(took), seconds(budget)));
    }
    return call.rank == 0 && !call.ok ? check_tree(call) : std::nullopt;
  }

  // The longest is shutdown: a request, a wait for the runtime's end, and the kill routine.
  std::optional<Verdict> check_command(const CallView& call) const {
    if (!facts_.command_timeout_ns) return std::nullopt;
    const std::int64_t took = view_.time(call.end) - view_.time(call.begin);
    const std::int64_t budget = 2 * *facts_.command_timeout_ns + kAllowance + facts_.slack_ns;
    if (took <= budget) return std::nullopt;
    return violation("I4", call.end,
                     fmt::format("{} took {}, at most {} are allowed", View::name_of(call),
                                 seconds(took), seconds(budget)));
  }

  // From rank 0's first sign of the failure to the end of the last process of the tree.
  std::optional<Verdict> check_tree(const CallView& call) {
    if (call.touched == kNoEvent || was_held_up(call)) return std::nullopt;
    std::uint32_t detected = call.broken != kNoEvent ? call.broken : call.end;
    for (const std::uint32_t i : view_.lists().groups) {
      const bool fails = view_.event(i).kind == static_cast<std::uint16_t>(EventKind::kGroupFail);
      if (fails && view_.event(i).process == call.process && i > call.begin && i < detected) {
        detected = i;
      }
    }
    return check_gone_after(call.engine, view_.time(detected), kAllowance,
                            "the failure was detected");
  }

  // Rank 0 itself was stuck in a collective: it acts on what it detected when that lets it.
  bool was_held_up(const CallView& call) const {
    return std::any_of(view_.lists().faults.begin(), view_.lists().faults.end(),
                       [&](std::uint32_t fault) {
                         return fault > call.begin && fault < call.end &&
                                view_.event(fault).process == call.process &&
                                view_.text(view_.event(fault).text) == "collective.hang";
                       });
  }

  std::optional<Verdict> check_gone_after(std::uint32_t engine, std::int64_t from,
                                          std::int64_t allowed, const char* since) const {
    const std::int64_t budget = allowed + facts_.slack_ns;
    for (std::uint32_t p = 0; p < view_.processes().size(); ++p) {
      const ProcessView& process = view_.processes()[p];
      if (process.engine != engine || process.engine == kNone) continue;
      if (process.end == kNoEvent) {
        if (view_.lists().counters.empty()) continue;
        return violation("I4", process.start,
                         fmt::format("{} was never ended after {}", view_.name_of(p), since));
      }
      const std::int64_t took = view_.time(process.end) - from;
      if (took <= budget) continue;
      return violation("I4", process.end,
                       fmt::format("{} ended {} after {}, at most {} are allowed", view_.name_of(p),
                                   seconds(took), since, seconds(budget)));
    }
    return std::nullopt;
  }

  // Of a process that a fault killed while a sync was under way that then failed.
  std::optional<Verdict> check_noticed(std::uint32_t kill) const {
    const sim::Event& event = view_.event(kill);
    const bool by_itself = event.b == std::uint64_t{event.process} + 1;
    const bool orphaned =
        kill > 0 && view_.event(kill - 1).process == event.process &&
        view_.event(kill - 1).kind == static_cast<std::uint16_t>(EventKind::kProcessOrphaned);
    if (!by_itself && (event.b != 0 || orphaned)) return std::nullopt;
    for (const CallView& call : view_.calls()) {
      const bool under_way = call.call == Call::kSync && call.process != event.process &&
                             call.begin < kill && call.end != kNoEvent && call.end > kill;
      if (!under_way || call.ok || view_.processes()[call.process].ever_stopped) continue;
      if (silent_before(view_, call.end)) continue;
      const std::int64_t noticed = std::min(first_sign(kill), view_.time(call.end));
      if (noticed - event.time <= facts_.notice_ns) continue;
      return violation("I4", kill,
                       fmt::format("the kill of {} was noticed after {}",
                                   view_.name_of(event.process), seconds(noticed - event.time)));
    }
    return std::nullopt;
  }

  std::int64_t first_sign(std::uint32_t after) const {
    std::int64_t first = INT64_MAX;
    for (const std::uint32_t i : view_.lists().phase_failures) {
      if (i > after) first = std::min(first, view_.time(i));
    }
    for (const std::uint32_t i : view_.lists().groups) {
      if (i > after && view_.event(i).kind == static_cast<std::uint16_t>(EventKind::kGroupFail)) {
        first = std::min(first, view_.time(i));
      }
    }
    for (const CallView& call : view_.calls()) {
      if (call.broken != kNoEvent && call.broken > after) {
        first = std::min(first, view_.time(call.broken));
      }
    }
    return first;
  }

  // Runtimes whose rank 0 is gone, or stands still with a publication pending.
  std::optional<Verdict> check_orphans() const {
    for (std::uint32_t p = 0; p < view_.processes().size(); ++p) {
      const ProcessView& process = view_.processes()[p];
      if (process.role != Role::kActor || process.rank != 0) continue;
      const CallView* last = nullptr;
      for (const CallView& call : view_.calls()) {
        if (call.process == p) last = &call;
      }
      if (last == nullptr || last->engine == kNone) continue;
      if (process.stop != kNoEvent) {
        // Pending as the runtime knows it: one that init has not reached, for a fault between the
        // two took it, cannot tell its parent from one that has nothing to ask.
        const bool pending = last->end == kNoEvent && last->heard != kNoEvent && !finished(*last);
        if (!pending || !facts_.control_timeout_ns) continue;
        if (auto verdict = check_left_alone(last->engine, view_.time(process.stop))) return verdict;
        if (auto verdict = check_ended_by_itself(last->engine, process.end)) return verdict;
      } else if (process.end != kNoEvent && !process.exited) {
        if (auto verdict = check_gone_after(last->engine, view_.time(process.end), kAllowance,
                                            "rank 0 died")) {
          return verdict;
        }
      }
    }
    return std::nullopt;
  }

  // A command that was under way when rank 0 was stopped has the control timeout to be answered,
  // and the runtime waits as long for the next one from there on: a parent that lives may need all
  // of that to gather, so a slow command must not be taken off it.
  std::optional<Verdict> check_left_alone(std::uint32_t engine, std::int64_t stopped) const {
    const std::int64_t allowed = *facts_.control_timeout_ns + kAllowance;
    std::int64_t from = stopped;
    const char* since = "rank 0 was stopped";
    for (std::uint32_t p = 0; p < view_.processes().size(); ++p) {
      const ProcessView& process = view_.processes()[p];
      if (process.engine != engine || process.role != Role::kRuntime) continue;
      if (process.last_write == kNoEvent) continue;
      const std::int64_t spoke =
          std::max(view_.time(process.last_write), view_.event(process.last_write).end);
      if (spoke <= stopped) continue;
      from = spoke;
      since = "it spoke last, with rank 0 stopped";
      if (from - stopped <= allowed + facts_.slack_ns) continue;
      return violation("I4", process.last_write,
                       fmt::format("{} spoke {} after rank 0 was stopped, at most {} are allowed",
                                   view_.name_of(p), seconds(from - stopped),
                                   seconds(allowed + facts_.slack_ns)));
    }
    return check_gone_after(engine, from, allowed, since);
  }

  // A simulated world ends what is stopped once nobody else goes on: a runtime that lives then
  // would have lived for ever, unless it was stopped itself.
  std::optional<Verdict> check_ended_by_itself(std::uint32_t engine, std::uint32_t cleared) const {
    const bool simulated = facts_.slack_ns == 0;
    // A fault's kill has the process itself for a killer.
    if (!simulated || cleared == kNoEvent || view_.event(cleared).b != 0) return std::nullopt;
    for (std::uint32_t p = 0; p < view_.processes().size(); ++p) {
      const ProcessView& process = view_.processes()[p];
      if (process.engine != engine || process.role != Role::kRuntime) continue;
      if (process.ever_stopped || process.start > cleared || process.end < cleared) continue;
      return violation(
          "I4", process.start,
          fmt::format("{} would never have ended after rank 0 was stopped", view_.name_of(p)));
    }
    return std::nullopt;
  }

  // A publication that a worker has finished is pending no more: the runtime may serve on, whether
  // or not its parent ever releases.
  bool finished(const CallView& call) const {
    const auto& attestations = view_.lists().attestations;
    return std::any_of(attestations.begin(), attestations.end(),
                       [&](std::uint32_t i) { return i > call.begin; });
  }

  const Facts& facts_;
  const View& view_;
  std::string unreturned_;
};

}  // namespace

// Evidence: the times of calls, process ends and signs of failure. Inconclusive: a call that did
// not return in a trace that does not show its end, or no control timeout in the parameters.
Verdict judge_no_hang(const Context& context) { return NoHang(context).judge(); }

// Evidence: the time of each visible fault, and of the failures of all calls that were under way.
// Where a silent fault took effect before, a deadline may be what ends the call.
Verdict judge_prompt(const Context& context) {
  const View& view = context.view;
  bool any = false;
  for (const std::uint32_t fault : view.lists().faults) {
    if (is_silent(view, fault)) continue;
    any = true;
    for (const CallView& call : view.calls()) {
      if (call.begin > fault || call.end == kNoEvent || call.end < fault || call.ok) continue;
      if (view.processes()[call.process].ever_stopped || silent_before(view, call.end)) continue;
      bool hard = false;
      for (const std::uint32_t kill : view.lists().kills) {
        const sim::Event& event = view.event(kill);
        constexpr std::uint64_t kSigkill = 9;
        hard |= kill > fault && kill < call.end && event.a == kSigkill && event.b != 0 &&
                event.b != std::uint64_t{event.process} + 1;
      }
      const std::int64_t budget = context.facts.notice_ns + (hard ? context.facts.kill_ns : 0);
      const std::int64_t took = view.time(call.end) - view.time(fault);
      if (took <= budget) continue;
      return violation(
          "I4b", call.end,
          fmt::format("{} returned {} after {}, at most {} are allowed", View::name_of(call),
                      seconds(took), view.text(view.event(fault).text), seconds(budget)));
    }
  }
  return any ? pass("I4b") : not_applicable("I4b", "no visible fault took effect");
}

}  // namespace tpsync::judge
