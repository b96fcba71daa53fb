// Phantom memory against memory with bytes: after any sequence of copies, each byte's identity is
// the byte that a real copy would have moved.
#include "sim/phantom.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <vector>

#include "tpsync/device/host_kernels.h"

namespace tpsync::sim {
namespace {

constexpr std::size_t kBytes = 96;
constexpr std::size_t kMaps = 3;

// A map and the bytes that it stands for.
struct Shadowed {
  ExtentMap map;
  std::vector<std::byte> bytes = std::vector<std::byte>(kBytes, kCanary);

  std::vector<std::byte> shown() const {
    std::vector<std::byte> out(kBytes);
    map.bytes(0, out);
    return out;
  }
};

std::byte byte_of(const Content& content, std::uint64_t at) {
  if (content.tensor == kFilledBytes) return static_cast<std::byte>(content.version);
  if (content.tensor == kLiteralBytes) return static_cast<std::byte>(content.at >> (8 * at));
  const std::uint64_t byte = content.at + at;
  return static_cast<std::byte>(phantom_bits(content, byte / content.item_bytes) >>
                                (8 * (byte % content.item_bytes)));
}

// A rectangle that fits into the memory.
Rect any_rect(std::uint64_t row_bytes, std::uint64_t rows) {
  const std::uint64_t most = rows > 1 ? (kBytes - row_bytes) / (rows - 1) : row_bytes;
  const std::uint64_t pitch = *rc::gen::inRange<std::uint64_t>(row_bytes, most + 1);
  const std::uint64_t span = (rows - 1) * pitch + row_bytes;
  const std::uint64_t offset = *rc::gen::inRange<std::uint64_t>(0, kBytes - span + 1);
  return {offset, row_bytes, rows, pitch};
}

TEST(ExtentMap, ShowsTheBytesThatCopiesWouldHaveMoved) {
  const bool held = rc::check("phantom memory equals byte memory", [] {
    std::vector<Shadowed> memory(kMaps);
    const auto steps = *rc::gen::inRange(1, 25);
    for (int step = 0; step < steps; ++step) {
      const std::uint64_t rows = *rc::gen::inRange<std::uint64_t>(1, 6);
      const std::uint64_t row_bytes = *rc::gen::inRange<std::uint64_t>(1, kBytes / rows + 1);
      const auto to = static_cast<std::size_t>(*rc::gen::inRange<std::size_t>(0, kMaps));
      Shadowed& dst = memory[to];
      const int action = *rc::gen::inRange(0, 6);
      if (action <= 2) {
        const Shadowed& src =
            memory[(to + 1 + static_cast<std::size_t>(*rc::gen::inRange(0, 2))) % kMaps];
        const Rect into = any_rect(row_bytes, rows);
        const Rect from = any_rect(row_bytes, rows);
        dst.map.copy(into, src.map, from);
        device::copy_rows(dst.bytes.data() + into.offset, into.pitch,
                          src.bytes.data() + from.offset, from.pitch, row_bytes, rows);
        continue;
      }
      Rect into = any_rect(row_bytes, rows);
      Extent extent;
      if (action == 3) {
        into.rows = 1;
        into.row_bytes = std::min<std::uint64_t>(row_bytes, 8);
        extent.content = {kLiteralBytes, 0, 1, *rc::gen::arbitrary<std::uint64_t>()};
        if (into.row_bytes < 8) extent.content.at &= (std::uint64_t{1} << (8 * into.row_bytes)) - 1;
      } else if (action == 4) {
        extent.content = {kFilledBytes, *rc::gen::inRange<std::uint64_t>(0, 256), 1, 0};
      } else {
        extent.content = {*rc::gen::inRange<std::uint64_t>(1, 4),
                          *rc::gen::inRange<std::uint64_t>(0, 3), 2,
                          *rc::gen::inRange<std::uint64_t>(0, 50)};
        extent.stride = *rc::gen::inRange<std::uint64_t>(into.row_bytes, 100);
      }
      extent.offset = into.offset;
      extent.row_bytes = into.row_bytes;
      extent.rows = into.rows;
      extent.pitch = into.pitch;
      dst.map.write(extent);
      for (std::uint64_t row = 0; row < into.rows; ++row)
        for (std::uint64_t column = 0; column < into.row_bytes; ++column)
          dst.bytes[into.offset + row * into.pitch + column] =
              byte_of(extent.content, row * extent.stride + column);
    }
    for (const Shadowed& one : memory) RC_ASSERT(one.shown() == one.bytes);
  });
  EXPECT_TRUE(held);
}

TEST(ExtentMap, KeepsSlicesOfAMatrixAsOneExtent) {
  ExtentMap full;
  full.write({0, 4096, 1, 0, 0, {7, 1, 2, 0}});
  ExtentMap slice;
  slice.copy(Rect{0, 16, 64, 16}, full, Rect{16, 16, 64, 64});
  const std::vector<Extent> found = slice.read(Rect{0, 1024, 1, 0});
  ASSERT_EQ(found.size(), 64u) << "as one run, the slice is many pieces";
  const std::vector<Extent> rows = slice.read(Rect{0, 16, 64, 16});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].rows, 64u);
  EXPECT_EQ(rows[0].stride, 64u);
  EXPECT_EQ(rows[0].content, (Content{7, 1, 2, 16}));
}

TEST(ExtentMap, KeepsElementsThroughACast) {
  ExtentMap wide;
  wide.write({8, 40, 1, 0, 0, {7, 1, 4, 400}});
  ExtentMap narrow;
  narrow.convert(2, 2, wide, 8, 4, 10);
  const std::vector<Extent> found = narrow.read(Rect{0, 32, 1, 0});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].offset, 2u);
  EXPECT_EQ(found[0].row_bytes, 20u);
  EXPECT_EQ(found[0].content, (Content{7, 1, 2, 200}));
}

}  // namespace
}  // namespace tpsync::sim
