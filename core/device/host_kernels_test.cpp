// The host arithmetic against oracles that work in another way: conversions against a search in the
// sorted table of all target values, digests against the formula element by element.
#include "tpsync/device/host_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tpsync/base/bytes.h"
#include "tpsync/device/digest_weights.h"

namespace tpsync::device {
namespace {

struct Format {
  DType dtype;
  int exponent_bits;
  int mantissa_bits;
};
constexpr Format kHalf{DType::kFloat16, 5, 10};
constexpr Format kBrain{DType::kBFloat16, 8, 7};

bool is_nan_pattern(Format format, std::uint32_t bits) {
  const std::uint32_t exponent_mask = (1U << format.exponent_bits) - 1;
  return ((bits >> format.mantissa_bits) & exponent_mask) == exponent_mask &&
         (bits & ((1U << format.mantissa_bits) - 1)) != 0;
}

// The value of a 16-bit pattern by the definition of the format; infinity and NaN included.
double value_of(Format format, std::uint32_t bits) {
  const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>((bits & 0x7fffU) >> format.mantissa_bits);
  const double fraction = bits & ((1U << format.mantissa_bits) - 1);
  if (exponent == (1 << format.exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - format.mantissa_bits);
  return sign * std::ldexp(1.0 + std::ldexp(fraction, -format.mantissa_bits), exponent - bias);
}

// Positive finite values of a format in rising order, and then the first that would be too large.
std::vector<double> table_of(Format format) {
  const std::uint32_t infinity = ((1U << format.exponent_bits) - 1) << format.mantissa_bits;
  std::vector<double> table;
  for (std::uint32_t bits = 0; bits < infinity; ++bits) table.push_back(value_of(format, bits));
  const std::size_t last = table.size() - 1;
  table.push_back(table[last] + (table[last] - table[last - 1]));
  return table;
}

// Nearest entry, ties to the even pattern. The pattern after the last finite one is infinity.
std::uint32_t nearest(const std::vector<double>& table, double value) {
  const double magnitude = std::fabs(value);
  const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
  if (magnitude >= table.back()) return sign | static_cast<std::uint32_t>(table.size() - 1);
  const auto above = static_cast<std::uint32_t>(
      std::upper_bound(table.begin(), table.end(), magnitude) - table.begin());
  const std::uint32_t below = above - 1;
  const double to_below = magnitude - table[below];
  const double to_above = table[above] - magnitude;
  if (to_below != to_above) return sign | (to_below < to_above ? below : above);
  return sign | (below % 2 == 0 ? below : above);
}

std::uint32_t convert_one(DType dst, DType src, std::uint32_t bits) {
  std::byte from[4];
  std::byte into[4] = {};
  std::memcpy(from, &bits, 4);
  convert(into, dst, from, src, 1);
  std::uint32_t result = 0;
  std::memcpy(&result, into, item_size(dst));
  return result;
}

double float_value(std::uint32_t bits) { return std::bit_cast<float>(bits); }

class ConversionOf : public testing::TestWithParam<Format> {};

TEST_P(ConversionOf, EveryPatternToFloat32IsExactAndKeepsNan) {
  const Format format = GetParam();
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const std::uint32_t wide = convert_one(DType::kFloat32, format.dtype, bits);
    ASSERT_EQ(wide >> 31, bits >> 15) << std::hex << bits;
    if (is_nan_pattern(format, bits)) {
      ASSERT_TRUE(std::isnan(float_value(wide))) << std::hex << bits;
    } else {
      ASSERT_EQ(float_value(wide), value_of(format, bits)) << std::hex << bits;
    }
  }
}

TEST_P(ConversionOf, EveryPatternSurvivesARoundTripThroughFloat32) {
  const Format format = GetParam();
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const std::uint32_t back = convert_one(format.dtype, DType::kFloat32,
                                           convert_one(DType::kFloat32, format.dtype, bits));
    const std::uint32_t quiet =
        is_nan_pattern(format, bits) ? 1U << (format.mantissa_bits - 1) : 0U;
    ASSERT_EQ(back, bits | quiet) << std::hex << bits;
  }
}

TEST_P(ConversionOf, Float32RoundsToTheNearestPatternAroundEveryBoundary) {
  const Format format = GetParam();
  const std::vector<double> table = table_of(format);
  std::size_t checked = 0;
  const auto check = [&](std::uint32_t wide) {
    if (std::isnan(float_value(wide))) return;
    ++checked;
    ASSERT_EQ(convert_one(format.dtype, DType::kFloat32, wide), nearest(table, float_value(wide)))
        << std::hex << wide;
  };
  for (std::size_t i = 0; i + 1 < table.size(); ++i) {
    const double middle = (table[i] + table[i + 1]) / 2;
    for (const double value : {table[i], middle}) {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      for (const std::uint32_t sign : {0U, 0x80000000U}) {
        check(bits | sign);
        check((bits + 1) | sign);
        if (bits != 0) check((bits - 1) | sign);
      }
    }
  }
  for (const std::uint32_t bits : {0x7f800000U, 0xff800000U, 0x7f7fffffU, 1U, 0x007fffffU}) {
    check(bits);
  }
  EXPECT_GE(checked, 6 * (table.size() - 1));
}

TEST_P(ConversionOf, Float32NanStaysNanWithItsSign) {
  const Format format = GetParam();
  for (const std::uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fc00000U, 0xffffffffU}) {
    const std::uint32_t narrow = convert_one(format.dtype, DType::kFloat32, bits);
    EXPECT_TRUE(is_nan_pattern(format, narrow)) << std::hex << bits;
    EXPECT_EQ(narrow >> 15, bits >> 31);
  }
}

INSTANTIATE_TEST_SUITE_P(Sixteen, ConversionOf, testing::Values(kHalf, kBrain),
                         [](const auto& information) {
                           return information.param.dtype == DType::kFloat16 ? "Half" : "Brain";
                         });

TEST(Conversion, EveryPatternBetweenTheTwoHalvesRoundsOnce) {
  const std::vector<double> halves = table_of(kHalf);
  const std::vector<double> brains = table_of(kBrain);
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const std::uint32_t half = convert_one(DType::kFloat16, DType::kBFloat16, bits);
    const std::uint32_t brain = convert_one(DType::kBFloat16, DType::kFloat16, bits);
    if (is_nan_pattern(kBrain, bits)) {
      ASSERT_TRUE(is_nan_pattern(kHalf, half)) << std::hex << bits;
    } else {
      ASSERT_EQ(half, nearest(halves, value_of(kBrain, bits))) << std::hex << bits;
    }
    if (is_nan_pattern(kHalf, bits)) {
      ASSERT_TRUE(is_nan_pattern(kBrain, brain)) << std::hex << bits;
    } else {
      ASSERT_EQ(brain, nearest(brains, value_of(kHalf, bits))) << std::hex << bits;
    }
  }
}

TEST(Conversion, EqualTypesAreCopiedBitForBitFromUnalignedAddresses) {
  for (const DType dtype :
       {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kInt64, DType::kUInt8}) {
    const std::uint64_t count = 5;
    ByteBuffer source(1 + count * item_size(dtype));
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = std::byte(0x7f + 3 * i);
    ByteBuffer target(3 + count * item_size(dtype));
    convert(target.data() + 3, dtype, source.data() + 1, dtype, count);
    EXPECT_TRUE(std::equal(source.begin() + 1, source.end(), target.begin() + 3));
    EXPECT_EQ(target[2], std::byte{0});
  }
}

TEST(Conversion, ManyElementsAtUnalignedAddressesEqualOneByOne) {
  const std::uint64_t count = 1000;
  ByteBuffer source(1 + 4 * count);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = std::byte(mix64(i) & 0xff);
  ByteBuffer target(1 + 2 * count + 1, std::byte{0x5a});
  convert(target.data() + 1, DType::kBFloat16, source.data() + 1, DType::kFloat32, count);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint32_t wide = 0;
    std::uint16_t narrow = 0;
    std::memcpy(&wide, source.data() + 1 + 4 * i, 4);
    std::memcpy(&narrow, target.data() + 1 + 2 * i, 2);
    ASSERT_EQ(narrow, convert_one(DType::kBFloat16, DType::kFloat32, wide));
  }
  EXPECT_EQ(target.front(), std::byte{0x5a});
  EXPECT_EQ(target.back(), std::byte{0x5a});
}

TEST(Conversion, IntegersConvertToNothingElse) {
  EXPECT_FALSE(can_convert(DType::kFloat32, DType::kInt64));
  EXPECT_FALSE(can_convert(DType::kUInt8, DType::kBFloat16));
  EXPECT_TRUE(can_convert(DType::kInt64, DType::kInt64));
  std::byte bytes[8] = {};
  EXPECT_DEATH(convert(bytes, DType::kFloat32, bytes, DType::kInt64, 1), "can_convert");
}

TEST(CopyRows, WritesEachRowAndNothingBetweenRows) {
  ByteBuffer source(64);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = std::byte(i);
  ByteBuffer target(64, std::byte{0xee});
  copy_rows(target.data() + 1, 7, source.data() + 2, 5, 3, 4);
  for (std::size_t i = 0; i < target.size(); ++i) {
    const bool inside = i >= 1 && (i - 1) / 7 < 4 && (i - 1) % 7 < 3;
    const auto expected = inside ? std::byte(2 + (i - 1) / 7 * 5 + (i - 1) % 7) : std::byte{0xee};
    EXPECT_EQ(target[i], expected) << i;
  }
}

TEST(CopyRows, ContiguousRowsAndEmptyOnesAreCopiedExactly) {
  ByteBuffer source(12, std::byte{1});
  ByteBuffer target(14, std::byte{2});
  copy_rows(target.data() + 1, 4, source.data(), 4, 4, 3);
  EXPECT_EQ(target.front(), std::byte{2});
  EXPECT_EQ(target.back(), std::byte{2});
  EXPECT_EQ(std::count(target.begin(), target.end(), std::byte{1}), 12);
  copy_rows(target.data(), 4, source.data(), 4, 0, 3);
  copy_rows(target.data(), 4, source.data(), 4, 4, 0);
  EXPECT_EQ(target.front(), std::byte{2});
}

std::uint64_t digest_by_formula(const std::byte* first, std::uint64_t pitch,
                                std::uint32_t item_bytes, std::uint64_t row0, std::uint64_t rows,
                                std::uint64_t col0, std::uint64_t cols, std::uint64_t key) {
  std::uint64_t digest = 0;
  for (std::uint64_t row = 0; row < rows; ++row) {
    for (std::uint64_t col = 0; col < cols; ++col) {
      std::uint64_t bits = 0;
      for (std::uint32_t i = item_bytes; i > 0; --i) {
        bits = bits << 8 |
               std::to_integer<std::uint64_t>(first[row * pitch + col * item_bytes + i - 1]);
      }
      digest += bits * row_weight(key, row0 + row) * col_weight(key, col0 + col);
    }
  }
  return digest;
}

TEST(Digest, EqualsTheFormulaForEveryItemSizeShapePitchAndOffset) {
  ByteBuffer bytes(80000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(mix64(i) & 0xff);
  for (const std::uint32_t item : {1U, 2U, 4U, 8U}) {
    for (const std::uint64_t rows : {0U, 1U, 3U, 8U}) {
      for (const std::uint64_t cols : {0U, 1U, 7U, 255U, 256U, 257U, 600U}) {
        for (const std::uint64_t slack : {0U, 5U}) {
          const std::uint64_t pitch = cols * item + slack;
          EXPECT_EQ(digest_rect(bytes.data() + 1, pitch, item, 11, rows, 1000, cols, 42),
                    digest_by_formula(bytes.data() + 1, pitch, item, 11, rows, 1000, cols, 42))
              << item << " " << rows << " " << cols << " " << slack;
        }
      }
    }
  }
}

TEST(Digest, OfAnyCoverByRectanglesAddsUpToTheWhole) {
  const std::uint64_t rows = 5;
  const std::uint64_t cols = 9;
  ByteBuffer bytes(rows * cols * 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(mix64(i) & 0xff);
  const auto part = [&](std::uint64_t r0, std::uint64_t r1, std::uint64_t c0, std::uint64_t c1) {
    return digest_rect(bytes.data() + (r0 * cols + c0) * 2, cols * 2, 2, r0, r1 - r0, c0, c1 - c0,
                       7);
  };
  const std::uint64_t whole = part(0, rows, 0, cols);
  for (std::uint64_t r = 0; r <= rows; ++r) {
    for (std::uint64_t c = 0; c <= cols; ++c) {
      EXPECT_EQ(
          part(0, r, 0, c) + part(0, r, c, cols) + part(r, rows, 0, c) + part(r, rows, c, cols),
          whole);
    }
  }
}

TEST(Digest, ChangesWhenAnyElementIsChangedOrAnyTwoAreSwapped) {
  const std::uint64_t cols = 6;
  std::vector<std::uint16_t> items(4 * cols);
  for (std::size_t i = 0; i < items.size(); ++i) items[i] = static_cast<std::uint16_t>(100 + i);
  const auto digest = [&] {
    return digest_rect(reinterpret_cast<const std::byte*>(items.data()), cols * 2, 2, 0, 4, 0, cols,
                       99);
  };
  const std::uint64_t whole = digest();
  for (std::size_t i = 0; i < items.size(); ++i) {
    for (int bit = 0; bit < 16; ++bit) {
      items[i] ^= static_cast<std::uint16_t>(1 << bit);
      EXPECT_NE(digest(), whole) << i << " bit " << bit;
      items[i] ^= static_cast<std::uint16_t>(1 << bit);
    }
    for (std::size_t j = i + 1; j < items.size(); ++j) {
      std::swap(items[i], items[j]);
      EXPECT_NE(digest(), whole) << i << " with " << j;
      std::swap(items[i], items[j]);
    }
  }
}

}  // namespace
}  // namespace tpsync::device
