#include "tpsync/sync/preflight.h"

#include <string>

#include "tpsync/base/errors.h"

namespace tpsync::sync {

namespace {

ErrorRecord refusal(ErrorKind kind, std::size_t rank, std::string subject, std::string detail) {
  ErrorRecord record;
  record.kind = kind;
  record.rank = static_cast<int>(rank);
  record.subject = std::move(subject);
  record.detail = std::move(detail);
  return record;
}

}  // namespace

std::uint64_t required_free_bytes(std::uint64_t bucket_bytes, std::uint64_t largest_layer_bytes,
                                  std::uint64_t headroom_bytes) {
  auto sum = checked_mul(bucket_bytes, 3);
  if (sum) sum = checked_add(*sum, largest_layer_bytes);
  if (sum) sum = checked_add(*sum, headroom_bytes);
  if (!sum) {
    throw_invalid(ErrorKind::kInvalidConfig, "bucket_bytes",
                  "3 buckets, the largest layer and the headroom exceed 64 bits");
  }
  return *sum;
}

void check_preflight(std::span<const wire::PreflightReport> reports,
                     const wire::TopologyReport& topology, const PreflightLimits& limits) {
  for (std::size_t r = 0; r < reports.size(); ++r) {
    if (reports[r].visible_devices != 1) {
      throw InvalidInput(refusal(ErrorKind::kMismatch, r, "visible devices",
                                 "an actor must see exactly one device, it sees " +
                                     std::to_string(reports[r].visible_devices)));
    }
  }
  if (static_cast<std::int64_t>(reports.size()) != topology.tp_world_size) {
    throw InvalidInput(refusal(ErrorKind::kMismatch, 0, "world size",
                               std::to_string(reports.size()) + " actors, but " +
                                   std::to_string(topology.tp_world_size) + " TP ranks"));
  }
  for (std::size_t r = 1; r < reports.size(); ++r) {
    if (reports[r].host_name != reports[0].host_name || reports[r].boot_id != reports[0].boot_id) {
      throw InvalidInput(refusal(ErrorKind::kMismatch, r, "host",
                                 "runs on " + reports[r].host_name + ", rank 0 on " +
                                     reports[0].host_name + "; all actors must share one host"));
    }
  }
  for (std::size_t r = 0; r < reports.size(); ++r) {
    if (reports[r].device_uuid != topology.device_uuids[r]) {
      throw InvalidInput(refusal(ErrorKind::kMismatch, r, "device uuid",
                                 "the actor is on " + reports[r].device_uuid +
                                     ", the worker of this TP rank on " +
                                     topology.device_uuids[r]));
    }
  }
  if (limits.largest_tensor_bytes > limits.bucket_bytes) {
    throw InvalidInput(
        refusal(ErrorKind::kInvalidConfig, 0, "bucket_bytes",
                "the largest tensor has " + std::to_string(limits.largest_tensor_bytes) +
                    " bytes, the bucket only " + std::to_string(limits.bucket_bytes)));
  }
  for (std::size_t r = 0; r < reports.size(); ++r) {
    if (reports[r].free_bytes < limits.required_free_bytes) {
      throw NothingHappened(refusal(ErrorKind::kOutOfMemory, r, "free device memory",
                                    std::to_string(limits.required_free_bytes) +
                                        " bytes are required, " +
                                        std::to_string(reports[r].free_bytes) + " are free"));
    }
  }
}

}  // namespace tpsync::sync
