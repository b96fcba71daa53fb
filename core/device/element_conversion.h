// Conversion between floating element types, one element at a time, as bit patterns: the arithmetic
// of convert() (host_kernels.h) and of the kernels of CUDA devices, so that both give the same
// bits. Integers alone, so that no compiler flag and no rounding mode can change a result. Compiled
// for the host and for the device.
#pragma once

#include <cstdint>

namespace tpsync::device {

// Of a value that is not 0.
constexpr std::uint32_t leading_zeros(std::uint32_t value) {
#ifdef __CUDA_ARCH__
  return static_cast<std::uint32_t>(__clz(static_cast<int>(value)));
#else
  return static_cast<std::uint32_t>(__builtin_clz(value));
#endif
}

// Drops the low `bits` bits of `value`, rounding to nearest, ties to even. A carry out of the
// mantissa runs into the exponent, which is the right successor.
constexpr std::uint32_t round_shift(std::uint32_t value, std::uint32_t bits) {
  const std::uint32_t half = (std::uint32_t{1} << (bits - 1)) - 1;
  return (value + half + ((value >> bits) & 1)) >> bits;
}

constexpr std::uint32_t f32_from_bf16(std::uint16_t bits) { return std::uint32_t{bits} << 16; }

constexpr std::uint16_t bf16_from_f32(std::uint32_t bits) {
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>(round_shift(bits, 16));
}

constexpr std::uint32_t f32_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000U} << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0x1f) {  // a signalling NaN becomes quiet, as hardware does it
    const std::uint32_t quiet = mantissa != 0 ? 0x400000U : 0U;
    return sign | 0x7f800000U | quiet | (mantissa << 13);
  }
  if (exponent != 0) return sign | ((exponent + 112) << 23) | (mantissa << 13);
  if (mantissa == 0) return sign;
  // A denormal half is a normal float: move its leading one to the hidden bit.
  const std::uint32_t shift = leading_zeros(mantissa) - 21;
  return sign | ((113 - shift) << 23) | (((mantissa << shift) & 0x3ffU) << 13);
}

constexpr std::uint16_t f16_from_f32(std::uint32_t bits) {
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  }
  if (magnitude >= 0x477ff000U) {  // 65520, half way to the first number that is too large
    return static_cast<std::uint16_t>(sign | 0x7c00U);
  }
  if (magnitude >= 0x38800000U) {  // 2^-14, the smallest normal half
    return static_cast<std::uint16_t>(sign | round_shift(magnitude - 0x38000000U, 13));
  }
  const std::uint32_t exponent = magnitude >> 23;
  if (exponent < 102) return static_cast<std::uint16_t>(sign);  // below 2^-25: rounds to zero
  const std::uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
  return static_cast<std::uint16_t>(sign | round_shift(mantissa, 126 - exponent));
}

constexpr std::uint16_t f16_from_bf16(std::uint16_t bits) {
  return f16_from_f32(f32_from_bf16(bits));
}
constexpr std::uint16_t bf16_from_f16(std::uint16_t bits) {
  return bf16_from_f32(f32_from_f16(bits));
}

}  // namespace tpsync::device
