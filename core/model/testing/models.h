// What the tests of this folder share: the configurations of conformance/models, and edited texts
// of one of them.
#pragma once

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "tpsync/model/config.h"

namespace tpsync::model {

inline std::string model_path(const std::string& name) {
  return std::string(TPSYNC_SOURCE_DIR) + "/conformance/models/" + name + ".json";
}

inline ModelConfig model_named(const std::string& name) {
  return load_model_config(model_path(name));
}

inline nlohmann::json document_named(const std::string& name) {
  std::ifstream stream(model_path(name));
  return nlohmann::json::parse(stream);
}

}  // namespace tpsync::model
