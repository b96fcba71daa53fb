#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>

#include "conformance/world/projection.h"

namespace tpsync::conformance {

namespace {

std::string text_of(const Step& step) {
  return step.value.empty() ? step.what : step.what + " (" + step.value + ")";
}

}  // namespace

std::vector<std::string> differences(const Projection& simulated, const Projection& real) {
  std::vector<std::string> found;
  const auto step_at = [](const Strand& strand, std::size_t at) {
    return at < strand.steps.size() ? text_of(strand.steps[at]) : std::string("nothing more");
  };
  std::size_t common = std::min(simulated.strands.size(), real.strands.size());
  for (std::size_t i = 0; i < common; ++i) {
    const Strand& one = simulated.strands[i];
    const Strand& other = real.strands[i];
    if (one.process != other.process) {
      found.push_back(fmt::format("simulated {}, real {}", one.process, other.process));
      common = i;
      break;
    }
    const auto [a, b] =
        std::mismatch(one.steps.begin(), one.steps.end(), other.steps.begin(), other.steps.end());
    if (a == one.steps.end() && b == other.steps.end()) continue;
    const auto at = static_cast<std::size_t>(a - one.steps.begin());
    found.push_back(fmt::format("{}, step {}, after {}: simulated {}, real {}", one.process, at,
                                at == 0 ? "nothing" : text_of(one.steps[at - 1]), step_at(one, at),
                                step_at(other, at)));
  }
  for (std::size_t i = common; i < simulated.strands.size(); ++i)
    found.push_back("only simulated: " + simulated.strands[i].process);
  for (std::size_t i = common; i < real.strands.size(); ++i)
    found.push_back("only real: " + real.strands[i].process);

  const auto by_ends = [](const Edge& a, const Edge& b) {
    return std::tie(a.before, a.after) < std::tie(b.before, b.after);
  };
  const auto only = [&](const Projection& here, const Projection& there, std::string_view which) {
    std::vector<Edge> rest;
    std::set_difference(here.edges.begin(), here.edges.end(), there.edges.begin(),
                        there.edges.end(), std::back_inserter(rest), by_ends);
    for (const Edge& edge : rest)
      found.push_back(fmt::format("only {}: {} before {}", which, edge.before, edge.after));
    for (const Edge& edge : here.edges)
      if (!edge.held)
        found.push_back(
            fmt::format("{} contradicts: {} before {}", which, edge.before, edge.after));
  };
  only(simulated, real, "simulated");
  only(real, simulated, "real");
  return found;
}

}  // namespace tpsync::conformance
