#include "faults/messages.h"

#include <string_view>
#include <utility>
#include <variant>

#include "faults/catalogue.h"
#include "tpsync/base/errors.h"
#include "tpsync/wire/codec.h"

namespace tpsync::faults {
namespace {

// Another character of the same kind: hex stays hex.
void change(char& c) { c = c == '0' ? '1' : '0'; }

bool alter_receipt(std::string_view name, wire::WorkerReceipt& receipt) {
  if (name == "receipt.tp_rank") {
    ++receipt.tp_rank;
  } else if (name == "receipt.tp_world_size") {
    ++receipt.tp_world_size;
  } else if (name == "receipt.device_uuid") {
    if (receipt.device_uuid.empty()) return false;
    change(receipt.device_uuid.back());
  } else if (name == "receipt.publication_id") {
    if (receipt.publication_id.empty()) return false;
    change(receipt.publication_id.front());
  } else if (name == "receipt.model_version") {
    ++receipt.model_version;
  } else if (name == "receipt.expected_manifest_fingerprint") {
    if (receipt.expected_manifest_fingerprint.empty()) return false;
    change(receipt.expected_manifest_fingerprint.front());
  } else if (name == "receipt.resident_parameter_count") {
    receipt.resident_parameter_count = 0;
  } else if (name == "receipt.ready") {
    receipt.ready = false;
  } else if (name == "receipt.digest") {
    if (receipt.digest.empty()) return false;
    ++receipt.digest.front().sum;
  } else {
    return false;
  }
  return true;
}

std::size_t receipt_index(const Fault& fault) {
  const auto found = fault.arguments.find("receipt");
  if (found == fault.arguments.end()) return 0;
  std::size_t index = 0;
  for (const char digit : found->second) {
    index = index * 10 + static_cast<std::size_t>(digit - '0');
  }
  return index;
}

bool alter_commit(const Fault& fault, wire::CommitResult& result) {
  if (fault.name == "result.status") {
    result.status = "aborted";
    return true;
  }
  if (fault.name == "result.model_version") {
    ++result.model_version;
    return true;
  }
  if (fault.name == "result.prefix_cache_reset") {
    return std::exchange(result.prefix_cache_reset, false);
  }
  if (fault.name == "receipt.echoed") {
    auto& all = result.worker_receipts;
    if (all.size() < 2) return false;
    all.back() = wire::WorkerReceipt(all.front());
    return true;
  }
  const std::size_t index = receipt_index(fault);
  auto& receipts = result.worker_receipts;
  if (index >= receipts.size()) return false;
  if (fault.name == "receipt.missing") {
    receipts.erase(receipts.begin() + static_cast<std::ptrdiff_t>(index));
    return true;
  }
  if (fault.name == "receipt.duplicated") {
    const wire::WorkerReceipt copy = receipts[index];
    receipts.push_back(copy);
    return true;
  }
  return alter_receipt(fault.name, receipts[index]);
}

std::optional<wire::Response> finish_reply(ByteView body, wire::Peer peer) {
  try {
    const wire::RequestHead head = wire::read_head(body, wire::locate_response_envelope(body));
    if (head.command != name_of(wire::Command::kFinish)) return std::nullopt;
    wire::Response response = wire::decode_response(body, head.request_id, head.command, peer);
    if (!response.ok) return std::nullopt;
    return response;
  } catch (const Error&) {
    return std::nullopt;  // another fault got there first
  }
}

AlteredFrame encoded(const wire::Response& response, int copies) {
  AlteredFrame frame;
  frame.copies = copies;
  wire::encode_response(response, frame.body);
  return frame;
}

}  // namespace

std::optional<AlteredFrame> alter_worker_reply(const Fault& fault, ByteView body) {
  auto response = finish_reply(body, wire::Peer::kWorker);
  if (!response) return std::nullopt;
  auto* receipt = std::get_if<wire::WorkerReceipt>(&response->result);
  if (receipt == nullptr) return std::nullopt;
  if (fault.name == "receipt.duplicated") {
    return AlteredFrame{ByteBuffer(body.begin(), body.end()), 2};
  }
  if (fault.name == "receipt.missing") {
    response->result = std::monostate{};
  } else if (!alter_receipt(fault.name, *receipt)) {
    return std::nullopt;
  }
  return encoded(*response, 1);
}

std::optional<AlteredFrame> alter_runtime_reply(const Fault& fault, ByteView body) {
  auto response = finish_reply(body, wire::Peer::kRuntime);
  if (!response) return std::nullopt;
  auto* result = std::get_if<wire::CommitResult>(&response->result);
  if (result == nullptr || !alter_commit(fault, *result)) return std::nullopt;
  return encoded(*response, 1);
}

std::optional<ByteBuffer> alter_broadcast(const Fault& fault, ByteView bytes) {
  try {
    wire::CommitResult result = wire::decode_commit_result(bytes);
    if (!alter_commit(fault, result)) return std::nullopt;
    ByteBuffer out;
    wire::encode(result, out);
    return out;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<ByteBuffer> lose_expert(const Fault& fault, ByteView body) {
  try {
    const wire::RequestHead head = wire::decode_request_head(body);
    if (head.command != name_of(wire::Command::kUpdate)) return std::nullopt;
    wire::Payload payload = wire::decode_payload(wire::Command::kUpdate, body);
    const auto& update = std::get<wire::UpdateRequest>(payload);
    const std::string prefix = expert_of(fault) + ".";
    wire::UpdateRequest kept;
    kept.chunk_index = update.chunk_index;
    kept.handles = update.handles;
    for (std::size_t i = 0; i < update.names.size(); ++i) {
      if (update.names[i].starts_with(prefix)) continue;
      kept.names.push_back(update.names[i]);
      kept.dtype_names.push_back(update.dtype_names[i]);
      kept.shapes.push_back(update.shapes[i]);
      kept.tensor_sizes.push_back(update.tensor_sizes[i]);
    }
    if (kept.names.size() == update.names.size()) return std::nullopt;
    ByteBuffer out;
    wire::encode_request(head.request_id, wire::Payload(std::move(kept)), out);
    return out;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace tpsync::faults
