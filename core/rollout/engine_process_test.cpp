// The engine over the operating system, against runtimes that misbehave: the error that it reports,
// and that nothing of the runtime's tree is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tpsync/base/os_world.h"
#include "tpsync/base/spdlog_sink.h"
#include "tpsync/base/testing/temporary_folder.h"
#include "tpsync/rollout/engine.h"

namespace tpsync::rollout {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What one wrong way of a runtime comes to.
struct Way {
  std::string way;
  ErrorKind kind = ErrorKind::kProtocol;
  std::string subject = {};  // contained in the error's; empty: any
};

class EngineAndProcess : public testing::Test {
 protected:
  EngineOptions options(const std::string& way, const std::string& at) {
    EngineOptions options;
    options.tp_size = 2;
    options.runtime_version = "1.0";
    options.runtime.program = TPSYNC_TEST_RUNTIME;
    options.runtime.arguments = {way, at};
    options.runtime.log_path = log();
    // Long for a loaded machine; only the ways that never answer wait for it.
    options.timeouts.startup = options.timeouts.generate = options.timeouts.health =
        never_answers(way) ? Duration(milliseconds(300)) : Duration(seconds(120));
    if (at != "startup") options.timeouts.startup = seconds(120);
    options.timeouts.shutdown = milliseconds(300);
    return options;
  }
  static bool never_answers(const std::string& way) {
    return way == "silence" || way == "stubborn" || way == "half_head" || way == "half_frame";
  }

  std::string log() const { return folder_.path() / "log"; }

  // Every process that the runtime said it was, or left behind.
  void expect_gone() const {
    std::ifstream file(log());
    int processes = 0;
    for (std::string pid; file >> pid; ++processes) {
      EXPECT_FALSE(runs(pid)) << pid;
    }
    EXPECT_GT(processes, 0);
  }

  // A process whose parent has gone is a zombie until the system's first process collects it.
  static bool runs(const std::string& pid) {
    std::ifstream file("/proc/" + pid + "/stat");
    std::string stat;
    std::getline(file, stat, '\0');
    const std::size_t name_end = stat.rfind(')');
    return name_end != std::string::npos && stat.at(name_end + 2) != 'Z';
  }

  static ErrorRecord error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.record();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
  }

  const std::unique_ptr<Log> log_ = make_spdlog_log({.minimum = LogLevel::kError});
  OsWorld os_{*log_};
  TemporaryFolder folder_;
};

// Ways of every reply, whatever it answers.
std::vector<Way> ways_of_replies() {
  return {{"exit", ErrorKind::kEndOfFile},
          {"crash", ErrorKind::kEndOfFile},
          {"orphan", ErrorKind::kEndOfFile},
          {"close", ErrorKind::kEndOfFile},
          {"silence", ErrorKind::kTimeout},
          {"stubborn", ErrorKind::kTimeout},
          {"half_head", ErrorKind::kTimeout},
          {"half_frame", ErrorKind::kTimeout},
          {"no_frame"},
          {"huge_frame"},
          {"empty_frame"},
          {"no_mapping"},
          {"protocol_version", ErrorKind::kProtocol, "protocol_version"},
          {"no_protocol_version", ErrorKind::kProtocol, "protocol_version"},
          {"request_id", ErrorKind::kProtocol, "request_id"},
          {"request_id_zero", ErrorKind::kProtocol, "request_id"},
          {"request_id_bool", ErrorKind::kProtocol, "request_id"},
          {"no_request_id", ErrorKind::kProtocol, "request_id"},
          {"command", ErrorKind::kProtocol, "command"},
          {"command_empty", ErrorKind::kProtocol, "command"},
          {"no_command", ErrorKind::kProtocol, "command"},
          {"ok_number", ErrorKind::kProtocol, "ok"},
          {"no_ok", ErrorKind::kProtocol, "ok"},
          {"no_result", ErrorKind::kProtocol, "result"},
          {"result_text", ErrorKind::kProtocol, "result"},
          {"result_nil", ErrorKind::kProtocol, "result"}};
}

std::vector<Way> ways_of_startup() {
  std::vector<Way> ways = ways_of_replies();
  for (const Way& way :
       std::vector<Way>{{"failed", ErrorKind::kRemote},
                        {"event", ErrorKind::kMismatch, "startup.event"},
                        {"version", ErrorKind::kMismatch, "startup.vllm_version"},
                        {"model_type", ErrorKind::kMismatch, "startup.model_type"},
                        {"process_group", ErrorKind::kMismatch, "startup.process_group_id"},
                        {"no_workers", ErrorKind::kMismatch, "startup.worker_capabilities"},
                        {"worker_rank", ErrorKind::kMismatch, "startup.tp_rank"},
                        {"worker_world", ErrorKind::kMismatch, "startup.tp_world_size"},
                        {"worker_uuid_empty", ErrorKind::kMismatch, "startup.cuda_device_uuid"},
                        {"worker_uuid_twice", ErrorKind::kMismatch, "startup.cuda_device_uuid"},
                        {"worker_version", ErrorKind::kMismatch, "startup.vllm_version"}})
    ways.push_back(way);
  return ways;
}

class StartupWay : public EngineAndProcess, public testing::WithParamInterface<Way> {};
class HealthWay : public EngineAndProcess, public testing::WithParamInterface<Way> {};

std::string name_of(const testing::TestParamInfo<Way>& info) { return info.param.way; }

INSTANTIATE_TEST_SUITE_P(Runtimes, StartupWay, testing::ValuesIn(ways_of_startup()), name_of);
INSTANTIATE_TEST_SUITE_P(Runtimes, HealthWay, testing::ValuesIn(ways_of_replies()), name_of);

TEST_P(StartupWay, ThatIsWrongIsReportedAndItsTreeIsGone) {
  const ErrorRecord record =
      error_of([&] { RolloutEngine(os_.world(), options(GetParam().way, "startup")); });
  EXPECT_EQ(record.kind, GetParam().kind) << to_text(record);
  EXPECT_THAT(record.subject, testing::HasSubstr(GetParam().subject)) << to_text(record);
  expect_gone();
}

TEST_P(HealthWay, ThatIsWrongBreaksTheConnectionAndItsTreeIsGone) {
  RolloutEngine engine(os_.world(), options(GetParam().way, "health"));
  const ErrorRecord record = error_of([&] { engine.health_check(); });
  EXPECT_EQ(record.kind, GetParam().kind) << to_text(record);
  EXPECT_THAT(record.subject, testing::HasSubstr(GetParam().subject)) << to_text(record);
  expect_gone();
  EXPECT_EQ(error_of([&] { engine.health_check(); }).kind, ErrorKind::kInvalidState);
}

TEST_F(EngineAndProcess, AFailedHealthCheckLeavesTheRuntimeUsable) {
  RolloutEngine engine(os_.world(), options("failed", "health"));
  const ErrorRecord record = error_of([&] { engine.health_check(); });
  EXPECT_EQ(record.kind, ErrorKind::kRemote);
  EXPECT_EQ(record.remedy, Remedy::kTryLater);
  EXPECT_TRUE(engine.generate({{{.input_ids = {1}}}}).has_value());
  engine.shutdown();
  expect_gone();
}

TEST_F(EngineAndProcess, ANativeCommandThatFailsWithoutTheAbortedShapeIsAProtocolError) {
  for (const auto& [way, kind] : {std::pair("failed", ErrorKind::kProtocol),
                                  std::pair("failed_aborted", ErrorKind::kRemote)}) {
    std::filesystem::remove(log());
    RolloutEngine engine(os_.world(), options(way, "init_native_weight_transfer"));
    EXPECT_EQ(error_of([&] { engine.init_publication(); }).kind, kind) << way;
    expect_gone();
  }
}

TEST_F(EngineAndProcess, AReplyThatComesTwiceIsRefusedAtTheNextRequest) {
  RolloutEngine engine(os_.world(), options("twice", "health"));
  engine.health_check();
  const ErrorRecord record = error_of([&] { engine.health_check(); });
  EXPECT_EQ(record.kind, ErrorKind::kProtocol);
  EXPECT_THAT(record.subject, testing::HasSubstr("request_id"));
  expect_gone();
}

TEST_F(EngineAndProcess, ARuntimeThatAnswersShutdownAndStaysIsEnded) {
  RolloutEngine engine(os_.world(), options("stays", "shutdown"));
  engine.shutdown();
  expect_gone();
}

TEST_F(EngineAndProcess, ARuntimeIsGoneWithItsEngine) {
  { const RolloutEngine engine(os_.world(), options("well", "")); }
  expect_gone();
}

}  // namespace
}  // namespace tpsync::rollout
