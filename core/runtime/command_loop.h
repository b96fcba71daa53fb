// The serving end of the control protocol: one request after the other, in order, until the peer
// closes, breaks the protocol, or the handler is done.
//
// A request that violates the envelope (form, version, identity) is never answered: the loop ends
// and the peer sees end of file. An id is one of these violations unless it follows the one before
// (with consecutive_ids: by exactly 1, beginning with 1; else: is higher). An unknown command is
// answered with ok=false. The first request must be `startup`; another command gets an ok=false
// reply, and then the loop ends.
#pragma once

#include <cstdint>
#include <string>

#include "tpsync/base/channel.h"
#include "tpsync/base/world.h"
#include "tpsync/wire/messages.h"

namespace tpsync::runtime {

enum class After : std::uint8_t { kContinue, kStop };

struct Request {
  std::int64_t id = 0;
  wire::Command command = wire::Command::kHealth;
  ByteView body;  // the whole message, valid during the call
};

class CommandHandler {
 public:
  virtual ~CommandHandler() = default;
  // Executes one request and sets response.result; all else is filled in already. Throwing any
  // std::exception makes the reply ok=false with that error; a native command's result is then an
  // AbortedResult (the handler's own, if it had set one), any other command's nil.
  virtual After handle(const Request& request, wire::Response& response) = 0;
  // What to do after a request that failed by throwing.
  virtual After after_failure(wire::Command command) = 0;
  // How long the next request may take to come; past it the loop ends.
  virtual Deadline next_request_deadline() = 0;
};

struct LoopOptions {
  std::string name;  // "runtime", "worker 2": begins tracebacks
  // From a request's arrival to its reply's last byte, for a peer that does not read; a reply has 5
  // s at least.
  Duration reply_timeout;
  // Exactly last + 1; else only rising (a worker sees what the runtime forwards).
  bool consecutive_ids = true;
};

// Fills the failure fields: ok, error ("ClassName: text"), traceback, and the result as described
// at CommandHandler::handle.
void set_failure(wire::Response& response, const std::string& name, const ErrorRecord& record);

// Returns when the loop has ended; throws nothing but what a seam's kill throws.
void serve(World& world, Channel& channel, CommandHandler& handler, const LoopOptions& options);

}  // namespace tpsync::runtime
