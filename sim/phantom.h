// Memory without bytes: which rectangle of which tensor in which version lies where. Copies move
// these extents exactly as they would move bytes, so that a stale, swapped or missing slice of a
// model of any size can still be named.
//
// An extent is `rows` runs of `row_bytes`, `pitch` bytes apart in memory and `stride` bytes apart
// in the tensor. Bytes in no extent were never written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tpsync::sim {

// Values of Content::tensor that name no tensor.
inline constexpr std::uint64_t kLiteralBytes = ~std::uint64_t{0};       // `at` holds up to 8 bytes
inline constexpr std::uint64_t kFilledBytes = ~std::uint64_t{0} - 1;    // `version` is the byte
inline constexpr std::uint64_t kUploadedBytes = ~std::uint64_t{0} - 2;  // `version` is their hash

struct Content {
  std::uint64_t tensor = 0;
  std::uint64_t version = 0;
  std::uint32_t item_bytes = 1;
  std::uint64_t at = 0;  // byte within the tensor, in elements of item_bytes

  friend bool operator==(const Content&, const Content&) = default;
};

struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 1;
  std::uint64_t pitch = 0;   // unused where rows is 1
  std::uint64_t stride = 0;  // likewise
  Content content;

  std::uint64_t end() const { return offset + (rows - 1) * pitch + row_bytes; }
  friend bool operator==(const Extent&, const Extent&) = default;
};

struct Rect {
  std::uint64_t offset = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 1;
  std::uint64_t pitch = 0;
};

class ExtentMap {
 public:
  void clear() {
    extents_.clear();
    longest_ = 0;
  }
  bool empty() const { return extents_.empty(); }

  void write(const Extent& extent);  // replaces what was there
  void erase(const Rect& rect);      // as never written
  // Writes `dst` with what `from` has in `src`; the rectangles have equal rows and row_bytes. Where
  // item sizes differ, elements keep their identity (one row only).
  void copy(const Rect& dst, const ExtentMap& from, const Rect& src);
  void convert(std::uint64_t dst_offset, std::uint32_t dst_item, const ExtentMap& from,
               std::uint64_t src_offset, std::uint32_t src_item, std::uint64_t count);

  // The extents of a rectangle, clipped to it; offsets are relative to it, as if its rows lay
  // `pitch` apart. In the order of their addresses.
  std::vector<Extent> read(const Rect& rect) const;
  // The bytes of one run: of tensors, made from their identity; 0xc5 where never written.
  void bytes(std::uint64_t offset, std::span<std::byte> into) const;

 private:
  using Index = std::size_t;
  void add(const Extent& extent);
  void erase_run(std::uint64_t begin, std::uint64_t end);
  Index first_near(std::uint64_t address) const;  // first extent that can reach `address`
  const Extent* covering(std::uint64_t address) const;
  std::uint64_t next_covered(std::uint64_t address, std::uint64_t end) const;
  void read_into(const Rect& rect, std::vector<Extent>& out) const;

  std::vector<Extent> extents_;  // by offset
  std::uint64_t longest_ = 0;    // no extent spans more bytes
};

inline constexpr std::byte kCanary{0xc5};

// The bits of one element of a tensor as phantom memory shows them.
std::uint64_t phantom_bits(const Content& content, std::uint64_t element);

}  // namespace tpsync::sim
