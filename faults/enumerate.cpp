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

// The same place in the publication, for a moment of its own.
Operation own_moment(const Operation& at, std::string_view op) {
  Operation moment;
  moment.role = at.role;
  moment.rank = at.rank;
  moment.phase = at.phase;
  moment.chunk = at.chunk;
  moment.op = op;
  return moment;
}

bool contains(const std::vector<Operation>& operations, std::string_view op) {
  return std::any_of(operations.begin(), operations.end(),
                     [op](const Operation& o) { return o.op == op; });
}

void add_source_moments(std::vector<Operation>& operations) {
  if (contains(operations, kSourceBegin)) return;
  std::set<ProcessKey> begun;
  std::vector<Operation> all;
  for (Operation& operation : operations) {
    const bool allocates =
        operation.role == rules::kActor && operation.phase == rules::kAllocationPhase;
    if (allocates && begun.insert(process_of(operation)).second) {
      all.push_back(own_moment(operation, kSourceBegin));
    }
    all.push_back(std::move(operation));
  }
  operations = std::move(all);
}

void add_engine_moments(std::vector<Operation>& operations) {
  if (contains(operations, kEngineReset)) return;
  std::int64_t last_chunk = 0;
  for (const Operation& operation : operations) {
    if (operation.role == rules::kWorker && operation.phase == rules::kUpdatePhase) {
      last_chunk = std::max(last_chunk, operation.chunk);
    }
  }
  std::set<std::pair<ProcessKey, std::string_view>> added;
  std::vector<Operation> all;
  for (Operation& operation : operations) {
    if (operation.role == rules::kWorker && operation.op == "channel.write") {
      std::string_view own;
      if (operation.phase == rules::kFinishPhase) own = kEngineReset;
      if (operation.phase == rules::kUpdatePhase && operation.chunk == last_chunk) {
        own = kEngineLayer;
      }
      if (!own.empty() && added.emplace(process_of(operation), own).second) {
        all.push_back(own_moment(operation, own));
      }
    }
    all.push_back(std::move(operation));
  }
  operations = std::move(all);
}

}  // namespace

void annotate(std::vector<Operation>& operations) {
  const bool digested = std::any_of(operations.begin(), operations.end(), [](const Operation& o) {
    return o.op == "device.launch_digests";
  });
  int workers = 0;
  for (const Operation& operation : operations) {
    if (operation.role == rules::kWorker) workers = std::max(workers, operation.rank + 1);
  }
  for (Operation& operation : operations) {
    operation.digested = digested;
    operation.workers = workers;
  }
  std::set<ProcessKey> needed;
  for (auto operation = operations.rbegin(); operation != operations.rend(); ++operation) {
    if (is_needed_by_others(*operation)) needed.insert(process_of(*operation));
    operation->is_tail = needed.count(process_of(*operation)) == 0;
  }
  using Use = std::tuple<ProcessKey, std::string, std::int64_t, std::string, std::string, int>;
  std::set<Use> seen;
  std::set<ProcessKey> gathering;
  for (Operation& operation : operations) {
    if (operation.op == "shard.gather") gathering.insert(process_of(operation));
    operation.ends_gather =
        operation.op == "shard.wait" && gathering.erase(process_of(operation)) > 0;
    operation.is_first_to_peer =
        seen.insert({process_of(operation), operation.phase, operation.chunk, operation.op,
                     operation.peer_role, operation.peer_rank})
            .second;
  }
}

void add_own_moments(std::vector<Operation>& operations) {
  add_source_moments(operations);
  add_engine_moments(operations);
}

std::vector<Pair> enumerate(const std::vector<Operation>& operations) {
  std::vector<Pair> pairs;
  std::vector<std::vector<Arguments>> variants;  // by kind, made once: there are many operations
  for (const FaultKind& kind : catalogue()) variants.push_back(kind.variants());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    for (std::size_t k = 0; k < variants.size(); ++k) {
      const FaultKind& kind = catalogue()[k];
      if (kind.is_tried != nullptr && !kind.is_tried(operation)) continue;
      for (const Arguments& arguments : variants[k]) {
        if (!kind.applies(operation, arguments)) continue;
        Pair& pair = pairs.emplace_back();
        pair.operation = i;
        pair.kind = &kind;
        pair.fault = {std::string(kind.name), moment_of(operation), arguments};
        pair.demand = kind.demand(operation);
        pair.kinds = kind.kinds(operation);
      }
    }
  }
  return pairs;
}

}  // namespace tpsync::faults
