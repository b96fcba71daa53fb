// Responses from bytes of outside: the envelope's checks in their order, then the one form of
// result that (command, ok, peer) allows:
//
//   command       | ok    | runtime               | worker
//   startup       | true  | StartupResult         | WorkerCapability
//   generate      | true  | GenerateResult        | GenerateResult
//   health        | true  | true                  | true
//   finish        | true  | CommitResult          | WorkerReceipt
//   other known   | true  | nil                   | nil
//   five native   | false | AbortedResult         | AbortedResult or nil
//   all others    | false | nil                   | nil
//
// An unknown command is never answered with ok.
#include <fmt/format.h>

#include "tpsync/base/errors.h"
#include "tpsync/wire/codec.h"

namespace tpsync::wire {
namespace {

using Names = std::string_view;

constexpr int kResultNesting = 1;  // the message's own map

WorkerCapability read_capability(Reader& in, const Path& path, int nesting) {
  static constexpr Names kNames[] = {"tp_rank", "tp_world_size", "cuda_device_uuid", "vllm_version",
                                     "pid"};
  Fields fields(in, path, kNames, nesting + 1);
  WorkerCapability capability;
  while (const auto field = fields.next()) {
    const Path at = path.field(kNames[*field]);
    switch (*field) {
      case 0:
        capability.tp_rank = in.integer(at);
        break;
      case 1:
        capability.tp_world_size = in.integer(at);
        break;
      case 2:
        capability.cuda_device_uuid = in.text(at);
        break;
      case 3:
        capability.vllm_version = in.text(at);
        break;
      default:
        capability.pid = in.integer(at);
    }
  }
  fields.require({0, 1, 2, 3, 4});
  return capability;
}

StartupResult read_startup_result(Reader& in, const Path& path, int nesting) {
  static constexpr Names kNames[] = {"event",      "vllm_version",        "process_group_id",
                                     "model_type", "worker_capabilities", "committed_version",
                                     "layouts",    "transports"};
  Fields fields(in, path, kNames, nesting + 1);
  StartupResult result;
  while (const auto field = fields.next()) {
    const Path at = path.field(kNames[*field]);
    switch (*field) {
      case 0:
        result.event = in.text(at);
        break;
      case 1:
        result.vllm_version = in.text(at);
        break;
      case 2:
        result.process_group_id = in.integer(at);
        break;
      case 3:
        result.model_type = in.text(at);
        break;
      case 4: {
        const std::size_t size = in.array(at);
        for (std::size_t i = 0; i < size; ++i) {
          const Path element = at.at(i);
          result.worker_capabilities.push_back(read_capability(in, element, nesting + 2));
        }
        break;
      }
      case 5:
        result.committed_version = in.integer(at);
        break;
      case 6:
        result.layouts = read_texts(in, at);
        break;
      default:
        result.transports = read_texts(in, at);
    }
  }
  fields.require({0, 1, 2, 3, 4, 5, 6});
  return result;
}

GeneratedRow read_row(Reader& in, const Path& path, int nesting) {
  static constexpr Names kNames[] = {"text", "token_ids", "logprobs", "finish_reason"};
  Fields fields(in, path, kNames, nesting + 1);
  GeneratedRow row;
  while (const auto field = fields.next()) {
    const Path at = path.field(kNames[*field]);
    switch (*field) {
      case 0:
        row.text = in.text(at);
        break;
      case 1:
        row.token_ids = read_integers(in, at);
        break;
      case 2: {
        const std::size_t size = in.array(at);
        row.logprobs.reserve(size);
        for (std::size_t i = 0; i < size; ++i) row.logprobs.push_back(in.real(at.at(i)));
        break;
      }
      default:
        row.finish_reason = in.text(at);
    }
  }
  fields.require({0, 1, 2, 3});
  return row;
}

GenerateResult read_rows(Reader& in, const Path& path, int nesting) {
  GenerateResult result;
  const std::size_t size = in.array(path);
  for (std::size_t i = 0; i < size; ++i) {
    const Path element = path.at(i);
    result.rows.push_back(read_row(in, element, nesting + 1));
  }
  return result;
}

AbortedResult read_aborted(Reader& in, const Path& path, int nesting) {
  static constexpr Names kNames[] = {"status", "worker_receipts"};
  Fields fields(in, path, kNames, nesting + 1);
  AbortedResult result;
  while (const auto field = fields.next()) {
    const Path at = path.field(kNames[*field]);
    if (*field == 1) {
      result.worker_receipts = read_receipts(in, at, nesting + 1);
      continue;
    }
    const std::string_view status = in.text(at);
    if (status != "aborted") malformed(at, fmt::format("{} is not \"aborted\"", printable(status)));
  }
  fields.require({0, 1});
  return result;
}

std::monostate read_nil(Reader& in, const Path& path) {
  if (!in.take_nil()) malformed(path, "is not nil");
  return {};
}

HealthResult read_health(Reader& in, const Path& path) {
  if (!in.boolean(path)) malformed(path, "is false: a healthy peer says true");
  return {};
}

Result read_success(Command command, Peer peer, Reader& in, const Path& path) {
  const bool worker = peer == Peer::kWorker;
  switch (command) {
    case Command::kStartup:
      if (worker) return read_capability(in, path, kResultNesting);
      return read_startup_result(in, path, kResultNesting);
    case Command::kGenerate:
      return read_rows(in, path, kResultNesting);
    case Command::kHealth:
      return read_health(in, path);
    case Command::kFinish:
      if (worker) return read_receipt(in, path, kResultNesting);
      return read_commit_result(in, path, kResultNesting);
    case Command::kSleep:
    case Command::kWakeUp:
    case Command::kProbeIpc:
    case Command::kInit:
    case Command::kStart:
    case Command::kUpdate:
    case Command::kRelease:
    case Command::kShutdown:
      break;
  }
  return read_nil(in, path);
}

Result read_failure(std::optional<Command> command, Peer peer, Reader& in, const Path& path) {
  if (!command || !is_native(*command)) return read_nil(in, path);
  if (peer == Peer::kWorker && in.take_nil()) return std::monostate{};
  return read_aborted(in, path, kResultNesting);
}

}  // namespace

Response decode_response(ByteView body, std::int64_t expected_id, std::string_view expected_command,
                         Peer peer) {
  const Envelope envelope = locate_response_envelope(body);
  RequestHead head = read_head(body, envelope);
  const Path root;
  if (head.request_id != expected_id) {
    malformed(root.field("request_id"),
              fmt::format("is {}, expected {}", head.request_id, expected_id));
  }
  if (head.command != expected_command) {
    malformed(root.field("command"),
              fmt::format("is {}, expected \"{}\"", printable(head.command), expected_command));
  }
  Response response;
  response.request_id = head.request_id;
  response.command = std::move(head.command);
  const Path ok_path = root.field("ok");
  response.ok = reader_at(body, envelope.ok, ok_path).boolean(ok_path);
  const Path result_path = root.field("result");
  Reader in = reader_at(body, envelope.result, result_path);
  const std::optional<Command> command = command_from(expected_command);
  if (!response.ok) {
    response.result = read_failure(command, peer, in, result_path);
    const auto optional_text = [&](std::size_t position, const Path& path) {
      if (position == Envelope::kAbsent) return std::string();
      return std::string(reader_at(body, position, path).text(path));
    };
    response.error = optional_text(envelope.error, root.field("error"));
    response.traceback = optional_text(envelope.traceback, root.field("traceback"));
    return response;
  }
  if (!command) malformed(ok_path, "is true for a command that does not exist");
  response.result = read_success(*command, peer, in, result_path);
  return response;
}

}  // namespace tpsync::wire
