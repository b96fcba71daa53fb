#include "conformance/command/world_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "conformance/command/integer.h"
#include "conformance/command/output.h"
#include "conformance/command/usage.h"
#include "conformance/command/world_check.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

void WorldFlags::add_to(CLI::App& app) {
  app.add_option("--world", world, fmt::format("The world to run in: {}", fmt::join(worlds, ", ")))
      ->capture_default_str();
  add_integer(app, "--seed", seed, {}, "Seed of every draw (default 1)");
  add_integer(app, "--tp", tp, {1, kRanksMax}, "Tensor-parallel size (default 4)");
  add_integer(app, "--actors", actors, {1, kRanksMax}, "Trainer ranks (default: as --tp)");
  app.add_option("--config", config,
                 "Hugging Face config.json, or its directory (default: tiny-tp4)");
  add_integer(app, "--bucket-bytes", bucket_bytes, {.first = 1},
              "Packed buffer (default 1024 for models below 1 MiB, else 640 MiB)");
  add_integer(app, "--bucket-mib", bucket_mib, {1, kMibMax}, "The same in MiB");
  if (std::find(worlds.begin(), worlds.end(), "process") != worlds.end()) {
    app.add_flag("--gloo-only", gloo_only,
                 "Agree over Gloo alone, not over shared memory (--world process)");
  }
  app.add_option("--gather", gather,
                 "How weights move between actors: collective (NCCL, Gloo), or copies (default on "
                 "GPUs)");
  app.add_option("--route", route,
                 "How weights come to the workers: gather (through each worker's own actor), or "
                 "reshard (each pulls its slices from all actors)")
      ->capture_default_str();
  app.add_flag("--no-overlap", no_overlap, "One packed buffer: gather and load by turns");
  app.add_flag("--separate-experts", separate_experts,
               "The trainer stores experts one by one, not fused");
  app.add_flag("--fp32", fp32, "The trainer stores float32, whatever the model's dtype is");
  if (std::find(worlds.begin(), worlds.end(), "gpu") != worlds.end()) {
    app.add_flag("--vmm-exports", vmm_exports,
                 "GPUs export descriptors of the virtual memory API, not CUDA IPC (--world gpu)");
  }
  app.add_option("--without", without,
                 "A cruelty of the simulated world that is switched off; may be repeated")
      ->allow_extra_args(false);
  app.add_flag("--lane", lane, "Agree over core's lane on simulated shared words (--world sim)");
  app.add_flag("--phantom", phantom, "Track extents and content tags instead of bytes");
}

model::ModelConfig load_config_or_refuse(const std::string& path) {
  try {
    return model::load_model_config(path);
  } catch (const Error& error) {
    throw UsageError{"--config: " + to_text(error.record())};
  }
}

namespace {

constexpr std::uint64_t kLaneBytes = 64 * 1024;

std::string flag_of(const std::string& field, const WorldFlags& flags) {
  if (field == "tp" || field == "actors") return "--" + field;
  if (field == "bucket_bytes") return flags.bucket_mib ? "--bucket-mib" : "--bucket-bytes";
  // The built-in model is not what is wrong.
  return flags.config ? "--config" : "--tp";
}

}  // namespace

WorldSpec WorldFlags::spec() const {
  if (std::find(worlds.begin(), worlds.end(), world) == worlds.end()) {
    throw UsageError{fmt::format("--world: \"{}\" is not a world of this command; use {}", world,
                                 fmt::join(worlds, " or "))};
  }
  if (!without.empty() && world != "sim") {
    throw UsageError{"--without: only a simulated world has cruelties; use --world sim"};
  }
  if (lane && world != "sim") {
    throw UsageError{"--lane: other worlds agree over it anyway; use --world sim"};
  }
  if (phantom && world != "sim") {
    throw UsageError{"--phantom: only a simulated world has no bytes; use --world sim"};
  }
  if (phantom && fp32) throw UsageError{"--fp32: what has no bytes cannot be cast; leave it out"};
  if (gloo_only && world == "sim") {
    throw UsageError{"--gloo-only: only worlds of processes have another way; use --world process"};
  }
  if (vmm_exports && world != "gpu") {
    throw UsageError{"--vmm-exports: only GPUs have another way; use --world gpu"};
  }
  if (bucket_mib && bucket_bytes) {
    throw UsageError{"--bucket-mib: give either --bucket-mib or --bucket-bytes"};
  }
  if (!gather.empty() && gather != "collective" && gather != "copies") {
    throw UsageError{"--gather: \"" + gather + "\" is not known; use collective or copies"};
  }
  const auto chosen_route = wire::route_from(route);
  if (!chosen_route) {
    throw UsageError{"--route: \"" + route + "\" is not known; use gather or reshard"};
  }
  const int ranks = static_cast<int>(tp.value_or(4));
  WorldSpec spec = small_world(config ? load_config_or_refuse(*config) : tiny_tp4(), ranks);
  spec.actors = static_cast<int>(actors.value_or(tp.value_or(4)));
  spec.seed = seed.value_or(1);
  spec.phantom = phantom;
  spec.sync.overlap = !no_overlap;
  spec.sync.route = *chosen_route;
  if (separate_experts) spec.storage = Storage::kSeparateExperts;
  if (fp32) spec.stored = DType::kFloat32;
  spec.gather = gather == "copies" || (gather.empty() && world == "gpu") ? Gather::kCopies
                                                                         : Gather::kCollective;
  spec.shared_lane = !gloo_only;
  spec.vmm_exports = vmm_exports;
  spec.simulated_lane = lane;
  for (const std::string& name : without) {
    if (switch_off(spec.cruelty, name)) continue;
    std::vector<std::string> names;
    for (const auto& [known, member] : kCruelties) names.emplace_back(known);
    throw UsageError{
        fmt::format("--without: \"{}\" is no cruelty; known are {}", name, fmt::join(names, ", "))};
  }
  try {
    const model::CanonicalPlan plan = model::plan_canonical(spec.config);
    if (world != "sim")
      set_real_timeouts(spec, plan.byte_count / static_cast<std::uint64_t>(ranks));
    spec.sync.bucket_bytes =
        bucket_mib ? *bucket_mib * kMiB : bucket_bytes.value_or(default_bucket_bytes(plan));
    if (world == "gpu" && plan.byte_count > kModelMaxBytes) spec.lane_bytes = kLaneBytes;
    if (plan.byte_count >= kMiB) {
      spec.sync.gpu_memory_headroom_bytes = 2048 * kMiB;
      spec.kv_cache_bytes = kGiB;
    }
    check_world(spec, world == "gpu");
  } catch (const Error& error) {
    const ErrorRecord& record = error.record();
    throw UsageError{flag_of(record.subject, *this) + ": " + record.detail};
  }
  if (phantom) spec.sync.content_digest = false;
  return spec;
}

std::string WorldFlags::text(const WorldSpec& spec) const {
  std::string text = fmt::format("--world {} --seed {} --actors {} --tp {}", world, spec.seed,
                                 spec.actors, spec.tp);
  if (config) text += " --config " + quoted(*config);
  text += fmt::format(" --bucket-bytes {}", spec.sync.bucket_bytes);
  if (spec.phantom) text += " --phantom";
  if (!spec.sync.overlap) text += " --no-overlap";
  if (spec.storage == Storage::kSeparateExperts) text += " --separate-experts";
  if (fp32) text += " --fp32";
  if (!gather.empty()) text += " --gather " + gather;
  if (spec.sync.route != wire::Route::kGather) text += " --route " + route;
  if (spec.vmm_exports) text += " --vmm-exports";
  if (!spec.shared_lane) text += " --gloo-only";
  if (spec.simulated_lane) text += " --lane";
  for (const std::string& name : switched_off(spec.cruelty)) text += " --without " + name;
  return text;
}

}  // namespace tpsync::conformance
