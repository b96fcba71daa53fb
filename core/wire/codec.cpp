// Writers and readers stand side by side, so that a field is added to both at once. Readers hand
// out fields in the order of the wire, and name a missing one in the order of the struct.
#include "tpsync/wire/codec.h"

#include <fmt/format.h>

#include <algorithm>

#include "tpsync/base/errors.h"

namespace tpsync::wire {
namespace {

using Names = std::string_view;

// Differences wrap, so that every pair of values has one; small ones of either sign become small
// numbers.
std::uint64_t zigzag(std::uint64_t difference) {
  return difference << 1 ^ (std::uint64_t{0} - (difference >> 63));
}
std::uint64_t unzigzag(std::uint64_t value) {
  return value >> 1 ^ (std::uint64_t{0} - (value & 1));
}

// The fewest bytes that one element takes in its packed form.
constexpr std::size_t kPackedPartBytesMin = 5 + 8;
constexpr std::size_t kPackedSumBytesMin = 2 + 8;

// What a writer sets aside for one of them; a larger one makes the buffer grow.
constexpr std::size_t kPackedPartBytesUsual = 16;

void write(Writer& out, const Manifest& manifest) {
  out.map(3);
  out.text("fingerprint");
  out.text(manifest.fingerprint);
  out.text("tensor_count");
  out.natural(manifest.tensor_count);
  out.text("byte_count");
  out.natural(manifest.byte_count);
}

Manifest read_manifest(Reader& in, const Path& path, int nesting) {
  static constexpr Names kNames[] = {"fingerprint", "tensor_count", "byte_count"};
  Fields fields(in, path, kNames, nesting + 1);
  Manifest manifest;
  while (const auto field = fields.next()) {
    const Path at = path.field(kNames[*field]);
    switch (*field) {
      case 0:
        manifest.fingerprint = in.text(at);
        break;
      case 1:
        manifest.tensor_count = in.natural(at);
        break;
      default:
        manifest.byte_count = in.natural(at);
    }
  }
  fields.require({0, 1, 2});
  return manifest;
}

}  // namespace

void write(Writer& out, const PublicationHeader& header) {
  out.map(7);
  out.text("protocol_version");
  out.integer(header.protocol_version);
  out.text("transport");
  out.text(header.transport);
  out.text("publication_id");
  out.text(header.publication_id);
  out.text("model_version");
  out.integer(header.model_version);
  out.text("tp_world_size");
  out.integer(header.tp_world_size);
  out.text("expected_manifest");
  write(out, header.expected_manifest);
  out.text("device_uuids");
  write_texts(out, header.device_uuids);
}

PublicationHeader read_header(Reader& in, const Path& path, int nesting) {
  static constexpr Names kNames[] = {"protocol_version", "transport",     "publication_id",
                                     "model_version",    "tp_world_size", "expected_manifest",
                                     "device_uuids"};
  Fields fields(in, path, kNames, nesting + 1);
  PublicationHeader header;
  while (const auto field = fields.next()) {
    const Path at = path.field(kNames[*field]);
    switch (*field) {
      case 0:
        header.protocol_version = in.integer(at);
        break;
      case 1:
        header.transport = in.text(at);
        break;
      case 2:
        header.publication_id = in.text(at);
        break;
      case 3:
        header.model_version = in.integer(at);
        break;
      case 4:
        header.tp_world_size = in.integer(at);
        break;
      case 5:
        header.expected_manifest = read_manifest(in, at, nesting + 1);
        break;
      default:
        header.device_uuids = read_texts(in, at);
    }
  }
  fields.require({0, 1, 2, 3, 4, 5, 6});
  return header;
}

void write(Writer& out, const WorkerReceipt& receipt) {
  out.map(9);
  out.text("tp_rank");
  out.integer(receipt.tp_rank);
  out.text("tp_world_size");
  out.integer(receipt.tp_world_size);
  out.text("device_uuid");
  out.text(receipt.device_uuid);
  out.text("publication_id");
  out.text(receipt.publication_id);
  out.text("model_version");
  out.integer(receipt.model_version);
  out.text("expected_manifest_fingerprint");
  out.text(receipt.expected_manifest_fingerprint);
  out.text("resident_parameter_count");
  out.integer(receipt.resident_parameter_count);
  out.text("ready");
  out.boolean(receipt.ready);
  out.text("digest");
  write_packed(out, receipt.digest);
}

WorkerReceipt read_receipt(Reader& in, const Path& path, int nesting) {
  static constexpr Names kNames[] = {"tp_rank",
                                     "tp_world_size",
                                     "device_uuid",
                                     "publication_id",
                                     "model_version",
                                     "expected_manifest_fingerprint",
                                     "resident_parameter_count",
                                     "ready",
                                     "digest"};
  Fields fields(in, path, kNames, nesting + 1);
  WorkerReceipt receipt;
  while (const auto field = fields.next()) {
    const Path at = path.field(kNames[*field]);
    switch (*field) {
      case 0:
        receipt.tp_rank = in.integer(at);
        break;
      case 1:
        receipt.tp_world_size = in.integer(at);
        break;
      case 2:
        receipt.device_uuid = in.text(at);
        break;
      case 3:
        receipt.publication_id = in.text(at);
        break;
      case 4:
        receipt.model_version = in.integer(at);
        break;
      case 5:
        receipt.expected_manifest_fingerprint = in.text(at);
        break;
      case 6:
        receipt.resident_parameter_count = in.integer(at);
        break;
      case 7:
        receipt.ready = in.boolean(at);
        break;
      default:
        receipt.digest = read_packed_parts(in, at);
    }
  }
  fields.require({0, 1, 2, 3, 4, 5, 6, 7});
  return receipt;
}

std::vector<WorkerReceipt> read_receipts(Reader& in, const Path& path, int nesting) {
  const std::size_t size = in.array(path);
  std::vector<WorkerReceipt> receipts;
  receipts.reserve(std::min(size, kReservedMax));
  for (std::size_t i = 0; i < size; ++i) {
    const Path at = path.at(i);
    receipts.push_back(read_receipt(in, at, nesting + 1));
  }
  return receipts;
}

void write(Writer& out, const CommitResult& result) {
  out.map(4);
  out.text("status");
  out.text(result.status);
  out.text("model_version");
  out.integer(result.model_version);
  out.text("worker_receipts");
  out.array(result.worker_receipts.size());
  for (const WorkerReceipt& receipt : result.worker_receipts) write(out, receipt);
  out.text("prefix_cache_reset");
  out.boolean(result.prefix_cache_reset);
}

CommitResult read_commit_result(Reader& in, const Path& path, int nesting) {
  static constexpr Names kNames[] = {"status", "model_version", "worker_receipts",
                                     "prefix_cache_reset"};
  Fields fields(in, path, kNames, nesting + 1);
  CommitResult result;
  while (const auto field = fields.next()) {
    const Path at = path.field(kNames[*field]);
    switch (*field) {
      case 0:
        result.status = in.text(at);
        break;
      case 1:
        result.model_version = in.integer(at);
        break;
      case 2:
        result.worker_receipts = read_receipts(in, at, nesting + 1);
        break;
      default:
        result.prefix_cache_reset = in.boolean(at);
    }
  }
  fields.require({0, 1, 2, 3});
  return result;
}

void write(Writer& out, const HandleMap& handles) {
  out.map(handles.entries.size());
  for (const auto& [uuid, handle] : handles.entries) {
    out.text(uuid);
    out.bytes(handle);
  }
}

HandleMap read_handles(Reader& in, const Path& path) {
  const std::size_t size = in.map(path);
  HandleMap handles;
  handles.entries.reserve(std::min(size, kReservedMax));
  for (std::size_t i = 0; i < size; ++i) {
    const Path at = path.at(i);
    std::string uuid(in.text(at));
    const ByteView handle = in.bytes(at);
    handles.entries.emplace_back(std::move(uuid), ByteBuffer(handle.begin(), handle.end()));
  }
  const auto by_uuid = [](const auto& a, const auto& b) { return a.first < b.first; };
  // Written in this order by every sender of ours.
  if (!std::is_sorted(handles.entries.begin(), handles.entries.end(), by_uuid)) {
    std::stable_sort(handles.entries.begin(), handles.entries.end(), by_uuid);
  }
  for (std::size_t i = 1; i < size; ++i) {
    const std::string& uuid = handles.entries[i].first;
    if (uuid == handles.entries[i - 1].first) {
      malformed(path, fmt::format("has {} twice", printable(uuid)));
    }
  }
  return handles;
}

void write_texts(Writer& out, std::span<const std::string> texts) {
  out.array(texts.size());
  for (const std::string& text : texts) out.text(text);
}

std::vector<std::string> read_texts(Reader& in, const Path& path) {
  const std::size_t size = in.array(path);
  std::vector<std::string> texts;
  texts.reserve(std::min(size, kReservedMax));
  for (std::size_t i = 0; i < size; ++i) {
    const Path at = path.at(i);
    texts.emplace_back(in.text(at));
  }
  return texts;
}

void write_naturals(Writer& out, std::span<const std::uint64_t> values) {
  out.array(values.size());
  for (const std::uint64_t value : values) out.natural(value);
}

std::vector<std::uint64_t> read_naturals(Reader& in, const Path& path) {
  const std::size_t size = in.array(path);
  std::vector<std::uint64_t> values;
  values.reserve(size);
  for (std::size_t i = 0; i < size; ++i) {
    const Path at = path.at(i);
    values.push_back(in.natural(at));
  }
  return values;
}

void write_integers(Writer& out, std::span<const std::int64_t> values) {
  out.array(values.size());
  for (const std::int64_t value : values) out.integer(value);
}

std::vector<std::int64_t> read_integers(Reader& in, const Path& path) {
  const std::size_t size = in.array(path);
  std::vector<std::int64_t> values;
  values.reserve(size);
  for (std::size_t i = 0; i < size; ++i) {
    const Path at = path.at(i);
    values.push_back(in.integer(at));
  }
  return values;
}

void write_packed(Writer& out, std::span<const DigestPart> parts) {
  PackedWriter packed(parts.size() * kPackedPartBytesUsual);
  std::uint64_t previous = 0;
  for (const DigestPart& part : parts) {
    packed.varint(zigzag(part.tensor - previous));
    packed.varint(part.row0);
    packed.varint(part.row1 - part.row0);
    packed.varint(part.col0);
    packed.varint(part.col1 - part.col0);
    packed.word(part.sum);
    previous = part.tensor;
  }
  out.bytes(packed.bytes());
}

std::vector<DigestPart> read_packed_parts(Reader& in, const Path& path) {
  PackedReader packed(in.bytes(path), path);
  std::vector<DigestPart> parts;
  parts.reserve(packed.remaining() / kPackedPartBytesMin);
  std::uint64_t tensor = 0;
  while (!packed.done()) {
    DigestPart part;
    tensor += unzigzag(packed.varint());
    part.tensor = tensor;
    part.row0 = packed.varint();
    part.row1 = part.row0 + packed.varint();
    part.col0 = packed.varint();
    part.col1 = part.col0 + packed.varint();
    part.sum = packed.word();
    parts.push_back(part);
  }
  return parts;
}

void write_packed(Writer& out, const ExpectedDigest& digest) {
  PackedWriter packed(digest.tensors.size() * kPackedPartBytesUsual);
  for (const ExpectedDigest::Tensor& tensor : digest.tensors) {
    packed.varint(tensor.rows);
    packed.varint(tensor.cols);
    packed.word(tensor.sum);
  }
  out.bytes(packed.bytes());
}

ExpectedDigest read_packed_digest(Reader& in, const Path& path) {
  PackedReader packed(in.bytes(path), path);
  ExpectedDigest digest;
  digest.tensors.reserve(packed.remaining() / kPackedSumBytesMin);
  while (!packed.done()) {
    ExpectedDigest::Tensor tensor;
    tensor.rows = packed.varint();
    tensor.cols = packed.varint();
    tensor.sum = packed.word();
    digest.tensors.push_back(tensor);
  }
  return digest;
}

void write_packed_bounds(Writer& out, const SourceLayout& layout) {
  PackedWriter packed(2 * layout.row_bounds.size());
  std::uint64_t previous = 0;
  for (const std::uint64_t bound : layout.row_bounds) {
    packed.varint(zigzag(bound - previous));
    previous = bound;
  }
  out.bytes(packed.bytes());
}

std::vector<std::uint64_t> read_packed_bounds(Reader& in, const Path& path) {
  PackedReader packed(in.bytes(path), path);
  std::vector<std::uint64_t> bounds;
  bounds.reserve(packed.remaining());
  std::uint64_t previous = 0;
  while (!packed.done()) {
    previous += unzigzag(packed.varint());
    bounds.push_back(previous);
  }
  return bounds;
}

// ---- envelopes

namespace {

constexpr Names kEnvelopeNames[] = {"protocol_version", "request_id", "command",  "ok",
                                    "result",           "error",      "traceback"};
constexpr std::size_t kRequestNameCount = 3;

Envelope locate(ByteView body, std::span<const std::string_view> names) {
  Reader in(body);
  const Path root;
  Envelope envelope;
  std::size_t* const slots[] = {
      &envelope.protocol_version, &envelope.request_id, &envelope.command,  &envelope.ok,
      &envelope.result,           &envelope.error,      &envelope.traceback};
  Fields fields(in, root, names, 1);
  while (const auto field = fields.next()) {
    *slots[*field] = in.position();
    in.skip(root.field(names[*field]), 1);
  }
  in.end(root);
  return envelope;
}

}  // namespace

Envelope locate_request_envelope(ByteView body) {
  return locate(body, std::span(kEnvelopeNames).first(kRequestNameCount));
}

Envelope locate_response_envelope(ByteView body) { return locate(body, kEnvelopeNames); }

Reader reader_at(ByteView body, std::size_t position, const Path& path) {
  if (position == Envelope::kAbsent) malformed(path, "is missing");
  return Reader(body.subspan(position));
}

RequestHead read_head(ByteView body, const Envelope& envelope) {
  const Path root;
  const Path version_path = root.field("protocol_version");
  const std::int64_t version =
      reader_at(body, envelope.protocol_version, version_path).integer(version_path);
  if (version != kProtocolVersion) {
    malformed(version_path, fmt::format("is {}, expected {}", version, kProtocolVersion));
  }
  RequestHead head;
  const Path id_path = root.field("request_id");
  head.request_id = reader_at(body, envelope.request_id, id_path).integer(id_path);
  if (head.request_id < 1) {
    malformed(id_path, fmt::format("is {}, must be positive", head.request_id));
  }
  const Path command_path = root.field("command");
  head.command = reader_at(body, envelope.command, command_path).text(command_path);
  if (head.command.empty()) malformed(command_path, "is empty");
  return head;
}

}  // namespace tpsync::wire
