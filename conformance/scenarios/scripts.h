// Scripts and fault plans that several scenarios share.
#pragma once

#include <string>
#include <vector>

#include "conformance/scenarios/scenario.h"
#include "faults/plan.h"

namespace tpsync::conformance {

// Start, set up, take a step, publish; then generate if that worked. Whatever fails, the engine is
// then tried (every command must fail if it is broken) and everything is given back. Kept is the
// publication's outcome, or that of the step before it that failed.
Script publish_once();

// The same, and after a success a second publication; after an agreed failure a new engine that
// publishes from there.
Script publish_and_recover();

struct At {
  std::string role = "actor";
  int rank = 0;
  std::string phase;
  std::int64_t chunk = 0;
  std::string op;
  std::uint64_t occurrence = 0;
  std::string
      peer_role;  // not empty: the first such operation of the fault-free world with this peer
};
// Resolves `at` to a moment of the scenario's own fault-free world where it names a peer.
SimOptions with_fault(ScenarioContext& context, const std::string& name, const At& at,
                      const faults::Arguments& arguments = {});
SimOptions with_fault(const std::string& name, const At& at,
                      const faults::Arguments& arguments = {});

// A way that chunks lie in memory and come to the workers.
struct Way {
  std::string name;
  wire::Layout layout = wire::Layout::kCompact;
  wire::Route route = wire::Route::kGather;
  void set_in(WorldSpec& spec) const;
};
const std::vector<Way>& every_way();

// The chunks of the scenario's publication.
std::uint64_t chunk_count(const WorldSpec& spec);
// The chunk that carries a canonical tensor.
std::int64_t chunk_of(const WorldSpec& spec, const std::string& tensor);

// A phase of a publication in which rank 0 waits for its runtime, as (phase, chunk).
struct Wait {
  std::string phase;
  std::int64_t chunk = 0;
  bool touched = true;  // the runtime was touched before
};
std::vector<Wait> runtime_waits(const WorldSpec& spec);

// "native-transfer-1" for the phases that have an index.
std::string phase_text(const std::string& phase, std::int64_t chunk);

}  // namespace tpsync::conformance
