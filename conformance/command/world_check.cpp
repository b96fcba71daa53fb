#include "conformance/command/world_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string_view>

#include "tpsync/base/errors.h"
#include "tpsync/base/process.h"
#include "tpsync/model/tp_layout.h"

namespace tpsync::conformance {

namespace {

[[noreturn]] void refuse_world(std::string_view field, const std::string& detail) {
  throw_invalid(ErrorKind::kInvalidConfig, field, detail);
}

void check_range(std::string_view field, std::int64_t value, std::int64_t first,
                 std::int64_t last) {
  if (value < first || value > last) {
    refuse_world(field, fmt::format("{} is not from {} to {}", value, first, last));
  }
}

void check_at_most(std::string_view field, std::uint64_t value, std::uint64_t last) {
  if (value > last) refuse_world(field, fmt::format("{} is more than {}", value, last));
}

void check_ranks(const WorldSpec& spec) {
  constexpr auto kLast = static_cast<std::int64_t>(kRanksMax);
  check_range("tp", spec.tp, 1, kLast);
  check_range("actors", spec.actors, 1, kLast);
  if (!spec.actor_uuids.empty() &&
      spec.actor_uuids.size() != static_cast<std::size_t>(spec.actors)) {
    refuse_world("actor_uuids", "must be empty or one per actor");
  }
}

void check_times(const WorldSpec& spec) {
  constexpr std::int64_t kDay = std::chrono::nanoseconds(std::chrono::hours(24)).count();
  check_range("control_timeout_ns", spec.sync.control_timeout.count(), 1, kDay);
  for (const auto& [name, timeout] : kCommandTimeouts)
    check_range(name, (spec.timeouts.*timeout).count(), 1, kDay);
  if (spec.sync.control_timeout - kKillAllowance <= spec.timeouts.weight_update) {
    refuse_world("control_timeout_ns",
                 fmt::format("must exceed weight_update_timeout_ns by more than {}",
                             Duration(kKillAllowance).count()));
  }
}

model::CanonicalPlan check_model(const WorldSpec& spec, bool on_gpus) {
  model::CanonicalPlan plan = model::plan_canonical(spec.config);
  if (!spec.phantom && !on_gpus && plan.byte_count > kModelMaxBytes) {
    refuse_world("model", fmt::format("this model has {} bytes; simulate it without bytes "
                                      "(--phantom)",
                                      plan.byte_count));
  }
  if (plan.byte_count > kTrackedModelMaxBytes) {
    refuse_world("model", fmt::format("this model has {} bytes, more than the {} that can be "
                                      "simulated",
                                      plan.byte_count, kTrackedModelMaxBytes));
  }
  try {
    static_cast<void>(model::plan_tp_layout(spec.config, plan, spec.tp, 0));
  } catch (const Error& error) {
    throw_invalid(error.kind(), "tp", error.record().subject + ": " + error.record().detail);
  }
  if (!is_floating(spec.stored)) refuse_world("stored", "must be a floating dtype");
  return plan;
}

void check_sizes(const WorldSpec& spec, const model::CanonicalPlan& plan, bool on_gpus) {
  const std::uint64_t bucket = spec.sync.bucket_bytes;
  if (bucket < plan.largest_tensor_bytes) {
    refuse_world("bucket_bytes",
                 fmt::format("{} is too small: the largest tensor has {} bytes; give at least that",
                             bucket, plan.largest_tensor_bytes));
  }
  const auto devices = static_cast<std::uint64_t>(std::max(spec.tp, spec.actors));
  const bool limited = !spec.phantom && !on_gpus;
  const std::uint64_t most = limited ? kBuffersMaxBytes / devices : kTrackedBucketMaxBytes;
  if (bucket > most) {
    refuse_world(
        "bucket_bytes",
        fmt::format("{} is too large to be simulated on {} devices; give at most {}{}", bucket,
                    devices, most, limited ? ", or simulate without bytes (--phantom)" : ""));
  }
  constexpr std::uint64_t kOtherMaxBytes = 1024 * kGiB;
  check_at_most("headroom_bytes", spec.sync.gpu_memory_headroom_bytes, kOtherMaxBytes);
  check_at_most("kv_cache_bytes", spec.kv_cache_bytes,
                limited ? kBuffersMaxBytes / devices : kOtherMaxBytes);
  check_at_most("device_bytes", spec.device_bytes, 16 * kOtherMaxBytes);
  if (spec.lane_bytes % 8 != 0) refuse_world("lane_bytes", "must be a multiple of 8");
  if (spec.lane_bytes != 0 && !on_gpus) refuse_world("lane_bytes", "must be 0 but on GPUs");
}

}  // namespace

void check_world(const WorldSpec& spec, bool on_gpus) {
  check_ranks(spec);
  check_times(spec);
  check_range("base_version", spec.base_version, 0, std::int64_t{1} << 53);
  check_sizes(spec, check_model(spec, on_gpus), on_gpus);
}

}  // namespace tpsync::conformance
