// The parent's end of the control protocol: one request in flight, identities, deadlines, and
// fail-stop.
//
// States: IDLE, INFLIGHT, BROKEN (terminal). A timeout, end of file or protocol error breaks the
// connection, and so does a failed startup, sleep, wake-up or native command; whatever breaks it,
// the runtime's process tree is gone before the call returns. A second concurrent request is
// refused at once; reading the state and poison never wait for a request.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tpsync/base/errors.h"
#include "tpsync/base/world.h"
#include "tpsync/wire/messages.h"

namespace tpsync::rollout {

enum class ConnectionState : std::uint8_t { kIdle, kInflight, kBroken };
std::string_view to_string(ConnectionState state);

class Connection {
 public:
  // Takes over a freshly spawned runtime.
  Connection(World world, std::unique_ptr<Channel> channel, std::unique_ptr<Process> runtime);
  // Ends the runtime if it still lives; blocks for at most the kill routine.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Sends what `encode` writes for the request id that it is given, and waits for the reply; the
  // timeout covers sending, waiting and the whole reply. Checks in order, all before an id is
  // taken: broken (RuntimeBroken kInvalidState), shut down (RuntimeBroken kInvalidState), another
  // request in flight (NothingHappened kInvalidState, naming it). RuntimeBroken kTimeout,
  // kEndOfFile, kIo, PeerViolation kProtocol: the connection is broken. InvalidInput, as
  // `encode` threw it, or kProtocol for a body above wire::kFrameBodyBytesMax: nothing was sent, no
  // id is used up, IDLE. An ok=false reply: RuntimeBroken kRemote and broken where the command's
  // failure breaks (wire::failure_breaks) or the runtime says that it is broken, else
  // NothingHappened kRemote and IDLE.
  wire::Result request(wire::Command command, Duration timeout,
                       const std::function<void(std::int64_t id, ByteBuffer& out)>& encode);
  wire::Result request(const wire::Payload& payload, Duration timeout);
  // The same in two halves: `send` returns once the request is written, `await` with its reply; the
  // timeout runs from send on, and between them the request is in flight. await is called once
  // after each send that returned, by the same thread, unless the connection is given up.
  void send(wire::Command command, Duration timeout,
            const std::function<void(std::int64_t id, ByteBuffer& out)>& encode);
  wire::Result await();

  // Breaks the connection because the caller found a reply unacceptable (or wants the runtime
  // gone). Idempotent; callable from any thread, also while a request is in flight: that request
  // then throws RuntimeBroken kInvalidState.
  void poison(std::string_view reason) noexcept;

  // Asks the runtime to end (if IDLE), waits for it, and ends it anyway. Not a break: the state
  // stays, the connection is gone. Idempotent.
  void shutdown(Duration timeout);

  ConnectionState state() const;
  bool usable() const;  // neither broken nor shut down
  std::int64_t runtime_pid() const { return pid_; }

 private:
  // The request in flight.
  struct Inflight {
    wire::Command command = wire::Command::kHealth;
    std::int64_t id = 0;
    Deadline deadline = Deadline::never();
  };

  wire::Result receive(const Inflight& request);
  [[noreturn]] void break_and_throw(ErrorRecord record, const Inflight& request);
  void end_runtime() noexcept;

  World world_;
  std::unique_ptr<Mutex> mutex_;
  std::unique_ptr<Condition> ended_changed_;
  // Guarded by mutex_.
  ConnectionState state_ = ConnectionState::kIdle;
  std::string reason_;
  std::string_view inflight_;
  std::int64_t last_id_ = 0;
  bool ending_ = false;  // somebody runs the kill routine
  bool ended_ = false;   // it has run
  // Used by the one request in flight.
  Inflight request_;
  // Closed by end_runtime.
  std::unique_ptr<Channel> channel_;
  std::unique_ptr<Process> runtime_;
  std::int64_t pid_ = 0;
  ByteBuffer out_;
  ByteBuffer in_;
};

}  // namespace tpsync::rollout
