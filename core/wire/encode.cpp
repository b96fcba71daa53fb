// Requests, responses and the actors' reports as MessagePack. The envelope's fields come first and
// every map has one fixed order, so that equal messages are equal bytes.
#include "tpsync/base/errors.h"
#include "tpsync/wire/codec.h"

namespace tpsync::wire {
namespace {

constexpr std::uint32_t kUpdateFixedFields = 5;

void write_envelope(Writer& out, std::size_t payload_fields, std::int64_t request_id,
                    Command command) {
  out.map(kEnvelopeFields + payload_fields);
  out.text("protocol_version");
  out.integer(kProtocolVersion);
  out.text("request_id");
  out.integer(request_id);
  out.text("command");
  out.text(name_of(command));
}

void write(Writer& out, const SamplingParams& params) {
  out.map(7);
  out.text("temperature");
  out.real(params.temperature);
  out.text("max_new_tokens");
  out.integer(params.max_new_tokens);
  out.text("top_p");
  out.real(params.top_p);
  out.text("top_k");
  out.integer(params.top_k);
  out.text("n");
  out.integer(params.n);
  out.text("seed");
  if (params.seed) {
    out.integer(*params.seed);
  } else {
    out.nil();
  }
  out.text("ignore_eos");
  out.boolean(params.ignore_eos);
}

void write(Writer& out, const GeneratePayload& payload) {
  out.map(3);
  out.text("sampling_params");
  write(out, payload.sampling_params);
  out.text("return_logprob");
  out.boolean(payload.return_logprob);
  out.text("input_ids");
  write_integers(out, payload.input_ids);
}

// The fields of update_info that stay the same from publication to publication.
void write_update_fixed(Writer& out, const UpdateRequest& request) {
  out.text("names");
  write_texts(out, request.names);
  out.text("dtype_names");
  write_texts(out, request.dtype_names);
  out.text("shapes");
  out.array(request.shapes.size());
  for (const auto& shape : request.shapes) write_integers(out, shape);
  out.text("tensor_sizes");
  write_naturals(out, request.tensor_sizes);
  out.text("chunk_index");
  out.natural(request.chunk_index);
}

struct RequestWriter {
  Writer& out;
  std::int64_t request_id;

  void empty(Command command) const { write_envelope(out, 0, request_id, command); }

  void operator()(const StartupRequest&) const { empty(Command::kStartup); }
  void operator()(const HealthRequest&) const { empty(Command::kHealth); }
  void operator()(const ReleaseRequest&) const { empty(Command::kRelease); }
  void operator()(const ShutdownRequest&) const { empty(Command::kShutdown); }

  void operator()(const GenerateRequest& request) const {
    write_envelope(out, 2, request_id, Command::kGenerate);
    out.text("payloads");
    out.array(request.payloads.size());
    for (const GeneratePayload& payload : request.payloads) write(out, payload);
    out.text("record_id");
    out.text(request.record_id);
  }

  void operator()(const SleepRequest& request) const {
    write_envelope(out, 1, request_id, Command::kSleep);
    out.text("level");
    out.integer(request.level);
  }

  void operator()(const WakeUpRequest& request) const {
    write_envelope(out, 1, request_id, Command::kWakeUp);
    out.text("tags");
    if (request.tags.empty()) {
      out.nil();
    } else {
      write_texts(out, request.tags);
    }
  }

  void operator()(const ProbeIpcRequest& request) const {
    write_envelope(out, request.sources.empty() ? 2 : 3, request_id, Command::kProbeIpc);
    out.text("ipc_handles");
    write(out, request.handles);
    out.text("words");
    write_naturals(out, request.words);
    if (request.sources.empty()) return;
    out.text("sources");
    write_texts(out, request.sources);
  }

  void operator()(const InitRequest& request) const {
    write_envelope(out, 1, request_id, Command::kInit);
    out.text("init_info");
    out.map(1);
    out.text("packed");
    out.boolean(request.packed);
  }

  void operator()(const StartRequest& request) const {
    write_envelope(out, 7, request_id, Command::kStart);
    out.text("header");
    write(out, request.header);
    out.text("chunk_tensor_counts");
    write_naturals(out, request.chunk_tensor_counts);
    out.text("buffer_bytes");
    out.natural(request.buffer_bytes);
    out.text("slots");
    out.natural(request.slots);
    out.text("layout");
    out.text(name_of(request.layout));
    out.text("content_digest");
    out.boolean(request.content_digest);
    out.text("source_layout");
    if (!request.source_layout) {
      out.nil();
      return;
    }
    out.map(2);
    out.text("world");
    out.natural(request.source_layout->world);
    out.text("row_bounds");
    write_packed_bounds(out, *request.source_layout);
  }

  void operator()(const UpdateRequest& request) const {
    write_envelope(out, 1, request_id, Command::kUpdate);
    out.text("update_info");
    out.map(kUpdateFixedFields + 1);
    write_update_fixed(out, request);
    out.text("ipc_handles");
    write(out, request.handles);
  }

  void operator()(const FinishRequest& request) const {
    write_envelope(out, 4, request_id, Command::kFinish);
    out.text("header");
    write(out, request.header);
    out.text("flush_cache");
    out.boolean(request.flush_cache);
    out.text("weight_version");
    out.text(request.weight_version);
    out.text("digest");
    write_packed(out, request.digest);
  }
};

void write(Writer& out, const WorkerCapability& capability) {
  out.map(5);
  out.text("tp_rank");
  out.integer(capability.tp_rank);
  out.text("tp_world_size");
  out.integer(capability.tp_world_size);
  out.text("cuda_device_uuid");
  out.text(capability.cuda_device_uuid);
  out.text("vllm_version");
  out.text(capability.vllm_version);
  out.text("pid");
  out.integer(capability.pid);
}

void write(Writer& out, const GeneratedRow& row) {
  out.map(4);
  out.text("text");
  out.text(row.text);
  out.text("token_ids");
  write_integers(out, row.token_ids);
  out.text("logprobs");
  out.array(row.logprobs.size());
  for (const double logprob : row.logprobs) out.real(logprob);
  out.text("finish_reason");
  out.text(row.finish_reason);
}

struct ResultWriter {
  Writer& out;

  void operator()(std::monostate) const { out.nil(); }
  void operator()(const HealthResult&) const { out.boolean(true); }
  void operator()(const CommitResult& result) const { write(out, result); }
  void operator()(const WorkerCapability& capability) const { write(out, capability); }
  void operator()(const WorkerReceipt& receipt) const { write(out, receipt); }

  void operator()(const StartupResult& result) const {
    out.map(8);
    out.text("event");
    out.text(result.event);
    out.text("vllm_version");
    out.text(result.vllm_version);
    out.text("process_group_id");
    out.integer(result.process_group_id);
    out.text("model_type");
    out.text(result.model_type);
    out.text("worker_capabilities");
    out.array(result.worker_capabilities.size());
    for (const WorkerCapability& capability : result.worker_capabilities) write(out, capability);
    out.text("committed_version");
    out.integer(result.committed_version);
    out.text("layouts");
    write_texts(out, result.layouts);
    out.text("transports");
    write_texts(out, result.transports);
  }

  void operator()(const GenerateResult& result) const {
    out.array(result.rows.size());
    for (const GeneratedRow& row : result.rows) write(out, row);
  }

  void operator()(const AbortedResult& result) const {
    out.map(2);
    out.text("status");
    out.text("aborted");
    out.text("worker_receipts");
    out.array(result.worker_receipts.size());
    for (const WorkerReceipt& receipt : result.worker_receipts) write(out, receipt);
  }
};

}  // namespace

void encode_request(std::int64_t request_id, const Payload& payload, ByteBuffer& out) {
  Writer writer(out);
  std::visit(RequestWriter{writer, request_id}, payload);
}

EncodedUpdate::EncodedUpdate(const UpdateRequest& request) {
  Writer writer(fields_);
  write_update_fixed(writer, request);
}

void EncodedUpdate::encode(std::int64_t request_id, const HandleMap& handles,
                           ByteBuffer& out) const {
  Writer writer(out);
  write_envelope(writer, 1, request_id, Command::kUpdate);
  writer.text("update_info");
  writer.map(kUpdateFixedFields + 1);
  writer.raw(fields_);
  writer.text("ipc_handles");
  write(writer, handles);
}

void encode_response(const Response& response, ByteBuffer& out) {
  Writer writer(out);
  writer.map(response.ok ? 5 : 7);
  writer.text("protocol_version");
  writer.integer(kProtocolVersion);
  writer.text("request_id");
  writer.integer(response.request_id);
  writer.text("command");
  writer.text(response.command);
  writer.text("ok");
  writer.boolean(response.ok);
  writer.text("result");
  std::visit(ResultWriter{writer}, response.result);
  if (response.ok) return;
  writer.text("error");
  writer.text(response.error);
  writer.text("traceback");
  writer.text(response.traceback);
}

// ---- the actors' reports: arrays of fixed length, in the order of the structs

void encode(const SchemaReport& report, ByteBuffer& out) {
  Writer writer(out);
  writer.array(9);
  writer.text(report.fingerprint);
  writer.natural(report.bucket_bytes);
  writer.boolean(report.content_digest);
  writer.boolean(report.overlap);
  writer.text(report.layout);
  writer.text(report.route);
  writer.boolean(report.flush_cache);
  writer.integer(report.control_timeout_ns);
  writer.natural(report.source.world);
  write_packed_bounds(writer, report.source);
}

void encode(const TopologyReport& report, ByteBuffer& out) {
  Writer writer(out);
  writer.array(4);
  writer.integer(report.tp_world_size);
  write_texts(writer, report.device_uuids);
  write_integers(writer, report.worker_pids);
  writer.text(name_of(report.layout));
}

void encode(const PreflightReport& report, ByteBuffer& out) {
  Writer writer(out);
  writer.array(5);
  writer.text(report.host_name);
  writer.text(report.boot_id);
  writer.text(report.device_uuid);
  writer.integer(report.visible_devices);
  writer.natural(report.free_bytes);
}

void encode(const CommitResult& result, ByteBuffer& out) {
  Writer writer(out);
  write(writer, result);
}

void encode(const HandleMap& handles, ByteBuffer& out) {
  Writer writer(out);
  write(writer, handles);
}

void encode_error(const std::optional<ErrorRecord>& error, ByteBuffer& out) {
  Writer writer(out);
  if (!error) {
    writer.nil();
    return;
  }
  writer.array(6);
  writer.natural(static_cast<std::uint64_t>(error->kind));
  writer.natural(static_cast<std::uint64_t>(error->remedy));
  writer.text(error->phase);
  writer.integer(error->rank);
  writer.text(error->subject);
  writer.text(error->detail);
}

void encode_sums(std::span<const std::uint64_t> sums, ByteBuffer& out) {
  PackedWriter packed(8 * sums.size());
  for (const std::uint64_t sum : sums) packed.word(sum);
  Writer writer(out);
  writer.bytes(packed.bytes());
}

}  // namespace tpsync::wire
