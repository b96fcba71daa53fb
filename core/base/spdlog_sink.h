// Log records as lines of text, written through spdlog. A line is "event subject a=1 b=2: text",
// without what is empty or zero, behind spdlog's time, level and logger name.
#pragma once

#include <memory>
#include <string>

#include "tpsync/base/log.h"

namespace tpsync {

struct SpdlogOptions {
  LogLevel minimum = LogLevel::kInfo;  // records below are not wanted
  std::string name = "tpsync";         // of the component, in every line
  std::string path;                    // appended to; empty means stderr
};

// The log may be used from any thread; a line that can't be written is lost silently. Throws
// RuntimeBroken kIo if the file can't be opened.
std::unique_ptr<Log> make_spdlog_log(const SpdlogOptions& options);

}  // namespace tpsync
