#include "conformance/world/projection.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "conformance/judge/records.h"
#include "conformance/world/accepted_differences.h"
#include "conformance/world/actor_log.h"
#include "tpsync/base/errors.h"
#include "tpsync/base/log.h"

namespace tpsync::conformance {

namespace {

using judge::Record;
using sim::Event;
using sim::EventKind;
using sim::Op;

bool has_kind(const Event& event, EventKind kind) {
  return event.kind == static_cast<std::uint16_t>(kind);
}
bool has_op(const Event& event, Op op) {
  return has_kind(event, EventKind::kOp) && event.op == static_cast<std::uint16_t>(op);
}

// As kGroupEnter numbers kinds of calls.
constexpr std::uint64_t kGather = 2;
constexpr std::uint64_t kBroadcast = 3;
constexpr std::uint64_t kShardGroup = 2;  // as kGroupMade numbers kinds of groups
constexpr std::string_view kHostsPhase = "topology-memory-preflight";

std::string result_text(std::uint16_t result) {
  if (result == sim::kOk) return "";
  if (result == sim::kPending) return "never over";
  const auto kind = error_kind_from(result);
  return kind ? "failed: " + std::string(to_string(*kind)) : "failed";
}

std::string error_text(std::string_view json) {
  const ErrorRecord record = error_from_json(json);
  // Where a survivor notices, and what it then still knows, is a race against the news.
  if (record.kind == ErrorKind::kPeerLost || record.kind == ErrorKind::kOutcomeUnknown)
    return fmt::format("failed: {}, rank {} was lost", to_string(record.remedy), record.rank);
  return fmt::format("failed: {}, {}, phase {}, rank {}, {}", to_string(record.kind),
                     to_string(record.remedy), record.phase, record.rank, record.subject);
}

// What a step is to other processes.
enum class Tie {
  kNone,
  kStart,     // key: process
  kEnd,       // key: process
  kSpawn,     // key: process that was spawned
  kKnown,     // key: process whose end is known now
  kSend,      // key: channel end, number of the message
  kReceive,   // key: channel end that it was sent from, number of the message
  kEnter,     // key: group, sequence
  kComplete,  // key: group, sequence
  kPhase,
  kFault,
  kOutcome,
};
using Key = std::pair<std::uint64_t, std::uint64_t>;

struct Placed {
  Step step;
  Tie tie = Tie::kNone;
  Key key;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint64_t bytes = 0;  // of a message
};
struct Place {
  std::size_t process = 0;
  std::size_t step = 0;
};
struct Order {
  Place before;
  Place after;
};

// A run of reads or of writes on one channel end, without the opposite in between.
struct Message {
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
  std::optional<std::size_t> step;  // index; none: the next one begins a new message
};

struct Process {
  std::string role;
  std::uint64_t rank = 0;
  std::uint64_t start = 1;  // among those of its role and rank
  std::optional<std::size_t> parent;
  std::string name;
  std::vector<Placed> steps;
  std::map<std::uint64_t, Message> sent;           // by channel end
  std::map<std::uint64_t, Message> received;       // likewise
  std::map<std::uint64_t, std::uint64_t> regions;  // the world's number to this process's
  std::uint64_t regions_made = 0;
  std::uint64_t streams_made = 0;
  std::map<std::uint64_t, std::uint64_t> streams;
  bool exported = false;  // and has not told its peers of it
  bool ended = false;
  bool exited = false;
  bool struck = false;  // a fault killed or stopped it
};

int role_order(const std::string& role) {
  if (role == "actor") return 0;
  return role == "runtime" ? 1 : 2;
}

class Projector {
 public:
  explicit Projector(const sim::Trace& trace) : trace_(trace) {
    find_processes();
    find_spawned();
    find_channels();
    find_groups();
    for (const Event& event : trace_.events) take(event);
    for (Process& process : processes_) {
      take_handles_off(process);
      sort_arrivals(process);
    }
    find_orders();
  }

  Projection all() const {
    Projection projection;
    for (const std::size_t index : by_name_) {
      Strand strand{processes_[index].name, {}};
      for (const Placed& placed : processes_[index].steps) strand.steps.push_back(placed.step);
      projection.strands.push_back(std::move(strand));
    }
    for (const Order& order : orders_) projection.edges.push_back(edge(order));
    sort_edges(projection);
    return projection;
  }

  Projection failures() const {
    Projection projection;
    const std::vector<std::size_t> past = past_of_faults();
    for (const std::size_t index : by_name_) {
      const Process& process = processes_[index];
      Strand strand{process.name, {}};
      for (std::size_t i = 0; i < process.steps.size(); ++i) {
        const Placed& placed = process.steps[i];
        const bool outcome = placed.tie == Tie::kOutcome && process.exited;
        const bool in_past = i < past[index];
        if ((placed.tie == Tie::kPhase && in_past) || (outcome && (in_past || !script_kills())))
          strand.steps.push_back(placed.step);
        if (placed.tie != Tie::kEnd) continue;
        // Whom its parent gave up on leaves by itself or is killed, whichever comes first.
        const bool exact = process.role == "actor" || process.struck;
        strand.steps.push_back(exact ? placed.step : Step{"end", {}});
      }
      projection.strands.push_back(std::move(strand));
    }
    // What was not in this order in its own trace is wrong whatever the other world did.
    for (const Order& order : orders_) {
      const Edge found = edge(order);
      if (!found.held) projection.edges.push_back(found);
    }
    sort_edges(projection);
    return projection;
  }

 private:
  std::string_view text(std::uint32_t id) const { return trace_.texts.at(id); }

  void find_processes();
  void find_spawned();
  void find_channels();
  void find_groups();
  void find_orders();
  void take(const Event& event);
  void take_entry(Process& process, const Event& event);
  void take_operation(Process& process, const Event& event);
  void take_channel(Process& process, const Event& event);
  void take_region(Process& process, const Event& event);
  void take_log(Process& process, const Event& event);
  void take_record(Process& process, const Event& event);
  void take_handles_off(Process& process) const;
  static void sort_arrivals(Process& process);

  Placed& add(Process& process, const Event& event, std::string what, std::string value = {},
              Tie tie = Tie::kNone, Key key = {}) {
    if (has_kind(event, EventKind::kOp) && event.result != sim::kOk) {
      value += (value.empty() ? "" : ", ") + result_text(event.result);
      tie = Tie::kNone;
    }
    const std::int64_t end = event.end < 0 ? event.time : event.end;
    return process.steps.emplace_back(
        Placed{{std::move(what), std::move(value)}, tie, key, event.time, end});
  }

  std::string group_name(std::uint64_t group) const {
    const auto found = groups_.find(group);
    return found == groups_.end() ? "an unknown group" : found->second;
  }
  std::string child_name(std::uint64_t pid, const Process& parent) const {
    const auto child = child_of(pid, parent);
    return child ? processes_[*child].name : "a process that never began";
  }
  std::optional<std::size_t> child_of(std::uint64_t pid, const Process& parent) const {
    const auto found = spawned_.find({index_of(parent), pid});
    return found == spawned_.end() ? std::nullopt : std::optional(found->second);
  }
  std::size_t index_of(const Process& process) const {
    return static_cast<std::size_t>(&process - processes_.data());
  }
  Edge edge(const Order& order) const {
    const Process& one = processes_[order.before.process];
    const Process& other = processes_[order.after.process];
    const Placed& before = one.steps[order.before.step];
    const Placed& after = other.steps[order.after.step];
    return {one.name + ": " + before.step.what, other.name + ": " + after.step.what,
            before.begin <= after.end};
  }
  static void sort_edges(Projection& projection) {
    std::sort(projection.edges.begin(), projection.edges.end(), [](const Edge& a, const Edge& b) {
      return std::tie(a.before, a.after) < std::tie(b.before, b.after);
    });
  }
  // A script killed an actor, and its peers' calls race against the news.
  bool script_kills() const {
    return std::any_of(processes_.begin(), processes_.end(), killed_by_script);
  }
  static bool killed_by_script(const Process& process) {
    return process.role == "actor" && process.ended && !process.exited && !process.struck;
  }
  std::vector<std::size_t> past_of_faults() const;

  const sim::Trace& trace_;
  std::vector<Process> processes_;
  std::vector<std::size_t> by_name_;
  std::map<Key, std::size_t> spawned_;           // by parent and the world's number of the process
  std::map<std::uint64_t, std::size_t> owners_;  // of channel ends
  std::map<std::uint64_t, std::string> groups_;
  std::uint64_t handle_bytes_ = 0;  // of one handle
  std::uint64_t actors_ = 0;
  std::vector<Order> orders_;
  std::vector<Order> unrecorded_;  // edges whose first end is not on record
};

void Projector::find_processes() {
  std::map<std::pair<std::string, std::uint64_t>, std::uint64_t> starts;
  for (const Event& event : trace_.events) {
    if (!has_kind(event, EventKind::kProcessStart)) continue;
    if (event.process >= processes_.size()) processes_.resize(event.process + 1);
    Process& process = processes_[event.process];
    process.role = text(event.text);
    process.rank = event.a;
    process.start = ++starts[{process.role, process.rank}];
    if (event.b != 0) process.parent = static_cast<std::size_t>(event.b - 1);
    process.name = fmt::format("{} {}", process.role, process.rank);
    if (process.start > 1) process.name += fmt::format(", start {}", process.start);
  }
  for (std::size_t i = 0; i < processes_.size(); ++i) by_name_.push_back(i);
  std::sort(by_name_.begin(), by_name_.end(), [&](std::size_t a, std::size_t b) {
    const auto key = [](const Process& p) {
      return std::tuple(role_order(p.role), p.rank, p.start);
    };
    return key(processes_[a]) < key(processes_[b]);
  });
}

// A process begins when it likes; its parent's spawns are in the order of start and rank.
void Projector::find_spawned() {
  std::map<std::size_t, std::vector<std::size_t>> children;
  for (std::size_t i = 0; i < processes_.size(); ++i)
    if (processes_[i].parent) children[*processes_[i].parent].push_back(i);
  for (auto& [parent, list] : children) {
    std::sort(list.begin(), list.end(), [&](std::size_t a, std::size_t b) {
      const auto key = [](const Process& p) { return std::tuple(p.start, p.rank); };
      return key(processes_[a]) < key(processes_[b]);
    });
  }
  std::map<std::size_t, std::size_t> used;
  for (const Event& event : trace_.events) {
    if (!has_op(event, Op::kProcessSpawn) || event.result != sim::kOk) continue;
    const std::vector<std::size_t>& list = children[event.process];
    const std::size_t next = used[event.process]++;
    if (next < list.size()) spawned_[{event.process, event.a}] = list[next];
  }
}

void Projector::find_channels() {
  for (const Event& event : trace_.events) {
    if (has_op(event, Op::kChannelRead) || has_op(event, Op::kChannelWrite))
      owners_.emplace(event.a, event.process);
    if (has_op(event, Op::kDeviceImport) && handle_bytes_ == 0) handle_bytes_ = event.b;
  }
  for (const Process& process : processes_) actors_ += process.role == "actor" ? 1 : 0;
}

void Projector::find_groups() {
  std::map<std::uint64_t, bool> shards;
  for (const Event& event : trace_.events) {
    const bool kind_known = has_kind(event, EventKind::kGroupMade) ||
                            (has_kind(event, EventKind::kGroupMember) && event.c != 0);
    if (kind_known) shards[event.a] = event.c == kShardGroup;
  }
  std::uint64_t control_count = 0;
  std::uint64_t shard_count = 0;
  for (const auto& [group, is_shard] : shards) {
    groups_[group] = is_shard ? fmt::format("shard group {}", ++shard_count)
                              : fmt::format("control group {}", ++control_count);
  }
}

void Projector::take(const Event& event) {
  if (event.process >= processes_.size() || is_left_out(event)) return;
  Process& process = processes_[event.process];
  // A simulated process that was killed unwinds; what it records then did not happen.
  if (process.ended || process.name.empty()) return;
  const auto kind = static_cast<EventKind>(event.kind);
  const auto end = [&](const std::string& how) {
    process.ended = true;
    add(process, event, "end", how, Tie::kEnd, {event.process, 0});
  };
  switch (kind) {
    case EventKind::kOp:
      take_operation(process, event);
      return;
    case EventKind::kProcessStart:
      add(process, event, "start",
          process.parent ? "by " + processes_[*process.parent].name : "by the harness", Tie::kStart,
          {event.process, 0});
      return;
    case EventKind::kProcessExit:
      process.exited = true;
      end(fmt::format("exit {}", event.a));
      return;
    case EventKind::kProcessKill:
      end("killed");
      // The harness sees a kill in hindsight: when it happened orders nothing.
      process.steps.back().begin = INT64_MIN;
      return;
    case EventKind::kGroupEnter:
      take_entry(process, event);
      return;
    case EventKind::kGroupComplete:
      add(process, event, fmt::format("complete {}, call {}", group_name(event.a), event.b + 1), {},
          Tie::kComplete, {event.a, event.b});
      return;
    case EventKind::kGroupFail:
      add(process, event, fmt::format("fail {}, call {}", group_name(event.a), event.b + 1),
          fmt::format("{}, lost {}", result_text(event.result),
                      static_cast<std::int64_t>(event.c) - 1));
      return;
    case EventKind::kGroupLeave:
    case EventKind::kGroupAlarm:
      add(process, event, std::string(sim::to_string(kind)) + " " + group_name(event.a));
      return;
    case EventKind::kLog:
    case EventKind::kLogText:
      take_log(process, event);
      return;
    default:
      if (event.kind >= static_cast<std::uint16_t>(EventKind::kHarness)) {
        take_record(process, event);
        return;
      }
      // Of whatever kind: it is compared as it is.
      add(process, event, std::string(sim::to_string(kind)),
          fmt::format("{} {} {} {}", event.a, event.b, event.c, text(event.text)));
  }
}

void Projector::take_entry(Process& process, const Event& event) {
  const std::uint64_t call = event.c >> 56;
  const std::uint64_t root = event.c >> 48 & 0xff;
  // Of a broadcast only the root's entry comes before the others' completion.
  const bool awaited = call != kBroadcast || root == process.rank;
  // What ranks say of their hosts is as long as each host makes it.
  const bool of_hosts = call == kGather && text(event.phase) == kHostsPhase;
  // The first contribution after an export is the exporter's handle.
  const std::uint64_t bytes = event.c & 0xffff'ffff'ffff;
  const bool with_handle =
      call == kGather && bytes >= handle_bytes_ && std::exchange(process.exported, false);
  const std::string size = of_hosts ? "of its host"
                           : with_handle
                               ? fmt::format("{} bytes and a handle", bytes - handle_bytes_)
                               : fmt::format("{} bytes", bytes);
  add(process, event, fmt::format("enter {}, call {}", group_name(event.a), event.b + 1),
      fmt::format("kind {}, root {}, {}", call, root, size), awaited ? Tie::kEnter : Tie::kNone,
      {event.a, event.b});
}

void Projector::take_operation(Process& process, const Event& event) {
  const auto op = static_cast<Op>(event.op);
  const std::string name(sim::to_string(op));
  switch (op) {
    case Op::kChannelRead:
    case Op::kChannelWrite:
      take_channel(process, event);
      return;
    case Op::kChannelClose: {
      const auto peer = owners_.find(event.a ^ 1);
      if (owners_.contains(event.a) && peer != owners_.end())
        add(process, event, "close the channel to " + processes_[peer->second].name);
      return;
    }
    case Op::kProcessSpawn: {
      const auto child = child_of(event.a, process);
      add(process, event, "spawn " + child_name(event.a, process), {},
          child ? Tie::kSpawn : Tie::kNone, {child.value_or(0), 0});
      return;
    }
    case Op::kProcessWait: {
      // Until then it was not over; how often somebody looked is a matter of time.
      if (event.result != sim::kOk) return;
      const auto child = child_of(event.a, process);
      if (!child) return;  // a peer's process, which a group watches
      add(process, event, "wait for " + child_name(event.a, process),
          event.c != 0 ? "killed" : fmt::format("exit {}", event.b),
          child ? Tie::kKnown : Tie::kNone, {child.value_or(0), 0});
      return;
    }
    // Told by the group's own events.
    case Op::kControlWord:
    case Op::kControlGather:
    case Op::kControlBroadcast:
    case Op::kControlRaiseAlarm:
    case Op::kControlLeave:
    case Op::kShardGather:
    case Op::kShardWait:
    case Op::kShardAbort:
      return;
    case Op::kDeviceMemory:
      add(process, event, name);
      return;
    case Op::kDeviceCreateStream:
      if (event.result == sim::kOk) process.streams[event.a] = ++process.streams_made;
      add(process, event, name);
      return;
    case Op::kDeviceDestroyStream:
    case Op::kDeviceLaunch:
    case Op::kDeviceSynchronize: {
      const auto stream = process.streams.find(event.a);
      add(process, event, name,
          stream == process.streams.end() ? "" : fmt::format("stream {}", stream->second));
      return;
    }
    case Op::kDeviceSleep:
      add(process, event, name, event.c != 0 ? "kept" : "dropped");
      return;
    case Op::kDeviceWake:
      add(process, event, name);
      return;
    case Op::kDevicePrepare:
      add(process, event, name, fmt::format("{} items of kind {}", event.b, event.c));
      return;
    case Op::kDeviceLaunchDigests:
    case Op::kDeviceFill:
    case Op::kDeviceUpload:
    case Op::kDeviceDownload:
      add(process, event, name, fmt::format("{}", event.c));
      return;
    case Op::kDeviceAllocate:
    case Op::kDeviceFree:
    case Op::kDeviceExport:
    case Op::kDeviceRevoke:
    case Op::kDeviceImport:
    case Op::kDeviceCloseImport:
      take_region(process, event);
      return;
    default:
      add(process, event, name, fmt::format("{} {} {}", event.a, event.b, event.c));
  }
}

void Projector::take_region(Process& process, const Event& event) {
  const auto op = static_cast<Op>(event.op);
  const std::string name(sim::to_string(op));
  if (op == Op::kDeviceAllocate || op == Op::kDeviceImport) {
    if (event.result == sim::kOk) process.regions[event.a] = ++process.regions_made;
    add(process, event, name,
        op == Op::kDeviceAllocate ? fmt::format("{} bytes of kind {}", event.b, event.c) : "");
    return;
  }
  process.exported |= op == Op::kDeviceExport && event.result == sim::kOk;
  const auto region = process.regions.find(event.a);
  add(process, event, name,
      region == process.regions.end() ? "an unknown region"
                                      : fmt::format("region {}", region->second));
}

void Projector::take_channel(Process& process, const Event& event) {
  const bool writes = has_op(event, Op::kChannelWrite);
  const auto peer = owners_.find(event.a ^ 1);
  const std::string to = peer == owners_.end() ? "nobody" : processes_[peer->second].name;
  auto& mine = writes ? process.sent[event.a] : process.received[event.a];
  auto& opposite = writes ? process.received[event.a] : process.sent[event.a];
  opposite.step.reset();
  if (event.result != sim::kOk || event.b == 0) {
    mine.step.reset();
    add(process, event, (writes ? "send to " : "receive from ") + to,
        event.result == sim::kOk ? "end of file" : "");
    return;
  }
  if (!mine.step) {
    ++mine.number;
    mine.bytes = 0;
  }
  mine.bytes += event.b;
  const std::string value = fmt::format("{} bytes", mine.bytes);
  if (mine.step && (writes || *mine.step + 1 == process.steps.size())) {
    Placed& placed = process.steps[*mine.step];
    placed.step.value = value;
    placed.end = event.end;
    placed.bytes = mine.bytes;
    return;
  }
  if (mine.step) {  // something came in between: the message is there with its last byte
    process.steps.erase(process.steps.begin() + static_cast<std::ptrdiff_t>(*mine.step));
    for (auto* messages : {&process.sent, &process.received})
      for (auto& [end, message] : *messages)
        if (message.step && *message.step > *mine.step) --*message.step;
  }
  const Key key(writes ? event.a : event.a ^ 1, mine.number);
  mine.step = process.steps.size();
  add(process, event,
      fmt::format("{} {} {} {}", writes ? "send" : "receive", mine.number, writes ? "to" : "from",
                  to),
      value, writes ? Tie::kSend : Tie::kReceive, key)
      .bytes = mine.bytes;
}

void Projector::take_log(Process& process, const Event& event) {
  const auto log = static_cast<LogEvent>(event.c);
  const auto a = static_cast<std::int64_t>(event.a);
  const auto b = static_cast<std::int64_t>(event.b);
  const std::string subject(text(event.text));
  if (has_kind(event, EventKind::kLogText)) {
    if (log == LogEvent::kStateChanged) add(process, event, "now", subject);
    return;
  }
  switch (log) {
    case LogEvent::kPhaseEntered:
      add(process, event, fmt::format("phase {} {}", subject, a), {}, Tie::kPhase);
      return;
    case LogEvent::kCommandReceived:
      add(process, event, fmt::format("command {} {}", subject, b), {}, Tie::kPhase);
      return;
    case LogEvent::kRuntimeSpawned:
      add(process, event, "runtime is " + child_name(event.a, process));
      return;
    case LogEvent::kRuntimeGone: {
      const auto child = child_of(event.a, process);
      add(process, event, child_name(event.a, process) + " is gone",
          b == 1 ? "with its group" : "not all of its group", child ? Tie::kKnown : Tie::kNone,
          {child.value_or(0), 0});
      return;
    }
    default:
      add(process, event, fmt::format("{} {}", to_string(log), subject),
          fmt::format("{} {}", a, b));
  }
}

void Projector::take_record(Process& process, const Event& event) {
  const auto record = static_cast<Record>(event.kind);
  const std::string subject(text(event.text));
  switch (record) {
    case Record::kCallBegin:
      add(process, event, fmt::format("call {}", to_string(static_cast<judge::Call>(event.a))));
      return;
    case Record::kCallEnd:
      add(process, event, fmt::format("return of {}", to_string(static_cast<judge::Call>(event.a))),
          event.b == 1 ? fmt::format("ok, {}", event.c) : error_text(subject), Tie::kOutcome);
      return;
    case Record::kKept:
      add(process, event, "kept",
          event.b == 1 ? fmt::format("ok, {}", event.c) : error_text(subject));
      return;
    case Record::kTokens:
      add(process, event, "tokens", fmt::format("{} {} {}", event.a, event.b, event.c));
      return;
    case Record::kResident:
      add(process, event, "resident", fmt::format("{} {} {}", event.a, event.b, event.c));
      return;
    case Record::kFault:
      process.struck |= subject.starts_with("process.");
      add(process, event, "fault", subject, Tie::kFault);
      return;
    default:
      add(process, event, fmt::format("record {}", event.kind),
          fmt::format("{} {} {} {}", event.a, event.b, event.c, subject));
  }
}

// Commands that carry a handle of every actor's buffer, on their way down: their sizes are compared
// without them.
void Projector::take_handles_off(Process& process) const {
  const auto carries = [](const Placed& placed) {
    const std::string& what = placed.step.what;
    return what.starts_with("command") &&
           (what.find(" probe_ipc") != std::string::npos ||
            what.find(" update_native_weights") != std::string::npos);
  };
  const auto take_off = [this](Placed& placed) {
    placed.step.value = fmt::format("{} bytes and handles", placed.bytes - actors_ * handle_bytes_);
  };
  for (std::size_t i = 0; i < process.steps.size(); ++i) {
    if (!carries(process.steps[i])) continue;
    if (i > 0 && process.steps[i - 1].tie == Tie::kReceive) take_off(process.steps[i - 1]);
    for (std::size_t s = i + 1; s < process.steps.size(); ++s) {
      if (process.steps[s].tie != Tie::kSend || process.role == "worker") break;
      take_off(process.steps[s]);
    }
  }
}

void Projector::sort_arrivals(Process& process) {
  const auto received = [](const Placed& placed) { return placed.tie == Tie::kReceive; };
  for (auto begin = process.steps.begin(); begin != process.steps.end();) {
    begin = std::find_if(begin, process.steps.end(), received);
    const auto end = std::find_if_not(begin, process.steps.end(), received);
    std::stable_sort(begin, end, [](const Placed& a, const Placed& b) {
      return a.step.what.substr(a.step.what.find("from")) <
             b.step.what.substr(b.step.what.find("from"));
    });
    begin = end;
  }
}

void Projector::find_orders() {
  std::map<std::pair<Tie, Key>, std::vector<Place>> places;
  for (std::size_t p = 0; p < processes_.size(); ++p)
    for (std::size_t s = 0; s < processes_[p].steps.size(); ++s) {
      const Placed& placed = processes_[p].steps[s];
      if (placed.tie != Tie::kNone) places[{placed.tie, placed.key}].push_back({p, s});
    }
  const auto connect = [&](Tie from, const Key& from_key, Tie to, const Key& to_key) {
    for (const Place& before : places[{from, from_key}])
      for (const Place& after : places[{to, to_key}])
        if (before.process != after.process) orders_.push_back({before, after});
  };
  std::vector<std::pair<Tie, Key>> all;
  for (const auto& [place, list] : places) all.push_back(place);
  for (const auto& [tie, key] : all) {
    if (tie == Tie::kReceive && !places.contains({Tie::kSend, key})) {
      // Killed before its record of this was out: all that it did record came before.
      const auto sender = owners_.find(key.first);
      if (sender == owners_.end() || processes_[sender->second].steps.size() < 2) continue;
      const Place last{sender->second, processes_[sender->second].steps.size() - 2};
      for (const Place& after : places[{tie, key}]) unrecorded_.push_back({last, after});
      continue;
    }
    if (tie == Tie::kReceive) connect(Tie::kSend, key, tie, key);
    if (tie == Tie::kStart) connect(Tie::kSpawn, key, tie, key);
    if (tie == Tie::kKnown) connect(Tie::kEnd, key, tie, key);
    if (tie != Tie::kComplete) continue;
    const auto [group, sequence] = key;
    const bool shards = groups_[group].starts_with("shard");
    if (!shards) {
      connect(Tie::kEnter, key, tie, key);
    } else if (sequence > 0) {
      // A wait ends the gathers that were launched before it.
      connect(Tie::kEnter, {group, sequence - 1}, tie, key);
    }
  }
}

std::vector<std::size_t> Projector::past_of_faults() const {
  std::vector<std::size_t> past(processes_.size(), 0);  // steps that are in it
  for (std::size_t p = 0; p < processes_.size(); ++p)
    for (std::size_t s = 0; s < processes_[p].steps.size(); ++s)
      if (processes_[p].steps[s].tie == Tie::kFault) past[p] = s + 1;
  for (std::size_t p = 0; p < processes_.size(); ++p)
    if (killed_by_script(processes_[p])) past[p] = processes_[p].steps.size();
  const auto take_in = [&](const Order& order) {
    if (order.after.step >= past[order.after.process]) return false;
    if (order.before.step < past[order.before.process]) return false;
    past[order.before.process] = order.before.step + 1;
    return true;
  };
  for (bool grew = true; grew;) {
    grew = false;
    for (const Order& order : orders_) grew |= take_in(order);
    for (const Order& order : unrecorded_) grew |= take_in(order);
  }
  return past;
}

}  // namespace

Projection project(const sim::Trace& trace) { return Projector(trace).all(); }
Projection project_failures(const sim::Trace& trace) { return Projector(trace).failures(); }

}  // namespace tpsync::conformance
