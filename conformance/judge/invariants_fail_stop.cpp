// I1 (fail-stop) and I8 (no fallback).
#include <fmt/format.h>

#include "conformance/judge/invariants.h"

namespace tpsync::judge {
namespace {

bool is_command(Call call) {
  switch (call) {
    case Call::kSync:
    case Call::kSleep:
    case Call::kWakeWeights:
    case Call::kWakeAll:
    case Call::kGenerate:
    case Call::kHealth:
    case Call::kInit:
    case Call::kStart:
    case Call::kUpdate:
    case Call::kFinish:
    case Call::kRelease:
      return true;
    default:
      return false;
  }
}

bool breaks_a_channel(const ErrorView& error) {
  return error.kind == "timeout" || error.kind == "end_of_file" || error.kind == "io" ||
         error.kind == "protocol";
}

enum class Aftermath : std::uint8_t { kNothing, kGone, kAlive };

// Ranks that do not stand at one gate, or one that does not say how it failed: their agreement
// failed, and no channel did.
bool is_broken_agreement(const ErrorView& error) {
  return error.subject == "lockstep" || error.subject == "report";
}

// What must have become of the runtime when this failed call of rank 0 returns.
Aftermath aftermath(const CallView& call, const ErrorView& error) {
  if (call.call == Call::kStartEngine)
    return error.breaks() ? Aftermath::kGone : Aftermath::kNothing;
  if (!is_command(call.call)) return Aftermath::kNothing;
  if (call.call != Call::kSync) return error.breaks() ? Aftermath::kGone : Aftermath::kNothing;
  if (call.touched != kNoEvent || call.broken != kNoEvent) return Aftermath::kGone;
  const bool probe_failed = call.first_probe != kNoEvent && error.phase == "topology-ipc-probe" &&
                            error.rank == 0 && breaks_a_channel(error) &&
                            !is_broken_agreement(error);
  return probe_failed ? Aftermath::kGone : Aftermath::kAlive;
}

class FailStop {
 public:
  explicit FailStop(const Context& context) : view_(context.view) {}

  Verdict judge() {
    for (const CallView& call : view_.calls()) {
      if (call.rank != 0 || call.end == kNoEvent) continue;
      if (call.call == Call::kStartEngine) broken_by_ = nullptr;
      if (auto verdict = check(call)) return *verdict;
    }
    return missing_.empty() ? pass("I1") : inconclusive("I1", missing_);
  }

 private:
  std::optional<Verdict> check(const CallView& call) {
    if (broken_by_ != nullptr && is_command(call.call))
      return check_broken(call, to_string(broken_by_->call));
    if (call.after_poison && is_command(call.call)) {
      if (auto verdict = check_broken(call, "poison")) return verdict;
      return check_gone(call);
    }
    if (call.ok) return std::nullopt;
    const ErrorView error = view_.error(call);
    switch (aftermath(call, error)) {
      case Aftermath::kGone:
        broken_by_ = &call;
        return check_gone(call);
      case Aftermath::kAlive:
        return check_alive(call);
      case Aftermath::kNothing:
        break;
    }
    return std::nullopt;
  }

  // No call on a broken runtime succeeds again, and the failure says that it is broken.
  std::optional<Verdict> check_broken(const CallView& call, std::string_view cause) {
    if (call.ok) {
      return violation("I1", call.end,
                       fmt::format("{} succeeded on a runtime that an earlier failure ({}) broke",
                                   View::name_of(call), cause));
    }
    const ErrorView error = view_.error(call);
    if (call.call != Call::kSync && error.remedy != ErrorRemedy::kRebuild) {
      return violation("I1", call.end,
                       fmt::format("{} on a broken runtime does not ask for a new one, it failed "
                                   "with {}: {}",
                                   View::name_of(call), error.kind, error.detail));
    }
    return std::nullopt;
  }

  std::optional<Verdict> check_gone(const CallView& call) {
    bool any = false;
    for (std::uint32_t p = 0; p < view_.processes().size(); ++p) {
      const ProcessView& process = view_.processes()[p];
      if (process.engine == kNone || process.engine != call.engine) continue;
      any = true;
      if (!process.lived_at(call.end)) continue;
      return violation("I1", call.end,
                       fmt::format("{} still lives when {} returns its failure", view_.name_of(p),
                                   View::name_of(call)));
    }
    if (!any && call.call != Call::kStartEngine && missing_.empty()) {
      missing_ = fmt::format("{} failed, and the trace has no process table of its runtime",
                             View::name_of(call));
    }
    return std::nullopt;
  }

  // Refused before the runtime was touched: nobody ended it.
  std::optional<Verdict> check_alive(const CallView& call) {
    const bool faulted = !view_.lists().faults.empty() && view_.lists().faults.front() < call.end;
    for (std::uint32_t p = 0; p < view_.processes().size(); ++p) {
      const ProcessView& process = view_.processes()[p];
      if (process.engine == kNone || process.engine != call.engine) continue;
      if (process.end == kNoEvent || process.end < call.begin || process.end > call.end) continue;
      const sim::Event& end = view_.event(process.end);
      const bool killed_by_caller =
          end.kind == static_cast<std::uint16_t>(sim::EventKind::kProcessKill) &&
          end.b == std::uint64_t{call.process} + 1;
      if (faulted && !killed_by_caller) continue;
      return violation("I1", process.end,
                       fmt::format("{} ended although {} failed before the runtime was touched",
                                   view_.name_of(p), View::name_of(call)));
    }
    return std::nullopt;
  }

  const View& view_;
  const CallView* broken_by_ = nullptr;
  std::string missing_;
};

}  // namespace

// Evidence: the first byte of init on rank 0's channel, the calls' results, the process table.
// Inconclusive: a call failed that must end the runtime, and the trace shows no process of it.
Verdict judge_fail_stop(const Context& context) {
  for (const CallView& call : context.view.calls()) {
    if (call.rank == 0) return FailStop(context).judge();
  }
  return not_applicable("I1", "no call was made on rank 0");
}

// Evidence: the commands and the runtimes that rank 0 started within one sync, and the hash of each
// publication's id. Inconclusive: a sync committed without a visible init or id.
Verdict judge_no_fallback(const Context& context) {
  const View& view = context.view;
  std::vector<std::uint64_t> ids;
  std::string missing;
  bool any = false;
  for (const CallView& call : view.calls()) {
    if (call.rank != 0) continue;
    if (call.call != Call::kStartEngine && call.spawned != kNoEvent) {
      return violation("I8", call.spawned, View::name_of(call) + " started another runtime");
    }
    if (call.call != Call::kSync) continue;
    any = true;
    if (call.inits > 1) {
      return violation("I8", call.end != kNoEvent ? call.end : call.begin,
                       fmt::format("{} sent {} init commands", View::name_of(call), call.inits));
    }
    if (call.publication_id) {
      for (const std::uint64_t id : ids) {
        if (id != *call.publication_id) continue;
        return violation("I8", call.begin,
                         View::name_of(call) + " uses the publication id of an earlier one");
      }
      ids.push_back(*call.publication_id);
    }
    if (!call.ok || !missing.empty()) continue;
    if (call.touched == kNoEvent) missing = View::name_of(call) + " committed, no init is seen";
    if (!call.publication_id) missing = View::name_of(call) + " committed, no id is seen";
  }
  if (!any) return not_applicable("I8", "rank 0 made no sync");
  return missing.empty() ? pass("I8") : inconclusive("I8", missing);
}

}  // namespace tpsync::judge
