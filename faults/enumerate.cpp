#include "faults/enumerate.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "faults/rules.h"

namespace tpsync::faults {
namespace {

using ProcessKey = std::pair<std::string, int>;

ProcessKey process_of(const Operation& operation) { return {operation.role, operation.rank}; }

bool is_needed_by_others(const Operation& operation) {
  return rules::is_group_call(operation.op) ||
         (operation.op == "channel.write" && !operation.peer_role.empty());
}

}  // namespace

void annotate(std::vector<Operation>& operations) {
  const bool digested = std::any_of(operations.begin(), operations.end(), [](const Operation& o) {
    return o.op == "device.launch_digests";
  });
  for (Operation& operation : operations) operation.digested = digested;
  std::set<ProcessKey> needed;
  for (auto operation = operations.rbegin(); operation != operations.rend(); ++operation) {
    if (is_needed_by_others(*operation)) needed.insert(process_of(*operation));
    operation->is_tail = needed.count(process_of(*operation)) == 0;
  }
  using Use = std::tuple<ProcessKey, std::string, std::int64_t, std::string, std::string, int>;
  std::set<Use> seen;
  for (Operation& operation : operations) {
    operation.is_first_to_peer =
        seen.insert({process_of(operation), operation.phase, operation.chunk, operation.op,
                     operation.peer_role, operation.peer_rank})
            .second;
  }
}

void add_source_moments(std::vector<Operation>& operations) {
  std::set<ProcessKey> begun;
  for (const Operation& operation : operations) {
    if (operation.op == kSourceBegin) begun.insert(process_of(operation));
  }
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& first = operations[i];
    if (first.role != rules::kActor || first.phase != rules::kAllocationPhase) continue;
    if (!begun.insert(process_of(first)).second) continue;
    Operation begin;
    begin.role = first.role;
    begin.rank = first.rank;
    begin.phase = first.phase;
    begin.chunk = first.chunk;
    begin.op = kSourceBegin;
    operations.insert(operations.begin() + static_cast<std::ptrdiff_t>(i), std::move(begin));
    ++i;
  }
}

std::vector<Pair> enumerate(const std::vector<Operation>& operations) {
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    for (const FaultKind& kind : catalogue()) {
      for (Arguments& arguments : kind.variants()) {
        if (!kind.applies(operation, arguments)) continue;
        Pair& pair = pairs.emplace_back();
        pair.operation = i;
        pair.kind = &kind;
        pair.fault = {std::string(kind.name), moment_of(operation), std::move(arguments)};
        pair.demand = kind.demand(operation);
        pair.kinds = kind.kinds(operation);
      }
    }
  }
  return pairs;
}

}  // namespace tpsync::faults
