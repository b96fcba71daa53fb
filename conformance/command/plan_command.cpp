// tpsync plan: what a publication of a model would look like, from its configuration alone.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "conformance/command/commands.h"
#include "conformance/command/usage.h"
#include "conformance/command/world_flags.h"
#include "tpsync/base/errors.h"
#include "tpsync/model/tp_layout.h"
#include "tpsync/sync/preflight.h"
#include "tpsync/transfer/chunk_plan.h"

namespace tpsync::conformance {

namespace {

struct PlanFlags {
  std::string config;
  int tp = 4;
  std::optional<std::uint64_t> bucket_mib;
  std::optional<std::uint64_t> bucket_bytes;
  std::uint64_t headroom_mib = 2048;
  bool json = false;
};

std::uint64_t from_mib(std::uint64_t mib, const char* flag) {
  const auto bytes = checked_mul(mib, kMiB);
  if (!bytes) throw UsageError{fmt::format("{}: {} MiB does not fit 64 bits", flag, mib)};
  return *bytes;
}

int print_plan(const PlanFlags& flags) {
  if (flags.bucket_mib.has_value() == flags.bucket_bytes.has_value()) {
    throw UsageError{"--bucket-mib: give either --bucket-mib or --bucket-bytes"};
  }
  const std::uint64_t bucket =
      flags.bucket_bytes ? *flags.bucket_bytes : from_mib(*flags.bucket_mib, "--bucket-mib");
  if (bucket == 0) throw UsageError{"--bucket-bytes: must be greater than 0"};
  const model::ModelConfig config = load_config_or_refuse(flags.config);
  try {
    const model::CanonicalPlan plan = model::plan_canonical(config);
    static_cast<void>(model::plan_tp_layout(config, plan, flags.tp, 0));
    const wire::Manifest manifest = wire::build_manifest(plan.tensors);
    const auto chunks = transfer::plan_chunks(plan.tensors, bucket);
    const std::uint64_t required = sync::required_free_bytes(
        bucket, plan.largest_layer_bytes, from_mib(flags.headroom_mib, "--headroom-mib"));
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
      fmt::print("{}\n", json.dump(2));
      return kExitPassed;
    }
    fmt::print("tensors        {}\nbytes          {}\nfingerprint    {}\n", manifest.tensor_count,
               manifest.byte_count, manifest.fingerprint);
    fmt::print("largest tensor {}\nlargest layer  {}\nboundaries     {}\n",
               plan.largest_tensor_bytes, plan.largest_layer_bytes, plan.boundaries.size());
    fmt::print("chunks         {} of at most {} bytes\nrequired free  {} bytes per device\n",
               chunks.size(), bucket, required);
    return kExitPassed;
  } catch (const Error& error) {
    throw UsageError{to_text(error.record())};
  }
}

}  // namespace

void add_plan_command(CLI::App& app, Command& command) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* plan = app.add_subcommand("plan", "Print what a publication of a model looks like");
  plan->add_option("--config", flags->config, "Hugging Face config.json, or its directory")
      ->required();
  plan->add_option("--tp", flags->tp, "Tensor-parallel size")->capture_default_str();
  plan->add_option("--bucket-mib", flags->bucket_mib, "Packed buffer, in MiB");
  plan->add_option("--bucket-bytes", flags->bucket_bytes, "Packed buffer, in bytes");
  plan->add_option("--headroom-mib", flags->headroom_mib, "Memory headroom, in MiB")
      ->capture_default_str();
  plan->add_flag("--json", flags->json, "JSON on standard output");
  plan->callback([flags, &command] { command = [flags] { return print_plan(*flags); }; });
}

}  // namespace tpsync::conformance
