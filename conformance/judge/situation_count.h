// How many runs reached each situation, over many runs.
#pragma once

#include <array>
#include <cstdint>

#include "conformance/judge/situations.h"

namespace tpsync::judge {

class SituationCount {
 public:
  void add(SituationSet reached) {
    for (; reached != 0; reached &= reached - 1) {
      ++runs_[static_cast<std::size_t>(__builtin_ctzll(reached))];
    }
  }
  void merge(const SituationCount& other) {
    for (std::size_t i = 0; i < runs_.size(); ++i) runs_[i] += other.runs_[i];
  }
  std::uint64_t runs(Situation situation) const {
    return runs_[static_cast<std::size_t>(situation)];
  }
  std::uint64_t& runs(Situation situation) { return runs_[static_cast<std::size_t>(situation)]; }
  std::size_t reached() const {
    std::size_t count = 0;
    for (const std::uint64_t runs : runs_) count += runs != 0 ? 1 : 0;
    return count;
  }

 private:
  std::array<std::uint64_t, kSituationCount> runs_{};
};

}  // namespace tpsync::judge
