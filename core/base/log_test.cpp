// Names of events, and what the spdlog sink writes for a record.
#include "tpsync/base/log.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tpsync/base/errors.h"
#include "tpsync/base/spdlog_sink.h"

namespace tpsync {
namespace {

constexpr std::uint16_t kFirstEvent = 1;
constexpr auto kLastEvent = static_cast<std::uint16_t>(LogEvent::kNote);

TEST(LogEvents, EachHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (std::uint16_t value = kFirstEvent; value <= kLastEvent; ++value) {
    names.insert(to_string(static_cast<LogEvent>(value)));
  }
  EXPECT_EQ(names.size(), kLastEvent);
  EXPECT_FALSE(names.contains(""));
}

class SpdlogSink : public testing::Test {
 protected:
  SpdlogSink() {
    path_ = testing::TempDir() + "tpsync-spdlog-XXXXXX";
    ::close(mkstemp(path_.data()));
  }
  ~SpdlogSink() override { unlink(path_.c_str()); }

  std::unique_ptr<Log> open(LogLevel minimum) {
    SpdlogOptions options;
    options.minimum = minimum;
    options.name = "component";
    options.path = path_;
    return make_spdlog_log(options);
  }
  // The lines without the time in front of them.
  std::string lines() {
    std::ifstream file(path_);
    std::string text;
    for (std::string line; std::getline(file, line);) {
      text += line.substr(std::min(line.size(), line.find("] ") + 2)) + "\n";
    }
    return text;
  }

  std::string path_;
};

TEST_F(SpdlogSink, LineHasLevelNameEventAndWhatIsNotEmpty) {
  {
    const auto log = open(LogLevel::kDebug);
    log->record({LogLevel::kInfo, LogEvent::kCommandSent, 12, 0, "update", ""});
    log->record({LogLevel::kError, LogEvent::kConnectionBroken, 0, -3, "", "end of {file}"});
    log->record({LogLevel::kWarning, LogEvent::kNote, 0, 0, "", ""});
    log->record({LogLevel::kDebug, LogEvent::kNote, 0, 0, "s", "t"});
  }
  EXPECT_EQ(lines(),
            "[component] [info] command_sent update a=12\n"
            "[component] [error] connection_broken b=-3: end of {file}\n"
            "[component] [warning] note\n"
            "[component] [debug] note s: t\n");
}

TEST_F(SpdlogSink, RecordsBelowTheMinimumAreNotWantedAndNotWritten) {
  {
    const auto log = open(LogLevel::kWarning);
    EXPECT_FALSE(log->wants(LogLevel::kDebug));
    EXPECT_FALSE(log->wants(LogLevel::kInfo));
    EXPECT_TRUE(log->wants(LogLevel::kWarning));
    EXPECT_TRUE(log->wants(LogLevel::kError));
    log->record({LogLevel::kInfo, LogEvent::kNote, 0, 0, "", "quiet"});
    log->record({LogLevel::kError, LogEvent::kNote, 0, 0, "", "loud"});
  }
  EXPECT_EQ(lines(), "[component] [error] note: loud\n");
}

TEST_F(SpdlogSink, InformationIsInTheFileBeforeTheLogIsDestroyed) {
  const auto log = open(LogLevel::kInfo);
  log->record({LogLevel::kInfo, LogEvent::kNote, 0, 0, "", "now"});
  EXPECT_EQ(lines(), "[component] [info] note: now\n");
}

TEST(SpdlogSinkFile, ThatCannotBeOpenedIsAnError) {
  SpdlogOptions options;
  options.path = "/proc/nonexistent/log";
  try {
    make_spdlog_log(options);
    FAIL() << "no error was thrown";
  } catch (const RuntimeBroken& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_EQ(error.record().subject, options.path);
  }
}

}  // namespace
}  // namespace tpsync
