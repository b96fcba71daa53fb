// What each TP rank of a Qwen3-MoE model must hold, byte for byte, in each version: an own
// account of the engine's layout, made from its documented rules and from nothing of the code under
// test.
//
// Rules, for world T and rank r: vocabulary rows are padded to a multiple of 64 with zeros and
// split evenly; query heads are split evenly; with fewer KV heads than ranks each is held by T / KV
// neighbouring ranks; qkv_proj holds q, k, v rows in this order; o_proj and the experts' down
// projection are split by columns; w13 holds gate above up, per expert; norms and the router are
// replicated.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "conformance/judge/facts.h"

namespace tpsync::judge {

struct ResidentBytes {
  std::string parameter;
  std::string bytes;
  bool from_tensors = true;  // false: padding alone
};

// The parameters of one rank, in any version; of each its first `first_bytes`, a multiple of 8, or
// all of it (0). Needs a shape that T divides evenly, as the layout itself does; see
// splits_evenly().
std::vector<ResidentBytes> resident_parameters(const Shape& shape, int tp, int rank,
                                               ElementType element, std::uint64_t seed,
                                               std::uint64_t version,
                                               std::uint64_t first_bytes = 0);
bool splits_evenly(const Shape& shape, int tp);

// Remembers lanes between traces of one world.
class ExpectedLanes {
 public:
  // Forgets what it knows if the world is another.
  void set_world(const Facts& facts);

  // What generate gives on each rank while exactly `version` is resident, by rank. Empty if the
  // world's shape is unknown. The reference is valid until the next call.
  const std::vector<std::uint64_t>& lanes(std::uint64_t version);

 private:
  std::vector<std::uint64_t> compute(std::uint64_t version) const;

  Shape shape_;
  int tp_ = 0;
  bool phantom_ = false;
  bool known_ = false;
  ElementType element_ = ElementType::kBFloat16;
  std::uint64_t seed_ = 0;
  std::uint64_t lane_bytes_ = 0;
  std::vector<std::pair<std::uint64_t, std::vector<std::uint64_t>>> by_version_;
};

}  // namespace tpsync::judge
