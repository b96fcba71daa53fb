// The options of IpcWeightSync, with the names and defaults of UniRL.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tpsync/base/bytes.h"
#include "tpsync/base/clock.h"
#include "tpsync/base/dtype.h"
#include "tpsync/wire/messages.h"

namespace tpsync::sync {

// bucket_bytes, flush_cache, control_timeout, content_digest, layout, route and overlap must be the
// same on every rank: sync refuses others, by name, before the runtime is touched.
struct SyncOptions {
  std::uint64_t bucket_bytes = 2048 * kMiB;  // of one chunk; the packed buffer's size, or a third
  bool flush_cache = true;
  bool lora_merged = false;
  std::optional<std::string> adapter_name;
  // Pattern to replacement, each with exactly one "*"; no replacement drops the name. A bare "*"
  // must be last.
  std::vector<std::pair<std::string, std::optional<std::string>>> name_remap;
  std::optional<DType> wire_dtype;
  std::uint64_t gpu_memory_headroom_bytes = 2048 * kMiB;
  // Must exceed the update timeout by more than kKillAllowance: rank 0 ends a hung runtime before
  // it joins the agreement that its peers are waiting in.
  Duration control_timeout = std::chrono::seconds(900);

  // The version to go on from after a restart, as kept with the trainer's checkpoint.
  std::int64_t last_committed_version = 0;
  bool content_digest = false;
  std::optional<wire::Layout> layout;  // default: rank_major where the runtime takes it
  // reshard: no gather; each worker pulls its slices out of all actors' buffers, which hold their
  // own parts alone. In rank_major, and refused where the runtime does not declare it.
  wire::Route route = wire::Route::kGather;
  // Gathers the next chunk, and packs the one after it, while the workers load one: in a buffer of
  // three buckets. In compact, whose gather needs memory of its own, there is no overlap. By the
  // reshard route the next chunk is packed meanwhile, in a buffer of two parts.
  bool overlap = true;
};

// Throws InvalidInput kInvalidConfig, subject the option, in order: bucket_bytes > 0;
// control_timeout > 0; the reshard route with another layout than rank_major; another adapter than
// "default" without lora_merged; name_remap patterns;
// last_committed_version from 0 to kCommittedVersionMax.
void check_options(const SyncOptions& options);

// "bf16", "bfloat16", "fp16", "float16", "half", "fp32", "float32", "float", in any case. Throws
// InvalidInput kInvalidConfig, subject "wire_dtype".
DType parse_wire_dtype(const std::string& text);

}  // namespace tpsync::sync
