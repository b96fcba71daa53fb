// tpsync plan: what a publication of a model would look like, from its configuration alone.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "conformance/command/commands.h"
#include "conformance/command/integer.h"
#include "conformance/command/output.h"
#include "conformance/command/usage.h"
#include "conformance/command/world_flags.h"
#include "tpsync/base/errors.h"
#include "tpsync/model/tp_layout.h"
#include "tpsync/sync/preflight.h"
#include "tpsync/transfer/chunk_plan.h"

namespace tpsync::conformance {

namespace {

constexpr std::uint64_t kPlannedRanksMax = 1024;

struct PlanFlags {
  std::string config;
  std::optional<std::uint64_t> tp;  // 4
  std::optional<std::uint64_t> bucket_mib;
  std::optional<std::uint64_t> bucket_bytes;
  std::optional<std::uint64_t> headroom_mib;  // 2048
  bool json = false;
};

// Runs a step of planning; its refusals are those of the flag.
template <typename Step>
auto of_flag(const std::string& flag, const Step& step) {
  try {
    return step();
  } catch (const Error& error) {
    throw UsageError{flag + ": " + to_text(error.record())};
  }
}

int print_plan(const PlanFlags& flags) {
  if (flags.bucket_mib.has_value() == flags.bucket_bytes.has_value()) {
    throw UsageError{"--bucket-mib: give one of --bucket-mib and --bucket-bytes"};
  }
  const std::string bucket_flag = flags.bucket_bytes ? "--bucket-bytes" : "--bucket-mib";
  const std::uint64_t bucket = flags.bucket_bytes ? *flags.bucket_bytes : *flags.bucket_mib * kMiB;
  const std::uint64_t headroom = flags.headroom_mib.value_or(2048) * kMiB;
  const model::ModelConfig config = load_config_or_refuse(flags.config);
  const model::CanonicalPlan plan =
      of_flag("--config", [&] { return model::plan_canonical(config); });
  of_flag("--tp", [&] {
    return model::plan_tp_layout(config, plan, static_cast<int>(flags.tp.value_or(4)), 0);
  });
  const auto chunks =
      of_flag(bucket_flag, [&] { return transfer::plan_chunks(plan.tensors, bucket); });
  const std::uint64_t required = of_flag(
      bucket_flag + (flags.headroom_mib ? ", --headroom-mib" : ""),
      [&] { return sync::required_free_bytes(bucket, plan.largest_layer_bytes, headroom); });
  const wire::Manifest manifest = wire::build_manifest(plan.tensors);
  if (flags.json) {
    nlohmann::ordered_json json;
    json["tensor_count"] = manifest.tensor_count;
    json["byte_count"] = manifest.byte_count;
    json["fingerprint"] = manifest.fingerprint;
    json["largest_tensor"] = plan.largest_tensor_bytes;
    json["largest_layer"] = plan.largest_layer_bytes;
    json["chunk_count"] = chunks.size();
    json["chunk_tensor_counts"] = nlohmann::ordered_json::array();
    for (const auto& chunk : chunks) json["chunk_tensor_counts"].push_back(chunk.count);
    json["boundary_count"] = plan.boundaries.size();
    json["required_free"] = required;
    fmt::print("{}", dumped(json));
    return kExitPassed;
  }
  fmt::print("tensors        {}\nbytes          {}\nfingerprint    {}\n", manifest.tensor_count,
             manifest.byte_count, manifest.fingerprint);
  fmt::print("largest tensor {}\nlargest layer  {}\nboundaries     {}\n", plan.largest_tensor_bytes,
             plan.largest_layer_bytes, plan.boundaries.size());
  fmt::print("chunks         {} of at most {} bytes\nrequired free  {} bytes per device\n",
             chunks.size(), bucket, required);
  return kExitPassed;
}

}  // namespace

void add_plan_command(CLI::App& app, Command& command) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* plan = app.add_subcommand("plan", "Print what a publication of a model looks like");
  plan->add_option("--config", flags->config, "Hugging Face config.json, or its directory")
      ->required();
  add_integer(*plan, "--tp", flags->tp, {1, kPlannedRanksMax}, "Tensor-parallel size (default 4)");
  add_integer(*plan, "--bucket-mib", flags->bucket_mib, {1, kMibMax}, "Packed buffer, in MiB");
  add_integer(*plan, "--bucket-bytes", flags->bucket_bytes, {.first = 1},
              "Packed buffer, in bytes");
  add_integer(*plan, "--headroom-mib", flags->headroom_mib, {0, kMibMax},
              "Memory headroom, in MiB (default 2048)");
  plan->add_flag("--json", flags->json, "JSON on standard output");
  plan->callback([flags, &command] { command = [flags] { return print_plan(*flags); }; });
}

}  // namespace tpsync::conformance
