// Vector clocks: which work of which process is known to have happened before. Advanced by
// messages, group calls, joins, spawns and process ends, never by time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace tpsync::sim {

inline constexpr std::uint32_t kMaxProcesses = 96;

class VectorClock {
 public:
  std::uint32_t at(std::uint32_t process) const { return process < used_ ? values_[process] : 0; }
  void tick(std::uint32_t process) {
    extend(process + 1);
    ++values_[process];
  }
  void join(const VectorClock& other) {
    extend(other.used_);
    for (std::uint32_t i = 0; i < other.used_; ++i)
      values_[i] = std::max(values_[i], other.values_[i]);
  }
  VectorClock() {}  // leaves values_ unset: only the first used_ count
  VectorClock(const VectorClock& other) { *this = other; }
  VectorClock& operator=(const VectorClock& other) {
    if (this == &other) return *this;
    used_ = other.used_;
    std::copy_n(other.values_.begin(), used_, values_.begin());
    return *this;
  }

 private:
  void extend(std::uint32_t count) {
    while (used_ < count) values_[used_++] = 0;
  }
  std::uint32_t used_ = 0;
  std::array<std::uint32_t, kMaxProcesses> values_;
};

}  // namespace tpsync::sim
