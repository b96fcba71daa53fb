// Why a run failed, in words: the causal past of a broken invariant, the tensors and byte ranges
// that were found wrong, who waits for whom in a world that hangs.
#pragma once

#include <string>
#include <string_view>

#include "conformance/world/sim_run.h"
#include "conformance/world/spec.h"

namespace tpsync::conformance {

// Which tensors and ranges of a worker's weights are not what they should be: read from the same
// run in a world that tracks contents instead of bytes, for which the runner is used.
std::string wrong_contents(SimRunner& runner, const WorldSpec& spec, const SimOptions& options,
                           const Script& script);

// The past of every broken invariant, who waits for whom in a hang, and wrong_contents().
std::string explain_run(SimRunner& runner, const WorldSpec& spec, const SimOptions& options,
                        const Run& run, const Script& script);

}  // namespace tpsync::conformance
