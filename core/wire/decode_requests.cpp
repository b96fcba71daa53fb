// Requests and the actors' reports from bytes of outside. A payload is decoded field by field in
// the order of the wire; what is absent takes its default, or is named.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tpsync/base/errors.h"
#include "tpsync/wire/codec.h"

namespace tpsync::wire {
namespace {

using Names = std::string_view;

constexpr int kPayloadNesting = 1;  // the message's own map

// Decodes one payload: `on_field` reads the value of the field with this index (counted from 0
// behind the envelope's).
template <typename OnField>
Fields read_payload(Reader& in, const Path& root, std::span<const Names> names,
                    const OnField& on_field) {
  Fields fields(in, root, names, kPayloadNesting);
  while (const auto field = fields.next()) {
    const Path at = root.field(names[*field]);
    if (*field < kEnvelopeFields) {
      in.skip(at, kPayloadNesting);
    } else {
      on_field(*field - kEnvelopeFields, at);
    }
  }
  in.end(root);
  return fields;
}

// Every payload's names begin with the envelope's, whose values were checked before.
template <typename... Name>
constexpr auto with_envelope(Name... names) {
  return std::array<Names, kEnvelopeFields + sizeof...(names)>{"protocol_version", "request_id",
                                                               "command", names...};
}

template <typename Request>
Payload read_empty(Reader& in) {
  static constexpr auto kNames = with_envelope();
  const Path root;
  read_payload(in, root, kNames, [](std::size_t, const Path&) {});
  return Request{};
}

SamplingParams read_sampling(Reader& in, const Path& path, int nesting) {
  static constexpr Names kNames[] = {"temperature", "max_new_tokens", "top_p",     "top_k",
                                     "n",           "seed",           "ignore_eos"};
  Fields fields(in, path, kNames, nesting + 1);
  SamplingParams params;
  while (const auto field = fields.next()) {
    const Path at = path.field(kNames[*field]);
    switch (*field) {
      case 0:
        params.temperature = in.real(at);
        break;
      case 1:
        params.max_new_tokens = in.integer(at);
        break;
      case 2:
        params.top_p = in.real(at);
        break;
      case 3:
        params.top_k = in.integer(at);
        break;
      case 4:
        params.n = in.integer(at);
        break;
      case 5:
        if (!in.take_nil()) params.seed = in.integer(at);
        break;
      default:
        params.ignore_eos = in.boolean(at);
    }
  }
  return params;
}

GeneratePayload read_generate_payload(Reader& in, const Path& path, int nesting) {
  static constexpr Names kNames[] = {"sampling_params", "return_logprob", "input_ids"};
  Fields fields(in, path, kNames, nesting + 1);
  GeneratePayload payload;
  while (const auto field = fields.next()) {
    const Path at = path.field(kNames[*field]);
    switch (*field) {
      case 0:
        payload.sampling_params = read_sampling(in, at, nesting + 1);
        break;
      case 1:
        payload.return_logprob = in.boolean(at);
        break;
      default:
        payload.input_ids = read_integers(in, at);
    }
  }
  fields.require({0, 2});
  return payload;
}

Payload read_generate(Reader& in) {
  static constexpr auto kNames = with_envelope("payloads", "record_id");
  const Path root;
  GenerateRequest request;
  read_payload(in, root, kNames, [&](std::size_t field, const Path& at) {
    if (field == 1) {
      request.record_id = in.text(at);
      return;
    }
    const std::size_t size = in.array(at);
    for (std::size_t i = 0; i < size; ++i) {
      const Path element = at.at(i);
      request.payloads.push_back(read_generate_payload(in, element, kPayloadNesting + 1));
    }
  }).require({kEnvelopeFields});
  return request;
}

Payload read_sleep(Reader& in) {
  static constexpr auto kNames = with_envelope("level");
  const Path root;
  SleepRequest request;
  read_payload(in, root, kNames,
               [&](std::size_t, const Path& at) { request.level = in.integer(at); });
  return request;
}

Payload read_wake_up(Reader& in) {
  static constexpr auto kNames = with_envelope("tags");
  const Path root;
  WakeUpRequest request;
  read_payload(in, root, kNames, [&](std::size_t, const Path& at) {
    if (!in.take_nil()) request.tags = read_texts(in, at);
  });
  return request;
}

Payload read_probe(Reader& in) {
  static constexpr auto kNames = with_envelope("ipc_handles", "words", "sources");
  const Path root;
  ProbeIpcRequest request;
  read_payload(in, root, kNames, [&](std::size_t field, const Path& at) {
    if (field == 0) {
      request.handles = read_handles(in, at);
    } else if (field == 1) {
      request.words = read_naturals(in, at);
    } else {
      request.sources = read_texts(in, at);
    }
  }).require({kEnvelopeFields, kEnvelopeFields + 1});
  return request;
}

Payload read_init(Reader& in) {
  static constexpr auto kNames = with_envelope("init_info");
  static constexpr Names kInfoNames[] = {"packed"};
  const Path root;
  InitRequest request;
  read_payload(in, root, kNames, [&](std::size_t, const Path& at) {
    Fields info(in, at, kInfoNames, kPayloadNesting + 1);
    while (info.next()) request.packed = in.boolean(at.field(kInfoNames[0]));
  }).require({kEnvelopeFields});
  return request;
}

SourceLayout read_source_layout(Reader& in, const Path& path, int nesting) {
  static constexpr Names kNames[] = {"world", "row_bounds"};
  Fields fields(in, path, kNames, nesting + 1);
  SourceLayout layout;
  while (const auto field = fields.next()) {
    const Path at = path.field(kNames[*field]);
    if (*field == 0) {
      layout.world = in.natural(at);
    } else {
      layout.row_bounds = read_packed_bounds(in, at);
    }
  }
  fields.require({0, 1});
  // Tested as a quotient: world + 1 may overflow.
  if (layout.world == 0 || layout.world == UINT64_MAX) {
    malformed(path.field(kNames[0]), fmt::format("is {}", layout.world));
  }
  if (layout.row_bounds.size() % (layout.world + 1) != 0) {
    malformed(path.field(kNames[1]), fmt::format("has {} bounds, not a multiple of {}",
                                                 layout.row_bounds.size(), layout.world + 1));
  }
  return layout;
}

Layout read_layout(Reader& in, const Path& path) {
  const std::string_view name = in.text(path);
  const auto layout = layout_from(name);
  if (!layout) malformed(path, fmt::format("{} is no layout", printable(name)));
  return *layout;
}

Payload read_start(Reader& in) {
  static constexpr auto kNames =
      with_envelope("header", "chunk_tensor_counts", "buffer_bytes", "slots", "layout",
                    "content_digest", "source_layout");
  const Path root;
  StartRequest request;
  read_payload(in, root, kNames, [&](std::size_t field, const Path& at) {
    switch (field) {
      case 0:
        request.header = read_header(in, at, kPayloadNesting);
        break;
      case 1:
        request.chunk_tensor_counts = read_naturals(in, at);
        break;
      case 2:
        request.buffer_bytes = in.natural(at);
        break;
      case 3:
        request.slots = in.natural(at);
        break;
      case 4:
        request.layout = read_layout(in, at);
        break;
      case 5:
        request.content_digest = in.boolean(at);
        break;
      default:
        if (!in.take_nil()) request.source_layout = read_source_layout(in, at, kPayloadNesting);
    }
  }).require({kEnvelopeFields, kEnvelopeFields + 1, kEnvelopeFields + 2});
  if (request.layout == Layout::kRankMajor && !request.source_layout) {
    malformed(root.field("source_layout"), "is missing, the layout is rank_major");
  }
  return request;
}

void require_count(const Path& path, std::size_t found, std::size_t expected) {
  if (found != expected) {
    malformed(path, fmt::format("has {} entries for {} names", found, expected));
  }
}

UpdateRequest read_update_info(Reader& in, const Path& path, int nesting) {
  static constexpr Names kNames[] = {"names",        "dtype_names", "shapes",
                                     "tensor_sizes", "chunk_index", "ipc_handles"};
  Fields fields(in, path, kNames, nesting + 1);
  UpdateRequest request;
  while (const auto field = fields.next()) {
    const Path at = path.field(kNames[*field]);
    switch (*field) {
      case 0:
        request.names = read_texts(in, at);
        break;
      case 1:
        request.dtype_names = read_texts(in, at);
        break;
      case 2: {
        const std::size_t size = in.array(at);
        request.shapes.reserve(std::min(size, kReservedMax));
        for (std::size_t i = 0; i < size; ++i) {
          const Path element = at.at(i);
          request.shapes.push_back(read_integers(in, element));
        }
        break;
      }
      case 3:
        request.tensor_sizes = read_naturals(in, at);
        break;
      case 4:
        request.chunk_index = in.natural(at);
        break;
      default:
        request.handles = read_handles(in, at);
    }
  }
  fields.require({0, 1, 2, 3, 4, 5});
  require_count(path.field("dtype_names"), request.dtype_names.size(), request.names.size());
  require_count(path.field("shapes"), request.shapes.size(), request.names.size());
  require_count(path.field("tensor_sizes"), request.tensor_sizes.size(), request.names.size());
  return request;
}

Payload read_update(Reader& in) {
  static constexpr auto kNames = with_envelope("update_info");
  const Path root;
  UpdateRequest request;
  read_payload(in, root, kNames, [&](std::size_t, const Path& at) {
    request = read_update_info(in, at, kPayloadNesting);
  }).require({kEnvelopeFields});
  return request;
}

Payload read_finish(Reader& in) {
  static constexpr auto kNames = with_envelope("header", "flush_cache", "weight_version", "digest");
  const Path root;
  FinishRequest request;
  read_payload(in, root, kNames, [&](std::size_t field, const Path& at) {
    switch (field) {
      case 0:
        request.header = read_header(in, at, kPayloadNesting);
        break;
      case 1:
        request.flush_cache = in.boolean(at);
        break;
      case 2:
        request.weight_version = in.text(at);
        break;
      default:
        request.digest = read_packed_digest(in, at);
    }
  }).require({kEnvelopeFields, kEnvelopeFields + 2});
  return request;
}

}  // namespace

RequestHead decode_request_head(ByteView body) {
  return read_head(body, locate_request_envelope(body));
}

Payload decode_payload(Command command, ByteView body) {
  Reader in(body);
  switch (command) {
    case Command::kStartup:
      return read_empty<StartupRequest>(in);
    case Command::kGenerate:
      return read_generate(in);
    case Command::kSleep:
      return read_sleep(in);
    case Command::kWakeUp:
      return read_wake_up(in);
    case Command::kHealth:
      return read_empty<HealthRequest>(in);
    case Command::kProbeIpc:
      return read_probe(in);
    case Command::kInit:
      return read_init(in);
    case Command::kStart:
      return read_start(in);
    case Command::kUpdate:
      return read_update(in);
    case Command::kFinish:
      return read_finish(in);
    case Command::kRelease:
      return read_empty<ReleaseRequest>(in);
    case Command::kShutdown:
      return read_empty<ShutdownRequest>(in);
  }
  throw_invalid(ErrorKind::kInternal, "command", "a command without a decoder");
}

// ---- the actors' reports

SchemaReport decode_schema_report(ByteView bytes) {
  Reader in(bytes);
  const Path root;
  in.array_of(9, root);
  SchemaReport report;
  report.fingerprint = in.text(root.field("fingerprint"));
  report.bucket_bytes = in.natural(root.field("bucket_bytes"));
  report.content_digest = in.boolean(root.field("content_digest"));
  report.overlap = in.boolean(root.field("overlap"));
  report.layout = in.text(root.field("layout"));
  report.route = in.text(root.field("route"));
  report.flush_cache = in.boolean(root.field("flush_cache"));
  report.control_timeout_ns = in.integer(root.field("control_timeout_ns"));
  report.source.world = in.natural(root.field("world"));
  report.source.row_bounds = read_packed_bounds(in, root.field("row_bounds"));
  in.end(root);
  return report;
}

TopologyReport decode_topology_report(ByteView bytes) {
  Reader in(bytes);
  const Path root;
  in.array_of(4, root);
  TopologyReport report;
  report.tp_world_size = in.integer(root.field("tp_world_size"));
  report.device_uuids = read_texts(in, root.field("device_uuids"));
  report.worker_pids = read_integers(in, root.field("worker_pids"));
  report.layout = read_layout(in, root.field("layout"));
  in.end(root);
  return report;
}

PreflightReport decode_preflight_report(ByteView bytes) {
  Reader in(bytes);
  const Path root;
  in.array_of(5, root);
  PreflightReport report;
  report.host_name = in.text(root.field("host_name"));
  report.boot_id = in.text(root.field("boot_id"));
  report.device_uuid = in.text(root.field("device_uuid"));
  report.visible_devices = in.integer(root.field("visible_devices"));
  report.free_bytes = in.natural(root.field("free_bytes"));
  in.end(root);
  return report;
}

CommitResult decode_commit_result(ByteView bytes) {
  Reader in(bytes);
  const Path root;
  CommitResult result = read_commit_result(in, root, 0);
  in.end(root);
  return result;
}

HandleMap decode_handle_map(ByteView bytes) {
  Reader in(bytes);
  const Path root;
  HandleMap handles = read_handles(in, root);
  in.end(root);
  return handles;
}

std::optional<ErrorRecord> decode_error(ByteView bytes) {
  Reader in(bytes);
  const Path root;
  std::optional<ErrorRecord> error;
  if (!in.take_nil()) {
    in.array_of(6, root);
    error.emplace();
    const Path kind_path = root.field("kind");
    const std::uint64_t kind_number = in.natural(kind_path);
    const auto kind = error_kind_from(kind_number);
    if (!kind) malformed(kind_path, fmt::format("{} is no kind of error", kind_number));
    error->kind = *kind;
    const Path remedy_path = root.field("remedy");
    const std::uint64_t remedy_number = in.natural(remedy_path);
    const auto remedy = remedy_from(remedy_number);
    if (!remedy) malformed(remedy_path, fmt::format("{} is no remedy", remedy_number));
    error->remedy = *remedy;
    error->phase = in.text(root.field("phase"));
    const Path rank_path = root.field("rank");
    const std::int64_t rank = in.integer(rank_path);
    if (rank < -1 || rank > INT32_MAX) malformed(rank_path, fmt::format("{} is no rank", rank));
    error->rank = static_cast<int>(rank);
    error->subject = in.text(root.field("subject"));
    error->detail = in.text(root.field("detail"));
  }
  in.end(root);
  return error;
}

std::vector<std::uint64_t> decode_sums(ByteView bytes) {
  Reader in(bytes);
  const Path root;
  PackedReader packed(in.bytes(root), root);
  in.end(root);
  std::vector<std::uint64_t> sums;
  sums.reserve(packed.remaining() / 8);
  while (!packed.done()) sums.push_back(packed.word());
  return sums;
}

}  // namespace tpsync::wire
