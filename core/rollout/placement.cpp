#include "tpsync/rollout/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "tpsync/base/errors.h"

namespace tpsync::rollout {

namespace {

[[noreturn]] void refuse(ErrorKind kind, std::string_view what, std::string detail,
                         std::int64_t rank = -1) {
  ErrorRecord record;
  record.kind = kind;
  record.rank = static_cast<int>(rank);
  record.subject = fmt::format("placement.{}", what);
  record.detail = std::move(detail);
  throw InvalidInput(std::move(record));
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\v\f";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// The devices that a list names; what is empty between two commas names none.
std::vector<std::string> tokens_of(std::string_view list) {
  std::vector<std::string> tokens;
  for (;;) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string_view token = trimmed(list.substr(0, comma));
    if (!token.empty()) tokens.emplace_back(token);
    if (comma == list.size()) return tokens;
    list.remove_prefix(comma + 1);
  }
}

void require_not_negative(std::string_view name, std::int64_t size) {
  if (size < 0) {
    refuse(ErrorKind::kInvalidConfig, name,
           fmt::format("is {}; give a size of at least 1, or 0 for the default", size));
  }
}

void require_not_negative(const ParallelSizes& sizes) {
  require_not_negative("tp_size", sizes.tp);
  require_not_negative("pp_size", sizes.pp);
  require_not_negative("ep_size", sizes.ep);
}

void raise_to(ParallelSizes& sizes, const ParallelSizes& other) {
  sizes.tp = std::max(sizes.tp, other.tp);
  sizes.pp = std::max(sizes.pp, other.pp);
  sizes.ep = std::max(sizes.ep, other.ep);
}

void check_world_size(std::int64_t world_size) {
  if (world_size < 1 || world_size > kWorldSizeMax) {
    refuse(ErrorKind::kInvalidConfig, "world_size",
           fmt::format("is {}; must be from 1 to {} ranks", world_size, kWorldSizeMax));
  }
}

void check_shape(const ParallelShape& shape, std::int64_t world_size) {
  const auto& [tp, pp, ep] = shape.sizes;
  if (shape.sp > 1 && (tp > 1 || pp > 1)) {
    refuse(ErrorKind::kUnsupported, "sp_size",
           fmt::format("is {} with tp_size {} and pp_size {}; sequence parallelism goes with "
                       "neither: set sp_size to 1",
                       shape.sp, tp, pp));
  }
  // Compared one by one first: the product of what exceeds the world may overflow.
  if (tp > world_size || pp > world_size || world_size % (tp * pp) != 0) {
    refuse(ErrorKind::kMismatch, "world_size",
           fmt::format("is {}, which is no multiple of tp_size {} times pp_size {}; change the "
                       "number of ranks or the sizes",
                       world_size, tp, pp));
  }
}

// The ranks of each (DP rank, PP rank), in rank order.
using Groups = std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int64_t>>;

const RankLayout& at(std::span<const RankLayout> layout, std::int64_t rank) {
  return layout[static_cast<std::size_t>(rank)];
}

Groups groups_of(std::span<const RankLayout> layout) {
  Groups groups;
  for (std::size_t rank = 0; rank < layout.size(); ++rank) {
    groups[{layout[rank].dp_rank, layout[rank].pp_rank}].push_back(static_cast<std::int64_t>(rank));
  }
  return groups;
}

// Orders a group's ranks by TP rank.
void check_tp_ranks(std::span<const RankLayout> layout, std::vector<std::int64_t>& group) {
  std::stable_sort(group.begin(), group.end(), [&](std::int64_t a, std::int64_t b) {
    return at(layout, a).tp_rank < at(layout, b).tp_rank;
  });
  const std::int64_t tp_size = at(layout, group.front()).tp_size;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const RankLayout& own = at(layout, group[i]);
    if (own.tp_rank != static_cast<std::int64_t>(i) || own.tp_size != tp_size) {
      refuse(ErrorKind::kMismatch, "tp_rank",
             fmt::format("is {} of {} where {} of {} is expected; each TP rank of a group must be "
                         "there exactly once",
                         own.tp_rank, own.tp_size, i, tp_size),
             group[i]);
    }
  }
  if (static_cast<std::int64_t>(group.size()) != tp_size) {
    refuse(ErrorKind::kMismatch, "tp_rank",
           fmt::format("{} ranks are in a group of tp_size {}; each TP rank of a group must be "
                       "there exactly once",
                       group.size(), tp_size),
           group.front());
  }
}

void check_node(std::span<const WorkerLocation> workers, const std::vector<std::int64_t>& group) {
  const auto node = [&](std::int64_t rank) -> const std::string& {
    return workers[static_cast<std::size_t>(rank)].node;
  };
  for (const std::int64_t rank : group) {
    if (node(rank).empty()) {
      refuse(ErrorKind::kInvalidConfig, "node",
             "the node's address is empty; the worker must say where it runs", rank);
    }
  }
  for (const std::int64_t rank : group) {
    if (node(rank) != node(group.front())) {
      refuse(ErrorKind::kUnsupported, "node",
             fmt::format("is {}, and {} for rank {} of the same TP group; a runtime runs on one "
                         "node: place the group on one",
                         node(rank), node(group.front()), group.front()),
             rank);
    }
  }
}

std::vector<std::string> devices_of(std::span<const WorkerLocation> workers,
                                    const std::vector<std::int64_t>& group) {
  std::vector<std::string> devices;
  for (const std::int64_t rank : group) {
    devices.emplace_back(trimmed(workers[static_cast<std::size_t>(rank)].visible_devices));
    if (devices.back().empty()) {
      refuse(ErrorKind::kInvalidConfig, "device",
             "CUDA_VISIBLE_DEVICES names none; give the worker one device", rank);
    }
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].find(',') != std::string::npos) {
      refuse(ErrorKind::kUnsupported, "device",
             fmt::format("CUDA_VISIBLE_DEVICES is {}; give each worker exactly one device",
                         devices[i]),
             group[i]);
    }
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto first = std::find(devices.begin(), devices.end(), devices[i]) - devices.begin();
    if (static_cast<std::size_t>(first) != i) {
      refuse(ErrorKind::kMismatch, "devices",
             fmt::format("device {} is that of rank {} as well; each rank of a TP group needs one "
                         "of its own",
                         devices[i], group[static_cast<std::size_t>(first)]),
             group[i]);
    }
  }
  return devices;
}

}  // namespace

ParallelShape resolve_shape(const RoleShape& role, std::int64_t world_size) {
  check_world_size(world_size);
  ParallelShape shape;
  require_not_negative(role.given);
  raise_to(shape.sizes, role.given);
  if (role.accepts_rollout_tp) {
    require_not_negative(role.configured);
    raise_to(shape.sizes, role.configured);
  }
  for (const ParallelSizes& sibling : role.siblings) {
    require_not_negative(sibling);
    raise_to(shape.sizes, sibling);
  }
  require_not_negative("sp_size", role.sp);
  if (role.sp > 1 && world_size % role.sp == 0) shape.sp = role.sp;
  check_shape(shape, world_size);
  return shape;
}

std::vector<RankLayout> plan_layout(const ParallelShape& shape, std::int64_t world_size) {
  const RoleShape role{.given = shape.sizes, .configured = {}, .siblings = {}, .sp = shape.sp};
  const auto [tp, pp, ep] = resolve_shape(role, world_size).sizes;
  const std::int64_t inner = tp * pp;
  std::vector<RankLayout> layout;
  layout.reserve(static_cast<std::size_t>(world_size));
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    RankLayout& own = layout.emplace_back();
    own.dp_rank = rank / inner;
    own.dp_size = world_size / inner;
    own.tp_rank = rank % tp;
    own.tp_size = tp;
    own.pp_rank = rank / tp % pp;
    own.pp_size = pp;
    own.ep_size = ep;
  }
  return layout;
}

std::vector<std::vector<std::string>> map_devices(std::span<const RankLayout> layout,
                                                  std::span<const WorkerLocation> workers) {
  std::vector<std::vector<std::string>> devices(layout.size());
  const bool any = std::any_of(layout.begin(), layout.end(),
                               [](const RankLayout& rank) { return rank.tp_size > 1; });
  if (!any) return devices;
  if (workers.size() != layout.size()) {
    refuse(ErrorKind::kMismatch, "workers",
           fmt::format("{} workers said where they run, {} are laid out; each must say so once",
                       workers.size(), layout.size()));
  }
  for (auto& [key, group] : groups_of(layout)) {
    check_tp_ranks(layout, group);
    check_node(workers, group);
    const std::vector<std::string> of_group = devices_of(workers, group);
    for (const std::int64_t rank : group) devices[static_cast<std::size_t>(rank)] = of_group;
  }
  return devices;
}

std::vector<RankPlacement> place_role(const RoleShape& role, std::int64_t world_size,
                                      std::span<const WorkerLocation> workers) {
  const std::vector<RankLayout> layout = plan_layout(resolve_shape(role, world_size), world_size);
  std::vector<std::vector<std::string>> devices = map_devices(layout, workers);
  const Groups groups = groups_of(layout);
  std::vector<RankPlacement> placements(layout.size());
  for (std::size_t rank = 0; rank < layout.size(); ++rank) {
    RankPlacement& own = placements[rank];
    own.layout = layout[rank];
    own.tp_group = groups.at({own.layout.dp_rank, own.layout.pp_rank});
    own.spawns_runtime = own.layout.tp_rank == 0;
    own.devices = std::move(devices[rank]);
  }
  return placements;
}

std::vector<std::string> runtime_devices(const RankPlacement* placement,
                                         const std::optional<std::string>& inherited,
                                         std::int64_t tp_size) {
  if (tp_size < 1 || tp_size > kWorldSizeMax) {
    refuse(ErrorKind::kInvalidConfig, "tp_size",
           fmt::format("is {}; must be from 1 to {}", tp_size, kWorldSizeMax));
  }
  const auto wanted = static_cast<std::size_t>(tp_size);
  const bool placed = placement != nullptr && !placement->devices.empty();
  std::vector<std::string> devices;
  if (placed) {
    devices = placement->devices;
  } else if (inherited) {
    devices = tokens_of(*inherited);
    if (devices.size() > wanted) devices.resize(wanted);
  } else {
    for (std::size_t i = 0; i < wanted; ++i) devices.push_back(std::to_string(i));
  }
  if (devices.size() != wanted) {
    refuse(ErrorKind::kMismatch, "devices",
           fmt::format("{} names {} devices for tp_size {}; a runtime needs one per worker",
                       placed ? "the placement" : "CUDA_VISIBLE_DEVICES", devices.size(), tp_size));
  }
  return devices;
}

}  // namespace tpsync::rollout
