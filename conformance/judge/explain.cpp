// The causal past of a verdict's event: walks backwards, following messages, collectives and
// process ends, and keeps what tells the story.
#include <fmt/format.h>

#include <algorithm>

#include "conformance/judge/judge.h"
#include "conformance/judge/records.h"
#include "conformance/judge/view.h"

namespace tpsync::judge {
namespace {

using sim::Event;
using sim::EventKind;
using sim::Op;

constexpr std::size_t kMaxEvents = 20;

// What is tried on a broken engine afterwards tells nothing of why it broke.
bool is_step_of_loop(const Event& event) {
  const auto call = static_cast<Call>(event.a);
  return call == Call::kStartEngine || call == Call::kSetup || call == Call::kSync;
}

bool tells(const Event& event) {
  const auto record = static_cast<Record>(event.kind);
  if (record == Record::kCallBegin || record == Record::kCallEnd) return is_step_of_loop(event);
  if (record == Record::kKept) return false;  // the same as a call's end
  switch (static_cast<EventKind>(event.kind)) {
    case EventKind::kOp:
      // A wait that ends without a channel looks at something else and goes on.
      return event.result != sim::kOk &&
             event.op != static_cast<std::uint16_t>(Op::kChannelWaitReadable);
    case EventKind::kLog: {
      const auto number = static_cast<LogNumber>(event.c);
      return number == LogNumber::kPhaseFailed || number == LogNumber::kCommandSent ||
             number == LogNumber::kConnectionBroken || number == LogNumber::kExportLeaked;
    }
    case EventKind::kProcessStart:
    case EventKind::kProcessExit:
    case EventKind::kProcessKill:
    case EventKind::kProcessCrash:
    case EventKind::kProcessStop:
    case EventKind::kProcessOrphaned:
    case EventKind::kGroupFail:
    case EventKind::kViolation:
      return true;
    default:
      return event.kind >= static_cast<std::uint16_t>(EventKind::kHarness);
  }
}

class Explanation {
 public:
  explicit Explanation(const sim::Trace& trace) : trace_(trace) { view_.read(trace); }

  std::string of(std::uint32_t last) {
    include(trace_.events[last].process);
    std::vector<std::uint32_t> kept;
    for (std::uint32_t i = last + 1; i-- > 0 && kept.size() < kMaxEvents;) {
      const Event& event = trace_.events[i];
      if (i != last && !in_past(event.process) && event.process != sim::kNoProcess) continue;
      follow(event);
      if (i == last || tells(event)) kept.push_back(i);
    }
    std::string text;
    for (auto i = kept.rbegin(); i != kept.rend(); ++i) text += line(*i);
    return text;
  }

 private:
  bool in_past(std::uint32_t process) const { return process < past_.size() && past_[process]; }

  void include(std::uint32_t process) {
    if (process == sim::kNoProcess || process >= view_.processes().size()) return;
    past_.resize(view_.processes().size(), false);
    past_[process] = true;
  }

  // What the event learned from others belongs to its past.
  void follow(const Event& event) {
    const auto kind = static_cast<EventKind>(event.kind);
    if (kind == EventKind::kGroupComplete || kind == EventKind::kGroupFail) {
      for (const std::uint32_t i : view_.lists().groups) {
        const Event& member = trace_.events[i];
        if (member.kind == static_cast<std::uint16_t>(EventKind::kGroupMember) &&
            member.a == event.a) {
          include(member.process);
        }
      }
    } else if (kind == EventKind::kProcessKill && event.b != 0) {
      include(static_cast<std::uint32_t>(event.b - 1));
    } else if (kind == EventKind::kProcessReaped) {
      include(static_cast<std::uint32_t>(event.a));
    } else if (kind == EventKind::kOp && event.op == static_cast<std::uint16_t>(Op::kChannelRead)) {
      // A channel joins a process with its parent or its children.
      for (std::uint32_t p = 0; p < view_.processes().size(); ++p) {
        if (view_.processes()[p].parent == event.process) include(p);
      }
      if (const ProcessView* reader = view_.process(event.process)) include(reader->parent);
    }
  }

  std::string line(std::uint32_t i) const {
    const Event& event = trace_.events[i];
    std::string text = fmt::format("{:>6}  {}.{:09} s  {}", i, event.time / 1'000'000'000,
                                   event.time % 1'000'000'000, view_.name_of(event.process));
    if (const auto phase = view_.text(event.phase); !phase.empty()) {
      text += fmt::format(" in {}/{}", phase, event.chunk);
    }
    return text + ": " + what(event) + "\n";
  }

  std::string violation_text(const Event& event) const {
    const std::string_view name = view_.text(event.text);
    if (name == "race.copy") {
      return fmt::format("race.copy: byte {} of memory {}, against {}", event.b, event.a,
                         view_.name_of(static_cast<std::uint32_t>(event.c)));
    }
    if (event.c > event.b) {
      return fmt::format("{}: bytes {} to {} of region {}", name, event.b, event.c, event.a);
    }
    return fmt::format("{} ({}, {}, {})", name, event.a, event.b, event.c);
  }

  std::string what(const Event& event) const {
    const auto kind = static_cast<EventKind>(event.kind);
    if (kind == EventKind::kOp) {
      return fmt::format("{} failed, error {}", to_string(static_cast<Op>(event.op)), event.result);
    }
    switch (static_cast<Record>(event.kind)) {
      case Record::kCallBegin:
        return fmt::format("{} begins", to_string(static_cast<Call>(event.a)));
      case Record::kCallEnd:
        return fmt::format(
            "{} {} {}", to_string(static_cast<Call>(event.a)), event.b == 1 ? "returns" : "fails",
            event.b == 1 ? std::to_string(event.c) : std::string(view_.text(event.text)));
      case Record::kTokens:
        return fmt::format("lane {} of a row stamped {} is {}", event.b, event.a, event.c);
      case Record::kResident:
        return fmt::format("worker {} holds {}, stamped {}", event.a, event.b, event.c);
      case Record::kFault:
        return fmt::format("the fault {} is applied", view_.text(event.text));
      case Record::kHealed:
        return "no fault applies any more";
      case Record::kPublished:
        return fmt::format("the trainer holds version {}", event.a);
      case Record::kScript:
        return std::string(view_.text(event.text));
      case Record::kFound:
        return fmt::format("worker {} holds {}", event.a, view_.text(event.text));
      default:
        break;
    }
    if (kind == EventKind::kViolation) return violation_text(event);
    std::string text(to_string(kind));
    if (const auto subject = view_.text(event.text); !subject.empty()) {
      text += fmt::format(" {}", subject);
    }
    return text + fmt::format(" ({}, {}, {})", event.a, event.b, event.c);
  }

  const sim::Trace& trace_;
  View view_;
  std::vector<bool> past_;
};

}  // namespace

std::string explain(const sim::Trace& trace, const Verdict& verdict) {
  if (verdict.event >= trace.events.size()) return {};
  return Explanation(trace).of(verdict.event);
}

}  // namespace tpsync::judge
