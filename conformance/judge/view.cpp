#include "conformance/judge/view.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "conformance/judge/facts.h"

namespace tpsync::judge {
namespace {

using sim::Event;
using sim::EventKind;
using sim::Op;

constexpr std::uint32_t kMaxProcesses = 1U << 16;

Role role_of(std::string_view text) {
  if (text == "actor") return Role::kActor;
  if (text == "runtime") return Role::kRuntime;
  if (text == "worker") return Role::kWorker;
  return Role::kOther;
}

Name name_from(std::string_view text) {
  if (text == "init_native_weight_transfer") return Name::kInit;
  if (text == "probe_ipc") return Name::kProbe;
  if (text == "finish_native_weight_update") return Name::kFinish;
  if (text == "publication-id") return Name::kPublicationId;
  if (text == "native-init") return Name::kNativeInit;
  return Name::kOther;
}

ErrorRemedy remedy_from(std::string_view text) {
  if (text == "fix the input") return ErrorRemedy::kFixInput;
  if (text == "nothing happened, try later") return ErrorRemedy::kTryLater;
  if (text == "build a new runtime") return ErrorRemedy::kRebuild;
  if (text == "fix the peer") return ErrorRemedy::kFixPeer;
  return ErrorRemedy::kUnknown;
}

}  // namespace

std::string_view View::text(std::uint32_t id) const {
  return id < trace_->texts.size() ? trace_->texts.at(id) : std::string_view();
}

Name View::name(std::uint32_t text_id) {
  if (text_id >= names_.size()) return Name::kOther;
  Name& known = names_[text_id];
  if (known == Name::kUnresolved) known = name_from(text(text_id));
  return known;
}

const ProcessView* View::process(std::uint32_t index) const {
  return index < processes_.size() ? &processes_[index] : nullptr;
}

ProcessView* View::mutable_process(std::uint32_t index) {
  return index < processes_.size() ? &processes_[index] : nullptr;
}

CallView* View::open_call(std::uint32_t process) {
  if (process >= processes_.size() || processes_[process].open_call == kNone) return nullptr;
  return &calls_[processes_[process].open_call];
}

void View::read(const sim::Trace& trace) {
  trace_ = &trace;
  processes_.clear();
  calls_.clear();
  setups_.clear();
  ordinals_.clear();
  engines_ = 0;
  poisoned_ = false;
  names_.assign(trace.texts.size(), Name::kUnresolved);
  for (auto* list :
       {&lists_.tokens, &lists_.residents, &lists_.found, &lists_.published, &lists_.faults,
        &lists_.healed, &lists_.groups, &lists_.violations, &lists_.crashes, &lists_.counters,
        &lists_.peaks, &lists_.left, &lists_.kills, &lists_.phase_failures, &lists_.attestations}) {
    list->clear();
  }
  for (std::uint32_t i = 0; i < trace.events.size(); ++i) {
    const Event& event = trace.events[i];
    switch (static_cast<EventKind>(event.kind)) {
      case EventKind::kOp:
        on_operation(i);
        continue;
      case EventKind::kProcessStart:
      case EventKind::kProcessExit:
      case EventKind::kProcessKill:
      case EventKind::kProcessCrash:
      case EventKind::kProcessStop:
      case EventKind::kProcessResume:
        on_process(i);
        continue;
      case EventKind::kProcessLeft:
        lists_.left.push_back(i);
        continue;
      case EventKind::kGroupMade:
      case EventKind::kGroupMember:
      case EventKind::kGroupEnter:
      case EventKind::kGroupComplete:
      case EventKind::kGroupFail:
      case EventKind::kGroupLeave:
      case EventKind::kGroupAlarm:
        lists_.groups.push_back(i);
        if (CallView* call = open_call(event.process)) call->entered_group = true;
        continue;
      case EventKind::kLog:
        on_log(i);
        continue;
      case EventKind::kViolation:
        lists_.violations.push_back(i);
        continue;
      case EventKind::kKernelCounter:
        lists_.counters.push_back(i);
        continue;
      case EventKind::kDevicePeak:
        lists_.peaks.push_back(i);
        continue;
      default:
        break;
    }
    switch (static_cast<Record>(event.kind)) {
      case Record::kCallBegin:
        on_call_begin(i);
        break;
      case Record::kCallEnd:
        on_call_end(i);
        break;
      case Record::kTokens:
        lists_.tokens.push_back(i);
        break;
      case Record::kResident:
        lists_.residents.push_back(i);
        break;
      case Record::kFault:
        lists_.faults.push_back(i);
        break;
      case Record::kHealed:
        lists_.healed.push_back(i);
        break;
      case Record::kPublished:
        lists_.published.push_back(i);
        break;
      case Record::kFound:
        lists_.found.push_back(i);
        break;
      default:
        break;
    }
  }
  make_rounds();
}

void View::on_operation(std::uint32_t index) {
  const Event& event = trace_->events[index];
  if (event.result != sim::kOk) return;
  if (event.op == static_cast<std::uint16_t>(Op::kChannelWrite)) {
    ProcessView* writer = mutable_process(event.process);
    if (writer == nullptr || event.b == 0) return;
    if (writer->role == Role::kRuntime) writer->last_write = index;
    if (writer->role == Role::kWorker && name(event.phase) == Name::kFinish) {
      lists_.attestations.push_back(index);
    } else if (writer->role == Role::kActor && writer->rank == 0) {
      CallView* call = open_call(event.process);
      if (call == nullptr || call->touched != kNoEvent) return;
      if (call->init_announced || name(event.phase) == Name::kNativeInit) call->touched = index;
    }
  } else if (event.op == static_cast<std::uint16_t>(Op::kControlBroadcast)) {
    CallView* call = open_call(event.process);
    if (call != nullptr && call->rank == 0 && name(event.phase) == Name::kPublicationId) {
      call->publication_id = event.c;
    }
  }
}

void View::on_log(std::uint32_t index) {
  const Event& event = trace_->events[index];
  ProcessView* process = mutable_process(event.process);
  if (process == nullptr) return;
  CallView* call = open_call(event.process);
  switch (static_cast<LogNumber>(event.c)) {
    case LogNumber::kPhaseFailed:
      lists_.phase_failures.push_back(index);
      break;
    case LogNumber::kCommandSent:
      if (call == nullptr) break;
      if (name(event.text) == Name::kInit) {
        call->init_announced = true;
        ++call->inits;
      } else if (name(event.text) == Name::kProbe && call->first_probe == kNoEvent) {
        call->first_probe = index;
      }
      break;
    case LogNumber::kCommandReceived:
      if (process->role == Role::kRuntime && name(event.text) == Name::kInit) {
        CallView* asked = open_call(process->parent);
        if (asked != nullptr && asked->heard == kNoEvent) asked->heard = index;
      }
      break;
    case LogNumber::kConnectionBroken:
      if (call == nullptr) {
        poisoned_ |= process->role == Role::kActor && process->rank == 0;
      } else if (call->broken == kNoEvent) {
        call->broken = index;
      }
      break;
    case LogNumber::kExportLeaked:
      if (call != nullptr) call->announced_leak = true;
      break;
    default:
      break;
  }
}

void View::on_call_begin(std::uint32_t index) {
  const Event& event = trace_->events[index];
  ProcessView* process = mutable_process(event.process);
  // A process that was killed in a call unwinds: what it records then did not happen.
  if (process == nullptr || process->end != kNoEvent) return;
  setups_.resize(processes_.size(), 0);
  ordinals_.resize(processes_.size(), 0);
  CallView call;
  call.process = event.process;
  call.rank = process->rank;
  call.call = static_cast<Call>(event.a);
  call.argument = event.b;
  call.begin = index;
  if (process->rank == 0) {
    if (call.call == Call::kStartEngine) {
      ++engines_;
      poisoned_ = false;
    }
    if (engines_ > 0) call.engine = engines_ - 1;
    call.after_poison = poisoned_;
  }
  if (call.call == Call::kSetup) {
    ++setups_[event.process];
    ordinals_[event.process] = 0;
  }
  call.setup = setups_[event.process];
  if (call.call == Call::kSync) call.ordinal = ordinals_[event.process]++;
  process->open_call = static_cast<std::uint32_t>(calls_.size());
  calls_.push_back(call);
}

void View::on_call_end(std::uint32_t index) {
  const Event& event = trace_->events[index];
  CallView* call = open_call(event.process);
  if (call == nullptr || static_cast<std::uint64_t>(call->call) != event.a) return;
  if (processes_[event.process].end != kNoEvent) return;
  call->end = index;
  call->ok = event.b == 1;
  call->value = static_cast<std::int64_t>(event.c);
  call->error_text = event.text;
  // Where a call worked, a peer that is stopped may still have the memory open.
  const bool beside_stopped =
      std::any_of(processes_.begin(), processes_.end(), [](const ProcessView& process) {
        return process.role == Role::kActor && process.ever_stopped;
      });
  processes_[event.process].excused_leak |= call->announced_leak && (!call->ok || beside_stopped);
  processes_[event.process].open_call = kNone;
}

void View::on_process(std::uint32_t index) {
  const Event& event = trace_->events[index];
  const auto kind = static_cast<EventKind>(event.kind);
  if (kind == EventKind::kProcessStart) {
    if (event.process >= kMaxProcesses) return;
    if (event.process >= processes_.size()) processes_.resize(event.process + 1);
    ProcessView& process = processes_[event.process];
    process = {};
    process.role = role_of(text(event.text));
    process.rank = static_cast<int>(event.a);
    process.parent = event.b == 0 ? kNone : static_cast<std::uint32_t>(event.b - 1);
    process.start = index;
    const ProcessView* parent = this->process(process.parent);
    if (process.role == Role::kRuntime && engines_ > 0) {
      process.engine = engines_ - 1;
      CallView* call = open_call(process.parent);
      if (call != nullptr && call->spawned == kNoEvent) call->spawned = index;
    } else if (process.role == Role::kWorker && parent != nullptr) {
      process.engine = parent->engine;
    }
    return;
  }
  ProcessView* process = mutable_process(event.process);
  if (process == nullptr) return;
  if (kind == EventKind::kProcessStop) {
    process->stop = index;
    process->ever_stopped = true;
  } else if (kind == EventKind::kProcessResume) {
    process->stop = kNoEvent;
  } else if (process->end == kNoEvent) {
    process->end = index;
    process->exited = kind == EventKind::kProcessExit;
    if (kind == EventKind::kProcessKill) lists_.kills.push_back(index);
    if (kind == EventKind::kProcessCrash) lists_.crashes.push_back(index);
  }
}

void View::make_rounds() {
  std::size_t used = 0;
  const auto key = [](const CallView& call) {
    return static_cast<std::uint64_t>(call.setup) << 32 | call.ordinal;
  };
  for (std::uint32_t i = 0; i < calls_.size(); ++i) {
    const CallView& call = calls_[i];
    if (call.call != Call::kSync) continue;
    std::size_t r = 0;
    while (r < used && key(calls_[rounds_[r].calls.front()]) != key(call)) ++r;
    if (r == used) {
      if (++used > rounds_.size()) rounds_.emplace_back();
      rounds_[r].calls.clear();
      rounds_[r].begin = call.begin;
      rounds_[r].end = call.begin;
    }
    rounds_[r].calls.push_back(i);
    if (call.end != kNoEvent) rounds_[r].end = std::max(rounds_[r].end, call.end);
  }
  rounds_.resize(used);
  for (SyncRound& round : rounds_) {
    std::sort(round.calls.begin(), round.calls.end(), [this](std::uint32_t a, std::uint32_t b) {
      return calls_[a].rank != calls_[b].rank ? calls_[a].rank < calls_[b].rank : a < b;
    });
  }
}

bool View::survived(const CallView& call) const {
  const ProcessView& process = processes_[call.process];
  if (call.end == kNoEvent) return process.end == kNoEvent && process.stop == kNoEvent;
  return true;
}

ErrorView View::error(const CallView& call) const {
  ErrorView error;
  const auto json =
      nlohmann::json::parse(text(call.error_text), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return error;
  const auto take = [&](const char* key, std::string& into) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string()) return false;
    into = found->get<std::string>();
    return true;
  };
  std::string remedy;
  bool typed = take("kind", error.kind);
  typed &= take("remedy", remedy);
  typed &= take("phase", error.phase);
  typed &= take("subject", error.subject);
  typed &= take("detail", error.detail);
  const auto rank = json.find("rank");
  if (rank != json.end() && rank->is_number_integer()) {
    error.rank = rank->get<int>();
  } else {
    typed = false;
  }
  error.kind = normalized_kind(error.kind);
  error.remedy = remedy_from(remedy);
  error.typed = typed && error.remedy != ErrorRemedy::kUnknown;
  return error;
}

std::string View::name_of(std::uint32_t index) const {
  const ProcessView* process = this->process(index);
  if (process == nullptr) return "no process";
  switch (process->role) {
    case Role::kActor:
      return "actor " + std::to_string(process->rank);
    case Role::kRuntime:
      return "the runtime";
    case Role::kWorker:
      return "worker " + std::to_string(process->rank);
    case Role::kOther:
      break;
  }
  return "process " + std::to_string(index);
}

std::string View::name_of(const CallView& call) {
  return std::string(to_string(call.call)) + " on rank " + std::to_string(call.rank);
}

}  // namespace tpsync::judge
