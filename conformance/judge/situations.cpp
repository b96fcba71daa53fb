#include "conformance/judge/situations.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tpsync::judge {

namespace {

using sim::Event;
using sim::EventKind;
using sim::Op;
using S = Situation;

constexpr std::array<SituationRow, kSituationCount> kRows = {{
    {S::kCommitted, "publication.committed", "Every actor returned the new version."},
    {S::kSteady, "publication.steady", "One runtime took two versions, one after the other."},
    {S::kRecovered, "publication.recovered",
     "After a failed publication a later one was committed in the same world."},
    {S::kRebuilt, "publication.rebuilt", "A second runtime was started in the same world."},
    {S::kFailedUntouched, "publication.failed-untouched",
     "A publication failed before the runtime was touched."},
    {S::kFailedTouched, "publication.failed-touched",
     "A publication failed after the runtime was touched."},
    {S::kOutcomeSplit, "outcome.split", "One actor returned a version, another one a failure."},
    {S::kOutcomeUnknown, "outcome.unknown", "An actor could not say whether others had published."},
    {S::kPeerLost, "outcome.peer-lost", "An actor's publication ended because a peer was lost."},
    {S::kTwoFailAtOneGate, "gate.two-ranks-fail", "Two ranks failed in the same phase."},
    {S::kOtherRankFails, "gate.other-rank-fails", "A rank above 0 was the first to fail."},
    {S::kGenerateRefused, "generate.refused",
     "Generation was refused by an engine that is not broken."},
    {S::kBrokenTried, "broken.tried", "A command was tried on a broken runtime, and refused."},
    {S::kLeakAnnounced, "release.kept",
     "An actor kept exported memory, because a worker might still map it."},
    {S::kActorKilledInSync, "kill.actor-in-sync", "An actor was killed within a publication."},
    {S::kRankZeroKilledTouched, "kill.rank-zero-touched",
     "Rank 0 was killed after it had touched the runtime."},
    {S::kRuntimeKilledPending, "kill.runtime-pending",
     "The runtime was killed from outside while a publication was pending."},
    {S::kWorkerKilledInUpdate, "kill.worker-in-update", "A worker was killed within an update."},
    {S::kWorkerKilledInFinish, "kill.worker-in-finish", "A worker was killed within finish."},
    {S::kKilledDuringPoison, "kill.during-poison",
     "Rank 0 was killed between declaring its runtime broken and returning."},
    {S::kActorStopped, "stop.actor", "An actor was stopped within a publication."},
    {S::kRuntimeStopped, "stop.runtime", "The runtime was stopped."},
    {S::kWorkerStopped, "stop.worker", "A worker was stopped."},
    {S::kRuntimeOrphaned, "runtime.orphaned", "The runtime outlived its parent."},
    {S::kRuntimeLeftPending, "runtime.left-pending",
     "The runtime ended by itself while a publication was pending."},
    {S::kTerminateIgnored, "runtime.terminate-ignored",
     "A process tree was killed because it did not end when it was told to."},
    {S::kSpawnFailed, "runtime.spawn-failed", "An engine's runtime could not be started."},
    {S::kEndBehindBytes, "channel.end-behind-bytes",
     "An end of a channel closed behind bytes that nobody had read yet."},
    {S::kParentSeesEnd, "channel.parent-sees-end", "Rank 0 read its runtime's end of file."},
    {S::kRuntimeSeesParentEnd, "channel.runtime-sees-end", "The runtime read an end of file."},
    {S::kWorkerSeesEnd, "channel.worker-sees-end", "A worker read its runtime's end of file."},
    {S::kPipeFull, "channel.full", "A write waited for its reader."},
    {S::kTimeoutInFlight, "channel.timeout-in-flight",
     "A read gave up while bytes for it were under way.", true},
    {S::kReplyAfterBreak, "channel.reply-after-break",
     "The runtime wrote to a parent that had declared it broken."},
    {S::kCollectivePartial, "group.partial",
     "A collective was completed on one rank and failed on another."},
    {S::kRankLostInside, "group.lost-inside",
     "A rank was killed while another was in a collective."},
    {S::kAlarm, "group.alarm", "A rank raised the alarm."},
    {S::kLeftInside, "group.left-inside", "A rank left the group while another was inside."},
    {S::kGatherPartial, "gather.partial", "A gather was given up after parts of it had landed.",
     true},
    {S::kGatherAborted, "gather.aborted", "A gather was aborted."},
    {S::kCopyInPieces, "copy.in-pieces", "One copy landed in several pieces."},
    {S::kCopyVanished, "copy.vanished", "A killed process's pending copy never landed."},
    {S::kLoadBesideGather, "copy.load-beside-gather",
     "A worker's copy landed while a later chunk was gathered."},
    {S::kAddressReused, "memory.address-reused", "An address that had been freed was used again."},
    {S::kAddressReusedWhileMapped, "memory.reused-while-mapped",
     "An address was used again that another process still maps.", true},
    {S::kFreedWhileMapped, "memory.freed-while-mapped",
     "Memory went while another process still mapped it."},
    {S::kMemoryExhausted, "memory.exhausted", "A publication failed for lack of device memory."},
    {S::kImportFailed, "memory.import-failed", "An export could not be opened."},
    {S::kDiedWithImport, "memory.died-with-import", "A process ended with an import open."},
    {S::kDiedWithExport, "memory.died-with-export", "A process ended with an export alive."},
    {S::kDeviceLost, "memory.device-failed", "A publication failed by a device's own failure."},
    {S::kSleptKeeping, "sleep.keeping", "Memory was put to sleep and kept."},
    {S::kSleptDiscarding, "sleep.discarding", "Memory was put to sleep and discarded."},
    {S::kTwoFaults, "fault.two", "Two faults took effect in one run."},
    {S::kThreeFaults, "fault.three", "Three faults took effect in one run."},
    {S::kFaultAfterBreak, "fault.after-break",
     "A fault struck between a runtime's being declared broken and the call's return."},
    {S::kFaultInRelease, "fault.in-release", "A fault struck while imports were released."},
}};

constexpr std::uint64_t kEndsMax = 1 << 16;  // more are of no world
// A write that takes this long has waited; an operation by itself takes 100 ns at most.
constexpr std::int64_t kWaitedNs = 1000;
constexpr std::uint64_t kKillSignal = 9;
constexpr std::uint16_t kTimeout = 4;  // number of an error's kind, part of the trace's format

bool is(const Event& event, Op op) { return event.op == static_cast<std::uint16_t>(op); }

}  // namespace

std::span<const SituationRow> all_situations() { return kRows; }

SituationSet SituationReader::read(const View& view) {
  reached_ = 0;
  written_.clear();
  read_.clear();
  freed_.clear();
  freed_mapped_.clear();
  live_.clear();
  const std::size_t processes = view.processes().size();
  landed_.assign(processes, 0);
  terminating_.assign(processes, 0);
  breaker_ = kNone;
  gather_last_ = -1;
  group_failed_ = false;
  for (const Event& event : view.trace().events) read_event(view, event);
  read_calls(view);
  read_processes(view);
  if (group_failed_) read_groups(view);
  const std::size_t faults = view.lists().faults.size();
  if (faults >= 2) reach(S::kTwoFaults);
  if (faults >= 3) reach(S::kThreeFaults);
  return reached_;
}

std::uint64_t& SituationReader::moved(std::vector<std::uint64_t>& by_end, std::uint64_t end) {
  if (end >= by_end.size()) by_end.resize(std::min(end, kEndsMax) + 1, 0);
  return by_end[std::min(end, kEndsMax)];
}

void SituationReader::read_event(const View& view, const Event& event) {
  switch (static_cast<EventKind>(event.kind)) {
    case EventKind::kOp:
      read_operation(view, event);
      return;
    case EventKind::kChannelEnd:
      if (moved(written_, event.a) > moved(read_, event.a ^ 1)) reach(S::kEndBehindBytes);
      return;
    case EventKind::kProcessLeft:
      if (event.a > 0) reach(S::kDiedWithExport);
      if (event.b > 0) reach(S::kDiedWithImport);
      return;
    case EventKind::kGroupAlarm:
      reach(S::kAlarm);
      return;
    case EventKind::kGroupFail:
      group_failed_ = true;
      return;
    case EventKind::kDeviceAllocated:
    case EventKind::kDeviceFreed:
    case EventKind::kDeviceImported:
    case EventKind::kDeviceImportClosed:
    case EventKind::kDeviceGone:
      read_memory(event);
      return;
    case EventKind::kDeviceSlept:
      reach(event.b == 1 ? S::kSleptKeeping : S::kSleptDiscarding);
      return;
    case EventKind::kDeviceVanished:
      if (event.b > 0) reach(S::kCopyVanished);
      return;
    case EventKind::kDeviceLanding: {
      if (event.process >= landed_.size()) return;
      // Serial numbers begin with 0 or 1; one more is kept.
      if (landed_[event.process] == event.b + 1) reach(S::kCopyInPieces);
      landed_[event.process] = event.b + 1;
      const ProcessView& process = view.processes()[event.process];
      if (process.role == Role::kWorker && event.chunk < gather_last_ &&
          view.text(event.phase) == "update_native_weights") {
        reach(S::kLoadBesideGather);
      }
      return;
    }
    case EventKind::kLog:
      if (event.c == static_cast<std::uint64_t>(LogNumber::kConnectionBroken)) {
        breaker_ = event.process;
      }
      return;
    case EventKind::kProcessKill:
      group_failed_ = true;
      for (const Memory& memory : live_) {
        if (memory.owner == event.process) freed(memory);
      }
      if (event.process == breaker_) {
        reach(S::kKilledDuringPoison);
        breaker_ = kNone;
      }
      return;
    default:
      break;
  }
  if (event.kind == static_cast<std::uint16_t>(Record::kCallEnd)) {
    if (event.process == breaker_) breaker_ = kNone;
  } else if (event.kind == static_cast<std::uint16_t>(Record::kFault)) {
    if (breaker_ != kNone) reach(S::kFaultAfterBreak);
    if (view.text(event.phase).starts_with("release_native_ipc") ||
        view.text(event.phase) == "native-ipc-release") {
      reach(S::kFaultInRelease);
    }
  }
}

void SituationReader::read_operation(const View& view, const Event& event) {
  if (event.result != sim::kOk) {
    if (event.result != sim::kPending) read_failed(event);
    return;
  }
  if (event.process >= landed_.size()) return;
  switch (static_cast<Op>(event.op)) {
    case Op::kChannelRead:
      moved(read_, event.a) += event.b;
      if (event.b == 0) {
        const Role role = view.processes()[event.process].role;
        if (role == Role::kActor) reach(S::kParentSeesEnd);
        if (role == Role::kRuntime) reach(S::kRuntimeSeesParentEnd);
        if (role == Role::kWorker) reach(S::kWorkerSeesEnd);
      }
      return;
    case Op::kChannelWrite:
      moved(written_, event.a) += event.b;
      if (event.end - event.time > kWaitedNs) reach(S::kPipeFull);
      if (breaker_ != kNone && view.processes()[event.process].role == Role::kRuntime &&
          view.processes()[event.process].parent == breaker_) {
        reach(S::kReplyAfterBreak);
      }
      return;
    case Op::kShardGather:
      gather_last_ = event.chunk;
      return;
    case Op::kShardAbort:
      group_failed_ = true;
      reach(S::kGatherAborted);
      return;
    case Op::kProcessSignalGroup:
      if (event.b == kKillSignal && terminating_[event.process] == event.a) {
        reach(S::kTerminateIgnored);
      }
      terminating_[event.process] = event.a;
      return;
    default:
      return;
  }
}

void SituationReader::read_failed(const Event& event) {
  if (is(event, Op::kDeviceImport)) reach(S::kImportFailed);
  if (is(event, Op::kChannelRead) && event.result == kTimeout &&
      moved(written_, event.a ^ 1) > moved(read_, event.a)) {
    reach(S::kTimeoutInFlight);
  }
}

void SituationReader::freed(const Memory& memory) {
  freed_.push_back(memory.address);
  if (memory.imports == 0) return;
  reach(S::kFreedWhileMapped);
  freed_mapped_.push_back(memory.address);
}

void SituationReader::read_memory(const Event& event) {
  const auto kind = static_cast<EventKind>(event.kind);
  if (kind == EventKind::kDeviceAllocated) {
    const auto contains = [&](const std::vector<std::uint64_t>& addresses) {
      return std::find(addresses.begin(), addresses.end(), event.b) != addresses.end();
    };
    if (contains(freed_)) reach(S::kAddressReused);
    if (contains(freed_mapped_)) reach(S::kAddressReusedWhileMapped);
    live_.push_back({.key = event.a, .address = event.b, .owner = event.process});
    return;
  }
  const auto found = std::find_if(live_.begin(), live_.end(),
                                  [&](const Memory& memory) { return memory.key == event.a; });
  if (found == live_.end()) return;
  if (kind == EventKind::kDeviceImported || kind == EventKind::kDeviceImportClosed) {
    found->imports = event.b;
    return;
  }
  if (kind == EventKind::kDeviceFreed) freed(*found);
  *found = live_.back();
  live_.pop_back();
}

void SituationReader::read_calls(const View& view) {
  bool failed_before = false;
  for (const SyncRound& round : view.rounds()) {
    bool all = true;
    bool any = false;
    for (const std::uint32_t index : round.calls) {
      const CallView& call = view.calls()[index];
      all &= call.ok;
      any |= call.ok;
      if (call.ok || call.end == kNoEvent) continue;
      const std::string_view text = view.text(call.error_text);
      if (text.find("\"outcome unknown\"") != std::string_view::npos) reach(S::kOutcomeUnknown);
      if (text.find("\"out of memory\"") != std::string_view::npos) reach(S::kMemoryExhausted);
      if (text.find("\"device\"") != std::string_view::npos) reach(S::kDeviceLost);
      if (text.find("\"peer lost\"") != std::string_view::npos) reach(S::kPeerLost);
      if (call.rank == 0) {
        reach(call.touched == kNoEvent ? S::kFailedUntouched : S::kFailedTouched);
      }
    }
    if (all) reach(failed_before ? S::kRecovered : S::kCommitted);
    if (any && !all) reach(S::kOutcomeSplit);
    failed_before |= !all;
  }
  std::uint32_t committing = kNone;  // the engine of the last commit
  std::uint32_t runtimes = 0;
  for (const CallView& call : view.calls()) {
    if (call.spawned != kNoEvent) ++runtimes;
    if (call.announced_leak) reach(S::kLeakAnnounced);
    if (call.rank != 0) continue;
    if (call.call == Call::kSync && call.ok) {
      if (committing == call.engine && call.engine != kNone) reach(S::kSteady);
      committing = call.engine;
    }
    if (call.call == Call::kStartEngine && !call.ok && call.end != kNoEvent &&
        call.spawned == kNoEvent) {
      reach(S::kSpawnFailed);
    }
    if (call.ok || call.end == kNoEvent || call.broken != kNoEvent) continue;
    const std::string_view text = view.text(call.error_text);
    if (text.find("broken and cannot be reused") != std::string_view::npos) {
      reach(S::kBrokenTried);
    } else if (call.call == Call::kGenerate &&
               text.find("nothing happened") != std::string_view::npos) {
      reach(S::kGenerateRefused);
    }
  }
  if (runtimes >= 2) reach(S::kRebuilt);
  const auto& failures = view.lists().phase_failures;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    const Event& one = view.event(failures[i]);
    const ProcessView* first = view.process(one.process);
    if (i == 0 && first != nullptr && first->role == Role::kActor && first->rank > 0) {
      reach(S::kOtherRankFails);
    }
    if (i == 0) continue;
    const Event& before = view.event(failures[i - 1]);
    if (before.process != one.process && before.phase == one.phase && before.chunk == one.chunk) {
      reach(S::kTwoFailAtOneGate);
    }
  }
}

void SituationReader::read_processes(const View& view) {
  // The publication of rank 0 that was under way at an event.
  const auto sync_at = [&](std::uint32_t event) -> const CallView* {
    for (const CallView& call : view.calls()) {
      if (call.rank == 0 && call.call == Call::kSync && call.begin < event &&
          (call.end == kNoEvent || call.end > event)) {
        return &call;
      }
    }
    return nullptr;
  };
  const auto pending_at = [&](std::uint32_t event) {
    const CallView* call = sync_at(event);
    return call != nullptr && call->touched != kNoEvent && call->touched < event &&
           (call->broken == kNoEvent || call->broken > event);
  };
  for (std::uint32_t index = 0; index < view.processes().size(); ++index) {
    const ProcessView& process = view.processes()[index];
    if (process.ever_stopped) {
      if (process.role == Role::kActor) reach(S::kActorStopped);
      if (process.role == Role::kRuntime) reach(S::kRuntimeStopped);
      if (process.role == Role::kWorker) reach(S::kWorkerStopped);
    }
    if (process.role == Role::kRuntime) {
      const ProcessView* parent = view.process(process.parent);
      if (parent != nullptr && parent->end != kNoEvent &&
          (process.end == kNoEvent || process.end > parent->end)) {
        reach(S::kRuntimeOrphaned);
      }
      if (process.exited && pending_at(process.end)) reach(S::kRuntimeLeftPending);
    }
    if (process.end == kNoEvent || process.exited) continue;
    const Event& end = view.event(process.end);
    if (end.kind != static_cast<std::uint16_t>(EventKind::kProcessKill)) continue;
    // By nobody, or by a decorator of its own: not by whoever ends it in an orderly way.
    const bool struck = end.b == 0 || end.b == index + 1;
    if (!struck) continue;
    if (process.role == Role::kRuntime && pending_at(process.end)) reach(S::kRuntimeKilledPending);
    if (process.role == Role::kWorker) {
      const std::string_view phase = view.text(end.phase);
      if (phase == "update_native_weights") reach(S::kWorkerKilledInUpdate);
      if (phase == "finish_native_weight_update") reach(S::kWorkerKilledInFinish);
    }
    if (process.role == Role::kActor && process.open_call != kNone) {
      const CallView& call = view.calls()[process.open_call];
      if (call.call != Call::kSync) continue;
      reach(S::kActorKilledInSync);
      if (call.rank == 0 && call.touched != kNoEvent) reach(S::kRankZeroKilledTouched);
    }
  }
}

SituationReader::Collective& SituationReader::collective(const Event& event) {
  for (auto at = collectives_.rbegin(); at != collectives_.rend(); ++at) {
    if (at->group == event.a && at->sequence == event.b) return *at;
  }
  return collectives_.emplace_back(Collective{.group = event.a, .sequence = event.b});
}

// Who was in which collective, where one of them failed.
void SituationReader::read_groups(const View& view) {
  collectives_.clear();
  const auto somebody_inside = [this](std::uint64_t group) {
    return std::any_of(collectives_.begin(), collectives_.end(), [group](const Collective& one) {
      return one.group == group && one.entered > one.completed + one.failed;
    });
  };
  const auto somebody_inside_any = [this] {
    return std::any_of(collectives_.begin(), collectives_.end(), [](const Collective& one) {
      return one.entered > one.completed + one.failed;
    });
  };
  for (const Event& event : view.trace().events) {
    if (event.process >= view.processes().size()) continue;
    switch (static_cast<EventKind>(event.kind)) {
      case EventKind::kGroupEnter:
        ++collective(event).entered;
        break;
      case EventKind::kGroupComplete:
        ++collective(event).completed;
        break;
      case EventKind::kGroupFail:
        ++collective(event).failed;
        break;
      case EventKind::kGroupPiece:
        ++collective(event).pieces;
        break;
      case EventKind::kProcessKill:
        if (view.processes()[event.process].role == Role::kActor && somebody_inside_any()) {
          reach(S::kRankLostInside);
        }
        break;
      case EventKind::kOp:
        if (is(event, Op::kShardAbort)) {
          for (const Collective& one : collectives_) {
            if (one.group == event.a && one.pieces > 0 && one.completed < one.entered) {
              reach(S::kGatherPartial);
            }
          }
        }
        break;
      case EventKind::kGroupLeave:
        if (somebody_inside(event.a)) reach(S::kLeftInside);
        break;
      default:
        break;
    }
  }
  for (const Collective& one : collectives_) {
    if (one.failed == 0) continue;
    if (one.completed > 0) reach(S::kCollectivePartial);
    if (one.pieces > 0) reach(S::kGatherPartial);
  }
}

}  // namespace tpsync::judge
