// What a worker needs of a model implementation. The worker owns memory, loading and publication;
// the engine computes with what is resident.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tpsync/device/device.h"
#include "tpsync/model/tp_layout.h"
#include "tpsync/transfer/loader.h"
#include "tpsync/wire/messages.h"

namespace tpsync::runtime {

// One rank's memory and what lies where in it. Outlives the engine. The regions may be asleep
// between calls.
struct ResidentModel {
  device::Device& device;
  device::RegionId weights;
  device::RegionId kv_cache;
  const model::ModelConfig& config;
  const model::CanonicalPlan& plan;
  const model::TpLayout& layout;
};

// All calls come from the worker's thread, one at a time.
class InferenceEngine : public transfer::LayerSink {
 public:
  // Fills the resident weights with the checkpoint that the runtime starts from. Throws any Error.
  virtual void load_checkpoint() = 0;

  // Called only with awake memory and weights of one version. Every rank gets the same request;
  // what a rank returns is its part (see RuntimeOptions::combine). Throws any Error: the request
  // fails, the worker goes on.
  virtual wire::GenerateResult generate(const wire::GenerateRequest& request) = 0;

  // Forgets everything that was computed with earlier weights, running requests included. False if
  // it could not.
  virtual bool reset_prefix_cache() = 0;
};

using EngineFactory = std::function<std::unique_ptr<InferenceEngine>(const ResidentModel&)>;

}  // namespace tpsync::runtime
