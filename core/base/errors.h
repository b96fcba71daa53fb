// The one exception hierarchy of tpsync.
//
// The class of an error tells the caller what to do next; its kind tells what went wrong; its place
// tells where (phase, rank, subject). Core throws nothing else on purpose, and catches
// std::exception, never `...`, so that a thread or fiber can be unwound by a signal that is not an
// error.
//
// - InvalidInput: fix the input (configuration, arguments, call order); repeating the call fails
//   again.
// - NothingHappened: nothing was changed; the same call may succeed later.
// - RuntimeBroken: the runtime, group or device context is unusable; build a new one.
// - PeerViolation: a peer broke the protocol, which is a bug in that peer; what it was part of is
//   broken as well.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tpsync {

enum class ErrorKind : std::uint8_t {
  kInvalidConfig = 1,  // a configuration value, option or argument
  kInvalidState = 2,   // a call that the present state refuses
  kUnsupported = 3,    // a model, layout or topology that is not supported
  kTimeout = 4,        // a deadline passed
  kEndOfFile = 5,      // the other end closed, or its process ended
  kIo = 6,             // the operating system refused an operation
  kProtocol = 7,       // malformed or unexpected bytes, identity, order or type
  kRemote = 8,         // the peer executed the command and reported a failure
  kMismatch = 9,       // manifest, receipt, result, digest, topology or coverage differs
  kOutOfMemory = 10,   // an allocation failed, or the preflight found too little
  kDevice = 11,        // a copy, kernel or stream failed
  kIpc = 12,           // export or import of device memory failed
  kPeerLost = 13,      // a rank of a group died or left, or did not answer in time
  // The very last agreement broke: the version may or may not be committed elsewhere.
  kOutcomeUnknown = 14,
  kPeerFailed = 16,  // gave up because a peer reported a failure: that peer's error is the cause
  kInternal = 15,    // a bug in this library
};

enum class Remedy : std::uint8_t {
  kFixInput = 1,
  kTryLater = 2,
  kRebuildRuntime = 3,
  kFixPeer = 4,
};

std::string_view to_string(ErrorKind kind);
std::string_view to_string(Remedy remedy);

// Inverse of the numeric values above; nullopt for any other number (input from outside).
std::optional<ErrorKind> error_kind_from(std::uint64_t value);
std::optional<Remedy> remedy_from(std::uint64_t value);

// What an error says, as data: equal records mean the same failure. Crosses processes in
// agreements.
struct ErrorRecord {
  ErrorKind kind = ErrorKind::kInternal;
  Remedy remedy = Remedy::kFixInput;
  std::string phase;    // "expected-schema", "native-transfer-3"; empty outside a publication
  int rank = -1;        // the rank that failed; -1 where there is none
  std::string subject;  // the tensor, chunk, command, field or device; may be empty
  std::string
      detail;  // what was found and what was expected; what to do, where that is not obvious

  friend bool operator==(const ErrorRecord&, const ErrorRecord&) = default;
};

// "<phase>: rank <r>: <subject>: <detail> [<kind>]", leaving out what is empty.
std::string to_text(const ErrorRecord& record);

class Error : public std::exception {
 public:
  const ErrorRecord& record() const noexcept { return state_->record; }
  ErrorKind kind() const noexcept { return state_->record.kind; }
  Remedy remedy() const noexcept { return state_->record.remedy; }
  const char* what() const noexcept override { return state_->text.c_str(); }

 protected:
  Error(ErrorRecord record, Remedy remedy);

 private:
  struct State {
    ErrorRecord record;
    std::string text;
  };
  std::shared_ptr<const State> state_;  // copying an exception must not throw
};

class InvalidInput final : public Error {
 public:
  explicit InvalidInput(ErrorRecord record) : Error(std::move(record), Remedy::kFixInput) {}
};
class NothingHappened final : public Error {
 public:
  explicit NothingHappened(ErrorRecord record) : Error(std::move(record), Remedy::kTryLater) {}
};
class RuntimeBroken final : public Error {
 public:
  explicit RuntimeBroken(ErrorRecord record) : Error(std::move(record), Remedy::kRebuildRuntime) {}
};
class PeerViolation final : public Error {
 public:
  explicit PeerViolation(ErrorRecord record) : Error(std::move(record), Remedy::kFixPeer) {}
};

// Throws the class that record.remedy names. Used where an error arrives as data from another rank.
[[noreturn]] void throw_record(const ErrorRecord& record);

// The record of any exception: an Error's own; kOutOfMemory for bad_alloc; kInternal with a fixed
// text otherwise (library texts differ between builds and are not repeated).
ErrorRecord record_of(const std::exception& error);

// Runs `work` unless `error` is set already; what it throws becomes `error`. For work whose failure
// is not thrown but reported, at the next agreement or in a reply.
template <typename Work>
void attempt(std::optional<ErrorRecord>& error, Work&& work) {
  if (error) return;
  try {
    work();
  } catch (const std::exception& e) {
    error = record_of(e);
  }
}

// Shorthands for the common cases: subject and detail, phase and rank filled in by the caller that
// knows them.
[[noreturn]] void throw_invalid(ErrorKind kind, std::string_view subject, std::string_view detail);
[[noreturn]] void throw_nothing_happened(ErrorKind kind, std::string_view subject,
                                         std::string_view detail);
[[noreturn]] void throw_broken(ErrorKind kind, std::string_view subject, std::string_view detail);
[[noreturn]] void throw_violation(ErrorKind kind, std::string_view subject,
                                  std::string_view detail);

namespace detail {
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line) noexcept;
}

}  // namespace tpsync

// Guards what only a bug in this library can break; on in every build. Aborts the process.
#define TPSYNC_ASSERT(condition)      \
  ((condition) ? static_cast<void>(0) \
               : ::tpsync::detail::assertion_failed(#condition, __FILE__, __LINE__))
