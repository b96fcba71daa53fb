#include "conformance/world/fault_places.h"

#include <string>

#include "tpsync/model/tp_layout.h"

namespace tpsync::conformance {

std::vector<faults::ByteRange> resident_places(const WorldSpec& spec, int tp_rank,
                                               std::string_view expert) {
  const model::CanonicalPlan plan = model::plan_canonical(spec.config);
  const model::TpLayout layout = model::plan_tp_layout(spec.config, plan, spec.tp, tp_rank);
  const std::string prefix = std::string(expert) + ".";
  std::vector<faults::ByteRange> places;
  for (const model::Placement& p : layout.placements) {
    if (!plan.tensors[p.tensor].name.starts_with(prefix)) continue;
    places.push_back({p.offset, (p.row1 - p.row0) * p.pitch});
  }
  return places;
}

}  // namespace tpsync::conformance
