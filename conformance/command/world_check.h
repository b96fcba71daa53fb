// Which worlds this program simulates: what flags and replay files are held against alike.
#pragma once

#include <cstdint>

#include "conformance/world/spec.h"
#include "sim/groups.h"
#include "tpsync/base/bytes.h"

namespace tpsync::conformance {

// With bytes, a world's packed buffers are memory of this process.
inline constexpr std::uint64_t kBuffersMaxBytes = 4 * kGiB;  // of all devices together
inline constexpr std::uint64_t kModelMaxBytes = kGiB;
// Without, sizes are numbers, but required memory has to fit the simulated devices of 16 TiB.
inline constexpr std::uint64_t kTrackedBucketMaxBytes = 1024 * kGiB;
inline constexpr std::uint64_t kTrackedModelMaxBytes = 8 * 1024 * kGiB;

// Throws InvalidInput. The subject is the field of a replay file (tp, actors, bucket_bytes,
// headroom_bytes, kv_cache_bytes, device_bytes, control_timeout_ns, the kCommandTimeouts,
// base_version, actor_uuids, stored, lane_bytes, model), or, for a model that cannot be split over
// tp ranks, "tp" with the model's field in the detail. On GPUs sizes are bounded by their memory
// alone, which a publication's preflight looks at.
void check_world(const WorldSpec& spec, bool on_gpus = false);

}  // namespace tpsync::conformance
