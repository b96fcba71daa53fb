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

// ---- what then
Demand must_fail(const Operation& operation);
Demand must_survive(const Operation& operation);
Demand must_fail_unless_tail(const Operation& operation);

// ---- which errors
std::vector<ErrorKind> kinds_of_closed_channel(const Operation& operation);
std::vector<ErrorKind> kinds_of_mute_channel(const Operation& operation);
std::vector<ErrorKind> kinds_of_kill(const Operation& operation);
std::vector<ErrorKind> kinds_of_stop(const Operation& operation);
std::vector<ErrorKind> kinds_of_group(const Operation& operation);
std::vector<ErrorKind> kinds_of_memory(const Operation& operation);
std::vector<ErrorKind> kinds_of_import(const Operation& operation);
std::vector<ErrorKind> kinds_of_result(const Operation& operation);
std::vector<ErrorKind> kinds_of_expert(const Operation& operation);
std::vector<ErrorKind> kinds_of_source(const Operation& operation);
std::vector<ErrorKind> no_kinds(const Operation& operation);

// ---- which arguments
std::vector<Arguments> no_arguments();
std::vector<Arguments> receipt_hops();
std::vector<Arguments> result_hops();
std::vector<Arguments> expert_places();

}  // namespace tpsync::faults::rules
