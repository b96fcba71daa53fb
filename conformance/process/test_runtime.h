// What the test runtime of a real world and its workers are set to, from what the harness wrote of
// the world. Shared by every program that serves as one, whatever seams it puts beneath.
#pragma once

#include <memory>
#include <string>

#include "conformance/process/hardware.h"
#include "conformance/process/process_world.h"
#include "conformance/world/test_engine.h"
#include "tpsync/runtime/server.h"
#include "tpsync/runtime/worker.h"

namespace tpsync::conformance {

// A runtime that takes over at `version` and starts `program` for each worker (worker_arguments),
// with its own environment.
// `folder` outlives the result.
runtime::RuntimeOptions runtime_options(const WorldSpec& spec, const WorldFolder& folder,
                                        std::int64_t version, const std::string& program);
runtime::WorkerOptions worker_options(const WorldSpec& spec, int rank);

// The engine of a worker: says in `folder` where its weights lie, so that they can be looked at
// from outside; decorated where `faults` (may be null) say so. All arguments outlive the result's
// engines.
runtime::EngineFactory engine_factory(const WorldFolder& folder, const WorldSpec& spec, int rank,
                                      Hardware& hardware, faults::ProcessFaults* faults = nullptr);

}  // namespace tpsync::conformance
