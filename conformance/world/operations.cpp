#include "conformance/world/operations.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "conformance/judge/records.h"
#include "faults/enumerate.h"
#include "faults/rules.h"
#include "tpsync/transfer/chunk_plan.h"

namespace tpsync::conformance {

namespace {

using sim::Event;
using sim::EventKind;
using sim::Op;

bool is_kind(const Event& event, EventKind kind) {
  return event.kind == static_cast<std::uint16_t>(kind);
}
bool is_record(const Event& event, judge::Record record) {
  return event.kind == static_cast<std::uint16_t>(record);
}
bool is_op(const Event& event, Op op) {
  return is_kind(event, EventKind::kOp) && event.op == static_cast<std::uint16_t>(op);
}
bool is_sync_call(const Event& event) {
  return event.a == static_cast<std::uint64_t>(judge::Call::kSync);
}

// The publication ends for each actor with its own return, and for the runtime and its workers with
// that of rank 0, who drives them.
struct Window {
  std::size_t begin = SIZE_MAX;
  std::map<std::uint32_t, std::size_t> ends;  // of actors
  std::size_t others_end = 0;

  bool contains(std::size_t index, std::uint32_t process) const {
    const auto own = ends.find(process);
    return index >= begin && index < (own != ends.end() ? own->second : others_end);
  }
};

Window first_sync(const sim::Trace& trace) {
  Window window;
  std::uint32_t rank_zero = sim::kNoProcess;
  std::size_t healed = trace.events.size();
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const Event& event = trace.events[i];
    if (is_kind(event, EventKind::kProcessStart) && event.a == 0 &&
        trace.texts.at(event.text) == "actor") {
      rank_zero = event.process;
    }
    if (is_record(event, judge::Record::kCallBegin) && is_sync_call(event)) {
      window.begin = std::min(window.begin, i);
    }
    if (is_record(event, judge::Record::kCallEnd) && is_sync_call(event) &&
        window.ends.emplace(event.process, i).second && event.process == rank_zero) {
      window.others_end = i;
    }
    if (is_record(event, judge::Record::kHealed)) healed = std::min(healed, i);
  }
  if (window.others_end == 0) window.others_end = healed;
  return window;
}

struct Identity {
  std::string role;
  int rank = 0;
};

// Which process uses which end of each channel, by its first read or write.
std::map<std::uint64_t, std::uint32_t> end_owners(const sim::Trace& trace) {
  std::map<std::uint64_t, std::uint32_t> owners;
  for (const Event& event : trace.events) {
    if (is_op(event, Op::kChannelRead) || is_op(event, Op::kChannelWrite)) {
      owners.emplace(event.a, event.process);
    }
  }
  return owners;
}

// Whether a work item on a stream did what it would do if it were issued at its stream's next
// synchronize: every piece landed within that, or its process did nothing else in between.
class Landings {
 public:
  explicit Landings(const sim::Trace& trace) : trace_(trace) {
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
      const Event& event = trace.events[i];
      if (is_kind(event, EventKind::kDeviceLanding)) {
        const auto key = std::pair(event.process, event.b);
        first_.emplace(key, i);
      } else if (is_op(event, Op::kDeviceSynchronize) || is_op(event, Op::kShardWait)) {
        syncs_[event.process].push_back(i);
      }
    }
  }

  bool at_sync(const Event& event, std::size_t index) const {
    const auto landing = first_.find(std::pair(event.process, event.b));
    if (landing == first_.end()) return true;  // nothing to land
    const auto syncs = syncs_.find(event.process);
    if (syncs == syncs_.end()) return false;
    const auto next = std::upper_bound(syncs->second.begin(), syncs->second.end(), index);
    if (next == syncs->second.end()) return false;
    return landing->second > *next || !anything_between(event.process, index, *next);
  }

 private:
  // An operation of this process that is not the stream's own work. What other processes do in
  // between does not tell an early launch from a late one.
  bool anything_between(std::uint32_t process, std::size_t begin, std::size_t end) const {
    for (std::size_t i = begin + 1; i < end; ++i) {
      const Event& event = trace_.events[i];
      if (event.process != process || !is_kind(event, EventKind::kOp)) continue;
      const bool own_work =
          faults::rules::is_stream_work(sim::to_string(static_cast<Op>(event.op))) ||
          is_op(event, Op::kShardGather);
      if (!own_work) return true;
    }
    return false;
  }

  const sim::Trace& trace_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::size_t> first_;
  std::map<std::uint32_t, std::vector<std::size_t>> syncs_;
};

std::set<std::int64_t> expert_chunks(const WorldSpec& spec) {
  const model::CanonicalPlan plan = model::plan_canonical(spec.config);
  const auto chunks = transfer::plan_chunks(plan.tensors, spec.sync.bucket_bytes);
  const std::string prefix = std::string(faults::default_expert()) + ".";
  std::set<std::int64_t> result;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    for (std::uint64_t t = chunks[c].first; t < chunks[c].first + chunks[c].count; ++t) {
      if (plan.tensors[t].name.starts_with(prefix)) result.insert(static_cast<std::int64_t>(c));
    }
  }
  return result;
}

// Where each export of a simulated world lies.
class ExportPlaces {
 public:
  explicit ExportPlaces(const sim::Trace& trace) {
    for (const Event& event : trace.events) {
      if (!is_kind(event, EventKind::kDeviceExported)) continue;
      first_.emplace(event.process, event.b);
      place_of_[std::pair(event.process, event.a)] = event.b;
    }
  }
  bool at_first_place(const Event& event) const {
    if (!is_op(event, Op::kDeviceExport)) return false;
    const auto place = place_of_.find(std::pair(event.process, event.a));
    return place != place_of_.end() && place->second == first_.at(event.process);
  }

 private:
  std::map<std::uint32_t, std::uint64_t> first_;  // by process
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> place_of_;
};

bool carries_expert(const faults::Operation& op, const std::set<std::int64_t>& chunks) {
  if (!chunks.contains(op.chunk)) return false;
  const bool update = op.phase == faults::rules::kUpdatePhase;
  if (op.op == "device.launch") return op.role == faults::rules::kWorker && update;
  if (op.op != "channel.write") return false;
  return op.role == faults::rules::kActor ? op.phase == faults::rules::kTransferPhase
                                          : op.role == faults::rules::kRuntime && update &&
                                                op.peer_role == faults::rules::kWorker;
}

}  // namespace

std::vector<faults::Operation> publication_operations(const sim::Trace& trace,
                                                      const WorldSpec& spec,
                                                      std::vector<std::size_t>* events) {
  std::map<std::uint32_t, Identity> processes;
  for (const Event& event : trace.events) {
    if (is_kind(event, EventKind::kProcessStart)) {
      processes[event.process] = {std::string(trace.texts.at(event.text)),
                                  static_cast<int>(event.a)};
    }
  }
  const auto owners = end_owners(trace);
  const Landings landings(trace);
  const ExportPlaces places(trace);
  const auto chunks = expert_chunks(spec);
  const Window window = first_sync(trace);
  std::vector<faults::Operation> operations;
  std::vector<std::size_t> indexes;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const Event& event = trace.events[i];
    if (!is_kind(event, EventKind::kOp) || !window.contains(i, event.process)) continue;
    faults::Operation operation;
    const Identity& who = processes[event.process];
    operation.role = who.role;
    operation.rank = who.rank;
    operation.phase = std::string(trace.texts.at(event.phase));
    operation.chunk = event.chunk;
    operation.op = std::string(sim::to_string(static_cast<Op>(event.op)));
    operation.occurrence = event.occurrence;
    if (faults::rules::is_channel_bytes(operation.op)) {
      const auto peer = owners.find(event.a ^ 1);
      if (peer != owners.end()) {
        operation.peer_role = processes[peer->second].role;
        operation.peer_rank = processes[peer->second].rank;
      }
    }
    operation.at_first_place = places.at_first_place(event);
    if (faults::rules::is_stream_work(operation.op)) {
      operation.landed_at_sync = landings.at_sync(event, i);
    }
    operation.carries_expert = carries_expert(operation, chunks);
    operations.push_back(std::move(operation));
    indexes.push_back(i);
  }
  faults::add_own_moments(operations);
  faults::annotate(operations);
  if (events == nullptr) return operations;
  events->clear();
  std::size_t at = 0;
  for (const faults::Operation& operation : operations) {
    const bool between = operation.op == faults::kSourceBegin;
    events->push_back(at < indexes.size() ? indexes[at] : trace.events.size());
    if (!between) ++at;
  }
  return operations;
}

}  // namespace tpsync::conformance
