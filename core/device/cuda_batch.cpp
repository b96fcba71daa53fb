#include "tpsync/device/cuda_batch.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <chrono>

namespace tpsync::device::cuda {

namespace {

constexpr std::uint64_t kSmallestTable = 4096;
constexpr Duration kUploadLimit = std::chrono::seconds(60);
constexpr std::string_view kSubject = "prepared batch";

cudaStream_t native_of(const CudaStream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

}  // namespace

TablePool::~TablePool() {
  for (Block& block : free_) memory_.release(block);
}

Block TablePool::take(std::uint64_t bytes) {
  if (bytes == 0) return Block{};
  const std::uint64_t rounded = std::bit_ceil(std::max(bytes, kSmallestTable));
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [&](const Block& one) { return one.bytes == rounded; });
  if (found != free_.end()) {
    const Block block = *found;
    free_.erase(found);
    return block;
  }
  free_.reserve(made_ + 1);  // so that giving back cannot fail
  const Block block = memory_.plain(rounded, kSubject);
  ++made_;
  return block;
}

void TablePool::give_back(Block block) noexcept {
  if (block.bytes != 0) free_.push_back(block);
}

CudaBatch::CudaBatch(BatchKind kind, const Tables& tables, Extents extents, CudaErrors& errors,
                     TablePool& pool, CudaStream& stream, Clock& clock)
    : kind_(kind),
      extents_(std::move(extents)),
      tile_count_(static_cast<std::uint32_t>(tables.tile_count)),
      item_count_(tables.item_count),
      errors_(errors),
      pool_(pool) {
  TPSYNC_ASSERT(tables.tile_count <= INT32_MAX);
  try {
    tiles_ = pool_.take(tables.tile_bytes);
    sums_ = pool_.take(item_count_ * sizeof(std::uint64_t));
    if (extents_.size() > kInlineBases) {
      bases_ = pool_.take(extents_.size() * sizeof(std::uint64_t));
      last_addresses_.reserve(extents_.size());
    }
    if (has_shared_memory()) {
      cudaEvent_t event = nullptr;
      errors_.check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                    "cudaEventCreateWithFlags", kSubject);
      done_ = event;
    }
    stream.upload(tiles_.address, {static_cast<const std::byte*>(tables.tiles), tables.tile_bytes},
                  kSubject);
    stream.synchronize(Deadline::after(clock, kUploadLimit));
  } catch (const std::exception&) {
    if (done_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(done_));
    pool_.give_back(tiles_);
    pool_.give_back(sums_);
    pool_.give_back(bases_);
    throw;
  }
}

CudaBatch::~CudaBatch() {
  if (done_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(done_));
  pool_.give_back(tiles_);
  pool_.give_back(sums_);
  pool_.give_back(bases_);
}

void CudaBatch::launch(CudaStream& stream, std::span<const std::uint64_t> addresses,
                       std::span<std::uint64_t> sums) const {
  const cudaStream_t native = native_of(stream);
  const auto event = static_cast<cudaEvent_t>(done_);
  if (recorded_) {
    errors_.check(cudaStreamWaitEvent(native, event, 0), "cudaStreamWaitEvent", kSubject);
  }
  Bases bases;
  const auto used = addresses.first(extents_.size());
  if (bases_.bytes != 0) {
    bases.table = reinterpret_cast<const std::uint64_t*>(bases_.address);
    if (!std::equal(used.begin(), used.end(), last_addresses_.begin(), last_addresses_.end())) {
      last_addresses_.clear();  // unknown, should the upload fail
      stream.upload(bases_.address, std::as_bytes(used), kSubject);
      last_addresses_.assign(used.begin(), used.end());
    }
  } else {
    std::copy(used.begin(), used.end(), bases.inlined.begin());
  }
  int status = 0;
  const void* tiles = reinterpret_cast<const void*>(tiles_.address);
  auto* device_sums = reinterpret_cast<std::uint64_t*>(sums_.address);
  if (sums_.bytes != 0) {
    errors_.check(cudaMemsetAsync(device_sums, 0, item_count_ * sizeof(std::uint64_t), native),
                  "cudaMemsetAsync", kSubject);
  }
  if (tile_count_ != 0) {
    switch (kind_) {
      case BatchKind::kCopies:
        status =
            launch_copies(static_cast<const CopyTile*>(tiles), tile_count_, bases, stream.native());
        break;
      case BatchKind::kPacks:
        status =
            launch_packs(static_cast<const PackTile*>(tiles), tile_count_, bases, stream.native());
        break;
      case BatchKind::kDigests:
        status = launch_digests(static_cast<const DigestTile*>(tiles), tile_count_, bases,
                                device_sums, stream.native());
        break;
    }
    errors_.check(status, "cudaLaunchKernel", kSubject);
  }
  if (!sums.empty()) {
    stream.download(sums_.address, std::as_writable_bytes(sums), kSubject);
  }
  if (has_shared_memory()) {
    errors_.check(cudaEventRecord(event, native), "cudaEventRecord", kSubject);
    recorded_ = true;
  }
}

}  // namespace tpsync::device::cuda
