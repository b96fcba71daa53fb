#include "conformance/explore/coverage.h"

#include <fmt/format.h>

#include <algorithm>

namespace tpsync::conformance {

std::string rank_role(std::string_view role, int rank) {
  if (role != "actor") return std::string(role);
  return rank == 0 ? "rank 0" : "other actor";
}

void Coverage::add_world(const std::vector<faults::Operation>& operations,
                         const std::vector<faults::Pair>& singles) {
  Coverage world;
  for (const faults::Operation& operation : operations) {
    world.add_row({rank_role(operation.role, operation.rank), operation.phase});
  }
  for (const faults::Pair& single : singles) {
    const faults::Moment& moment = single.fault.moment;
    ++world.cell({rank_role(moment.role, moment.rank), moment.phase}, single.fault.name).applicable;
  }
  merge(world);
}

void Coverage::count(const faults::Fault& fault) {
  ++cell({rank_role(fault.moment.role, fault.moment.rank), fault.moment.phase}, fault.name).runs;
}

void Coverage::merge(const Coverage& other) {
  for (const auto& [row, cells] : other.rows_) {
    auto& mine = rows_[row];
    for (const auto& [fault, cell] : cells) {
      Cell& sum = mine[fault];
      sum.applicable = std::max(sum.applicable, cell.applicable);
      sum.runs += cell.runs;
    }
  }
}

std::uint64_t Coverage::applicable() const {
  std::uint64_t count = 0;
  for (const auto& [row, cells] : rows_) {
    for (const auto& [fault, cell] : cells) count += cell.applicable > 0 ? 1 : 0;
  }
  return count;
}

std::uint64_t Coverage::covered() const {
  std::uint64_t count = 0;
  for (const auto& [row, cells] : rows_) {
    for (const auto& [fault, cell] : cells) count += cell.applicable > 0 && cell.runs > 0 ? 1 : 0;
  }
  return count;
}

std::string Coverage::text(const Row& row, const faults::FaultKind& kind) const {
  const std::string name(kind.name);
  const auto cells = rows_.find(row);
  if (cells != rows_.end()) {
    const auto found = cells->second.find(name);
    if (found != cells->second.end()) return std::to_string(found->second.runs);
  }
  const auto applies = [&](bool same_role) {
    return std::any_of(rows_.begin(), rows_.end(), [&](const auto& entry) {
      const auto found = entry.second.find(name);
      return found != entry.second.end() && found->second.applicable > 0 &&
             (!same_role || entry.first.first == row.first);
    });
  };
  std::string reason = "no operation of this world is one of its moments";
  if (applies(true)) {
    reason = "no operation of this phase is one of its moments";
  } else if (applies(false)) {
    reason = "no operation of this rank role is one of its moments";
  }
  return fmt::format("not applicable: {} ({})", reason, kind.moment);
}

}  // namespace tpsync::conformance
