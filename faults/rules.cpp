#include "faults/rules.h"

namespace tpsync::faults::rules {
namespace {

using Kinds = std::vector<ErrorKind>;

std::string_view argument(const Arguments& arguments, std::string_view name) {
  const auto found = arguments.find(std::string(name));
  return found == arguments.end() ? std::string_view() : std::string_view(found->second);
}

bool is_reply_to_finish(const Operation& o) {
  return o.op == "channel.write" && o.phase == kFinishPhase && o.is_first_to_peer;
}

}  // namespace

bool is_group_call(std::string_view op) {
  return op == "control.word" || op == "control.gather" || op == "control.broadcast";
}

bool is_shard_call(std::string_view op) { return op == "shard.gather" || op == "shard.wait"; }

bool is_stream_work(std::string_view op) {
  return op == "device.launch" || op == "device.launch_digests" || op == "device.fill" ||
         op == "device.upload" || op == "device.download";
}

bool is_channel_bytes(std::string_view op) { return op == "channel.read" || op == "channel.write"; }

bool on_channel(const Operation& o, const Arguments&) {
  return is_channel_bytes(o.op) && !o.peer_role.empty();
}

bool on_any_operation(const Operation& o, const Arguments&) {
  return is_operation(o.op) && o.op != kSourceBegin;
}

bool on_group(const Operation& o, const Arguments&) {
  return is_group_call(o.op) || is_shard_call(o.op);
}

bool on_allocation(const Operation& o, const Arguments&) {
  return o.op == "device.allocate" || o.op == "device.wake";
}

bool on_import(const Operation& o, const Arguments&) { return o.op == "device.import"; }

bool on_early_copy(const Operation& o, const Arguments&) {
  return is_stream_work(o.op) && !o.landed_at_sync;
}

bool on_result_hop(const Operation& o, const Arguments& arguments) {
  const std::string_view hop = argument(arguments, kHop);
  if (hop == kHopWorker) return o.role == kWorker && is_reply_to_finish(o);
  if (hop == kHopRuntime) {
    return o.role == kRuntime && o.peer_role == kActor && is_reply_to_finish(o);
  }
  return hop == kHopBroadcast && o.role == kActor && o.rank > 0 && o.op == "control.broadcast" &&
         o.phase == kResultPhase;
}

bool on_digest_hop(const Operation& o, const Arguments& arguments) {
  return o.digested && on_result_hop(o, arguments);
}

bool on_expert(const Operation& o, const Arguments& arguments) {
  const std::string_view where = argument(arguments, kWhere);
  if (where == "exporter") return on_source(o, arguments);
  if (!o.carries_expert) return false;
  if (where == "loader") {
    return o.digested && o.role == kWorker && o.op == "device.launch" && o.phase == kUpdatePhase;
  }
  if (where != "wire" || o.op != "channel.write" || !o.is_first_to_peer) return false;
  return (o.role == kActor && o.peer_role == kRuntime && o.phase == kTransferPhase) ||
         (o.role == kRuntime && o.peer_role == kWorker && o.phase == kUpdatePhase);
}

bool on_source(const Operation& o, const Arguments&) {
  return o.role == kActor && o.op == kSourceBegin;
}

Demand must_fail(const Operation&) { return Demand::kFail; }
Demand must_survive(const Operation&) { return Demand::kSurvive; }
Demand must_fail_unless_tail(const Operation& o) {
  return o.is_tail ? Demand::kEither : Demand::kFail;
}

Kinds kinds_of_closed_channel(const Operation& o) {
  if (o.role == kActor) return {ErrorKind::kEndOfFile};
  // A runtime or worker that is gone by the preflight is found by its process handle.
  return {ErrorKind::kEndOfFile, ErrorKind::kRemote, ErrorKind::kIpc};
}

Kinds kinds_of_mute_channel(const Operation& o) {
  // A runtime with a pending publication ends itself when no command comes.
  if (o.role == kActor || o.peer_role == kActor) {
    return {ErrorKind::kTimeout, ErrorKind::kEndOfFile};
  }
  return {ErrorKind::kTimeout, ErrorKind::kRemote};
}

Kinds kinds_of_kill(const Operation& o) {
  if (o.role == kActor) return {ErrorKind::kPeerLost, ErrorKind::kOutcomeUnknown};
  if (o.role == kRuntime) return {ErrorKind::kEndOfFile, ErrorKind::kIpc};
  return {ErrorKind::kRemote, ErrorKind::kIpc};
}

Kinds kinds_of_stop(const Operation& o) {
  if (o.role == kActor) return {ErrorKind::kPeerLost, ErrorKind::kOutcomeUnknown};
  if (o.role == kRuntime) return {ErrorKind::kTimeout};
  return {ErrorKind::kTimeout, ErrorKind::kRemote};
}

Kinds kinds_of_group(const Operation& o) {
  if (is_shard_call(o.op)) return {ErrorKind::kDevice};
  return {ErrorKind::kPeerLost, ErrorKind::kOutcomeUnknown};
}

Kinds kinds_of_memory(const Operation& o) {
  if (o.role == kActor) return {ErrorKind::kOutOfMemory};
  return {ErrorKind::kRemote};
}

Kinds kinds_of_import(const Operation& o) {
  if (o.role == kActor) return {ErrorKind::kIpc};
  return {ErrorKind::kRemote};
}

Kinds kinds_of_result(const Operation& o) {
  if (o.role == kWorker) return {ErrorKind::kRemote};
  return {ErrorKind::kProtocol, ErrorKind::kMismatch};
}

Kinds kinds_of_expert(const Operation& o) {
  if (o.op == kSourceBegin) return {ErrorKind::kMismatch};
  return {ErrorKind::kRemote};
}

Kinds kinds_of_source(const Operation&) { return {ErrorKind::kMismatch}; }

Kinds no_kinds(const Operation&) { return {}; }

std::vector<Arguments> no_arguments() { return {{}}; }

std::vector<Arguments> receipt_hops() {
  return {{{std::string(kHop), std::string(kHopWorker)}},
          {{std::string(kHop), std::string(kHopRuntime)}},
          {{std::string(kHop), std::string(kHopBroadcast)}}};
}

std::vector<Arguments> result_hops() {
  return {{{std::string(kHop), std::string(kHopRuntime)}},
          {{std::string(kHop), std::string(kHopBroadcast)}}};
}

std::vector<Arguments> expert_places() {
  return {{{std::string(kWhere), "exporter"}},
          {{std::string(kWhere), "wire"}},
          {{std::string(kWhere), "loader"}}};
}

}  // namespace tpsync::faults::rules
