// The logger is held here alone: spdlog's global registry is never used.
#include "tpsync/base/spdlog_sink.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <iterator>
#include <utility>

#include "tpsync/base/errors.h"

namespace tpsync {

namespace {

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

class SpdlogLog final : public Log {
 public:
  SpdlogLog(const SpdlogOptions& options, spdlog::sink_ptr sink)
      : minimum_(options.minimum), logger_(options.name, std::move(sink)) {
    logger_.set_level(spdlog::level::trace);
    logger_.flush_on(spdlog::level::info);
    logger_.set_error_handler([](const std::string&) {});
  }

  bool wants(LogLevel level) const noexcept override { return level >= minimum_; }

  void record(const LogRecord& record) noexcept override {
    if (!wants(record.level)) return;
    try {
      spdlog::memory_buf_t line;
      const auto out = std::back_inserter(line);
      fmt::format_to(out, "{}", to_string(record.event));
      if (!record.subject.empty()) fmt::format_to(out, " {}", record.subject);
      if (record.a != 0) fmt::format_to(out, " a={}", record.a);
      if (record.b != 0) fmt::format_to(out, " b={}", record.b);
      if (!record.text.empty()) fmt::format_to(out, ": {}", record.text);
      logger_.log(level_of(record.level), spdlog::string_view_t(line.data(), line.size()));
    } catch (const std::exception&) {
      // Out of memory for a line: the contract is that it is lost.
    }
  }

 private:
  LogLevel minimum_;
  spdlog::logger logger_;
};

}  // namespace

std::unique_ptr<Log> make_spdlog_log(const SpdlogOptions& options) {
  spdlog::sink_ptr sink;
  if (options.path.empty()) {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  } else {
    try {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.path);
    } catch (const spdlog::spdlog_ex&) {
      throw_broken(ErrorKind::kIo, options.path, "the log file cannot be opened for appending");
    }
  }
  return std::make_unique<SpdlogLog>(options, std::move(sink));
}

}  // namespace tpsync
