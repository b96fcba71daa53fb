// Puts a fault plan into a simulated world: the injector's decorators at the world's hooks, and its
// kills and stops as steps of the world.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "conformance/world/ports.h"
#include "conformance/world/spec.h"
#include "faults/plan.h"
#include "sim/world.h"
#include "tpsync/runtime/inference_engine.h"

namespace tpsync::conformance {

class SimFaults {
 public:
  SimFaults(const faults::Plan& plan, const WorldSpec& spec);
  ~SimFaults();

  sim::Hooks hooks();
  // Before the world runs.
  void attach(sim::SimWorld& world, Recorder& recorder);
  std::function<std::unique_ptr<transfer::WeightSource>(transfer::WeightSource&)> source_wrapper(
      sim::SimProcess& process);
  // The engine of a worker, decorated where a fault says so.
  std::unique_ptr<runtime::InferenceEngine> engine(
      sim::SimProcess& process, const runtime::ResidentModel& resident,
      std::unique_ptr<runtime::InferenceEngine> engine);
  void heal();
  std::uint64_t applied() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tpsync::conformance
