// What a trace says about its own world: the shape of the model, the budgets, the planned faults
// and what the scenario expects. Parsed from Trace::parameters, one "key=value" per line; unknown
// keys are ignored; values that are malformed or beyond any real world count as absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tpsync::judge {

// Of a Qwen3-MoE model.
struct Shape {
  std::uint64_t layers = 0;
  std::uint64_t experts = 0;
  std::uint64_t hidden = 0;
  std::uint64_t moe = 0;
  std::uint64_t vocab = 0;
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t head_dim = 0;
  bool tied = false;
  friend bool operator==(const Shape&, const Shape&) = default;
};

enum class ElementType : std::uint8_t { kBFloat16, kFloat16, kFloat32 };

enum class FaultDemand : std::uint8_t { kFail, kSurvive, kEither };

// fault.N=name|visible or silent|fail, survive or either|kinds|role|rank|phase|chunk
struct PlannedFault {
  std::string name;
  bool visible = true;
  FaultDemand demand = FaultDemand::kEither;
  std::vector<std::string> kinds;  // admissible error kinds, as normalized_kind() gives them
  std::string role;                // empty: the fault has no moment
  int rank = 0;
  std::string phase;
  std::int64_t chunk = 0;
};

struct Facts {
  std::optional<Shape> shape;  // present if every dimension is given and within bounds
  int tp = 0;                  // 0: not given
  int actors = 0;
  bool phantom = false;
  bool overlap = false;  // chunk c + 1 is gathered while chunk c is transferred
  ElementType element = ElementType::kBFloat16;
  std::uint64_t content_seed = 0;
  std::uint64_t lane_bytes = 0;  // of each parameter that a lane covers, from its first; 0: all
  std::int64_t base_version = 0;
  std::optional<std::int64_t> control_timeout_ns;
  std::optional<std::int64_t> update_timeout_ns;
  std::optional<std::int64_t> command_timeout_ns;  // the longest of any command
  std::int64_t kill_ns = 10'500'000'000;           // the kill routine at its longest
  std::int64_t notice_ns = 1'000'000'000;          // in which a visible fault is noticed
  std::int64_t slack_ns = 0;                       // that every bound has in a world of real time
  std::uint64_t device_baseline_bytes = 0;
  bool expects_failure =
      false;  // expect=failure: the world is made so that a publication must fail
  bool recovers_elsewhere = false;                  // recovery=other-world
  std::vector<std::optional<PlannedFault>> faults;  // by index in the plan
};

Facts parse_facts(std::string_view parameters);

// "Peer Lost" and "peer_lost" are the same: lower case, runs of anything but letters and digits
// become one underscore; two long names get their short form ("input/output": "io").
std::string normalized_kind(std::string_view kind);

}  // namespace tpsync::judge
