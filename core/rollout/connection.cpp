#include "tpsync/rollout/connection.h"

#include "tpsync/base/errors.h"
#include "tpsync/wire/frame.h"

namespace tpsync::rollout {

namespace {

std::string labelled(wire::Command command, std::int64_t id) {
  return std::string(name_of(command)) + " (request " + std::to_string(id) + ")";
}

}  // namespace

std::string_view to_string(ConnectionState state) {
  switch (state) {
    case ConnectionState::kIdle:
      return "IDLE";
    case ConnectionState::kInflight:
      return "INFLIGHT";
    case ConnectionState::kBroken:
      return "BROKEN";
  }
  return "unknown";
}

Connection::Connection(World world, std::unique_ptr<Channel> channel,
                       std::unique_ptr<Process> runtime)
    : world_(world),
      mutex_(world.threads.make_mutex()),
      ended_changed_(world.threads.make_condition()),
      channel_(std::move(channel)),
      runtime_(std::move(runtime)),
      pid_(runtime_->pid()) {}

Connection::~Connection() { end_runtime(); }

ConnectionState Connection::state() const {
  const MutexLock lock(*mutex_);
  return state_;
}

bool Connection::usable() const {
  const MutexLock lock(*mutex_);
  return state_ != ConnectionState::kBroken && !ending_ && !ended_;
}

wire::Result Connection::request(const wire::Payload& payload, Duration timeout) {
  return request(wire::command_of(payload), timeout,
                 [&](std::int64_t id, ByteBuffer& out) { wire::encode_request(id, payload, out); });
}

wire::Result Connection::request(wire::Command command, Duration timeout,
                                 const std::function<void(std::int64_t, ByteBuffer&)>& encode) {
  send(command, timeout, encode);
  return await();
}

void Connection::send(wire::Command command, Duration timeout,
                      const std::function<void(std::int64_t, ByteBuffer&)>& encode) {
  std::int64_t id = 0;
  {
    const MutexLock lock(*mutex_);
    if (state_ == ConnectionState::kBroken) {
      throw_broken(ErrorKind::kInvalidState, name_of(command),
                   "the runtime is broken and cannot be reused: " + reason_);
    }
    if (ended_ || ending_) {
      throw_broken(ErrorKind::kInvalidState, name_of(command), "the runtime was shut down");
    }
    if (state_ == ConnectionState::kInflight) {
      throw_nothing_happened(ErrorKind::kInvalidState, name_of(command),
                             "the connection is INFLIGHT with " + std::string(inflight_));
    }
    id = ++last_id_;
    state_ = ConnectionState::kInflight;
    inflight_ = name_of(command);
  }
  request_ = {command, id, Deadline::after(world_.clock, timeout)};
  try {
    out_.clear();
    encode(id, out_);
    world_.log.record({.level = LogLevel::kDebug,
                       .event = LogEvent::kCommandSent,
                       .a = id,
                       .subject = name_of(command)});
    wire::send_frame(*channel_, out_, request_.deadline);
  } catch (const std::exception& error) {
    break_and_throw(record_of(error), request_);
  }
}

wire::Result Connection::await() {
  const Inflight request = request_;
  try {
    wire::Result result = receive(request);
    const MutexLock lock(*mutex_);
    if (state_ == ConnectionState::kBroken) {
      throw_broken(ErrorKind::kInvalidState, name_of(request.command),
                   "completed after the runtime became BROKEN: " + reason_);
    }
    state_ = ConnectionState::kIdle;
    return result;
  } catch (const std::exception& error) {
    break_and_throw(record_of(error), request);
  }
}

wire::Result Connection::receive(const Inflight& request) {
  wire::receive_frame(*channel_, in_, request.deadline);
  const std::string_view name = name_of(request.command);
  wire::Response response = wire::decode_response(in_, request.id, name, wire::Peer::kRuntime);
  if (response.ok) return std::move(response.result);

  ErrorRecord record;
  record.kind = ErrorKind::kRemote;
  record.subject = name;
  record.detail = response.error;
  if (!response.traceback.empty()) record.detail += " (" + response.traceback + ")";
  if (wire::failure_breaks(request.command) || wire::says_broken(response)) {
    throw RuntimeBroken(record);
  }
  throw NothingHappened(record);
}

// Decides by the kind of failure whether the runtime can go on, and says which request it was.
void Connection::break_and_throw(ErrorRecord record, const Inflight& request) {
  const std::string label = labelled(request.command, request.id);
  record.subject = record.subject.empty() || record.subject == name_of(request.command)
                       ? label
                       : label + ": " + record.subject;
  bool poisoned = false;
  {
    const MutexLock lock(*mutex_);
    poisoned = state_ == ConnectionState::kBroken;
    if (!poisoned && record.remedy == Remedy::kTryLater) {
      state_ = ConnectionState::kIdle;
      throw NothingHappened(record);
    }
    if (!poisoned && ending_) poisoned = true;
    if (!poisoned && record.remedy == Remedy::kFixInput) {
      // Nothing was written: the runtime knows of no request, and the id is free.
      --last_id_;
      state_ = ConnectionState::kIdle;
      throw InvalidInput(record);
    }
  }
  if (poisoned) {
    end_runtime();
    const MutexLock lock(*mutex_);
    record.kind = ErrorKind::kInvalidState;
    record.detail = "the runtime was ended during the request: " + reason_;
    throw RuntimeBroken(record);
  }
  poison(to_text(record));
  throw_record(record);
}

void Connection::poison(std::string_view reason) noexcept {
  bool first = false;
  {
    const MutexLock lock(*mutex_);
    first = state_ != ConnectionState::kBroken;
    state_ = ConnectionState::kBroken;
    if (first) reason_ = reason;
  }
  if (first) {
    world_.log.record(
        {.level = LogLevel::kError, .event = LogEvent::kConnectionBroken, .text = reason});
  }
  end_runtime();
}

void Connection::end_runtime() noexcept {
  {
    const MutexLock lock(*mutex_);
    if (ended_) return;
    if (ending_) {
      const Deadline deadline = Deadline::after(world_.clock, kKillAllowance);
      while (!ended_ && ended_changed_->wait(*mutex_, deadline)) {
      }
      return;
    }
    ending_ = true;
  }
  channel_->close();
  const bool gone = kill_tree(*runtime_, world_.clock);
  world_.log.record({.level = gone ? LogLevel::kInfo : LogLevel::kError,
                     .event = LogEvent::kRuntimeGone,
                     .a = pid_,
                     .b = gone ? 1 : 0});
  const MutexLock lock(*mutex_);
  ended_ = true;
  ended_changed_->notify_all();
}

void Connection::shutdown(Duration timeout) {
  bool ask = false;
  {
    const MutexLock lock(*mutex_);
    if (ended_ || ending_) return;
    ask = state_ == ConnectionState::kIdle;
  }
  try {
    if (ask) request(wire::ShutdownRequest{}, timeout);
    runtime_->wait(Deadline::after(world_.clock, timeout));
  } catch (const std::exception&) {
    // The kill routine below ends what did not end by itself.
  }
  end_runtime();
}

}  // namespace tpsync::rollout
