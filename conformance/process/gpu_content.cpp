#include "conformance/process/gpu_content.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "conformance/judge/content.h"
#include "conformance/process/gpu_content_kernels.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

constexpr std::uint64_t kPieceBytes = 16 * kMiB;

}  // namespace

GpuContent::GpuContent(device::CudaDevice& device, Clock& clock, const WorldSpec& spec)
    : device_(device),
      clock_(clock),
      seed_(spec.seed),
      lane_bytes_(spec.lane_bytes),
      stream_(device::create_stream(device)) {}

void GpuContent::synchronize() {
  device_.synchronize(stream_.id(), Deadline::after(clock_, std::chrono::seconds(60)));
}

void GpuContent::write(device::Device&, device::RegionId region, std::uint64_t offset,
                       const ContentRect& content) {
  FillJob job;
  job.at = static_cast<std::byte*>(device_.address_of(region)) + offset;
  job.base = judge::content_base(seed_, judge::name_hash(content.tensor), content.version);
  job.element = content.element;
  job.count = content.count;
  job.rows = content.rows;
  job.stride = content.stride;
  job.pitch = content.pitch;
  job.item_bytes = static_cast<std::uint32_t>(item_size(content.dtype));
  job.half = content.dtype == DType::kFloat16;
  if (const int error = launch_fill(job, device_.stream_of(stream_.id())); error != 0) {
    throw_broken(ErrorKind::kDevice, content.tensor,
                 "the test weights could not be written: CUDA error " + std::to_string(error));
  }
  synchronize();
}

std::uint64_t GpuContent::hash_parameter(const runtime::ResidentModel& resident,
                                         std::size_t parameter) {
  const model::ResidentParameter& p = resident.layout.parameters[parameter];
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  const std::uint64_t end = lane_bytes_ == 0 ? p.bytes : std::min(p.bytes, lane_bytes_);
  for (std::uint64_t at = 0; at < end; at += kPieceBytes) {
    host_.resize(std::min(kPieceBytes, end - at));
    device_.download(stream_.id(), resident.weights, p.offset + at, host_);
    synchronize();
    XXH3_64bits_update(&state, host_.data(), host_.size());
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace tpsync::conformance
