// Messages that are not what they should be: fields of requests and replies, and bodies that no
// longer are what a decoder expects.
#include <algorithm>
#include <functional>
#include <utility>
#include <variant>

#include "faults/catalogue.h"
#include "faults/messages.h"
#include "tpsync/base/errors.h"
#include "tpsync/wire/codec.h"

namespace tpsync::faults {
namespace {

constexpr std::string_view kForeignUuid = "00000000-dead-4000-8000-000000000000";
constexpr std::string_view kUnknownField = "build";
constexpr std::string_view kUnknownValue = "nightly";
// Of MessagePack: a map of few or of many fields, a short text, nil.
constexpr unsigned kShortMap = 0x80;
constexpr unsigned kShortMapMax = 15;
constexpr unsigned kMap16 = 0xde;
constexpr unsigned kShortText = 0xa0;
constexpr std::byte kNil{0xc0};

void append_text(ByteBuffer& out, std::string_view text) {
  out.push_back(static_cast<std::byte>(kShortText | text.size()));
  for (const char c : text) out.push_back(static_cast<std::byte>(c));
}

// One more field at the end of the map, named by the number of fields: altered twice, a message has
// two fields that nobody knows, and none twice.
std::optional<ByteBuffer> with_extra_field(ByteView body) {
  if (body.empty()) return std::nullopt;
  const auto head = std::to_integer<unsigned>(body.front());
  ByteBuffer out;
  unsigned count = 0;
  if ((head & 0xf0U) == kShortMap) {
    count = (head & kShortMapMax) + 1;
    if (count <= kShortMapMax) {
      out.push_back(static_cast<std::byte>(kShortMap | count));
    } else {
      out = {static_cast<std::byte>(kMap16), std::byte{0}, static_cast<std::byte>(count)};
    }
    std::copy(body.begin() + 1, body.end(), std::back_inserter(out));
  } else if (head == kMap16 && body.size() > 2 && body[2] != std::byte{0xff}) {
    out.assign(body.begin(), body.end());
    count = std::to_integer<unsigned>(out[2]) + 1;
    out[2] = static_cast<std::byte>(count);
  } else {
    return std::nullopt;
  }
  append_text(out, std::string(kUnknownField) + std::to_string(count));
  append_text(out, kUnknownValue);
  return out;
}

std::optional<ByteBuffer> malformed(ByteView body) {
  if (body.empty() || body.front() == kNil) return std::nullopt;
  ByteBuffer out(body.begin(), body.end());
  out.front() = kNil;
  return out;
}

// Of a body that has the field as a small number.
std::optional<ByteBuffer> with_other_protocol(ByteView body) {
  constexpr std::string_view kName = "protocol_version";
  const ByteView name = as_view(kName);
  ByteBuffer out(body.begin(), body.end());
  const auto found = std::search(out.begin(), out.end(), name.begin(), name.end());
  const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(kName.size());
  if (out.end() - found <= size) return std::nullopt;
  std::byte& value = *(found + size);
  value = static_cast<std::byte>(std::to_integer<unsigned>(value) + 1);
  return out;
}

std::optional<ByteBuffer> altered_reply(ByteView body, wire::Peer sender,
                                        const std::function<bool(wire::Response&)>& alter) {
  const wire::RequestHead head = wire::read_head(body, wire::locate_response_envelope(body));
  wire::Response response = wire::decode_response(body, head.request_id, head.command, sender);
  if (!alter(response)) return std::nullopt;
  ByteBuffer out;
  wire::encode_response(response, out);
  return out;
}

bool alter_envelope(wire::Response& response, std::string_view field) {
  if (field == "request_id") {
    ++response.request_id;
    return true;
  }
  const std::string_view health = name_of(wire::Command::kHealth);
  response.command = response.command == health ? name_of(wire::Command::kGenerate) : health;
  return true;
}

bool turn_into_failure(wire::Response& response) {
  if (!response.ok) return false;
  const auto command = wire::command_from(response.command);
  response.ok = false;
  response.error = "RuntimeError: an illegal memory access was encountered";
  response.result = std::monostate{};
  if (command && wire::is_native(*command)) response.result = wire::AbortedResult{};
  return true;
}

// ---- requests ----

bool alter_start(std::string_view field, wire::StartRequest& start) {
  wire::PublicationHeader& header = start.header;
  if (field == "tp_world_size") {
    ++header.tp_world_size;
  } else if (field == "fingerprint") {
    std::string& fingerprint = header.expected_manifest.fingerprint;
    if (fingerprint.empty()) return false;
    fingerprint.front() = fingerprint.front() == '0' ? '1' : '0';
  } else if (field == "device_uuids") {
    if (header.device_uuids.size() < 2) return false;
    std::rotate(header.device_uuids.begin(), header.device_uuids.begin() + 1,
                header.device_uuids.end());
  } else if (field == "chunk_tensor_counts") {
    if (start.chunk_tensor_counts.empty()) return false;
    ++start.chunk_tensor_counts.front();
  } else if (field == "buffer_bytes") {
    start.buffer_bytes = 1;
  } else {
    return false;
  }
  return true;
}

bool alter_finish(std::string_view field, wire::FinishRequest& finish) {
  if (field == "finished_version") {
    ++finish.header.model_version;
    return true;
  }
  std::string& id = finish.header.publication_id;
  if (field != "publication_id" || id.empty()) return false;
  id.front() = id.front() == '0' ? '1' : '0';
  return true;
}

// `sender` is the runtime where one worker is spoken to: there the others' handles count for
// nothing.
bool alter_handles(std::string_view fault, wire::Peer sender, wire::HandleMap& handles) {
  auto& entries = handles.entries;
  if (entries.empty()) return false;
  if (fault == "ipc.missing_handle") {
    entries.erase(entries.begin(),
                  sender == wire::Peer::kRuntime ? entries.end() : entries.begin() + 1);
    return true;
  }
  if (entries.size() < 2) return false;
  ByteBuffer first = std::move(entries.front().second);
  for (std::size_t i = 0; i + 1 < entries.size(); ++i) {
    entries[i].second = std::move(entries[i + 1].second);
  }
  entries.back().second = std::move(first);
  return true;
}

bool alter_update(const Fault& fault, wire::UpdateRequest& update) {
  if (fault.name == "weights.chunk_skipped") {
    ++update.chunk_index;
    return true;
  }
  if (fault.name != "weights.record" || update.names.empty()) return false;
  const std::string& field = fault.arguments.at(std::string(kField));
  if (field == "name") update.names.front() = "module." + update.names.front();
  if (field == "shape") update.shapes.front().insert(update.shapes.front().begin(), 1);
  if (field == "dtype") update.dtype_names.front() = "float64";
  return true;
}

bool alter_request(const Fault& fault, wire::Peer sender, wire::Payload& payload) {
  const bool is_of_ipc = fault.name.starts_with("ipc.");
  if (auto* probe = std::get_if<wire::ProbeIpcRequest>(&payload)) {
    return is_of_ipc && alter_handles(fault.name, sender, probe->handles);
  }
  if (auto* update = std::get_if<wire::UpdateRequest>(&payload)) {
    return is_of_ipc ? alter_handles(fault.name, sender, update->handles)
                     : alter_update(fault, *update);
  }
  if (auto* start = std::get_if<wire::StartRequest>(&payload)) {
    std::int64_t& version = start->header.model_version;
    if (fault.name == "version.stale" || fault.name == "version.ahead") {
      version += fault.name == "version.stale" ? -1 : 3;
      return true;
    }
    return fault.name == "channel.corrupted_field" &&
           alter_start(fault.arguments.at(std::string(kField)), *start);
  }
  auto* finish = std::get_if<wire::FinishRequest>(&payload);
  return finish != nullptr && fault.name == "channel.corrupted_field" &&
         alter_finish(fault.arguments.at(std::string(kField)), *finish);
}

std::optional<ByteBuffer> altered_request(const Fault& fault, wire::Peer sender, ByteView body) {
  const wire::RequestHead head = wire::decode_request_head(body);
  const auto command = wire::command_from(head.command);
  if (!command) return std::nullopt;
  wire::Payload payload = wire::decode_payload(*command, body);
  if (!alter_request(fault, sender, payload)) return std::nullopt;
  ByteBuffer out;
  wire::encode_request(head.request_id, payload, out);
  return out;
}

}  // namespace

std::optional<ByteBuffer> distort_message(const Fault& fault, wire::Peer sender, bool is_reply,
                                          ByteView body) {
  if (fault.name == "channel.malformed_body") return malformed(body);
  if (fault.name == "channel.wrong_version") return with_other_protocol(body);
  if (fault.name == "channel.extra_field") return with_extra_field(body);
  try {
    if (!is_reply) return altered_request(fault, sender, body);
    if (fault.name == "channel.wrong_reply") {
      return altered_reply(body, sender, [&](wire::Response& response) {
        return alter_envelope(response, fault.arguments.at(std::string(kField)));
      });
    }
    if (fault.name == "channel.error_reply") return altered_reply(body, sender, turn_into_failure);
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // another fault got there first
  }
}

std::optional<ByteBuffer> with_other_uuid(ByteView handles, const std::string& uuid) {
  try {
    wire::HandleMap map = wire::decode_handle_map(handles);
    if (map.entries.empty()) return std::nullopt;
    map.entries.front().first = uuid.empty() ? std::string(kForeignUuid) : uuid;
    ByteBuffer out;
    wire::encode(map, out);
    return out;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace tpsync::faults
