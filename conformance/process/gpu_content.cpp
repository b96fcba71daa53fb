#include "conformance/process/gpu_content.h"

#include <algorithm>
#include <array>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "conformance/judge/content.h"
#include "conformance/world/content_bytes.h"

namespace tpsync::conformance {

namespace {

constexpr std::uint64_t kPieceBytes = 16 * kMiB;

}  // namespace

GpuContent::GpuContent(device::Device& device, Clock& clock, std::uint64_t seed)
    : device_(device), clock_(clock), seed_(seed), stream_(device::create_stream(device)) {}

void GpuContent::synchronize() {
  device_.synchronize(stream_.id(), Deadline::after(clock_, std::chrono::seconds(60)));
}

void GpuContent::write(device::Device&, device::RegionId region, std::uint64_t offset,
                       const ContentRect& content) {
  const std::uint64_t base =
      judge::content_base(seed_, judge::name_hash(content.tensor), content.version);
  const std::uint64_t item = item_size(content.dtype);
  const std::uint64_t row_bytes = content.count * item;
  if (row_bytes == 0 || content.rows == 0) return;
  if (!staging_)
    staging_ =
        device::allocate(device_, {.bytes = kPieceBytes, .kind = device::RegionKind::kPlain});
  // A row that is longer than a piece goes in parts.
  const std::uint64_t part = std::min(content.count, kPieceBytes / item);
  if (part < content.count) {
    for (std::uint64_t row = 0; row < content.rows; ++row) {
      for (std::uint64_t at = 0; at < content.count; at += part) {
        ContentRect piece = content;
        piece.element = content.element + row * content.stride + at;
        piece.count = std::min(part, content.count - at);
        write_rows(region, offset + row * content.pitch + at * item, piece, base, 0, 1);
      }
    }
    return;
  }
  const std::uint64_t at_once = kPieceBytes / row_bytes;
  for (std::uint64_t row = 0; row < content.rows; row += at_once)
    write_rows(region, offset, content, base, row, std::min(at_once, content.rows - row));
}

void GpuContent::write_rows(device::RegionId region, std::uint64_t offset,
                            const ContentRect& content, std::uint64_t base, std::uint64_t first_row,
                            std::uint64_t rows) {
  const std::uint64_t row_bytes = content.count * item_size(content.dtype);
  host_.resize(rows * row_bytes);
  for (std::uint64_t row = 0; row < rows; ++row) {
    fill_content({host_.data() + row * row_bytes, row_bytes}, content.dtype, base,
                 content.element + (first_row + row) * content.stride);
  }
  device_.upload(stream_.id(), staging_.id(), 0, host_);
  const device::TileCopy tile{.dst = 0,
                              .src = 1,
                              .dst_offset = offset + first_row * content.pitch,
                              .dst_pitch = content.pitch,
                              .src_offset = 0,
                              .src_pitch = row_bytes,
                              .row_bytes = row_bytes,
                              .rows = rows};
  const auto batch = device_.prepare_copies({&tile, 1});
  const std::array bindings{region, staging_.id()};
  device_.launch(stream_.id(), *batch, bindings);
  synchronize();
}

std::uint64_t GpuContent::hash_parameter(const runtime::ResidentModel& resident,
                                         std::size_t parameter) {
  const model::ResidentParameter& p = resident.layout.parameters[parameter];
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (std::uint64_t at = 0; at < p.bytes; at += kPieceBytes) {
    host_.resize(std::min(kPieceBytes, p.bytes - at));
    device_.download(stream_.id(), resident.weights, p.offset + at, host_);
    synchronize();
    XXH3_64bits_update(&state, host_.data(), host_.size());
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace tpsync::conformance
