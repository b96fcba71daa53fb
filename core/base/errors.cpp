// Texts of errors, and the ways from a record to an exception and back. Every text is made here
// from the record alone, so that equal records read the same on every rank and in every build.
#include "tpsync/base/errors.h"

#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>

namespace tpsync {
namespace {

ErrorRecord brief(ErrorKind kind, Remedy remedy, std::string_view subject,
                  std::string_view detail) {
  ErrorRecord record;
  record.kind = kind;
  record.remedy = remedy;
  record.subject = subject;
  record.detail = detail;
  return record;
}

ErrorRecord with_remedy(ErrorRecord record, Remedy remedy) {
  record.remedy = remedy;
  return record;
}

}  // namespace

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidConfig:
      return "invalid configuration";
    case ErrorKind::kInvalidState:
      return "invalid state";
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kTimeout:
      return "timeout";
    case ErrorKind::kEndOfFile:
      return "end of file";
    case ErrorKind::kIo:
      return "input/output";
    case ErrorKind::kProtocol:
      return "protocol";
    case ErrorKind::kRemote:
      return "remote failure";
    case ErrorKind::kMismatch:
      return "mismatch";
    case ErrorKind::kOutOfMemory:
      return "out of memory";
    case ErrorKind::kDevice:
      return "device";
    case ErrorKind::kIpc:
      return "ipc";
    case ErrorKind::kPeerLost:
      return "peer lost";
    case ErrorKind::kOutcomeUnknown:
      return "outcome unknown";
    case ErrorKind::kPeerFailed:
      return "peer failed";
    case ErrorKind::kInternal:
      return "internal";
  }
  return "unknown kind";
}

std::string_view to_string(Remedy remedy) {
  switch (remedy) {
    case Remedy::kFixInput:
      return "fix the input";
    case Remedy::kTryLater:
      return "nothing happened, try later";
    case Remedy::kRebuildRuntime:
      return "build a new runtime";
    case Remedy::kFixPeer:
      return "fix the peer";
  }
  return "unknown remedy";
}

std::optional<ErrorKind> error_kind_from(std::uint64_t value) {
  constexpr auto kFirst = static_cast<std::uint64_t>(ErrorKind::kInvalidConfig);
  constexpr auto kLast = static_cast<std::uint64_t>(ErrorKind::kPeerFailed);
  if (value < kFirst || value > kLast) return std::nullopt;
  return static_cast<ErrorKind>(value);
}

std::optional<Remedy> remedy_from(std::uint64_t value) {
  constexpr auto kFirst = static_cast<std::uint64_t>(Remedy::kFixInput);
  constexpr auto kLast = static_cast<std::uint64_t>(Remedy::kFixPeer);
  if (value < kFirst || value > kLast) return std::nullopt;
  return static_cast<Remedy>(value);
}

std::string to_text(const ErrorRecord& record) {
  std::string text;
  const auto add = [&text](std::string_view part) {
    if (part.empty()) return;
    if (!text.empty()) text += ": ";
    text += part;
  };
  add(record.phase);
  if (record.rank >= 0) add("rank " + std::to_string(record.rank));
  add(record.subject);
  add(record.detail);
  if (!text.empty()) text += ' ';
  text += '[';
  text += to_string(record.kind);
  text += ']';
  return text;
}

Error::Error(ErrorRecord record, Remedy remedy) {
  ErrorRecord own = with_remedy(std::move(record), remedy);
  std::string text = to_text(own);
  state_ = std::make_shared<const State>(State{std::move(own), std::move(text)});
}

void throw_record(const ErrorRecord& record) {
  switch (record.remedy) {
    case Remedy::kFixInput:
      throw InvalidInput(record);
    case Remedy::kTryLater:
      throw NothingHappened(record);
    case Remedy::kRebuildRuntime:
      throw RuntimeBroken(record);
    case Remedy::kFixPeer:
      throw PeerViolation(record);
  }
  // Records from outside are decoded through remedy_from, so another value is a bug here.
  TPSYNC_ASSERT(!"a remedy out of range");
  std::abort();
}

ErrorRecord record_of(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return own->record();
  // What such an exception left behind is unknown, hence the stronger remedy.
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return brief(ErrorKind::kOutOfMemory, Remedy::kRebuildRuntime, "", "an allocation failed");
  }
  return brief(ErrorKind::kInternal, Remedy::kRebuildRuntime, "",
               "an exception that no part of tpsync throws on purpose");
}

void throw_invalid(ErrorKind kind, std::string_view subject, std::string_view detail) {
  throw InvalidInput(brief(kind, Remedy::kFixInput, subject, detail));
}

void throw_nothing_happened(ErrorKind kind, std::string_view subject, std::string_view detail) {
  throw NothingHappened(brief(kind, Remedy::kTryLater, subject, detail));
}

void throw_broken(ErrorKind kind, std::string_view subject, std::string_view detail) {
  throw RuntimeBroken(brief(kind, Remedy::kRebuildRuntime, subject, detail));
}

void throw_violation(ErrorKind kind, std::string_view subject, std::string_view detail) {
  throw PeerViolation(brief(kind, Remedy::kFixPeer, subject, detail));
}

namespace detail {

void assertion_failed(const char* expression, const char* file, int line) noexcept {
  std::fprintf(stderr, "tpsync: assertion failed: %s (%s:%d)\n", expression, file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace detail
}  // namespace tpsync
