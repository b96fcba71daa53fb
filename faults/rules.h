// The rules of the catalogue's rows: where a fault applies, what the run must come to, which errors
// explain it, and which argument lists are tried. Each is a function of one operation of the
// fault-free run; catalogue.cpp puts them beside the texts that say the same in words.
#pragma once

#include <string_view>
#include <vector>

#include "faults/catalogue.h"

namespace tpsync::faults::rules {

inline constexpr std::string_view kActor = "actor";
inline constexpr std::string_view kRuntime = "runtime";
inline constexpr std::string_view kWorker = "worker";

// Phases that rules speak of. Those of the runtime and the workers are the commands' names.
inline constexpr std::string_view kTransferPhase = "native-transfer";
inline constexpr std::string_view kResultPhase = "native-result";
inline constexpr std::string_view kAllocationPhase = "native-buffer-allocation";
inline constexpr std::string_view kPreflightPhase = "topology-memory-preflight";
inline constexpr std::string_view kReleasePhase = "native-ipc-release";
inline constexpr std::string_view kUpdatePhase = "update_native_weights";
inline constexpr std::string_view kFinishPhase = "finish_native_weight_update";

bool is_group_call(std::string_view op);     // a contribution to an agreement
bool is_shard_call(std::string_view op);     // of the group that moves weights
bool is_stream_work(std::string_view op);    // what copy.late can delay
bool is_channel_bytes(std::string_view op);  // bytes of a channel, either way

// ---- where
bool on_channel(const Operation& operation, const Arguments& arguments);
bool on_any_operation(const Operation& operation, const Arguments& arguments);
bool on_group(const Operation& operation, const Arguments& arguments);
bool on_allocation(const Operation& operation, const Arguments& arguments);
bool on_import(const Operation& operation, const Arguments& arguments);
// Not on a copy that lands at its own synchronize anyway: delaying it changes nothing.
bool on_early_copy(const Operation& operation, const Arguments& arguments);
bool on_result_hop(const Operation& operation, const Arguments& arguments);
bool on_digest_hop(const Operation& operation, const Arguments& arguments);
// Bytes that a worker never copied show in the content digest alone.
bool on_expert(const Operation& operation, const Arguments& arguments);
bool on_source(const Operation& operation, const Arguments& arguments);

bool on_digested_source(const Operation& operation, const Arguments& arguments);
bool on_record(const Operation& operation, const Arguments& arguments);
bool on_several_receipts(const Operation& operation, const Arguments& arguments);

// Whole messages, at the first write of their frame.
bool on_message(const Operation& operation, const Arguments& arguments);
bool on_reply(const Operation& operation, const Arguments& arguments);
bool on_start(const Operation& operation, const Arguments& arguments);
bool on_update(const Operation& operation, const Arguments& arguments);
bool on_request_field(const Operation& operation, const Arguments& arguments);
bool on_handles(const Operation& operation, const Arguments& arguments);
bool on_several_handles(const Operation& operation, const Arguments& arguments);

bool on_exit(const Operation& operation, const Arguments& arguments);
bool on_message_or_gather(const Operation& operation, const Arguments& arguments);
bool on_stall(const Operation& operation, const Arguments& arguments);
bool on_attach(const Operation& operation, const Arguments& arguments);
bool on_group_signal(const Operation& operation, const Arguments& arguments);
bool on_spawn(const Operation& operation, const Arguments& arguments);
// The preflight asks for the host's name, its boot id and the environment, in this order.
bool on_host_names(const Operation& operation, const Arguments& arguments);  // not of rank 0
bool on_any_host_names(const Operation& operation, const Arguments& arguments);
bool on_host_environment(const Operation& operation, const Arguments& arguments);
bool on_entropy(const Operation& operation, const Arguments& arguments);

bool on_hang(const Operation& operation, const Arguments& arguments);
bool on_word(const Operation& operation, const Arguments& arguments);
bool on_bytes(const Operation& operation, const Arguments& arguments);
bool on_gathered(const Operation& operation, const Arguments& arguments);
bool on_handle_gather(const Operation& operation, const Arguments& arguments);

bool on_prepare(const Operation& operation, const Arguments& arguments);
bool on_free_memory(const Operation& operation, const Arguments& arguments);
bool on_export(const Operation& operation, const Arguments& arguments);
bool on_second_export(const Operation& operation, const Arguments& arguments);
bool on_stream_work(const Operation& operation, const Arguments& arguments);
bool on_synchronize(const Operation& operation, const Arguments& arguments);
bool on_worker_launch(const Operation& operation, const Arguments& arguments);
bool on_worker_launch_any(const Operation& operation, const Arguments& arguments);
bool on_worker_device(const Operation& operation, const Arguments& arguments);

bool on_engine_load(const Operation& operation, const Arguments& arguments);
bool on_engine_generate(const Operation& operation, const Arguments& arguments);
bool on_engine_reset(const Operation& operation, const Arguments& arguments);
bool on_engine_layer(const Operation& operation, const Arguments& arguments);
bool on_digested_layer(const Operation& operation, const Arguments& arguments);

// ---- where enumeration tries it
// Rank 0, which speaks to the runtime, the last actor, and the last worker, whatever speaks to it;
// of the chunks the first.
bool at_representatives(const Operation& operation);

// ---- what then
Demand must_fail(const Operation& operation);
Demand must_survive(const Operation& operation);
Demand may_fail(const Operation& operation);
Demand must_fail_unless_tail(const Operation& operation);
Demand must_fail_on_worker(const Operation& operation);
Demand must_fail_unless_last_message(const Operation& operation);

// ---- which errors
std::vector<ErrorKind> kinds_of_closed_channel(const Operation& operation);
std::vector<ErrorKind> kinds_of_mute_channel(const Operation& operation);
std::vector<ErrorKind> kinds_of_kill(const Operation& operation);
std::vector<ErrorKind> kinds_of_stop(const Operation& operation);
std::vector<ErrorKind> kinds_of_group(const Operation& operation);
std::vector<ErrorKind> kinds_of_memory(const Operation& operation);
std::vector<ErrorKind> kinds_of_import(const Operation& operation);
std::vector<ErrorKind> kinds_of_foreign_import(const Operation& operation);
std::vector<ErrorKind> kinds_of_stale_export(const Operation& operation);
std::vector<ErrorKind> kinds_of_result(const Operation& operation);
std::vector<ErrorKind> kinds_of_expert(const Operation& operation);
std::vector<ErrorKind> kinds_of_source(const Operation& operation);
std::vector<ErrorKind> kinds_of_refused_message(const Operation& operation);
std::vector<ErrorKind> kinds_of_cut_message(const Operation& operation);
std::vector<ErrorKind> kinds_of_failed_write(const Operation& operation);
std::vector<ErrorKind> kinds_of_duplicate(const Operation& operation);
std::vector<ErrorKind> kinds_of_spawn(const Operation& operation);
std::vector<ErrorKind> kinds_of_hang(const Operation& operation);
std::vector<ErrorKind> kinds_of_truncation(const Operation& operation);
std::vector<ErrorKind> kinds_of_device(const Operation& operation);
std::vector<ErrorKind> remote_alone(const Operation& operation);
std::vector<ErrorKind> ipc_alone(const Operation& operation);
std::vector<ErrorKind> io_alone(const Operation& operation);
std::vector<ErrorKind> mismatch_alone(const Operation& operation);
std::vector<ErrorKind> protocol_alone(const Operation& operation);
std::vector<ErrorKind> device_alone(const Operation& operation);
std::vector<ErrorKind> no_kinds(const Operation& operation);

// ---- which arguments
std::vector<Arguments> no_arguments();
std::vector<Arguments> receipt_hops();
std::vector<Arguments> result_hops();
std::vector<Arguments> expert_places();
std::vector<Arguments> reply_fields();
std::vector<Arguments> request_fields();
std::vector<Arguments> record_fields();
std::vector<Arguments> exit_statuses();
std::vector<Arguments> uuid_kinds();

}  // namespace tpsync::faults::rules
