// The options that a configuration and a placement give, and the environment that a child of the
// operating system really gets from them.
#include "tpsync/rollout/engine_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_world.h"
#include "tpsync/base/spdlog_sink.h"
#include "tpsync/base/testing/temporary_folder.h"
#include "tpsync/rollout/environment.h"

namespace tpsync::rollout {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Key;
using testing::Not;
using testing::Pair;

EngineConfig config_of(std::int64_t tp_size) {
  EngineConfig config;
  config.pretrained_model_ckpt_path = "/models/qwen3";
  config.tp_size = tp_size;
  config.request_timeout = seconds(11);
  config.health_timeout = std::nullopt;
  config.weight_update_timeout = seconds(930);
  return config;
}

RuntimeProgram program() {
  RuntimeProgram program;
  program.path = "/opt/runtime";
  program.arguments = {"--model", "/models/qwen3"};
  program.log_path = "/tmp/runtime.log";
  program.version = "1.2";
  program.extra_environment = {{"HF_HOME", "/models"}};
  return program;
}

std::vector<RankPlacement> placed(std::int64_t tp_size, std::int64_t pp_size = 1,
                                  std::int64_t ep_size = 1) {
  RoleShape role;
  role.given = {.tp = tp_size, .pp = pp_size, .ep = ep_size};
  std::vector<WorkerLocation> workers;
  for (std::int64_t i = 0; i < tp_size * pp_size; ++i) {
    workers.push_back({"node", std::to_string(4 + i)});
  }
  return place_role(role, tp_size * pp_size, workers);
}

std::pair<ErrorKind, std::string> refused(const std::function<void()>& work) {
  try {
    work();
  } catch (const InvalidInput& error) {
    return {error.kind(), error.record().subject};
  }
  return {ErrorKind::kInternal, "nothing"};
}

TEST(EngineSetup, TheFirstRankOfAGroupSpawnsOnTheDevicesOfTheWholeGroup) {
  const Environment parent = {{"CUDA_VISIBLE_DEVICES", "4"}, {"PATH", "/bin"}, {"RANK", "0"}};
  const EngineOptions options = engine_options(config_of(2), placed(2)[0], program(), parent);
  EXPECT_EQ(options.tp_size, 2);
  EXPECT_EQ(options.tp_rank, 0);
  EXPECT_EQ(options.runtime_version, "1.2");
  EXPECT_EQ(options.timeouts.weight_update, seconds(930));
  EXPECT_EQ(options.timeouts.health, seconds(11));
  EXPECT_EQ(options.runtime.program, "/opt/runtime");
  EXPECT_THAT(options.runtime.arguments, ElementsAre("--model", "/models/qwen3"));
  EXPECT_EQ(options.runtime.log_path, "/tmp/runtime.log");
  EXPECT_TRUE(options.runtime.own_group);
  EXPECT_EQ(options.runtime.channel, nullptr);
  EXPECT_THAT(options.runtime.environment,
              ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "4,5"), Pair("HF_HOME", "/models"),
                          Pair("PATH", "/bin")));
}

TEST(EngineSetup, OtherRanksKnowTheirPlaceAndSpawnNothing) {
  const EngineOptions options =
      engine_options(config_of(2), placed(2)[1], {}, {{"A=", "malformed"}});
  EXPECT_EQ(options.tp_size, 2);
  EXPECT_EQ(options.tp_rank, 1);
  EXPECT_EQ(options.timeouts.weight_update, seconds(930));
  EXPECT_EQ(options.runtime.program, "");
  EXPECT_THAT(options.runtime.environment, IsEmpty());
}

TEST(EngineSetup, AnEngineThatNobodyPlacedTakesTheFirstDevicesThatItSees) {
  const auto devices = [](const Environment& parent) {
    const EngineOptions options = engine_options(config_of(2), std::nullopt, program(), parent);
    EXPECT_EQ(options.tp_rank, 0);
    return options.runtime.environment.at(0);
  };
  EXPECT_THAT(devices({{"CUDA_VISIBLE_DEVICES", "6,7,8"}}), Pair("CUDA_VISIBLE_DEVICES", "6,7"));
  EXPECT_THAT(devices({}), Pair("CUDA_VISIBLE_DEVICES", "0,1"));
}

TEST(EngineSetup, AVllmRuntimeGetsItsOwnVariables) {
  EngineConfig config = config_of(1);
  config.runtime = RuntimeKind::kVllm;
  const EngineOptions options = engine_options(config, std::nullopt, program(), {});
  EXPECT_THAT(options.runtime.environment, Contains(Key("VLLM_WORKER_MULTIPROC_METHOD")));
}

TEST(EngineSetup, RefusesInTheDocumentedOrder) {
  struct Input {
    EngineConfig config = config_of(2);
    RankPlacement placement = placed(2)[0];
    RuntimeProgram runtime = program();
    Environment parent;
  };
  using Edit = std::function<void(Input&)>;
  // Later edits are made before earlier ones, so that each check is seen to come before the next.
  const std::vector<std::pair<std::pair<ErrorKind, std::string>, Edit>> in_order = {
      {{ErrorKind::kMismatch, "placement.tp_size"},
       [](auto& i) { i.placement.layout.tp_size = 4; }},
      {{ErrorKind::kMismatch, "placement.pp_size"},
       [](auto& i) { i.placement.layout.pp_size = 2; }},
      {{ErrorKind::kMismatch, "placement.ep_size"},
       [](auto& i) { i.placement.layout.ep_size = 2; }},
      {{ErrorKind::kMismatch, "placement.devices"},
       [](auto& i) { i.placement.devices.pop_back(); }},
      {{ErrorKind::kInvalidConfig, "runtime.program"}, [](auto& i) { i.runtime.path.clear(); }},
      {{ErrorKind::kInvalidConfig, "environment.parent"},
       [](auto& i) {
         i.parent = {{"", "nameless"}};
       }},
      {{ErrorKind::kInvalidConfig, "environment.RANK"},
       [](auto& i) {
         i.runtime.extra_environment = {{"RANK", "0"}};
       }},
  };
  for (std::size_t first = 0; first < in_order.size(); ++first) {
    Input input;
    for (std::size_t i = in_order.size(); i-- > first;) in_order[i].second(input);
    EXPECT_EQ(refused([&] {
                engine_options(input.config, input.placement, input.runtime, input.parent);
              }),
              in_order[first].first);
  }
}

TEST(EngineSetup, WrongLayoutsAreRefusedOnRanksThatSpawnNothingToo) {
  EXPECT_EQ(refused([] { engine_options(config_of(4), placed(2)[1], {}, {}); }),
            std::pair(ErrorKind::kMismatch, std::string("placement.tp_size")));
  EXPECT_EQ(refused([] { engine_options(config_of(2), placed(2, 2)[3], {}, {}); }),
            std::pair(ErrorKind::kMismatch, std::string("placement.pp_size")));
}

// ---- over the operating system

// A variable of this process for as long as the object lives.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* before = getenv(name_.c_str())) before_ = before;
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() {
    if (before_) {
      setenv(name_.c_str(), before_->c_str(), 1);
    } else {
      unsetenv(name_.c_str());
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
  std::optional<std::string> before_;
};

class SpawnedEnvironment : public testing::Test {
 protected:
  // The trainer's environment of a rank that sees one device.
  const Variable secret_{"TPSYNC_TEST_SECRET", "of the trainer alone"};
  const Variable rank_{"RANK", "3"};
  const Variable comm_{"NCCL_COMM_ID", "10.0.0.1:1234"};
  const Variable own_device_{"CUDA_VISIBLE_DEVICES", "4"};
  const Variable debug_{"NCCL_DEBUG", "INFO"};
  const Variable order_{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"};
  const Variable two_lines_{"TORCH_TEST_TEXT", "a = 1\nb"};
  const std::unique_ptr<Log> log_ = make_spdlog_log({.minimum = LogLevel::kError});
  OsWorld os_{*log_};
  TemporaryFolder folder_;

  // A runtime that lists its environment and ends.
  EngineOptions options() {
    RuntimeProgram runtime;
    runtime.path = "/usr/bin/env";
    runtime.arguments = {"-0"};
    runtime.log_path = folder_.path() / "log";
    runtime.extra_environment = {{"HF_HOME", "/models"}};
    return engine_options(config_of(2), placed(2)[0], runtime, os_.world().host.environment());
  }

  Environment listed() const {
    std::ifstream file(folder_.path() / "log", std::ios::binary);
    Environment variables;
    for (std::string entry; std::getline(file, entry, '\0');) {
      const std::size_t end = entry.find('=');
      variables.emplace_back(entry.substr(0, end), entry.substr(end + 1));
    }
    return variables;
  }

  static void expect_clean(const Environment& environment) {
    EXPECT_THAT(environment, Not(Contains(Key("TPSYNC_TEST_SECRET"))));
    EXPECT_THAT(environment, Not(Contains(Key("RANK"))));
    EXPECT_THAT(environment, Not(Contains(Key("NCCL_COMM_ID"))));
    EXPECT_THAT(environment, Contains(Pair("CUDA_VISIBLE_DEVICES", "4,5")));
    EXPECT_THAT(environment, Contains(Pair("NCCL_DEBUG", "INFO")));
    EXPECT_THAT(environment, Contains(Pair("CUDA_DEVICE_ORDER", "PCI_BUS_ID")));
    EXPECT_THAT(environment, Contains(Pair("TORCH_TEST_TEXT", "a = 1\nb")));
    EXPECT_THAT(environment, Contains(Pair("HF_HOME", "/models")));
  }
};

TEST_F(SpawnedEnvironment, OfAChildIsExactlyWhatTheOptionsSay) {
  EngineOptions made = options();
  const Environment expected = made.runtime.environment;
  World world = os_.world();
  const auto child = world.processes.spawn(std::move(made.runtime));
  // A bound on hanging, not an expectation.
  EXPECT_EQ(child->wait(Deadline::after(world.clock, seconds(60))), (ExitStatus{false, 0}));
  EXPECT_EQ(listed(), expected);
  expect_clean(listed());
  for (const auto& [name, value] : listed()) {
    EXPECT_TRUE(passes_to_runtime(name) || name == "HF_HOME" || name == "CUDA_VISIBLE_DEVICES")
        << name;
  }
}

TEST_F(SpawnedEnvironment, OfAnEnginesRuntimeIsCleanAndARuntimeThatEndsAtOnceIsReported) {
  try {
    const RolloutEngine engine(os_.world(), options());
    FAIL() << "a program that ends at once came up as a runtime";
  } catch (const RuntimeBroken& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kEndOfFile);
  }
  expect_clean(listed());
}

}  // namespace
}  // namespace tpsync::rollout
