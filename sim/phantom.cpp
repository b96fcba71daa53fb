// Extent maps: see the header.
#include "sim/phantom.h"

#include <algorithm>

#include "sim/draws.h"

namespace tpsync::sim {

namespace {

bool plain(const Content& content) {
  return content.tensor == kFilledBytes || content.tensor == kUploadedBytes;
}

Content advanced(Content content, std::uint64_t bytes) {
  if (content.tensor == kLiteralBytes)
    content.at = bytes >= 8 ? 0 : content.at >> (8 * bytes);
  else if (!plain(content))
    content.at += bytes;
  return content;
}

// One run of an extent.
Extent run_of(const Extent& extent, std::uint64_t row, std::uint64_t column, std::uint64_t bytes) {
  Extent run;
  run.offset = extent.offset + row * extent.pitch + column;
  run.row_bytes = bytes;
  run.content = advanced(extent.content, row * extent.stride + column);
  return run;
}

// Some whole rows of an extent.
Extent rows_of(const Extent& extent, std::uint64_t first, std::uint64_t count) {
  Extent part = extent;
  part.offset += first * extent.pitch;
  part.rows = count;
  part.content = advanced(extent.content, first * extent.stride);
  return part;
}

Extent normalized(Extent extent) {
  if (extent.rows > 1 && extent.pitch == extent.row_bytes && extent.stride == extent.row_bytes &&
      extent.content.tensor != kLiteralBytes) {
    extent.row_bytes *= extent.rows;
    extent.rows = 1;
  }
  if (extent.rows == 1) extent.pitch = extent.stride = 0;
  return extent;
}

bool continues(const Extent& first, const Extent& second) {
  if (first.rows != 1 || second.rows != 1 || first.end() != second.offset) return false;
  if (first.content.tensor == kLiteralBytes) return false;
  Content expected = advanced(first.content, first.row_bytes);
  return expected == second.content;
}

}  // namespace

std::uint64_t phantom_bits(const Content& content, std::uint64_t element) {
  const std::uint64_t word = mix(mix(content.tensor ^ mix(content.version)) + element);
  return content.item_bytes >= 8 ? word
                                 : word & ((std::uint64_t{1} << (8 * content.item_bytes)) - 1);
}

ExtentMap::Index ExtentMap::first_near(std::uint64_t address) const {
  const std::uint64_t lowest = address > longest_ ? address - longest_ : 0;
  const auto found = std::lower_bound(
      extents_.begin(), extents_.end(), lowest,
      [](const Extent& extent, std::uint64_t value) { return extent.offset < value; });
  return static_cast<Index>(found - extents_.begin());
}

const Extent* ExtentMap::covering(std::uint64_t address) const {
  for (Index i = first_near(address); i < extents_.size(); ++i) {
    const Extent& extent = extents_[i];
    if (extent.offset > address) break;
    const std::uint64_t within = address - extent.offset;
    if (extent.rows == 1) {
      if (within < extent.row_bytes) return &extent;
    } else if (within / extent.pitch < extent.rows && within % extent.pitch < extent.row_bytes) {
      return &extent;
    }
  }
  return nullptr;
}

std::uint64_t ExtentMap::next_covered(std::uint64_t address, std::uint64_t end) const {
  std::uint64_t next = end;
  for (Index i = first_near(address); i < extents_.size(); ++i) {
    const Extent& extent = extents_[i];
    if (extent.offset >= next) break;
    if (extent.offset >= address) {
      next = std::min(next, extent.offset);
    } else if (extent.rows > 1 && extent.end() > address) {
      // `address` lies in a gap between two of its rows.
      const std::uint64_t row = (address - extent.offset) / extent.pitch + 1;
      if (row < extent.rows) next = std::min(next, extent.offset + row * extent.pitch);
    }
  }
  return next;
}

void ExtentMap::add(const Extent& raw) {
  const Extent extent = normalized(raw);
  if (extent.row_bytes == 0 || extent.rows == 0) return;
  auto place = std::upper_bound(
      extents_.begin(), extents_.end(), extent.offset,
      [](std::uint64_t value, const Extent& other) { return value < other.offset; });
  if (place != extents_.begin() && continues(*(place - 1), extent)) {
    --place;
    place->row_bytes += extent.row_bytes;
  } else {
    place = extents_.insert(place, extent);
  }
  const auto following = place + 1;
  if (following != extents_.end() && continues(*place, *following)) {
    place->row_bytes += following->row_bytes;
    extents_.erase(following);
  }
  longest_ = std::max(longest_, place->end() - place->offset);
}

void ExtentMap::erase_run(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  std::vector<Extent> left;
  Index i = first_near(begin);
  Index kept = i;
  for (; i < extents_.size() && extents_[i].offset < end; ++i) {
    const Extent extent = extents_[i];
    if (extent.end() <= begin) {
      extents_[kept++] = extent;
      continue;
    }
    if (extent.offset >= begin && extent.end() <= end) continue;
    if (extent.rows == 1) {
      if (extent.offset < begin) left.push_back(run_of(extent, 0, 0, begin - extent.offset));
      if (extent.end() > end)
        left.push_back(run_of(extent, 0, end - extent.offset, extent.end() - end));
      continue;
    }
    // Rows [low, high) may touch the run; those before and after stay together.
    const std::uint64_t low = begin > extent.offset ? (begin - extent.offset) / extent.pitch : 0;
    const std::uint64_t high =
        std::min(extent.rows, (end - extent.offset + extent.pitch - 1) / extent.pitch);
    if (low > 0) left.push_back(rows_of(extent, 0, std::min(low, extent.rows)));
    for (std::uint64_t row = low; row < high; ++row) {
      const std::uint64_t start = extent.offset + row * extent.pitch;
      const std::uint64_t stop = start + extent.row_bytes;
      if (stop <= begin || start >= end) {
        left.push_back(run_of(extent, row, 0, extent.row_bytes));
        continue;
      }
      if (start < begin) left.push_back(run_of(extent, row, 0, begin - start));
      if (stop > end) left.push_back(run_of(extent, row, end - start, stop - end));
    }
    if (high < extent.rows) left.push_back(rows_of(extent, high, extent.rows - high));
  }
  extents_.erase(extents_.begin() + static_cast<std::ptrdiff_t>(kept),
                 extents_.begin() + static_cast<std::ptrdiff_t>(i));
  for (const Extent& extent : left) add(extent);
}

void ExtentMap::erase(const Rect& rect) {
  if (rect.rows == 0 || rect.row_bytes == 0) return;
  if (rect.rows == 1 || rect.pitch == rect.row_bytes) {
    erase_run(rect.offset, rect.offset + (rect.rows - 1) * rect.pitch + rect.row_bytes);
    return;
  }
  // The same rectangle written again is the usual case.
  for (Index i = first_near(rect.offset); i < extents_.size(); ++i) {
    const Extent& extent = extents_[i];
    if (extent.offset > rect.offset) break;
    if (extent.offset == rect.offset && extent.rows == rect.rows && extent.pitch == rect.pitch &&
        extent.row_bytes == rect.row_bytes) {
      extents_.erase(extents_.begin() + static_cast<std::ptrdiff_t>(i));
      return;  // extents never overlap, so nothing else lies in the rectangle
    }
  }
  const std::uint64_t end = rect.offset + (rect.rows - 1) * rect.pitch + rect.row_bytes;
  if (next_covered(rect.offset, end) == end && covering(rect.offset) == nullptr) return;
  for (std::uint64_t row = 0; row < rect.rows; ++row)
    erase_run(rect.offset + row * rect.pitch, rect.offset + row * rect.pitch + rect.row_bytes);
}

void ExtentMap::write(const Extent& extent) {
  erase(Rect{extent.offset, extent.row_bytes, extent.rows, extent.pitch});
  if (extent.content.tensor == kLiteralBytes && extent.row_bytes > 8) return;
  add(extent);
}

void ExtentMap::read_into(const Rect& rect, std::vector<Extent>& out) const {
  std::uint64_t row = 0;
  while (row < rect.rows) {
    std::uint64_t column = 0;
    std::uint64_t whole_rows = 0;
    while (column < rect.row_bytes) {
      const std::uint64_t address = rect.offset + row * rect.pitch + column;
      const Extent* extent = covering(address);
      if (extent == nullptr) {
        const std::uint64_t row_end = rect.offset + row * rect.pitch + rect.row_bytes;
        column = next_covered(address, row_end) - (rect.offset + row * rect.pitch);
        continue;
      }
      const std::uint64_t within = address - extent->offset;
      const std::uint64_t extent_row = extent->rows == 1 ? 0 : within / extent->pitch;
      const std::uint64_t extent_column = extent->rows == 1 ? within : within % extent->pitch;
      const std::uint64_t available = extent->row_bytes - extent_column;
      const std::uint64_t needed = rect.row_bytes - column;
      Extent piece = run_of(*extent, extent_row, extent_column, std::min(available, needed));
      piece.offset = row * rect.pitch + column;
      if (column == 0 && available >= needed) {
        std::uint64_t count = 1;
        if (rect.rows > 1 && extent->rows == 1 && extent->content.tensor != kLiteralBytes) {
          count = std::min(rect.rows - row, 1 + (available - needed) / rect.pitch);
          piece.stride = rect.pitch;
        } else if (rect.rows > 1 && extent->rows > 1 && rect.pitch == extent->pitch) {
          count = std::min(rect.rows - row, extent->rows - extent_row);
          piece.stride = extent->stride;
        }
        piece.rows = count;
        piece.pitch = rect.pitch;
        out.push_back(piece);
        whole_rows = count;
        break;
      }
      out.push_back(piece);
      column += piece.row_bytes;
    }
    row += std::max<std::uint64_t>(whole_rows, 1);
  }
}

std::vector<Extent> ExtentMap::read(const Rect& rect) const {
  std::vector<Extent> out;
  if (rect.row_bytes != 0) read_into(rect, out);
  return out;
}

void ExtentMap::copy(const Rect& dst, const ExtentMap& from, const Rect& src) {
  const std::vector<Extent> pieces = from.read(src);
  erase(dst);
  for (Extent piece : pieces) {
    // From the source's geometry to the destination's.
    const std::uint64_t row = src.rows > 1 ? piece.offset / src.pitch : 0;
    const std::uint64_t column = src.rows > 1 ? piece.offset % src.pitch : piece.offset;
    piece.offset = dst.offset + row * dst.pitch + column;
    piece.pitch = dst.pitch;
    add(piece);
  }
}

void ExtentMap::convert(std::uint64_t dst_offset, std::uint32_t dst_item, const ExtentMap& from,
                        std::uint64_t src_offset, std::uint32_t src_item, std::uint64_t count) {
  const Rect src{src_offset, count * src_item, 1, 0};
  const Rect dst{dst_offset, count * dst_item, 1, 0};
  if (src_item == dst_item) {
    copy(dst, from, src);
    return;
  }
  const std::vector<Extent> pieces = from.read(src);
  erase(dst);
  for (Extent piece : pieces) {
    // Only whole elements of tensors have an identity in the other type.
    if (piece.content.tensor == kLiteralBytes || plain(piece.content)) {
      piece.content = {kUploadedBytes, mix(piece.content.at ^ piece.content.version), 1, 0};
    } else {
      piece.content.at = piece.content.at / src_item * dst_item;
      piece.content.item_bytes = dst_item;
    }
    piece.offset = dst_offset + piece.offset / src_item * dst_item;
    piece.row_bytes = piece.row_bytes / src_item * dst_item;
    add(piece);
  }
}

void ExtentMap::bytes(std::uint64_t offset, std::span<std::byte> into) const {
  std::fill(into.begin(), into.end(), kCanary);
  for (const Extent& piece : read(Rect{offset, into.size(), 1, 0})) {
    const Content& content = piece.content;
    for (std::uint64_t i = 0; i < piece.row_bytes; ++i) {
      std::uint64_t word = 0;
      if (content.tensor == kLiteralBytes) {
        word = content.at >> (8 * i);
      } else if (content.tensor == kFilledBytes) {
        word = content.version;
      } else {
        const std::uint64_t at = content.at + i;
        word = phantom_bits(content, at / content.item_bytes) >> (8 * (at % content.item_bytes));
      }
      into[piece.offset + i] = static_cast<std::byte>(word & 0xff);
    }
  }
}

}  // namespace tpsync::sim
