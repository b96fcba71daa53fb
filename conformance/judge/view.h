// A trace, sorted once into what the invariants ask for: processes, engines, calls, and the few
// kinds of events that are evidence. Buffers are kept between traces. Tolerates any trace: an event
// of a process that was never started counts for nobody.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/judge/judge.h"
#include "conformance/judge/records.h"
#include "sim/trace.h"

namespace tpsync::judge {

enum class Role : std::uint8_t { kOther, kActor, kRuntime, kWorker };

// Texts that evidence is recognized by.
enum class Name : std::uint8_t {
  kUnresolved,
  kOther,
  kInit,           // "init_native_weight_transfer"
  kProbe,          // "probe_ipc"
  kFinish,         // "finish_native_weight_update"
  kPublicationId,  // "publication-id"
  kNativeInit,     // "native-init"
};

// Numbers of the log events that count as evidence; they are part of the trace's format.
enum class LogNumber : std::uint64_t {
  kPhaseFailed = 2,
  kCommandSent = 3,
  kCommandReceived = 4,
  kConnectionBroken = 6,
  kExportLeaked = 12,
};

inline constexpr std::uint32_t kNone = 0xffffffff;

struct ProcessView {
  Role role = Role::kOther;
  int rank = 0;
  std::uint32_t parent = kNone;
  std::uint32_t engine = kNone;  // of runtimes and workers
  std::uint32_t start = kNoEvent;
  std::uint32_t end = kNoEvent;   // its exit, kill or crash
  std::uint32_t stop = kNoEvent;  // the stop from which it was not resumed
  bool ever_stopped = false;
  bool exited = false;                  // by itself
  std::uint32_t last_write = kNoEvent;  // of a runtime: the last bytes that left it
  bool excused_leak = false;            // a call said that it keeps exported memory, and had to
  std::uint32_t open_call = kNone;

  bool lived_at(std::uint32_t event) const {
    return start != kNoEvent && start <= event && (end == kNoEvent || end > event);
  }
};

struct CallView {
  std::uint32_t process = kNone;
  int rank = 0;
  Call call = Call::kHealth;
  std::uint64_t argument = 0;
  std::uint32_t begin = kNoEvent;
  std::uint32_t end = kNoEvent;  // kNoEvent: it never returned
  bool ok = false;
  std::int64_t value = 0;
  std::uint32_t error_text = 0;
  std::uint32_t engine = kNone;  // the latest when it began; ranks above 0 have none
  std::uint32_t setup = 0;       // how many setups this actor had begun before
  std::uint32_t ordinal = 0;     // among its calls of this kind since the last setup

  // What happened inside, on rank 0.
  std::uint32_t touched = kNoEvent;  // the write of init's first byte
  std::uint32_t heard = kNoEvent;  // the runtime took init, and knows that a publication is pending
  std::uint32_t first_probe = kNoEvent;
  std::uint32_t broken = kNoEvent;   // the connection was declared broken
  bool after_poison = false;         // its engine was declared broken between two calls before it
  std::uint32_t spawned = kNoEvent;  // a runtime was started
  std::uint32_t inits = 0;
  bool init_announced = false;
  std::optional<std::uint64_t> publication_id;  // its hash
  bool entered_group = false;                   // on every rank
  bool announced_leak = false;                  // on every rank: said that it keeps exported memory
};

enum class ErrorRemedy : std::uint8_t { kUnknown, kFixInput, kTryLater, kRebuild, kFixPeer };

struct ErrorView {
  bool typed = false;  // all fields were there
  std::string kind;    // normalized
  ErrorRemedy remedy = ErrorRemedy::kUnknown;
  std::string phase;
  int rank = -1;
  std::string subject;
  std::string detail;

  // The runtime, or its connection, is what the error declares unusable.
  bool breaks() const { return remedy == ErrorRemedy::kRebuild || remedy == ErrorRemedy::kFixPeer; }
  bool peer_lost() const { return kind == "peer_lost" || kind == "outcome_unknown"; }
  // Made by the scenario's own decorators, which no fault plan lists.
  bool injected() const {
    return subject.find("injected") != std::string::npos ||
           detail.find("injected") != std::string::npos;
  }
};

// Calls that all actors make together: the same setup, the same ordinal.
struct SyncRound {
  std::vector<std::uint32_t> calls;  // by rank, as far as there are any
  std::uint32_t begin = kNoEvent;    // of the first
  std::uint32_t end = 0;             // of the last that returned
};

// Indexes of events that are evidence, ascending.
struct EventLists {
  std::vector<std::uint32_t> tokens, residents, found, published, faults, healed, groups,
      violations, crashes, counters, peaks, left, kills, phase_failures, attestations;
};

class View {
 public:
  void read(const sim::Trace& trace);

  const sim::Trace& trace() const { return *trace_; }
  const sim::Event& event(std::uint32_t index) const { return trace_->events[index]; }
  std::int64_t time(std::uint32_t index) const { return trace_->events[index].time; }
  std::string_view text(std::uint32_t id) const;
  ErrorView error(const CallView& call) const;

  const std::vector<ProcessView>& processes() const { return processes_; }
  const ProcessView* process(std::uint32_t index) const;
  const std::vector<CallView>& calls() const { return calls_; }  // by their begin
  const EventLists& lists() const { return lists_; }
  const std::vector<SyncRound>& rounds() const { return rounds_; }
  // A return that counts: the actor was neither killed nor stopped in this call.
  bool survived(const CallView& call) const;
  std::string name_of(std::uint32_t process) const;  // "worker 2"
  static std::string name_of(const CallView& call);  // "sync on rank 1"

 private:
  void on_operation(std::uint32_t index);
  void on_log(std::uint32_t index);
  void on_call_begin(std::uint32_t index);
  void on_call_end(std::uint32_t index);
  void on_process(std::uint32_t index);
  void make_rounds();
  Name name(std::uint32_t text_id);
  ProcessView* mutable_process(std::uint32_t index);
  CallView* open_call(std::uint32_t process);

  const sim::Trace* trace_ = nullptr;
  EventLists lists_;
  std::vector<ProcessView> processes_;
  std::vector<CallView> calls_;
  std::vector<SyncRound> rounds_;
  std::vector<Name> names_;
  std::vector<std::uint32_t> setups_;    // by process
  std::vector<std::uint32_t> ordinals_;  // of syncs, by process
  std::uint32_t engines_ = 0;
  bool poisoned_ = false;  // the newest engine was declared broken outside of any call
};

}  // namespace tpsync::judge
