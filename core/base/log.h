// Seam: typed log records. Core says what happened as data; a sink turns it into text
// (spdlog_sink.h), into a trace, or into nothing. A sink drops what it does not want; records are
// cheap to build. Whoever would have to compose a text for a record that may be unwanted tests
// wants() first.
#pragma once

#include <cstdint>
#include <string_view>

namespace tpsync {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

enum class LogEvent : std::uint16_t {
  kPhaseEntered = 1,  // subject: phase name without its index; a: index (chunk, gate), or 0
  kPhaseFailed = 2,   // subject: phase name; text: the local error; a: index
  kCommandSent = 3,   // parent: subject: command; a: request id
  // Runtime, worker: subject: command; a: request id; b: chunk index for updates.
  kCommandReceived = 4,
  kCommandFailed = 5,      // runtime, worker: subject: command; text: the error; a: request id
  kConnectionBroken = 6,   // parent: text: the reason
  kRuntimeSpawned = 7,     // parent: a: pid
  kRuntimeGone = 8,        // parent: a: pid; b: 1 if nothing of its group is left
  kStateChanged = 9,       // subject: state machine; text: new state
  kVersionCommitted = 10,  // a: version
  kImportsReleased = 11,   // worker: a: how many
  kExportLeaked = 12,      // actor: memory is kept because it may still be in use; a: bytes
  kNote = 13,              // subject: who speaks; text
};

struct LogRecord {
  LogLevel level = LogLevel::kInfo;
  LogEvent event = LogEvent::kNote;
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::string_view subject;  // valid during the call only
  std::string_view text;     // likewise
};

class Log {
 public:
  virtual ~Log() = default;
  virtual bool wants(LogLevel level) const noexcept = 0;
  virtual void record(const LogRecord& record) noexcept = 0;
};

std::string_view to_string(LogEvent event);

}  // namespace tpsync
