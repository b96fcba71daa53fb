// Keyed draws: every random decision of the simulated world is a hash of (seed, component, purpose,
// occurrence), never the next number of a stream, so that runs stay comparable when one component
// draws once more. Integers only.
#pragma once

#include <cstdint>
#include <string_view>

namespace tpsync::sim {

enum class Purpose : std::uint8_t {
  kSchedule = 1,
  kTimerOrder,
  kOpCost,
  kShortRead,
  kShortWrite,
  kChannelLatency,
  kGroupLatency,
  kGroupSurvives,
  kDeathNotice,
  kParentDeath,
  kLandingMode,
  kLandingDelay,
  kLandingCut,
  kLandingSurvives,
  kPieceDelay,
  kRandomBytes,
  kPriority,
  kPriorityChange,
  kHarness,  // and above
};

// splitmix64's finalizer. Not core's mix64, though equal to it: that one defines the weights of
// content digests, and a change of those must not move the draws of every recorded run.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr std::uint64_t draw(std::uint64_t seed, std::uint64_t component, Purpose purpose,
                             std::uint64_t occurrence) {
  const std::uint64_t key = mix(seed ^ (static_cast<std::uint64_t>(purpose) << 56)) ^ component;
  return mix(mix(key) + occurrence);
}

// A value of 0..bound-1 from a drawn word; bound must not be 0.
constexpr std::uint64_t below(std::uint64_t word, std::uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(word) * bound) >> 64);
}

struct Range {  // both ends included
  std::int64_t low = 0;
  std::int64_t high = 0;
};
constexpr std::int64_t within(std::uint64_t word, Range range) {
  return range.low + static_cast<std::int64_t>(
                         below(word, static_cast<std::uint64_t>(range.high - range.low) + 1));
}

constexpr std::uint64_t component_key(std::string_view name, std::uint64_t number = 0,
                                      std::uint64_t incarnation = 0) {
  std::uint64_t key = 0x7470737963ULL;
  for (const char c : name) key = mix(key ^ static_cast<unsigned char>(c));
  return mix(mix(key ^ number) + incarnation);
}

}  // namespace tpsync::sim
