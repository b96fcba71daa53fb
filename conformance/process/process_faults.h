// Puts a fault plan into a real process: the injector's decorators around its seams, and SIGKILL
// and SIGSTOP that it sends to itself.
//
// Every process of a world has an injector of its own; what has applied, and whether all is healed,
// lies in a file of the world's folder that all of them map.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "conformance/process/traced_seams.h"
#include "conformance/world/spec.h"
#include "faults/injector.h"
#include "tpsync/base/os_clock.h"

namespace tpsync::conformance {

// The state of a world's injectors, mapped.
class SharedFaultState {
 public:
  // A new file at `path`, with nothing applied.
  static SharedFaultState create(const std::string& path);
  static SharedFaultState open(const std::string& path);
  ~SharedFaultState();
  SharedFaultState(SharedFaultState&& other) noexcept
      : state_(std::exchange(other.state_, nullptr)) {}
  SharedFaultState(const SharedFaultState&) = delete;
  SharedFaultState& operator=(const SharedFaultState&) = delete;

  faults::InjectorState& operator*() const { return *state_; }
  std::uint64_t applied() const;

 private:
  SharedFaultState(const std::string& path, int flags);
  faults::InjectorState* state_ = nullptr;
};

// Throws InvalidInput kUnsupported for a plan that real processes cannot carry out: a moment at an
// operation of a seam whose operations are not recorded here, or a fault of other worlds.
void check_plan(const faults::Plan& plan);

// The faults of one process. Outlives what it decorates.
class ProcessFaultSeams {
 public:
  ProcessFaultSeams(const std::string& state_path, const WorldSpec& spec, const faults::Plan& plan,
                    const std::string& role, int rank, ProcessTracer& tracer);
  ~ProcessFaultSeams();

  // The process's decorators, or nullptr if no fault targets it.
  faults::ProcessFaults* faults() { return faults_.get(); }
  void heal();

 private:
  class Moments;
  class Control;

  SharedFaultState state_;
  faults::Injector injector_;
  ProcessTracer& tracer_;
  OsClock clock_;
  std::unique_ptr<Moments> moments_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<faults::ProcessFaults> faults_;
};

}  // namespace tpsync::conformance
