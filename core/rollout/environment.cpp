#include "tpsync/rollout/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "tpsync/base/errors.h"

namespace tpsync::rollout {

namespace {

constexpr std::string_view kDevices = "CUDA_VISIBLE_DEVICES";
constexpr std::string_view kVllmSerialization = "VLLM_ALLOW_INSECURE_SERIALIZATION";
constexpr std::string_view kVllmMethod = "VLLM_WORKER_MULTIPROC_METHOD";

// Names; with a '*' at the end, beginnings of names.
constexpr std::array<std::string_view, 14> kPassing = {"CUDA_*",
                                                       "NCCL_*",
                                                       "NVSHMEM_*",
                                                       "TORCH_*",
                                                       "SPDLOG_LEVEL",
                                                       "GLOG_*",
                                                       "VLLM_CONFIGURE_LOGGING",
                                                       "VLLM_LOGGING_*",
                                                       "PATH",
                                                       "LD_LIBRARY_PATH",
                                                       "HOME",
                                                       "TMPDIR",
                                                       "LANG",
                                                       "LC_*"};
constexpr std::array<std::string_view, 19> kContradicting = {kDevices,
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
                                                             "TORCHELASTIC_*",
                                                             "NCCL_COMM_ID",
                                                             "NVSHMEM_BOOTSTRAP",
                                                             "NVSHMEM_BOOTSTRAP_PMI",
                                                             "NVSHMEM_BOOTSTRAP_UID_SESSION_ID",
                                                             "TORCH_NCCL_DEBUG_INFO_*"};

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.back() != '*') return name == pattern;
  return name.starts_with(pattern.substr(0, pattern.size() - 1));
}

template <std::size_t N>
bool matches_any(const std::array<std::string_view, N>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [name](std::string_view pattern) { return matches(pattern, name); });
}

[[noreturn]] void refuse_variable(std::string_view what, std::string_view detail) {
  throw_invalid(ErrorKind::kInvalidConfig, fmt::format("environment.{}", what), detail);
}

bool has_nul(std::string_view text) { return text.find('\0') != std::string_view::npos; }

void check_variables(std::string_view what, const Environment& variables) {
  std::set<std::string_view> seen;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const auto& [name, value] = variables[i];
    if (name.empty()) refuse_variable(what, fmt::format("the name of variable {} is empty", i));
    if (has_nul(name))
      refuse_variable(what, fmt::format("the name of variable {} holds a NUL byte", i));
    if (name.find('=') != std::string::npos) {
      refuse_variable(what,
                      fmt::format("the name {} holds a '='; give name and value apart", name));
    }
    if (has_nul(value))
      refuse_variable(what, fmt::format("the value of {} holds a NUL byte", name));
    if (!seen.insert(name).second) {
      refuse_variable(what, fmt::format("{} is there twice; leave the one that is meant", name));
    }
  }
}

void check_extras(const RuntimeEnvironment& own) {
  check_variables("extras", own.extras);
  for (const auto& [name, value] : own.extras) {
    if (name == kDevices)
      refuse_variable(name, "is made of the runtime's devices; place them instead");
    if (contradicts_runtime(name)) {
      refuse_variable(name, "belongs to the trainer's world, a runtime makes its own; remove it");
    }
    if (own.runtime == RuntimeKind::kVllm && name == kVllmSerialization && value != "1") {
      refuse_variable(
          name, "must be 1 with vLLM, because weight updates carry pickled handles; remove it");
    }
  }
}

std::string joined(std::span<const std::string> devices) {
  if (devices.empty())
    refuse_variable(kDevices, "no device is given; a runtime needs one per worker");
  std::set<std::string_view> seen;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    constexpr std::string_view kForbidden(", \t\r\n\v\f\0", 8);
    if (devices[i].empty() || devices[i].find_first_of(kForbidden) != std::string::npos) {
      refuse_variable(kDevices,
                      fmt::format("device {} is empty, or holds a comma, a blank or a NUL byte; "
                                  "give one index or UUID per worker",
                                  i));
    }
    if (!seen.insert(devices[i]).second) {
      refuse_variable(
          kDevices,
          fmt::format("device {} is given twice; each worker needs one of its own", devices[i]));
    }
  }
  return fmt::format("{}", fmt::join(devices.begin(), devices.end(), ","));
}

}  // namespace

bool contradicts_runtime(std::string_view name) { return matches_any(kContradicting, name); }

bool passes_to_runtime(std::string_view name) {
  return matches_any(kPassing, name) && !contradicts_runtime(name);
}

Environment runtime_environment(const Environment& parent, const RuntimeEnvironment& own) {
  check_variables("parent", parent);
  check_extras(own);
  std::map<std::string, std::string, std::less<>> variables;
  for (const auto& [name, value] : parent) {
    const bool passes =
        passes_to_runtime(name) || (own.runtime == RuntimeKind::kVllm && name == kVllmMethod);
    if (passes) variables.emplace(name, value);
  }
  for (const auto& [name, value] : own.extras) variables.insert_or_assign(name, value);
  if (own.runtime == RuntimeKind::kVllm) {
    variables.insert_or_assign(std::string(kVllmSerialization), "1");
    variables.emplace(kVllmMethod, "spawn");  // unless it is there
  }
  variables.insert_or_assign(std::string(kDevices), joined(own.devices));
  return {variables.begin(), variables.end()};
}

}  // namespace tpsync::rollout
