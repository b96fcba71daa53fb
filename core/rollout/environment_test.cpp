// What reaches a runtime of its trainer's environment, and what is refused.
#include "tpsync/rollout/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tpsync/base/errors.h"

namespace tpsync::rollout {
namespace {

using std::string_literals::operator""s;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

const std::vector<std::string>& two_devices() {
  static const std::vector<std::string> devices = {"2", "GPU-b"};
  return devices;
}

Environment made(const Environment& parent, Environment extras = {},
                 RuntimeKind runtime = RuntimeKind::kNative) {
  return runtime_environment(
      parent, {.runtime = runtime, .devices = two_devices(), .extras = std::move(extras)});
}

ErrorRecord refused(const std::function<void()>& work) {
  try {
    work();
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidConfig);
    return error.record();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

TEST(RuntimeEnvironment, HasTheDevicesByWorkerAndNothingElseOfItsOwn) {
  EXPECT_THAT(made({}), ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "2,GPU-b")));
}

TEST(RuntimeEnvironment, HandsOnWhatIsDeclaredAndNothingElseInTheOrderOfNames) {
  const Environment parent = {
      {"AWS_SECRET_ACCESS_KEY", "secret"},
      {"TMPDIR", "/scratch"},
      {"NCCL_DEBUG", "INFO"},
      {"PATH", "/bin"},
      {"NVSHMEM_SYMMETRIC_SIZE", "1G"},
      {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
      {"HF_TOKEN", "secret"},
      {"TORCH_NCCL_BLOCKING_WAIT", "1"},
      {"LC_ALL", "C.UTF-8"},
      {"LANG", "C"},
      {"LANGUAGE", "de"},
      {"HOME", "/root"},
      {"GLOG_v", "1"},
      {"SPDLOG_LEVEL", "debug"},
      {"VLLM_LOGGING_LEVEL", "DEBUG"},
      {"VLLM_CONFIGURE_LOGGING", "0"},
      {"VLLM_API_KEY", "secret"},
      {"LD_LIBRARY_PATH", "/lib"},
      {"LD_PRELOAD", "libprofiler.so"},
      {"PYTHONPATH", "/trainer"},
      {"XNCCL_DEBUG", "INFO"},
      {"NCCLX", "1"},
  };
  EXPECT_THAT(
      made(parent),
      ElementsAre(Pair("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), Pair("CUDA_VISIBLE_DEVICES", "2,GPU-b"),
                  Pair("GLOG_v", "1"), Pair("HOME", "/root"), Pair("LANG", "C"),
                  Pair("LC_ALL", "C.UTF-8"), Pair("LD_LIBRARY_PATH", "/lib"),
                  Pair("NCCL_DEBUG", "INFO"), Pair("NVSHMEM_SYMMETRIC_SIZE", "1G"),
                  Pair("PATH", "/bin"), Pair("SPDLOG_LEVEL", "debug"), Pair("TMPDIR", "/scratch"),
                  Pair("TORCH_NCCL_BLOCKING_WAIT", "1"), Pair("VLLM_CONFIGURE_LOGGING", "0"),
                  Pair("VLLM_LOGGING_LEVEL", "DEBUG")));
}

const std::vector<std::string>& contradicting() {
  static const std::vector<std::string> names = {"CUDA_VISIBLE_DEVICES",
                                                 "RANK",
                                                 "WORLD_SIZE",
                                                 "LOCAL_RANK",
                                                 "LOCAL_WORLD_SIZE",
                                                 "NODE_RANK",
                                                 "GROUP_RANK",
                                                 "GROUP_WORLD_SIZE",
                                                 "ROLE_RANK",
                                                 "ROLE_WORLD_SIZE",
                                                 "ROLE_NAME",
                                                 "MASTER_ADDR",
                                                 "MASTER_PORT",
                                                 "TORCHELASTIC_RUN_ID",
                                                 "NCCL_COMM_ID",
                                                 "NVSHMEM_BOOTSTRAP",
                                                 "NVSHMEM_BOOTSTRAP_PMI",
                                                 "NVSHMEM_BOOTSTRAP_UID_SESSION_ID",
                                                 "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
                                                 "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"};
  return names;
}

TEST(RuntimeEnvironment, WhatDescribesTheTrainersWorldIsNeitherHandedOnNorTakenAsAnExtra) {
  for (const std::string& name : contradicting()) {
    EXPECT_THAT(made({{name, "of the trainer"}}),
                ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "2,GPU-b")))
        << name;
    EXPECT_EQ(refused([&] { made({}, {{name, "0"}}); }).subject, "environment." + name);
  }
  EXPECT_TRUE(passes_to_runtime("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"));
}

TEST(RuntimeEnvironment, ExtrasWinOverWhatIsHandedOnAndNeedNoDeclaration) {
  EXPECT_THAT(made({{"NCCL_DEBUG", "INFO"}}, {{"PYTHONPATH", "/a"}, {"NCCL_DEBUG", "WARN"}}),
              ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "2,GPU-b"), Pair("NCCL_DEBUG", "WARN"),
                          Pair("PYTHONPATH", "/a")));
}

TEST(RuntimeEnvironment, VllmSpawnsItsWorkersUnlessToldOtherwiseAndTakesPickledHandles) {
  const auto method = [](const Environment& parent, Environment extras) {
    const Environment all = made(parent, std::move(extras), RuntimeKind::kVllm);
    EXPECT_THAT(all, testing::Contains(Pair("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")));
    const auto found = std::find_if(all.begin(), all.end(), [](const auto& variable) {
      return variable.first == "VLLM_WORKER_MULTIPROC_METHOD";
    });
    return found == all.end() ? "" : found->second;
  };
  const std::string name = "VLLM_WORKER_MULTIPROC_METHOD";
  EXPECT_EQ(method({}, {}), "spawn");
  EXPECT_EQ(method({{name, "forkserver"}}, {}), "forkserver");
  EXPECT_EQ(method({{name, "forkserver"}}, {{name, "fork"}}), "fork");
  EXPECT_EQ(method({{"VLLM_ALLOW_INSECURE_SERIALIZATION", "0"}}, {}), "spawn");
  EXPECT_EQ(method({}, {{"VLLM_ALLOW_INSECURE_SERIALIZATION", "1"}}), "spawn");
  EXPECT_EQ(refused([] {
              made({}, {{"VLLM_ALLOW_INSECURE_SERIALIZATION", "0"}}, RuntimeKind::kVllm);
            }).subject,
            "environment.VLLM_ALLOW_INSECURE_SERIALIZATION");
  EXPECT_THAT(made({{name, "fork"}}, {{"VLLM_ALLOW_INSECURE_SERIALIZATION", "0"}}),
              ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "2,GPU-b"),
                          Pair("VLLM_ALLOW_INSECURE_SERIALIZATION", "0")))
      << "a native runtime has no such rules";
}

TEST(RuntimeEnvironment, MalformedAndRepeatedVariablesAreRefusedInBothListsWithoutTheirValues) {
  const std::vector<Environment> lists = {
      {{"", "secret"}},
      {{"A=B", "secret"}},
      {{"A\0B"s, "secret"}},
      {{"A", "secret\0"s}},
      {{"A", "secret"}, {"B", "secret"}, {"A", "secret"}},
  };
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const ErrorRecord of_parent = refused([&] { made(lists[i]); });
    EXPECT_EQ(of_parent.subject, "environment.parent") << i;
    EXPECT_THAT(of_parent.detail, Not(HasSubstr("secret"))) << i;
    EXPECT_EQ(refused([&] { made({}, lists[i]); }).subject, "environment.extras") << i;
  }
}

TEST(RuntimeEnvironment, RefusesInTheDocumentedOrder) {
  const Environment twice = {{"A", "1"}, {"A", "2"}};
  const Environment rank = {{"RANK", "1"}};
  EXPECT_EQ(refused([&] { runtime_environment(twice, {.devices = {}, .extras = twice}); }).subject,
            "environment.parent");
  EXPECT_EQ(refused([&] { runtime_environment({}, {.devices = {}, .extras = twice}); }).subject,
            "environment.extras");
  EXPECT_EQ(refused([&] { runtime_environment({}, {.devices = {}, .extras = rank}); }).subject,
            "environment.RANK");
  EXPECT_EQ(refused([&] { runtime_environment({}, {.devices = {}, .extras = {}}); }).subject,
            "environment.CUDA_VISIBLE_DEVICES");
}

TEST(RuntimeEnvironment, DevicesThatTheVariableCouldNotTellApartAreRefused) {
  const std::vector<std::vector<std::string>> lists = {
      {""}, {"0", "1,2"}, {"0 "}, {"0\0"s}, {"0\n"}, {"GPU-a", "1", "GPU-a"}};
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const RuntimeEnvironment own{.devices = lists[i], .extras = {}};
    EXPECT_EQ(refused([&] { runtime_environment({}, own); }).subject,
              "environment.CUDA_VISIBLE_DEVICES")
        << i;
  }
}

}  // namespace
}  // namespace tpsync::rollout
