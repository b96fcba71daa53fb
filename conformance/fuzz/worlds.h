// The small simulated worlds of the targets.
#pragma once

#include <string>

#include "conformance/world/spec.h"

namespace tpsync::fuzz {

inline conformance::WorldSpec world_of(int tp) {
  return conformance::small_world(model::load_model_config(std::string(TPSYNC_SOURCE_DIR) +
                                                           "/conformance/models/tiny-tp4.json"),
                                  tp);
}

}  // namespace tpsync::fuzz
