// RapidCheck generators of every message, biased towards the edges of integers and sizes. Floats
// are finite: a NaN does not equal itself.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "tpsync/wire/messages.h"

namespace tpsync::wire::testing {

inline std::uint64_t natural() {
  const int bits = *rc::gen::inRange(0, 65);
  const auto value = *rc::gen::arbitrary<std::uint64_t>();
  return bits == 0 ? 0 : value >> (64 - bits);
}
inline std::int64_t integer() { return static_cast<std::int64_t>(natural()); }
inline bool boolean() { return *rc::gen::arbitrary<bool>(); }
inline double real() {
  const auto value = *rc::gen::arbitrary<double>();
  return value == value ? value : 0.5;
}
inline std::size_t size(int last) {
  return static_cast<std::size_t>(*rc::gen::inRange(0, last + 1));
}

inline std::string text() {
  std::string out;
  const std::size_t length = *rc::gen::element<std::size_t>(0, 1, 5, 31, 32, 40, 300);
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  for (std::size_t i = 0; i < length; ++i) out += static_cast<char>('!' + (seed + 7 * i) % 90);
  return out;
}
inline ByteBuffer buffer() {
  const std::string content = text();
  const ByteView view = as_view(content);
  return {view.begin(), view.end()};
}

template <typename Make>
auto list_of(int last, Make make) {
  std::vector<decltype(make())> out;
  const std::size_t count = size(last);
  for (std::size_t i = 0; i < count; ++i) out.push_back(make());
  return out;
}

inline HandleMap handles() {
  HandleMap map;
  for (std::string& uuid : list_of(4, text)) {
    if (map.find(uuid) != nullptr) continue;
    ByteBuffer handle = buffer();
    map.entries.emplace_back(std::move(uuid), std::move(handle));
    std::sort(map.entries.begin(), map.entries.end());
  }
  return map;
}

inline PublicationHeader header() {
  PublicationHeader out;
  out.protocol_version = integer();
  out.transport = text();
  out.publication_id = text();
  out.model_version = integer();
  out.tp_world_size = integer();
  out.expected_manifest.fingerprint = text();
  out.expected_manifest.tensor_count = natural();
  out.expected_manifest.byte_count = natural();
  out.device_uuids = list_of(4, text);
  return out;
}

inline DigestPart digest_part() {
  DigestPart part;
  part.tensor = natural();
  part.row0 = natural();
  part.row1 = natural();
  part.col0 = natural();
  part.col1 = natural();
  part.sum = natural();
  return part;
}

inline WorkerReceipt receipt() {
  WorkerReceipt out;
  out.tp_rank = integer();
  out.tp_world_size = integer();
  out.device_uuid = text();
  out.publication_id = text();
  out.model_version = integer();
  out.expected_manifest_fingerprint = text();
  out.resident_parameter_count = integer();
  out.ready = boolean();
  out.digest = list_of(5, digest_part);
  return out;
}

inline CommitResult commit_result() {
  CommitResult out;
  out.status = text();
  out.model_version = integer();
  out.worker_receipts = list_of(3, receipt);
  out.prefix_cache_reset = boolean();
  return out;
}

inline GeneratePayload generate_payload() {
  GeneratePayload out;
  SamplingParams& params = out.sampling_params;
  params.temperature = real();
  params.max_new_tokens = integer();
  params.top_p = real();
  params.top_k = integer();
  params.n = integer();
  if (boolean()) params.seed = integer();
  params.ignore_eos = boolean();
  out.return_logprob = boolean();
  out.input_ids = list_of(40, integer);
  return out;
}

inline StartRequest start_request() {
  StartRequest out;
  out.header = header();
  out.chunk_tensor_counts = list_of(20, natural);
  out.buffer_bytes = natural();
  out.slots = natural();
  out.content_digest = boolean();
  out.layout = boolean() ? Layout::kRankMajor : Layout::kCompact;
  if (out.layout == Layout::kRankMajor || boolean()) {
    SourceLayout source;
    source.world = 1 + size(8);
    const std::uint64_t bounds = (source.world + 1) * size(4);
    for (std::uint64_t i = 0; i < bounds; ++i) source.row_bounds.push_back(natural());
    out.source_layout = std::move(source);
  }
  return out;
}

inline UpdateRequest update_request() {
  UpdateRequest out;
  out.chunk_index = natural();
  out.handles = handles();
  const std::size_t count = *rc::gen::element<std::size_t>(0, 1, 2, 15, 16, 17);
  for (std::size_t i = 0; i < count; ++i) {
    out.names.push_back(text());
    out.dtype_names.push_back(text());
    out.shapes.push_back(list_of(4, integer));
    out.tensor_sizes.push_back(natural());
  }
  return out;
}

inline FinishRequest finish_request() {
  FinishRequest out;
  out.header = header();
  out.flush_cache = boolean();
  out.weight_version = text();
  out.digest.tensors = list_of(6, [] {
    ExpectedDigest::Tensor tensor;
    tensor.rows = natural();
    tensor.cols = natural();
    tensor.sum = natural();
    return tensor;
  });
  return out;
}

inline Payload payload(Command command) {
  switch (command) {
    case Command::kStartup:
      return StartupRequest{};
    case Command::kGenerate: {
      GenerateRequest out;
      out.payloads = list_of(3, generate_payload);
      out.record_id = text();
      return out;
    }
    case Command::kSleep:
      return SleepRequest{integer()};
    case Command::kWakeUp:
      return WakeUpRequest{list_of(3, text)};
    case Command::kHealth:
      return HealthRequest{};
    case Command::kProbeIpc: {
      ProbeIpcRequest out;
      out.handles = handles();
      out.words = list_of(5, natural);
      out.sources = list_of(3, text);
      return out;
    }
    case Command::kInit:
      return InitRequest{boolean()};
    case Command::kStart:
      return start_request();
    case Command::kUpdate:
      return update_request();
    case Command::kFinish:
      return finish_request();
    case Command::kRelease:
      return ReleaseRequest{};
    case Command::kShutdown:
      return ShutdownRequest{};
  }
  return StartupRequest{};
}

inline WorkerCapability capability() {
  WorkerCapability out;
  out.tp_rank = integer();
  out.tp_world_size = integer();
  out.cuda_device_uuid = text();
  out.vllm_version = text();
  out.pid = integer();
  return out;
}

inline StartupResult startup_result() {
  StartupResult out;
  out.event = text();
  out.vllm_version = text();
  out.process_group_id = integer();
  out.model_type = text();
  out.worker_capabilities = list_of(4, capability);
  out.committed_version = integer();
  out.layouts = list_of(2, text);
  out.transports = list_of(2, text);
  return out;
}

inline GenerateResult generate_result() {
  GenerateResult out;
  out.rows = list_of(3, [] {
    GeneratedRow row;
    row.text = text();
    row.token_ids = list_of(20, integer);
    row.logprobs = list_of(20, real);
    row.finish_reason = text();
    return row;
  });
  return out;
}

// A response of the one form that (command, ok, peer) allows.
inline Response response(Command command, bool ok, Peer peer) {
  Response out;
  out.request_id = 1 + static_cast<std::int64_t>(natural() >> 2);
  out.command = name_of(command);
  out.ok = ok;
  if (!ok) {
    out.error = text();
    out.traceback = text();
    const bool aborted = is_native(command) && (peer == Peer::kRuntime || boolean());
    if (aborted) out.result = AbortedResult{list_of(3, receipt)};
    return out;
  }
  const bool worker = peer == Peer::kWorker;
  if (command == Command::kStartup) {
    if (worker) {
      out.result = capability();
    } else {
      out.result = startup_result();
    }
  } else if (command == Command::kGenerate) {
    out.result = generate_result();
  } else if (command == Command::kHealth) {
    out.result = HealthResult{};
  } else if (command == Command::kFinish) {
    if (worker) {
      out.result = receipt();
    } else {
      out.result = commit_result();
    }
  }
  return out;
}

inline SchemaReport schema_report() {
  SchemaReport out;
  out.fingerprint = text();
  out.bucket_bytes = natural();
  out.content_digest = boolean();
  out.overlap = boolean();
  out.layout = text();
  out.route = text();
  out.flush_cache = boolean();
  out.control_timeout_ns = integer();
  out.source.world = natural();
  out.source.row_bounds = list_of(6, natural);
  return out;
}

inline TopologyReport topology_report() {
  TopologyReport out;
  out.tp_world_size = integer();
  out.device_uuids = list_of(4, text);
  out.worker_pids = list_of(4, integer);
  out.layout = boolean() ? Layout::kRankMajor : Layout::kCompact;
  return out;
}

inline PreflightReport preflight_report() {
  PreflightReport out;
  out.host_name = text();
  out.boot_id = text();
  out.device_uuid = text();
  out.visible_devices = integer();
  out.free_bytes = natural();
  return out;
}

inline std::optional<ErrorRecord> error() {
  if (boolean()) return std::nullopt;
  ErrorRecord out;
  out.kind = *error_kind_from(static_cast<std::uint64_t>(*rc::gen::inRange(1, 17)));
  out.remedy = *remedy_from(static_cast<std::uint64_t>(*rc::gen::inRange(1, 5)));
  out.phase = text();
  out.rank = *rc::gen::inRange(-1, std::numeric_limits<int>::max());
  out.subject = text();
  out.detail = text();
  return out;
}

}  // namespace tpsync::wire::testing
