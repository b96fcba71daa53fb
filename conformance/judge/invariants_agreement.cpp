// I3 (agreement) and I9 (diagnosable): what failed syncs say.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "conformance/judge/invariants.h"

namespace tpsync::judge {
namespace {

constexpr std::string_view kLastPhase = "native-ipc-release";

std::string brief(const ErrorView& error) {
  return fmt::format("{} in {} (rank {}, {}: {})", error.kind,
                     error.phase.empty() ? "no phase" : error.phase, error.rank, error.subject,
                     error.detail);
}

class Agreement {
 public:
  Agreement(const Context& context, const SyncRound& round) : view_(context.view), round_(round) {}

  std::optional<Verdict> check() {
    for (const std::uint32_t c : round_.calls) {
      const CallView& call = view_.calls()[c];
      if (call.end == kNoEvent) continue;
      if (auto verdict = call.ok ? add_success(call) : add_failure(call)) return verdict;
    }
    if (success_ != nullptr && failure_ != nullptr) return check_split();
    return std::nullopt;
  }

 private:
  std::optional<Verdict> add_success(const CallView& call) {
    if (success_ == nullptr) success_ = &call;
    if (call.value == success_->value) return std::nullopt;
    return violation("I3", call.end,
                     fmt::format("{} returned version {}, {} version {}", View::name_of(*success_),
                                 success_->value, View::name_of(call), call.value));
  }

  std::optional<Verdict> add_failure(const CallView& call) {
    const ErrorView error = view_.error(call);
    if (error.peer_lost()) {
      if (failure_ == nullptr) failure_ = &call;
      if (error.kind == "peer_lost") all_unknown_ = false;
      if (error.phase != kLastPhase) all_unknown_ = false;
      if (group_broke(view_, call.end)) return std::nullopt;
      return violation(
          "I3", call.end,
          fmt::format("{} reports {}, and no actor was lost", View::name_of(call), brief(error)));
    }
    all_unknown_ = false;
    if (failure_ == nullptr) failure_ = &call;
    if (cause_ == nullptr) {
      cause_ = &call;
      return std::nullopt;
    }
    // One record, word for word; also where the group broke while it was told to the others.
    if (view_.text(call.error_text) == view_.text(cause_->error_text)) return std::nullopt;
    return violation("I3", call.end,
                     fmt::format("{} failed with {}, {} with {}", View::name_of(*cause_),
                                 brief(view_.error(*cause_)), View::name_of(call), brief(error)));
  }

  // Some succeeded, some failed: only if a fault hit the very last agreement.
  std::optional<Verdict> check_split() const {
    const auto split = [&](const std::string& why) {
      return violation("I3", failure_->end,
                       fmt::format("{} returned version {}, {} failed with {}: {}",
                                   View::name_of(*success_), success_->value,
                                   View::name_of(*failure_), brief(view_.error(*failure_)), why));
    };
    if (!all_unknown_) return split("only outcome unknown in the last agreement may be split");
    if (view_.lists().faults.empty() || view_.lists().faults.front() > failure_->end) {
      return split("no fault was there");
    }
    for (const CallView& call : view_.calls()) {
      const bool later = call.begin > failure_->end && call.call == Call::kSync && call.ok;
      if (later) return split("and the world published again");
    }
    return std::nullopt;
  }

  const View& view_;
  const SyncRound& round_;
  const CallView* success_ = nullptr;
  const CallView* failure_ = nullptr;  // the first of any kind
  const CallView* cause_ = nullptr;    // the first that is not about a lost peer
  bool all_unknown_ = true;
};

// ---- I9 ----

// The order of a publication's phases, as numbers with room in between; nullopt for other names.
constexpr std::int64_t kAllocation = 8;
constexpr std::int64_t kChunks = 1000;  // materialize 0, transfer 0, materialize 1, ...
constexpr std::int64_t kAfterChunks = 1'000'000'000;

std::optional<std::int64_t> phase_order(std::string_view phase, std::int64_t chunk) {
  constexpr std::pair<std::string_view, std::int64_t> kOrder[] = {
      {"setup", 0},
      {"expected-schema", 1},
      {"topology-discovery", 2},
      {"topology-memory-preflight", 3},
      {"topology-ipc-probe", 4},
      {"publication-id", 5},
      {"native-init", 6},
      {"native-start", 7},
      {"native-buffer-allocation", kAllocation},
      {"native-source-verify", kAfterChunks},
      {"native-finish", kAfterChunks + 1},
      {"native-result", kAfterChunks + 2},
      {"native-ipc-release", kAfterChunks + 3},
      {"probe_ipc", 4},
      {"init_native_weight_transfer", 6},
      {"start_native_weight_update", 7},
      {"finish_native_weight_update", kAfterChunks + 1},
      {"release_native_ipc", kAfterChunks + 3},
  };
  for (const auto& [name, order] : kOrder) {
    if (name == phase) return order;
  }
  if (phase == "native-materialize") return kChunks + 2 * chunk;
  if (phase == "native-transfer" || phase == "update_native_weights") {
    return kChunks + 2 * chunk + 1;
  }
  return std::nullopt;
}

// "native-transfer-3"
std::optional<std::int64_t> order_of_text(std::string_view phase) {
  const std::size_t dash = phase.rfind('-');
  if (dash != std::string_view::npos) {
    std::int64_t chunk = 0;
    const char* end = phase.data() + phase.size();
    const auto [at, error] = std::from_chars(phase.data() + dash + 1, end, chunk);
    if (error == std::errc() && at == end) return phase_order(phase.substr(0, dash), chunk);
  }
  return phase_order(phase, 0);
}

// Found at once, wherever it strikes: its phase is the error's, or the one before or after.
bool is_immediate(const std::string& fault) {
  for (const std::string_view name : {"process.kill", "channel.eof", "collective.rank_error",
                                      "memory.alloc_fail", "ipc.open_fail"}) {
    if (fault == name) return true;
  }
  return false;
}

class Diagnosis {
 public:
  Diagnosis(const Context& context, const SyncRound& round)
      : context_(context), view_(context.view), round_(round) {}

  std::optional<Verdict> check() {
    for (const std::uint32_t i : view_.lists().faults) {
      if (i < round_.end) faults_.push_back(i);
    }
    if (faults_.empty() || failed_before()) return std::nullopt;
    for (const std::uint32_t c : round_.calls) {
      const CallView& call = view_.calls()[c];
      if (call.end == kNoEvent || call.ok || refused_as_misuse(view_, call)) continue;
      if (auto verdict = check(call)) return verdict;
    }
    return std::nullopt;
  }

  bool any_unlisted() const {
    return std::any_of(faults_.begin(), faults_.end(),
                       [this](std::uint32_t fault) { return planned(context_, fault) == nullptr; });
  }

 private:
  // A later failure is about what the first one broke.
  bool failed_before() const {
    std::uint32_t last_begin = round_.begin;
    for (const std::uint32_t c : round_.calls) {
      last_begin = std::max(last_begin, view_.calls()[c].begin);
    }
    return std::any_of(view_.calls().begin(), view_.calls().end(), [&](const CallView& call) {
      return call.end != kNoEvent && !call.ok && call.end > faults_.front() &&
             call.end < last_begin;
    });
  }

  // True if this actor had returned from a sync when the fault struck, or returned from one since.
  bool published_before(const CallView& call) const {
    return std::any_of(view_.calls().begin(), view_.calls().end(), [&](const CallView& other) {
      return other.call == Call::kSync && other.process == call.process && other.end != kNoEvent &&
             other.end < call.begin;
    });
  }

  std::optional<Verdict> check(const CallView& call) const {
    const ErrorView error = view_.error(call);
    const auto wrong = [&](const std::string& why) {
      return violation(
          "I9", call.end,
          fmt::format("{} failed with {}: {}", View::name_of(call), brief(error), why));
    };
    if (!error.typed) return wrong("the record is not complete");
    if (error.phase.empty()) return wrong("the phase is not named");
    if (any_unlisted()) return std::nullopt;
    bool admissible = false;
    std::string names;
    for (const std::uint32_t i : faults_) {
      const PlannedFault& fault = *planned(context_, i);
      const auto& kinds = fault.kinds;
      admissible |= std::find(kinds.begin(), kinds.end(), error.kind) != kinds.end();
      names += (names.empty() ? "" : ", ") + fault.name;
    }
    admissible |= error.kind == "end_of_file" && silenced_before_an_end();
    if (!admissible) return wrong("no admissible diagnosis of " + names);
    if (faults_.size() != 1) return std::nullopt;
    const PlannedFault& fault = *planned(context_, faults_.front());
    if (!fault.visible || fault.role.empty()) return std::nullopt;
    if (!rank_fits(fault, error))
      return wrong(fmt::format("{} struck {} {}", fault.name, fault.role, fault.rank));
    // A publication that this actor began anew, while the one that was struck was still ending
    // elsewhere, begins its phases anew as well.
    if (!published_before(call) && !phase_fits(fault, error)) {
      return wrong(fmt::format("{} struck in {}/{}", fault.name, fault.phase, fault.chunk));
    }
    return std::nullopt;
  }

  // Two faults may look like neither of them alone: the runtime gives up for one reason, what it
  // says of it is lost on the way to rank 0, and rank 0 sees only that the runtime is gone.
  bool silenced_before_an_end() const {
    return faults_.size() > 1 &&
           std::any_of(faults_.begin(), faults_.end(), [this](std::uint32_t i) {
             const PlannedFault& fault = *planned(context_, i);
             const bool to_rank_0 =
                 fault.role == "runtime" || (fault.role == "actor" && fault.rank == 0);
             return to_rank_0 && !fault.visible && fault.name.starts_with("channel.");
           });
  }

  bool rank_fits(const PlannedFault& fault, const ErrorView& error) const {
    if (error.peer_lost()) return error.rank < 0 || left_the_group(error.rank);
    // What an actor gave and workers find wrong is told by the rank that speaks to them.
    const bool found_by_workers = error.kind == "remote" && error.rank == 0;
    // Where weights move by copies, a peer that opens an actor's buffer tells of it, or accuses
    // the actor that gave it.
    const bool found_by_peers = fault.name.starts_with("ipc.") && error.rank >= 0 &&
                                error.phase.starts_with("native-materialize") &&
                                (error.kind == "ipc" || error.kind == "mismatch");
    if (fault.role == "actor") {
      return error.rank == fault.rank || found_by_workers || found_by_peers;
    }
    // Whoever looks first finds that a worker's process is gone.
    if (error.phase == "topology-memory-preflight") return error.rank >= 0;
    return error.rank == 0;
  }

  bool left_the_group(int rank) const {
    for (std::uint32_t p = 0; p < view_.processes().size(); ++p) {
      const ProcessView& process = view_.processes()[p];
      if (process.role != Role::kActor || process.rank != rank) continue;
      if (process.end != kNoEvent || process.ever_stopped) return true;
      for (const std::uint32_t i : view_.lists().groups) {
        const sim::Event& event = view_.event(i);
        const auto kind = static_cast<sim::EventKind>(event.kind);
        if (event.process == p &&
            (kind == sim::EventKind::kGroupFail || kind == sim::EventKind::kGroupLeave)) {
          return true;
        }
      }
    }
    return false;
  }

  bool phase_fits(const PlannedFault& fault, const ErrorView& error) const {
    const auto found = order_of_text(error.phase);
    if (!found) return false;
    const bool before_the_sync = faults_.front() < round_.begin;
    const std::int64_t struck =
        before_the_sync ? 0 : phase_order(fault.phase, fault.chunk).value_or(0);
    // A contribution that was under way when its rank died may be lost a phase earlier.
    const std::int64_t first = error.peer_lost() ? phase_before(struck) : struck;
    if (*found < first) return false;
    return !is_immediate(fault.name) || *found <= latest(struck, fault.role == "actor");
  }

  // That of the agreement before. With overlap, transfer c + 1 and materialize c + 2 both begin
  // behind the agreement on transfer c.
  std::int64_t phase_before(std::int64_t phase) const {
    if (phase == kChunks) return kAllocation;
    if (phase == kAfterChunks) return kChunks + 1;  // whichever chunk was the last
    const bool beside_another = phase > kChunks + 1 && phase < kAfterChunks;
    if (!context_.facts.overlap || !beside_another) return phase - 1;
    return std::max(kChunks, phase - (phase % 2 == 1 ? 2 : 3));
  }

  // The next phase in which somebody needs what was struck: of an actor, the next one; of the
  // runtime or a worker, that of the next command.
  static std::int64_t latest(std::int64_t struck, bool actor) {
    constexpr std::int64_t kProbe = 4;
    constexpr std::int64_t kInit = 6;
    constexpr std::int64_t kStart = 7;
    constexpr std::int64_t kFinish = kAfterChunks + 1;
    const bool transfer = struck >= kChunks && struck < kAfterChunks && struck % 2 == 1;
    if (actor) {
      if (struck == 0) return kProbe;
      if (struck == kAllocation) return kChunks;
      return transfer ? kAfterChunks : struck + 1;
    }
    if (struck == 0 || struck == kProbe) return kInit;
    if (struck == kInit) return kStart;
    if (struck == kStart) return kChunks + 1;
    return transfer ? kFinish : struck + 2;
  }

  const Context& context_;
  const View& view_;
  const SyncRound& round_;
  std::vector<std::uint32_t> faults_;
};

}  // namespace

bool refused_as_misuse(const View& view, const CallView& call) {
  if (call.end == kNoEvent || call.ok || call.entered_group) return false;
  const ErrorView error = view.error(call);
  return error.kind == "invalid_state" && error.remedy == ErrorRemedy::kFixInput;
}

bool all_committed(const Context& context, const SyncRound& round) {
  const std::size_t actors = static_cast<std::size_t>(std::max(context.facts.actors, 1));
  if (round.calls.size() < actors) return false;
  return std::all_of(round.calls.begin(), round.calls.end(), [&](std::uint32_t c) {
    const CallView& call = context.view.calls()[c];
    return call.end != kNoEvent && call.ok;
  });
}

const PlannedFault* planned(const Context& context, std::uint32_t fault_event) {
  const std::uint64_t index = context.view.event(fault_event).a;
  const auto& faults = context.facts.faults;
  return index < faults.size() && faults[index] ? &*faults[index] : nullptr;
}

bool group_broke(const View& view, std::uint32_t event) {
  for (const ProcessView& process : view.processes()) {
    if (process.role != Role::kActor) continue;
    if (process.end < event || process.ever_stopped) return true;
  }
  return std::any_of(view.lists().groups.begin(), view.lists().groups.end(),
                     [&](std::uint32_t i) {
                       const sim::Event& e = view.event(i);
                       return i < event && e.result != sim::kOk &&
                              e.kind == static_cast<std::uint16_t>(sim::EventKind::kGroupFail);
                     }) ||
         (!view.lists().faults.empty() && view.lists().faults.front() < event);
}

// Evidence: what each actor's sync returned, by rounds that all actors make together. An actor that
// was killed in it, or never returned, agrees with everything.
Verdict judge_agreement(const Context& context) {
  for (const SyncRound& round : context.view.rounds()) {
    if (auto verdict = Agreement(context, round).check()) return *verdict;
  }
  return context.view.rounds().empty() ? not_applicable("I3", "no sync was made") : pass("I3");
}

// Evidence: the record of the first failed sync after a fault took effect, against what the fault's
// entry in the parameters admits. Inconclusive: a fault without an entry.
Verdict judge_diagnosable(const Context& context) {
  if (context.view.lists().faults.empty()) return not_applicable("I9", "no fault took effect");
  bool unlisted = false;
  for (const SyncRound& round : context.view.rounds()) {
    Diagnosis diagnosis(context, round);
    if (auto verdict = diagnosis.check()) return *verdict;
    unlisted |= diagnosis.any_unlisted();
  }
  if (unlisted) return inconclusive("I9", "the parameters do not list a fault that took effect");
  return pass("I9");
}

}  // namespace tpsync::judge
