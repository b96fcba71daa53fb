// The weights of the shard-invariant content digest: for a tensor key, an odd pseudo-random factor
// for each row and each column of the full tensor. Every implementation of Device::launch_digests
// uses exactly these.
//
//   digest(rectangle) = sum over its elements of bits(row, col) * row_weight(key, row) *
//   col_weight(key, col)  mod 2^64
//
// The sum is additive over any disjoint cover, so actors sum it over their shards and workers over
// their slices. bits() is the element's bit pattern as an unsigned integer. The digest detects
// accidents (a stale, swapped, missing or doubled element, row or slice); it is no defence against
// an adversary.
#pragma once

#include <cstdint>

namespace tpsync::device {

constexpr std::uint64_t mix64(std::uint64_t x) {  // splitmix64's finalizer
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
inline constexpr std::uint64_t kColumnKey = 0xd1b54a32d192ed03ULL;
constexpr std::uint64_t row_weight(std::uint64_t key, std::uint64_t row) {
  return mix64(mix64(key) + row) | 1;
}
constexpr std::uint64_t col_weight(std::uint64_t key, std::uint64_t col) {
  return mix64(mix64(key ^ kColumnKey) + col) | 1;
}

}  // namespace tpsync::device
