// Where each trainer rank stands in the layout of the rollout, and which devices a runtime gets.
//
// The rules are UniRL's. Ranks are laid out contiguously: TP varies fastest, then PP, then DP. The
// ranks of one TP group stand for the workers of one runtime, which only TP rank 0 spawns. Each
// rank sees exactly one device; the runtime is given the devices of all ranks of its group, in the
// order of their TP ranks, so that worker r works on the device of TP rank r.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tpsync::rollout {

// 0 says nothing and counts as 1.
struct ParallelSizes {
  std::int64_t tp = 1;
  std::int64_t pp = 1;
  std::int64_t ep = 1;
  friend bool operator==(const ParallelSizes&, const ParallelSizes&) = default;
};

// What is known of a role (a group of equal workers) before it is placed.
struct RoleShape {
  ParallelSizes given;  // by whoever places the role
  // The role takes its TP rank and devices from its placement, so that what its engine's
  // configuration says counts as well.
  bool accepts_rollout_tp = false;
  ParallelSizes configured;             // tp_size, pp_size, ep_size of that configuration
  std::vector<ParallelSizes> siblings;  // of the roles that it is given handles of
  std::int64_t sp = 1;                  // of the trainer's sharding
};

struct ParallelShape {
  ParallelSizes sizes;  // each at least 1
  std::int64_t sp = 1;
  friend bool operator==(const ParallelShape&, const ParallelShape&) = default;
};

struct RankLayout {
  std::int64_t dp_rank = 0;
  std::int64_t dp_size = 1;
  std::int64_t tp_rank = 0;
  std::int64_t tp_size = 1;
  std::int64_t pp_rank = 0;
  std::int64_t pp_size = 1;
  std::int64_t ep_rank = 0;  // always 0: experts are not placed apart
  std::int64_t ep_size = 1;
  friend bool operator==(const RankLayout&, const RankLayout&) = default;
};

// What a rank's process says of where it runs.
struct WorkerLocation {
  std::string node;             // the node's address
  std::string visible_devices;  // its CUDA_VISIBLE_DEVICES
};

struct RankPlacement {
  RankLayout layout;
  std::vector<std::int64_t> tp_group;  // the ranks of this rank's TP group, by TP rank
  bool spawns_runtime = true;          // TP rank 0
  // Of the group's runtime: entry r is for its worker r. Equal on all ranks of the group. Empty
  // where no group has more than one rank: then the runtime sees what its rank sees.
  std::vector<std::string> devices;
};

inline constexpr std::int64_t kWorldSizeMax = 1 << 16;  // ranks

// Every function below throws InvalidInput, checks in the order in which its refusals are listed,
// and has no effect otherwise. The record's rank is the first rank that the refusal concerns, where
// there is one.

// Each size is the largest of those that count: the given, the configured if the role accepts them,
// and the siblings' (so that a weight sync has the layout of its rollout). `sp` becomes 1 if it
// does not divide the world.
//   kInvalidConfig "placement.world_size"  below 1, or above kWorldSizeMax
//   kInvalidConfig "placement.<size>"      tp_size, pp_size, ep_size or sp_size is negative
//   kUnsupported   "placement.sp_size"     above 1 together with TP or PP above 1
//   kMismatch      "placement.world_size"  not a multiple of TP * PP (EP does not count)
ParallelShape resolve_shape(const RoleShape& role, std::int64_t world_size);

// One entry per rank. For a shape that resolve_shape returned for the same world; others are
// refused as it refuses them.
std::vector<RankLayout> plan_layout(const ParallelShape& shape, std::int64_t world_size);

// The devices of each rank's group by TP rank, one entry per rank; all entries are empty if no rank
// has a tp_size above 1, and then nothing is checked. A group is what has the same DP and PP rank;
// groups are checked one after the other, by (DP rank, PP rank), each in this order:
//   kMismatch      "placement.workers"    not one location per rank (before all groups)
//   kMismatch      "placement.tp_rank"    the group's TP ranks are not each of 0 to tp_size - 1
//                                         once
//   kInvalidConfig "placement.node"       a node address is empty
//   kUnsupported   "placement.node"       the group spans two nodes
//   kInvalidConfig "placement.device"     a worker sees no device
//   kUnsupported   "placement.device"     a worker sees several
//   kMismatch      "placement.devices"    two workers of the group see the same one
// A device is the worker's text without the blanks around it, an index or a UUID: two spellings of
// one device, and one device in two groups, pass. The preflight of a publication compares UUIDs.
std::vector<std::vector<std::string>> map_devices(std::span<const RankLayout> layout,
                                                  std::span<const WorkerLocation> workers);

// All three, in this order. The result is in rank order.
std::vector<RankPlacement> place_role(const RoleShape& role, std::int64_t world_size,
                                      std::span<const WorkerLocation> workers);

// The devices of a runtime whose rank's CUDA_VISIBLE_DEVICES is `inherited`: those of the placement
// where it has any; else the first tp_size that the rank sees; else, where the variable is not set,
// "0" to "tp_size - 1". A variable that is set and names no device means none.
//   kMismatch      "placement.devices"    not exactly tp_size
// At least 1 and at most kWorldSizeMax as tp_size: others are refused as "placement.tp_size".
std::vector<std::string> runtime_devices(const RankPlacement* placement,
                                         const std::optional<std::string>& inherited,
                                         std::int64_t tp_size);

}  // namespace tpsync::rollout
