// The content of test weights, as pure arithmetic: every element of every tensor in every version
// has its own bits, so that a stale, torn, swapped, missing or doubled slice can be named. Includes
// nothing of core: the test trainer writes by it and the judge compares by it, and neither learns
// it from the code under test.
//
// Values are bfloat16 numbers between 2^-11 and 2^5, no NaN, infinity or denormal, so that they
// survive casts to float16 and float32 and back. A run of at least 4 elements identifies its
// version.
#pragma once

#include <cstdint>
#include <string_view>

namespace tpsync::judge {

constexpr std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xe9846af9b1a615dULL;
  x ^= x >> 32;
  x *= 0xe9846af9b1a615dULL;
  x ^= x >> 28;
  return x;
}

// FNV-1a; names tensors and parameters.
constexpr std::uint64_t name_hash(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

// The stream that the elements of one tensor in one version are taken from.
constexpr std::uint64_t content_base(std::uint64_t seed, std::uint64_t tensor,
                                     std::uint64_t version) {
  return mix(mix(seed + 0x9e3779b97f4a7c15ULL) ^ mix(tensor) ^ mix(version * 2 + 1));
}

constexpr std::uint16_t bf16_content(std::uint64_t base, std::uint64_t element) {
  const std::uint64_t h = mix(base + element * 0x9e3779b97f4a7c15ULL);
  const std::uint64_t sign = h & 1;
  const std::uint64_t exponent = 0x74 + ((h >> 1) & 0x0f);
  const std::uint64_t mantissa = (h >> 5) & 0x7f;
  return static_cast<std::uint16_t>(sign << 15 | exponent << 7 | mantissa);
}

constexpr std::uint32_t f32_content(std::uint64_t base, std::uint64_t element) {
  return static_cast<std::uint32_t>(bf16_content(base, element)) << 16;
}

// Exact: the exponent lies within float16's normal range and the mantissa has 7 of its 10 bits.
constexpr std::uint16_t f16_content(std::uint64_t base, std::uint64_t element) {
  const std::uint16_t bits = bf16_content(base, element);
  const unsigned exponent = (bits >> 7 & 0xff) - 127 + 15;
  return static_cast<std::uint16_t>((bits & 0x8000) | exponent << 10 | (bits & 0x7f) << 3);
}

// One rank's share of a generation's tokens: order-free over its resident parameters.
constexpr std::uint64_t lane_term(std::uint64_t parameter, std::uint64_t bytes_hash) {
  return mix(parameter ^ mix(bytes_hash));
}
// Token ids are non-negative.
constexpr std::int64_t lane_token(std::uint64_t sum) {
  return static_cast<std::int64_t>(sum & 0x7fffffffffffffffULL);
}

}  // namespace tpsync::judge
