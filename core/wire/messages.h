// The control protocol: requests and responses as typed structs, and their MessagePack form.
//
// A request is one flat map: the payload's fields, protocol_version, request_id, command. A
// response is a map with protocol_version, request_id, command, ok, result (always present, may be
// nil), and on failure error and traceback. Extra keys are ignored, a duplicate key is an error,
// integers are strict (no bool, no float).
//
// The same protocol runs at both hops, parent to runtime and runtime to worker: the runtime
// forwards the bytes of a request unchanged, and each worker answers with its own part of the
// result.
//
// A field's name on the wire is its name here, except where its comment says otherwise. An absent
// field takes the default written here where the protocol gives it one (level, tags, record_id,
// return_logprob, every sampling parameter, packed, flush_cache), and so do layout, content_digest,
// source_layout and digest; every other field must be there.
//
// What is large for a real model is packed into one `bytes` value. A packed integer is LEB128:
// seven bits a byte, low bits first, the high bit set on all but the last. A difference wraps at
// 2^64 and is zigzag coded (0, -1, 1, -2 become 0, 1, 2, 3). A sum is 8 bytes, low byte first.
// - row_bounds of a source layout: per bound its difference to the one before (the first: to 0).
// - digest of a receipt: per part the difference of tensor to the part before (the first: to 0),
//   row0, row1 minus row0, col0, col1 minus col0, sum.
// - digest of finish: per tensor rows, cols, sum.
//
// Decoders take bytes from outside: any malformed value throws PeerViolation kProtocol with the
// field as subject; nothing is allocated by an unchecked length, and nesting deeper than any valid
// message is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tpsync/base/bytes.h"
#include "tpsync/base/errors.h"
#include "tpsync/wire/publication.h"

namespace tpsync::wire {

enum class Command : std::uint8_t {
  kStartup = 1,
  kGenerate,
  kSleep,
  kWakeUp,
  kHealth,
  kProbeIpc,
  kInit,     // init_native_weight_transfer
  kStart,    // start_native_weight_update
  kUpdate,   // update_native_weights
  kFinish,   // finish_native_weight_update
  kRelease,  // release_native_ipc
  kShutdown,
};
std::string_view name_of(Command command);
std::optional<Command> command_from(std::string_view name);
// The five commands of a publication.
bool is_native(Command command);
// A failure reply to the command leaves the runtime unusable: startup, sleep, wake_up and the
// native ones.
bool failure_breaks(Command command);

// An opaque exported handle per device UUID, in ascending order of UUID; UUIDs are distinct. On the
// wire a map, in any order.
struct HandleMap {
  std::vector<std::pair<std::string, ByteBuffer>> entries;
  const ByteBuffer* find(std::string_view uuid) const;
  friend bool operator==(const HandleMap&, const HandleMap&) = default;
};

// ---- payloads ----

struct StartupRequest {
  friend bool operator==(const StartupRequest&, const StartupRequest&) = default;
};
struct SamplingParams {
  double temperature = 1.0;
  std::int64_t max_new_tokens = 1;
  double top_p = 1.0;
  std::int64_t top_k = -1;
  std::int64_t n = 1;
  std::optional<std::int64_t> seed;
  bool ignore_eos = false;
  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};
struct GeneratePayload {
  SamplingParams sampling_params;
  bool return_logprob = true;
  std::vector<std::int64_t> input_ids;
  friend bool operator==(const GeneratePayload&, const GeneratePayload&) = default;
};
struct GenerateRequest {
  std::vector<GeneratePayload> payloads;
  std::string record_id = "batch";
  friend bool operator==(const GenerateRequest&, const GenerateRequest&) = default;
};
struct SleepRequest {
  std::int64_t level = 1;  // 1 or 2
  friend bool operator==(const SleepRequest&, const SleepRequest&) = default;
};
struct WakeUpRequest {
  std::vector<std::string> tags;  // empty (or nil on the wire): everything
  friend bool operator==(const WakeUpRequest&, const WakeUpRequest&) = default;
};
struct HealthRequest {
  friend bool operator==(const HealthRequest&, const HealthRequest&) = default;
};
// Each actor exported a few bytes that begin with its word; each worker opens the exports that it
// is to read, reads their words and closes. Has no effect: ok=false leaves the runtime usable.
struct ProbeIpcRequest {
  HandleMap handles;                 // "ipc_handles"
  std::vector<std::uint64_t> words;  // per actor, in rank order
  // The actors' UUIDs in rank order, if each worker opens all exports; else, and where it is
  // absent, each opens that of its own UUID.
  std::vector<std::string> sources;
  friend bool operator==(const ProbeIpcRequest&, const ProbeIpcRequest&) = default;
};
struct InitRequest {
  bool packed = true;  // init_info.packed
  friend bool operator==(const InitRequest&, const InitRequest&) = default;
};

enum class Layout : std::uint8_t { kCompact = 1, kRankMajor = 2 };
std::string_view name_of(Layout layout);  // "compact", "rank_major"
std::optional<Layout> layout_from(std::string_view name);

// How the trainer's shards cut each canonical tensor: rows [bounds[r], bounds[r+1]) belong to actor
// r. Needed by a worker that takes `rank_major`. row_bounds has (world + 1) entries per tensor, in
// canonical order.
struct SourceLayout {
  std::uint64_t world = 0;
  std::vector<std::uint64_t> row_bounds;
  friend bool operator==(const SourceLayout&, const SourceLayout&) = default;
};

struct StartRequest {
  PublicationHeader header;
  std::vector<std::uint64_t>
      chunk_tensor_counts;         // chunk c holds the next counts[c] tensors of canonical order
  std::uint64_t buffer_bytes = 0;  // of the packed buffer, as exported
  std::uint64_t slots = 1;         // equal parts of it, which the chunks take in turn
  Layout layout = Layout::kCompact;
  bool content_digest = false;
  std::optional<SourceLayout> source_layout;  // present if layout is rank_major
  friend bool operator==(const StartRequest&, const StartRequest&) = default;
};
struct UpdateRequest {  // all fields inside the map "update_info"
  std::uint64_t chunk_index = 0;
  HandleMap handles;  // "ipc_handles"
  std::vector<std::string> names;
  std::vector<std::string> dtype_names;  // bare: "bfloat16"
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<std::uint64_t> tensor_sizes;  // bytes
  friend bool operator==(const UpdateRequest&, const UpdateRequest&) = default;
};
struct FinishRequest {
  PublicationHeader header;
  bool flush_cache = true;
  std::string weight_version;  // decimal text of the version
  ExpectedDigest digest;
  friend bool operator==(const FinishRequest&, const FinishRequest&) = default;
};
struct ReleaseRequest {
  friend bool operator==(const ReleaseRequest&, const ReleaseRequest&) = default;
};
struct ShutdownRequest {
  friend bool operator==(const ShutdownRequest&, const ShutdownRequest&) = default;
};

using Payload = std::variant<StartupRequest, GenerateRequest, SleepRequest, WakeUpRequest,
                             HealthRequest, ProbeIpcRequest, InitRequest, StartRequest,
                             UpdateRequest, FinishRequest, ReleaseRequest, ShutdownRequest>;
Command command_of(const Payload& payload);

// The envelope alone: what a server checks before it looks at the payload.
struct RequestHead {
  std::int64_t request_id = 0;
  std::string command;  // as sent; may be unknown
};
// Checks in order: a map; protocol_version; request_id (integer, >= 1); command (non-empty text).
RequestHead decode_request_head(ByteView body);

void encode_request(std::int64_t request_id, const Payload& payload, ByteBuffer& out);
// Decodes the payload of a known command; the envelope's values must have been checked. Beyond the
// types: the lists of an update are equally long, and rank_major comes with a source layout whose
// bounds are whole tensors.
Payload decode_payload(Command command, ByteView body);

// An update as a plan sends it again and again: encoded once per chunk and plan; per send, only the
// envelope is new and (per publication) the handles. Appends exactly what encode_request would.
class EncodedUpdate {
 public:
  explicit EncodedUpdate(const UpdateRequest& request);  // request.handles is ignored
  void encode(std::int64_t request_id, const HandleMap& handles, ByteBuffer& out) const;

 private:
  ByteBuffer fields_;  // the encoded key-value pairs that never change
};

// ---- responses ----

struct WorkerCapability {
  std::int64_t tp_rank = -1;
  std::int64_t tp_world_size = 0;
  std::string cuda_device_uuid;
  std::string vllm_version;
  std::int64_t pid = 0;
  friend bool operator==(const WorkerCapability&, const WorkerCapability&) = default;
};
struct StartupResult {
  std::string event;  // "ready"
  std::string vllm_version;
  std::int64_t process_group_id = 0;
  std::string model_type;
  std::vector<WorkerCapability> worker_capabilities;
  std::int64_t committed_version = 0;   // last committed version that the runtime knows of
  std::vector<std::string> layouts;     // chunk layouts that it takes
  std::vector<std::string> transports;  // that it takes; absent or empty: kTransport alone
  friend bool operator==(const StartupResult&, const StartupResult&) = default;
};
struct GeneratedRow {
  std::string text;
  std::vector<std::int64_t> token_ids;
  std::vector<double> logprobs;
  std::string finish_reason;
  friend bool operator==(const GeneratedRow&, const GeneratedRow&) = default;
};
struct GenerateResult {
  std::vector<GeneratedRow> rows;
  friend bool operator==(const GenerateResult&, const GenerateResult&) = default;
};
// Failure of a native command: receipts that a finish had already collected.
struct AbortedResult {
  std::vector<WorkerReceipt> worker_receipts;
  friend bool operator==(const AbortedResult&, const AbortedResult&) = default;
};
struct HealthResult {
  friend bool operator==(const HealthResult&, const HealthResult&) = default;
};

// nil for sleep, wake_up, probe_ipc, init, start, update, release, shutdown, and for most failures.
using Result = std::variant<std::monostate, StartupResult, GenerateResult, HealthResult,
                            CommitResult, AbortedResult, WorkerCapability, WorkerReceipt>;

struct Response {
  std::int64_t request_id = 0;
  std::string command;
  bool ok = false;
  Result result;
  std::string error;      // "ClassName: text", only where !ok
  std::string traceback;  // who failed at which command ("runtime > startup"), only where !ok
  friend bool operator==(const Response&, const Response&) = default;
};

void encode_response(const Response& response, ByteBuffer& out);

// Which hop a response comes from: a worker answers startup with its capability and finish with its
// receipt, the runtime with the whole. A failed native command is answered with AbortedResult by a
// runtime, with that or nil by a worker; every other failure with nil.
enum class Peer : std::uint8_t { kRuntime, kWorker };

// Checks in order: a map; protocol_version; request_id (>= 1); command (non-empty text); request_id
// equals expected; command equals expected; ok strictly boolean; result present; then the result's
// type for (command, ok, peer): anything else than the table in decode_responses.cpp is
// PeerViolation kProtocol. An absent error or traceback is empty. A body that is not one
// well-formed map is refused before any of this.
Response decode_response(ByteView body, std::int64_t expected_id, std::string_view expected_command,
                         Peer peer);

// A failure's `error` begins with the class of what was thrown ("NothingHappened: ..."). The class
// RuntimeBroken says that the sender cannot go on, whatever the command was: it ends after the
// reply.
inline constexpr std::string_view kBrokenClass = "RuntimeBroken";
bool says_broken(const Response& response);

// ---- what actors say to one another (ControlGroup), all MessagePack as well ----

struct SchemaReport {       // each rank to all: what must be the same on every rank
  std::string fingerprint;  // of the manifest that it plans
  std::uint64_t bucket_bytes = 0;
  bool content_digest = false;
  bool overlap = false;
  std::string layout;  // a name of Layout; empty: any
  std::string route;   // a name of Route
  bool flush_cache = false;
  std::int64_t control_timeout_ns = 0;
  SourceLayout source;  // this rank's view of how all ranks' shards cut the tensors
  friend bool operator==(const SchemaReport&, const SchemaReport&) = default;
};
struct TopologyReport {  // rank 0 to all
  std::int64_t tp_world_size = 0;
  std::vector<std::string> device_uuids;  // by TP rank
  std::vector<std::int64_t> worker_pids;  // by TP rank
  Layout layout = Layout::kCompact;
  friend bool operator==(const TopologyReport&, const TopologyReport&) = default;
};
struct PreflightReport {  // each rank to all
  std::string host_name;
  std::string boot_id;
  std::string device_uuid;
  std::int64_t visible_devices = 0;
  std::uint64_t free_bytes = 0;
  friend bool operator==(const PreflightReport&, const PreflightReport&) = default;
};

void encode(const SchemaReport& report, ByteBuffer& out);
SchemaReport decode_schema_report(ByteView bytes);
void encode(const TopologyReport& report, ByteBuffer& out);
TopologyReport decode_topology_report(ByteView bytes);
void encode(const PreflightReport& report, ByteBuffer& out);
PreflightReport decode_preflight_report(ByteView bytes);
void encode(const CommitResult& result, ByteBuffer& out);
CommitResult decode_commit_result(ByteView bytes);
void encode(const HandleMap& handles, ByteBuffer& out);
HandleMap decode_handle_map(ByteView bytes);
void encode_error(const std::optional<ErrorRecord>& error, ByteBuffer& out);
std::optional<ErrorRecord> decode_error(ByteView bytes);
void encode_sums(std::span<const std::uint64_t> sums, ByteBuffer& out);
std::vector<std::uint64_t> decode_sums(ByteView bytes);

}  // namespace tpsync::wire
