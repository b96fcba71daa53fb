#include "tpsync/runtime/command_loop.h"

#include <algorithm>
#include <utility>

#include "tpsync/base/errors.h"
#include "tpsync/wire/frame.h"

namespace tpsync::runtime {

namespace {

// A reply may take this long even if its command took all of its time.
constexpr Duration kReplyAllowance = std::chrono::seconds(5);

std::string_view class_name(Remedy remedy) {
  switch (remedy) {
    case Remedy::kFixInput:
      return "InvalidInput";
    case Remedy::kTryLater:
      return "NothingHappened";
    case Remedy::kRebuildRuntime:
      return wire::kBrokenClass;
    case Remedy::kFixPeer:
      return "PeerViolation";
  }
  return "Error";
}

class Loop {
 public:
  Loop(World& world, Channel& channel, CommandHandler& handler, const LoopOptions& options)
      : world_(world), channel_(channel), handler_(handler), options_(options) {}

  void run() {
    while (serve_one() == After::kContinue) {
    }
  }

 private:
  After serve_one() {
    wire::receive_frame(channel_, body_, handler_.next_request_deadline());
    wire::RequestHead head = wire::decode_request_head(body_);
    const bool in_order =
        options_.consecutive_ids ? head.request_id == last_id_ + 1 : head.request_id > last_id_;
    if (!in_order) {
      throw_violation(
          ErrorKind::kProtocol, "request_id",
          "is " + std::to_string(head.request_id) + " after " + std::to_string(last_id_));
    }
    const Deadline due = Deadline::after(world_.clock, options_.reply_timeout);
    const bool first = last_id_ == 0;
    last_id_ = head.request_id;
    wire::Response response;
    response.request_id = head.request_id;
    response.command = std::move(head.command);
    response.ok = true;
    const After after = execute(first, response);
    reply_.clear();
    wire::encode_response(response, reply_);
    const Deadline least = Deadline::after(world_.clock, kReplyAllowance);
    wire::send_frame(channel_, reply_, Deadline::at(std::max(due.time(), least.time())));
    return after;
  }

  After execute(bool first, wire::Response& response) {
    const auto command = wire::command_from(response.command);
    const bool is_startup = command == wire::Command::kStartup;
    try {
      if (first != is_startup) {
        throw_invalid(ErrorKind::kInvalidState, response.command,
                      first ? "the first command must be startup" : "was executed already");
      }
      if (!command) {
        throw_invalid(ErrorKind::kUnsupported, response.command, "is not a known command");
      }
      return handler_.handle({response.request_id, *command, body_}, response);
    } catch (const std::exception& e) {
      const ErrorRecord record = record_of(e);
      set_failure(response, options_.name, record);
      const std::string text = to_text(record);
      world_.log.record({.level = LogLevel::kWarning,
                         .event = LogEvent::kCommandFailed,
                         .a = response.request_id,
                         .subject = response.command,
                         .text = text});
      if (first) return After::kStop;
      return command ? handler_.after_failure(*command) : After::kContinue;
    }
  }

  World& world_;
  Channel& channel_;
  CommandHandler& handler_;
  const LoopOptions& options_;
  std::int64_t last_id_ = 0;
  ByteBuffer body_;
  ByteBuffer reply_;
};

}  // namespace

void set_failure(wire::Response& response, const std::string& name, const ErrorRecord& record) {
  response.ok = false;
  response.error = std::string(class_name(record.remedy)) + ": " + to_text(record);
  response.traceback = name + " > " + response.command;
  // A native command's failure carries what receipts there are, also if there are none.
  const auto command = wire::command_from(response.command);
  if (command && wire::is_native(*command)) {
    if (!std::holds_alternative<wire::AbortedResult>(response.result)) {
      response.result = wire::AbortedResult{};
    }
  } else {
    response.result = std::monostate{};
  }
}

void serve(World& world, Channel& channel, CommandHandler& handler, const LoopOptions& options) {
  try {
    Loop(world, channel, handler, options).run();
  } catch (const Error& e) {
    // End of file is how a peer says goodbye; everything else is worth a line.
    if (e.kind() == ErrorKind::kEndOfFile) return;
    const std::string text = to_text(e.record());
    world.log.record({.level = LogLevel::kWarning,
                      .event = LogEvent::kNote,
                      .subject = options.name,
                      .text = text});
  } catch (const std::exception& e) {
    const std::string text = to_text(record_of(e));
    world.log.record({.level = LogLevel::kError,
                      .event = LogEvent::kNote,
                      .subject = options.name,
                      .text = text});
  }
}

}  // namespace tpsync::runtime
