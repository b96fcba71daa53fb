// The weights-only inference engine: its tokens are a hash of the bytes that are really resident,
// one lane per rank, so that a generation proves which weights it came from. What it once made for
// a prompt it makes again until its prefix cache is reset.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "conformance/world/ports.h"
#include "conformance/world/spec.h"
#include "tpsync/runtime/inference_engine.h"

namespace tpsync::conformance {

class TestEngine;

// Who is there to be looked at by the harness.
class EngineRoster {
 public:
  virtual ~EngineRoster() = default;
  virtual void enter(TestEngine& engine, int tp_rank) = 0;
  virtual void leave(TestEngine& engine) noexcept = 0;
};

class TestEngine final : public runtime::InferenceEngine {
 public:
  // `roster` may be null; it is told of this engine for as long as the engine lives.
  TestEngine(const runtime::ResidentModel& resident, const WorldSpec& spec, ContentPort& content,
             EngineRoster* roster);
  ~TestEngine() override;

  void load_checkpoint() override;
  void layer_loaded(std::int64_t) override {}
  // One row per payload, with one token: this rank's lane.
  wire::GenerateResult generate(const wire::GenerateRequest& request) override;
  bool reset_prefix_cache() override;

  // What generate would give now.
  std::int64_t lane();
  // Where the resident weights are not those of this version, as far as the world can tell; `lane`
  // is lane()'s answer.
  std::vector<std::string> differences(std::int64_t version, std::int64_t lane);

 private:
  runtime::ResidentModel resident_;
  const WorldSpec& spec_;
  ContentPort& content_;
  EngineRoster* roster_;
  // By a prompt's first id, the token that was made for it. Kept over a publication, it answers
  // from weights that are there no more.
  std::map<std::int64_t, std::int64_t> prefix_cache_;
};

// Rows with all ranks' lanes, in rank order.
wire::GenerateResult combine_lanes(std::vector<wire::GenerateResult> parts);

}  // namespace tpsync::conformance
