#include "conformance/world/sim_content.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "conformance/judge/content.h"
#include "conformance/world/content_bytes.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

SimContent::SimContent(sim::SimProcess& process, const WorldSpec& spec)
    : device_(process.sim_device()), seed_(spec.seed) {}

void SimContent::write(device::Device&, device::RegionId region, std::uint64_t offset,
                       const ContentRect& content) {
  if (device_.process().dead()) throw sim::Killed{};
  const std::uint64_t item = item_size(content.dtype);
  const std::uint64_t tensor = judge::name_hash(content.tensor);
  if (device_.phantom()) {
    sim::Extent extent;
    extent.offset = offset;
    extent.row_bytes = content.count * item;
    extent.rows = content.rows;
    extent.pitch = content.pitch;
    extent.stride = content.stride * item;
    extent.content = {tensor, content.version, static_cast<std::uint32_t>(item),
                      content.element * item};
    if (extent.rows > 1 && extent.pitch == extent.row_bytes && extent.stride == extent.row_bytes) {
      extent.row_bytes *= extent.rows;
      extent.rows = 1;
    }
    device_.stamp(region, extent);
    return;
  }
  const std::uint64_t base = judge::content_base(seed_, tensor, content.version);
  bytes_.resize(content.count * item);
  for (std::uint64_t row = 0; row < content.rows; ++row) {
    const std::uint64_t first = content.element + row * content.stride;
    fill_content(bytes_, content.dtype, base, first);
    device_.poke(region, offset + row * content.pitch, bytes_);
  }
}

std::uint64_t SimContent::hash_parameter(const runtime::ResidentModel& resident,
                                         std::size_t parameter) {
  if (device_.phantom()) return hash_phantom(resident, parameter);
  const model::ResidentParameter& p = resident.layout.parameters[parameter];
  return XXH3_64bits(device_.view(resident.weights).data() + p.offset, p.bytes);
}

std::vector<std::string> SimContent::differences(const runtime::ResidentModel& resident,
                                                 std::int64_t version) {
  std::vector<std::string> texts;
  if (!device_.phantom()) return texts;
  const std::uint64_t item = resident.layout.item_bytes;
  for (const model::Placement& p : resident.layout.placements) {
    constexpr std::size_t kTextsMax = 5;
    if (texts.size() >= kTextsMax) break;
    if (p.row0 == p.row1 || p.col0 == p.col1) continue;
    const wire::TensorRecord& tensor = resident.plan.tensors[p.tensor];
    const std::uint64_t cols = model::rows_cols(tensor).cols;
    const sim::Rect rect{p.offset, (p.col1 - p.col0) * item, p.row1 - p.row0, p.pitch};
    std::uint64_t covered = 0;
    for (const sim::Extent& found : device_.query(resident.weights, rect)) {
      covered += found.row_bytes * found.rows;
      const std::uint64_t row = p.row0 + found.offset / p.pitch;
      const std::uint64_t col = p.col0 + found.offset % p.pitch / item;
      std::string what;
      if (found.content.tensor != judge::name_hash(tensor.name)) {
        what = "another tensor";
      } else if (found.content.version != static_cast<std::uint64_t>(version)) {
        what = fmt::format("version {}", found.content.version);
      } else if (found.content.at != (row * cols + col) * item) {
        what = "another part of the tensor";
      }
      if (what.empty()) continue;
      texts.push_back(fmt::format("{} in {} rows {} to {} columns {} to {}, bytes {} to {}", what,
                                  tensor.name, row, row + found.rows, col,
                                  col + found.row_bytes / item, p.offset + found.offset,
                                  p.offset + found.end()));
    }
    if (covered != rect.row_bytes * rect.rows) {
      texts.push_back(fmt::format("nothing in {} of the bytes of {}",
                                  rect.row_bytes * rect.rows - covered, tensor.name));
    }
  }
  return texts;
}

std::uint64_t SimContent::hash_phantom(const runtime::ResidentModel& resident,
                                       std::size_t parameter) {
  // Every placement must be exactly its rectangle of its tensor, in one version.
  const auto& placements = resident.layout.placements;
  const std::uint64_t item = resident.layout.item_bytes;
  std::optional<std::uint64_t> version;
  std::uint64_t wrong = 0;
  for (const model::Placement& p : placements) {
    if (p.parameter != parameter || p.row0 == p.row1 || p.col0 == p.col1) continue;
    const wire::TensorRecord& tensor = resident.plan.tensors[p.tensor];
    const std::uint64_t cols = model::rows_cols(tensor).cols;
    const std::uint64_t row_bytes = (p.col1 - p.col0) * item;
    const sim::Rect rect{p.offset, row_bytes, p.row1 - p.row0, p.pitch};
    std::uint64_t covered = 0;
    for (const sim::Extent& found : device_.query(resident.weights, rect)) {
      covered += found.row_bytes * found.rows;
      const bool same = found.content.tensor == judge::name_hash(tensor.name) &&
                        found.content.item_bytes == item &&
                        (!version || *version == found.content.version);
      version = found.content.version;
      // The extent's first byte, and the way from row to row, must be those of the tensor.
      const std::uint64_t row = found.offset / p.pitch;
      const std::uint64_t col = found.offset % p.pitch / item;
      const bool in_place = found.content.at == ((p.row0 + row) * cols + p.col0 + col) * item &&
                            (found.rows == 1 || found.stride == cols * item);
      if (!same || !in_place) wrong = judge::mix(wrong + p.tensor + 1);
    }
    if (covered != row_bytes * rect.rows) wrong = judge::mix(wrong + p.tensor + 7);
  }
  if (wrong != 0) return judge::mix(wrong);
  return version ? judge::mix(*version) : 0;
}

}  // namespace tpsync::conformance
