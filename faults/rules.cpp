#include "faults/rules.h"

#include <initializer_list>

namespace tpsync::faults::rules {
namespace {

using Kinds = std::vector<ErrorKind>;

std::string_view argument(const Arguments& arguments, std::string_view name) {
  const auto found = arguments.find(std::string(name));
  return found == arguments.end() ? std::string_view() : std::string_view(found->second);
}

constexpr std::string_view kProbePhase = "topology-ipc-probe";

bool is_message(const Operation& o) {
  return o.op == "channel.write" && !o.peer_role.empty() && o.is_first_to_peer;
}

// The request that rank 0 sends in `phase`, or the runtime to a worker while it does `command`.
bool is_request(const Operation& o, std::string_view phase, std::string_view command) {
  if (!is_message(o)) return false;
  return o.role == kActor ? o.phase == phase
                          : o.role == kRuntime && o.peer_role == kWorker && o.phase == command;
}

bool is_host_query(const Operation& o) {
  return o.role == kActor && o.op == "host.query" && o.phase == kPreflightPhase;
}

bool is_reply_to_finish(const Operation& o) {
  return o.op == "channel.write" && o.phase == kFinishPhase && o.is_first_to_peer;
}

std::vector<Arguments> each(std::string_view name, std::initializer_list<const char*> values) {
  std::vector<Arguments> all;
  for (const char* value : values) all.push_back({{std::string(name), value}});
  return all;
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
  return is_operation(o.op) && !is_own_moment(o.op);
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

bool on_digested_source(const Operation& o, const Arguments& arguments) {
  return o.digested && on_source(o, arguments);
}

bool on_record(const Operation& o, const Arguments& arguments) {
  return argument(arguments, kWhere) == "exporter" ? on_source(o, arguments)
                                                   : on_update(o, arguments);
}

bool on_several_receipts(const Operation& o, const Arguments& arguments) {
  return o.workers > 1 && on_result_hop(o, arguments);
}

bool on_message(const Operation& o, const Arguments&) { return is_message(o); }

bool on_reply(const Operation& o, const Arguments&) {
  return is_message(o) && (o.role == kWorker || (o.role == kRuntime && o.peer_role == kActor));
}

bool on_start(const Operation& o, const Arguments&) {
  return is_request(o, "native-start", "start_native_weight_update");
}

bool on_update(const Operation& o, const Arguments&) {
  return is_request(o, kTransferPhase, kUpdatePhase);
}

bool on_request_field(const Operation& o, const Arguments& arguments) {
  const std::string_view field = argument(arguments, kField);
  if (field == "publication_id" || field == "finished_version") {
    return is_request(o, "native-finish", kFinishPhase);
  }
  return on_start(o, arguments) && (field != "device_uuids" || o.workers > 1);
}

bool on_handles(const Operation& o, const Arguments& arguments) {
  return on_update(o, arguments) || is_request(o, kProbePhase, "probe_ipc");
}

bool on_several_handles(const Operation& o, const Arguments& arguments) {
  return o.workers > 1 && on_handles(o, arguments);
}

bool on_exit(const Operation& o, const Arguments&) {
  return o.role != kActor && (is_message(o) || o.op == "device.import");
}

bool on_message_or_gather(const Operation& o, const Arguments&) {
  return is_message(o) || o.op == "control.gather";
}

bool on_stall(const Operation& o, const Arguments& arguments) {
  return on_message_or_gather(o, arguments) || o.op == "shard.wait";
}

bool on_attach(const Operation& o, const Arguments&) {
  return o.role == kActor && o.op == "process.attach";
}

bool on_group_signal(const Operation& o, const Arguments&) {
  return o.role == kActor && o.op == "process.signal_group";
}

bool on_spawn(const Operation& o, const Arguments&) {
  return o.role != kWorker && o.op == "process.spawn";
}

bool on_any_host_names(const Operation& o, const Arguments&) {
  return is_host_query(o) && o.occurrence < 2;
}

bool on_host_names(const Operation& o, const Arguments& arguments) {
  return o.rank > 0 && on_any_host_names(o, arguments);
}

bool on_host_environment(const Operation& o, const Arguments&) {
  return is_host_query(o) && o.occurrence == 2;
}

bool on_entropy(const Operation& o, const Arguments&) {
  return o.role == kActor && o.op == "random.fill";
}

bool on_hang(const Operation& o, const Arguments&) {
  return is_group_call(o.op) || o.op == "shard.wait";
}

bool on_word(const Operation& o, const Arguments&) { return o.op == "control.word"; }

bool on_bytes(const Operation& o, const Arguments&) {
  return o.op == "control.gather" || (o.op == "control.broadcast" && o.rank > 0);
}

bool on_gathered(const Operation& o, const Arguments&) {
  return o.digested && o.op == "shard.wait" && o.ends_gather;
}

bool on_handle_gather(const Operation& o, const Arguments& arguments) {
  if (o.op != "control.gather") return false;
  if (o.phase != kProbePhase && o.phase != kAllocationPhase) return false;
  return o.rank > 0 || argument(arguments, "uuid") == "foreign";
}

bool on_prepare(const Operation& o, const Arguments&) { return o.op == "device.prepare"; }

bool on_free_memory(const Operation& o, const Arguments&) {
  return o.role == kActor && o.op == "device.memory" && o.phase == kPreflightPhase;
}

bool on_export(const Operation& o, const Arguments&) {
  return o.role == kActor && o.op == "device.export";
}

bool on_second_export(const Operation& o, const Arguments& arguments) {
  return on_export(o, arguments) && o.phase == kAllocationPhase && !o.at_first_place;
}

bool on_stream_work(const Operation& o, const Arguments&) { return is_stream_work(o.op); }

bool on_synchronize(const Operation& o, const Arguments&) {
  return o.op == "device.synchronize" && o.phase != kReleasePhase;
}

bool on_worker_launch_any(const Operation& o, const Arguments&) {
  return o.role == kWorker && o.op == "device.launch" && o.phase == kUpdatePhase;
}

bool on_worker_launch(const Operation& o, const Arguments& arguments) {
  return o.digested && on_worker_launch_any(o, arguments);
}

bool on_worker_device(const Operation& o, const Arguments&) {
  return o.role == kWorker && (is_stream_work(o.op) || o.op == "device.import" ||
                               o.op == "device.prepare" || o.op == "device.synchronize");
}

bool on_engine_load(const Operation& o, const Arguments&) {
  return o.role == kWorker && o.op == kEngineLoad;
}

bool on_engine_generate(const Operation& o, const Arguments&) {
  return o.role == kWorker && o.op == kEngineGenerate;
}

bool on_engine_reset(const Operation& o, const Arguments&) {
  return o.role == kWorker && o.op == kEngineReset;
}

bool on_engine_layer(const Operation& o, const Arguments&) {
  return o.role == kWorker && o.op == kEngineLayer;
}

bool on_digested_layer(const Operation& o, const Arguments& arguments) {
  return o.digested && on_engine_layer(o, arguments);
}

bool at_representatives(const Operation& o) {
  if (o.chunk != 0) return false;
  const int last = o.workers - 1;  // of the actors, too: there are as many
  if (o.role == kWorker) return o.rank == last;
  if (o.role == kActor) return o.rank == 0 || o.rank == last;
  return o.peer_role != kWorker || o.peer_rank == last;
}

Demand must_fail(const Operation&) { return Demand::kFail; }
Demand must_survive(const Operation&) { return Demand::kSurvive; }
Demand must_fail_unless_tail(const Operation& o) {
  return o.is_tail ? Demand::kEither : Demand::kFail;
}

Demand may_fail(const Operation&) { return Demand::kEither; }
// An actor asks only whether the mapping holds what it is about to read.
Demand must_fail_on_worker(const Operation& o) {
  return o.role == kActor ? Demand::kEither : Demand::kFail;
}

Demand must_fail_unless_last_message(const Operation& o) {
  const bool last = o.phase == kReleasePhase || o.phase == "release_native_ipc";
  return last ? Demand::kEither : Demand::kFail;
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

// Actors open one another's buffers where weights move by copies.
Kinds kinds_of_foreign_import(const Operation& o) {
  if (o.role == kActor) return {ErrorKind::kMismatch};
  return {ErrorKind::kRemote};
}

// Whoever opens the export first finds it: a worker, or an actor where weights move by copies.
Kinds kinds_of_stale_export(const Operation&) { return {ErrorKind::kRemote, ErrorKind::kIpc}; }

Kinds kinds_of_result(const Operation& o) {
  if (o.role == kWorker) return {ErrorKind::kRemote};
  return {ErrorKind::kProtocol, ErrorKind::kMismatch};
}

Kinds kinds_of_expert(const Operation& o) {
  if (o.op == kSourceBegin) return {ErrorKind::kMismatch};
  return {ErrorKind::kRemote};
}

Kinds kinds_of_source(const Operation&) { return {ErrorKind::kMismatch}; }

// What refuses a request ends, and what refuses a reply names what is wrong with it. Which of its
// peers the runtime speaks to at an occurrence depends on the schedule.
Kinds kinds_of_refused_message(const Operation& o) {
  if (o.role == kActor) return {ErrorKind::kEndOfFile};
  if (o.role == kRuntime) return {ErrorKind::kProtocol, ErrorKind::kRemote};
  return {ErrorKind::kRemote};
}

Kinds kinds_of_cut_message(const Operation& o) {
  if (o.role == kActor) return {ErrorKind::kEndOfFile};
  if (o.role == kRuntime) return {ErrorKind::kEndOfFile, ErrorKind::kRemote};
  return {ErrorKind::kRemote};
}

Kinds kinds_of_failed_write(const Operation& o) {
  if (o.role == kActor) return {ErrorKind::kIo};
  return kinds_of_cut_message(o);
}

// Through a pipe that is narrower than a message, who writes the second copy reads nothing.
Kinds kinds_of_duplicate(const Operation& o) {
  if (o.role == kActor) return {ErrorKind::kTimeout, ErrorKind::kEndOfFile, ErrorKind::kRemote};
  return {ErrorKind::kTimeout, ErrorKind::kProtocol, ErrorKind::kRemote};
}

Kinds kinds_of_spawn(const Operation& o) {
  if (o.role == kActor) return {ErrorKind::kIo};
  return {ErrorKind::kRemote};
}

Kinds kinds_of_hang(const Operation& o) {
  // Peers whose own gather ended wait for this rank until about the same deadline.
  if (is_shard_call(o.op)) return {ErrorKind::kTimeout, ErrorKind::kPeerLost};
  return {ErrorKind::kPeerLost, ErrorKind::kOutcomeUnknown};
}

// Half of a publication id is an id, and another than its peers have.
Kinds kinds_of_truncation(const Operation& o) {
  if (o.op == "control.broadcast") return {ErrorKind::kProtocol, ErrorKind::kMismatch};
  return {ErrorKind::kProtocol};
}

Kinds kinds_of_device(const Operation& o) {
  if (o.role == kActor) return {ErrorKind::kDevice};
  return {ErrorKind::kRemote};
}

Kinds remote_alone(const Operation&) { return {ErrorKind::kRemote}; }
Kinds ipc_alone(const Operation&) { return {ErrorKind::kIpc}; }
Kinds io_alone(const Operation&) { return {ErrorKind::kIo}; }
Kinds mismatch_alone(const Operation&) { return {ErrorKind::kMismatch}; }
Kinds protocol_alone(const Operation&) { return {ErrorKind::kProtocol}; }
Kinds device_alone(const Operation&) { return {ErrorKind::kDevice}; }

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

std::vector<Arguments> reply_fields() { return each(kField, {"request_id", "command"}); }

std::vector<Arguments> request_fields() {
  return each(kField, {"tp_world_size", "fingerprint", "device_uuids", "chunk_tensor_counts",
                       "buffer_bytes", "publication_id", "finished_version"});
}

std::vector<Arguments> record_fields() {
  std::vector<Arguments> all;
  for (const char* where : {"exporter", "wire"}) {
    for (Arguments& arguments : each(kField, {"name", "shape", "dtype"})) {
      arguments.emplace(kWhere, where);
      all.push_back(std::move(arguments));
    }
  }
  return all;
}

std::vector<Arguments> exit_statuses() { return each(kStatus, {"0", "1"}); }

std::vector<Arguments> uuid_kinds() { return each("uuid", {"foreign", "duplicate"}); }

std::vector<Arguments> expert_places() {
  return {{{std::string(kWhere), "exporter"}},
          {{std::string(kWhere), "wire"}},
          {{std::string(kWhere), "loader"}}};
}

}  // namespace tpsync::faults::rules
