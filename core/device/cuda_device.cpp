// Bounds, lives and states are checked before anything is handed to CUDA: a violation asserts at
// its cause, whatever the state of the context.
#include "tpsync/device/cuda_device.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "tpsync/base/errors.h"
#include "tpsync/device/cuda_batch.h"
#include "tpsync/device/cuda_driver.h"
#include "tpsync/device/cuda_errors.h"
#include "tpsync/device/cuda_kernels.h"
#include "tpsync/device/cuda_memory.h"
#include "tpsync/device/cuda_stream.h"
#include "tpsync/device/cuda_tiles.h"
#include "tpsync/device/host_kernels.h"

namespace tpsync::device {

using cuda::Block;
using cuda::CudaBatch;
using cuda::CudaStream;

namespace {

constexpr std::string_view kImport = "import";
constexpr std::string_view kExport = "export";

struct CudaRegion {
  std::uint64_t bytes = 0;
  RegionKind kind = RegionKind::kPlain;
  std::string tag;
  Block block;
  bool awake = true;
  std::byte* pinned = nullptr;  // of a sleepable region that was kept once
  bool saved = false;           // `pinned` holds its content
  bool imported = false;
  cuda::Handle handle;  // of an import or a live export
  bool exported = false;
  std::vector<os_memory::Descriptor> descriptors;  // of a live export of kind kVmmFd
};

// What a copy of so many bytes may take at most, on a link that is slow and shared.
Deadline copy_limit(Clock& clock, std::uint64_t bytes) {
  return Deadline::after(clock, std::chrono::seconds(60 + bytes / kGiB));
}

int checked_ordinal(int ordinal) {
  const CudaDevices found = find_cuda_devices();
  if (ordinal < 0 || ordinal >= found.count) {
    throw_invalid(ErrorKind::kInvalidConfig, "ordinal",
                  found.count == 0 ? "there is no CUDA device: " + found.reason
                                   : fmt::format("{} names none of the {} CUDA devices that this "
                                                 "process sees",
                                                 ordinal, found.count));
  }
  return ordinal;
}

// The address of [offset, offset + bytes) of a region; asserts that it is awake and has them.
std::uint64_t address_in(const CudaRegion& region, std::uint64_t offset, std::uint64_t bytes) {
  TPSYNC_ASSERT(region.awake);
  TPSYNC_ASSERT(offset <= region.bytes && bytes <= region.bytes - offset);
  return region.block.address + offset;
}

}  // namespace

CudaDevices find_cuda_devices() {
  CudaDevices found;
  const cudaError_t status = cudaGetDeviceCount(&found.count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    found.count = 0;
    found.reason = fmt::format("cudaGetDeviceCount failed ({})", cuda::error_symbol(status));
  } else if (found.count == 0) {
    found.reason = "this process sees no CUDA device";
  }
  return found;
}

struct CudaDevice::State {
  State(Clock& given_clock, CudaDeviceOptions given_options);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  CudaRegion& find(RegionId id);
  CudaStream& find(StreamId id);
  std::uint64_t address(RegionId region, std::uint64_t offset, std::uint64_t bytes) {
    return address_in(find(region), offset, bytes);
  }
  RegionId add(CudaRegion region);
  void revoke(CudaRegion& region) noexcept;
  void retire(RegionId id) noexcept;
  bool drained() noexcept;
  void reap() noexcept;
  Block open(const cuda::Handle& handle);
  std::string behind(const CudaRegion& region);
  std::vector<CudaRegion*> sleepables(std::string_view tag, bool awake);
  // Between regions and the pinned memory of each; complete when it returns.
  void copy_saved(const std::vector<CudaRegion*>& copied, cudaMemcpyKind kind,
                  std::string_view tag);
  template <typename Tile>
  std::unique_ptr<CudaBatch> prepare(cuda::BatchKind kind, cuda::TileTable<Tile> table,
                                     std::uint64_t item_count);
  void launch(StreamId stream, const CudaBatch& batch, std::span<const RegionId> bindings,
              std::span<std::uint64_t> sums);

  Clock& clock;
  const CudaDeviceOptions options;
  cuda::CudaErrors errors;
  const cuda::CudaDriver driver;
  void* context = nullptr;
  cuda::Uuid uuid{};
  std::unique_ptr<cuda::CudaMemory> memory;
  std::unique_ptr<cuda::StagingPool> staging;
  std::unique_ptr<cuda::TablePool> tables;
  std::unique_ptr<CudaStream> service;  // for what the device itself copies
  cuda::ExportRegister exports;
  std::map<RegionId, CudaRegion> regions;
  std::map<RegionId, CudaRegion> retired;  // to be freed when no stream has work
  std::map<StreamId, std::unique_ptr<CudaStream>> streams;
  std::map<StreamId, std::unique_ptr<CudaStream>> undrained;  // destroyed with work pending
  std::uint64_t next_region = 1;
  std::uint32_t next_stream = 1;
};

namespace {

// Makes the device's context the thread's current one. Where that fails, the calls that follow
// tell.
class Current {
 public:
  Current(cuda::CudaErrors& errors, const cuda::CudaDriver& driver, void* context)
      : driver_(driver), pushed_(driver.push_context(context) == 0) {
    if (!pushed_) errors.note(cudaErrorContextIsDestroyed, "cuCtxPushCurrent");
  }
  ~Current() {
    if (pushed_) driver_.pop_context();
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const cuda::CudaDriver& driver_;
  const bool pushed_;
};

template <typename State>
Current make_current(State& state) {
  return Current(state.errors, state.driver, state.context);
}

}  // namespace

CudaDevice::State::State(Clock& given_clock, CudaDeviceOptions given_options)
    : clock(given_clock),
      options(std::move(given_options)),
      errors(checked_ordinal(options.ordinal)),
      driver(errors) {
  errors.check(driver.retain_primary_context(options.ordinal, context), "cuDevicePrimaryCtxRetain",
               "device");
  const Current current = make_current(*this);
  errors.check(driver.device_uuid(options.ordinal, uuid), "cuDeviceGetUuid", "device");
  errors.check(cuda::load_kernels(), "cudaFuncGetAttributes", "device");
  memory = std::make_unique<cuda::CudaMemory>(errors, driver, options.ordinal);
  staging = std::make_unique<cuda::StagingPool>(*memory);
  tables = std::make_unique<cuda::TablePool>(*memory);
  service = std::make_unique<CudaStream>(errors, clock, *staging);
}

// With work pending, everything that it may touch stays until the process ends: freeing would wait
// for it.
CudaDevice::State::~State() {
  const Current current = make_current(*this);
  for (auto& [id, region] : regions) revoke(region);
  const bool idle = drained();
  retired.merge(regions);
  if (idle) {
    reap();
    streams.clear();
    service.reset();
    tables.reset();
    staging.reset();
    return;
  }
  for (auto* pending : {&streams, &undrained}) {
    for (auto& [id, stream] : *pending) static_cast<void>(stream.release());
  }
  static_cast<void>(service.release());
  static_cast<void>(tables.release());
  static_cast<void>(staging.release());
}

CudaRegion& CudaDevice::State::find(RegionId id) {
  const auto found = regions.find(id);
  TPSYNC_ASSERT(found != regions.end());
  return found->second;
}

CudaStream& CudaDevice::State::find(StreamId id) {
  const auto found = streams.find(id);
  TPSYNC_ASSERT(found != streams.end());
  return *found->second;
}

RegionId CudaDevice::State::add(CudaRegion region) {
  const RegionId id{next_region++};
  Block block = region.block;
  try {
    regions.emplace(id, std::move(region));
  } catch (const std::exception&) {
    memory->release(block);
    throw;
  }
  return id;
}

void CudaDevice::State::revoke(CudaRegion& region) noexcept {
  if (!std::exchange(region.exported, false)) return;
  exports.revoke(region.handle.serial);
  region.descriptors.clear();
}

void CudaDevice::State::retire(RegionId id) noexcept {
  retired.insert(regions.extract(id));
  reap();
}

// Whether no stream has work. Forgets destroyed streams that have become so.
bool CudaDevice::State::drained() noexcept {
  std::erase_if(undrained, [](const auto& one) { return one.second->complete(); });
  return undrained.empty() && std::all_of(streams.begin(), streams.end(),
                                          [](const auto& one) { return one.second->complete(); });
}

void CudaDevice::State::reap() noexcept {
  if (retired.empty() || !drained()) return;
  for (auto& [id, region] : retired) {
    memory->release(region.block);
    memory->unpin(region.pinned);
  }
  retired.clear();
}

Block CudaDevice::State::open(const cuda::Handle& handle) {
  if (handle.kind == CudaExportKind::kCudaIpc) {
    if (handle.exporter == exports.process()) {
      throw_broken(ErrorKind::kIpc, kImport,
                   "this process exported it itself, and CUDA IPC opens in other processes alone");
    }
    return memory->open_ipc(handle.driver, handle.mapped_bytes);
  }
  std::vector<os_memory::Descriptor> descriptors;
  for (std::size_t piece = 0; piece < cuda::piece_count(handle.mapped_bytes); ++piece) {
    int number = 0;
    std::memcpy(&number, handle.driver.data() + piece * sizeof number, sizeof number);
    os_memory::Opened opened = os_memory::take_descriptor(handle.exporter, number);
    if (opened.error == EPERM || opened.error == EACCES) {
      throw_broken(ErrorKind::kIpc, kImport,
                   fmt::format("taking the descriptor of process {} is not permitted ({}): let the "
                               "importer trace the exporter, or export with CUDA IPC",
                               handle.exporter.pid, os_memory::symbol(opened.error)));
    }
    if (!opened.file) {
      throw_broken(ErrorKind::kIpc, kImport,
                   fmt::format("taking the descriptor of process {} failed ({})",
                               handle.exporter.pid, os_memory::symbol(opened.error)));
    }
    descriptors.push_back(std::move(opened.file));
  }
  return memory->open_descriptors(descriptors, handle.mapped_bytes);
}

// The driver was seen to name the opener's own device for another one's memory, so what the
// exporter said counts unless the driver names a third.
std::string CudaDevice::State::behind(const CudaRegion& region) {
  const int ordinal = region.block.kind == Block::Kind::kNone ? options.ordinal
                                                              : memory->device_behind(region.block);
  if (ordinal == options.ordinal) return cuda::uuid_text(region.handle.device_uuid);
  cuda::Uuid other{};
  errors.check(driver.device_uuid(ordinal, other), "cuDeviceGetUuid", kImport, ErrorKind::kIpc);
  return cuda::uuid_text(other);
}

CudaDevice::CudaDevice(Clock& clock, CudaDeviceOptions options)
    : state_(std::make_unique<State>(clock, std::move(options))) {}

CudaDevice::~CudaDevice() = default;

std::string CudaDevice::uuid() { return cuda::uuid_text(state_->uuid); }

MemoryInfo CudaDevice::memory() {
  if (state_->options.free_memory) return state_->options.free_memory();
  const Current current = make_current(*state_);
  state_->reap();
  std::size_t free_bytes = 0, total_bytes = 0;
  state_->errors.check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo", "memory");
  return {free_bytes, total_bytes};
}

RegionId CudaDevice::allocate(const AllocationRequest& request) {
  TPSYNC_ASSERT((request.kind == RegionKind::kSleepable) == !request.tag.empty());
  const Current current = make_current(*state_);
  state_->errors.require_context();
  state_->reap();
  const std::string_view subject = request.tag.empty() ? "allocation" : request.tag;
  CudaRegion region;
  region.bytes = request.bytes;
  region.kind = request.kind;
  region.tag = request.tag;
  cuda::CudaMemory& memory = *state_->memory;
  switch (request.kind) {
    case RegionKind::kPlain:
      region.block = memory.plain(request.bytes, subject);
      break;
    case RegionKind::kSleepable:
      region.block = memory.virtual_memory(request.bytes, false, subject);
      break;
    case RegionKind::kExportable:
      region.block = state_->options.export_kind == CudaExportKind::kCudaIpc
                         ? memory.exportable_plain(request.bytes, subject)
                         : memory.virtual_memory(request.bytes, true, subject);
      break;
  }
  return state_->add(std::move(region));
}

void CudaDevice::free(RegionId id) noexcept {
  CudaRegion& region = state_->find(id);
  TPSYNC_ASSERT(!region.imported);
  const Current current = make_current(*state_);
  state_->revoke(region);
  state_->retire(id);
}

ByteBuffer CudaDevice::export_region(RegionId id) {
  CudaRegion& region = state_->find(id);
  if (region.kind != RegionKind::kExportable || region.imported) {
    throw_broken(ErrorKind::kIpc, kExport, "the region was not allocated as exportable");
  }
  if (region.exported) throw_broken(ErrorKind::kIpc, kExport, "the region is exported already");
  const Current current = make_current(*state_);
  state_->errors.require_context();
  cuda::Handle handle;
  handle.kind = state_->options.export_kind;
  handle.region = static_cast<std::uint64_t>(id);
  handle.bytes = region.bytes;
  handle.mapped_bytes = region.block.bytes;
  handle.device_uuid = state_->uuid;
  std::vector<os_memory::Descriptor> descriptors;
  if (region.bytes != 0 && handle.kind == CudaExportKind::kCudaIpc) {
    handle.driver = state_->memory->export_ipc(region.block);
  } else if (region.bytes != 0) {
    descriptors = state_->memory->export_descriptors(region.block);
    for (std::size_t piece = 0; piece < descriptors.size(); ++piece) {
      const auto number = static_cast<std::uint32_t>(descriptors[piece].number());
      for (std::size_t i = 0; i < 4; ++i) {
        handle.driver[4 * piece + i] = std::byte(number >> (8 * i) & 0xff);
      }
    }
  }
  ByteBuffer bytes = state_->exports.publish(handle);
  region.handle = handle;
  region.descriptors = std::move(descriptors);
  region.exported = true;
  return bytes;
}

void CudaDevice::revoke_export(RegionId id) noexcept { state_->revoke(state_->find(id)); }

ImportedRegion CudaDevice::import_region(ByteView bytes) {
  const cuda::Handle handle = cuda::decode(bytes);
  state_->errors.require_context();
  cuda::require_published(bytes, handle);
  if (state_->exports.is_own(handle)) {
    throw_broken(ErrorKind::kIpc, kImport, "an export cannot be opened by its own exporter");
  }
  const Current current = make_current(*state_);
  ImportedRegion imported;
  imported.bytes = handle.bytes;
  for (const auto& [id, region] : state_->regions) {
    if (region.imported && region.handle == handle) {
      imported.region = id;
      imported.device_uuid = state_->behind(region);
      return imported;
    }
  }
  CudaRegion region;
  region.bytes = handle.bytes;
  region.imported = true;
  region.handle = handle;
  if (handle.bytes != 0) region.block = state_->open(handle);
  try {
    imported.device_uuid = state_->behind(region);
    // Once more: what was revoked or freed while it was opened may be something else by now.
    cuda::require_published(bytes, handle);
  } catch (const std::exception&) {
    state_->memory->release(region.block);
    throw;
  }
  imported.region = state_->add(std::move(region));
  return imported;
}

void CudaDevice::close_import(RegionId id) noexcept {
  TPSYNC_ASSERT(state_->find(id).imported);
  const Current current = make_current(*state_);
  state_->retire(id);
}

std::vector<CudaRegion*> CudaDevice::State::sleepables(std::string_view tag, bool awake) {
  std::vector<CudaRegion*> found;
  for (auto& [id, region] : regions) {
    if (region.kind == RegionKind::kSleepable && region.tag == tag && region.awake == awake) {
      found.push_back(&region);
    }
  }
  return found;
}

void CudaDevice::State::copy_saved(const std::vector<CudaRegion*>& copied, cudaMemcpyKind kind,
                                   std::string_view tag) {
  std::uint64_t bytes = 0;
  for (const CudaRegion* region : copied) {
    if (region->bytes == 0) continue;
    void* device = reinterpret_cast<void*>(region->block.address);
    const bool save = kind == cudaMemcpyDeviceToHost;
    errors.check(cudaMemcpyAsync(save ? region->pinned : device, save ? device : region->pinned,
                                 region->bytes, kind, static_cast<cudaStream_t>(service->native())),
                 "cudaMemcpyAsync", tag);
    bytes += region->bytes;
  }
  service->synchronize(copy_limit(clock, bytes));
}

void CudaDevice::sleep(std::string_view tag, bool keep) {
  const std::vector<CudaRegion*> awake = state_->sleepables(tag, true);
  if (awake.empty()) return;
  const Current current = make_current(*state_);
  state_->errors.require_context();
  cuda::CudaMemory& memory = *state_->memory;
  if (keep) {
    for (CudaRegion* region : awake) {
      if (region->pinned == nullptr) region->pinned = memory.pin(region->bytes, tag);
    }
    state_->copy_saved(awake, cudaMemcpyDeviceToHost, tag);
  }
  for (CudaRegion* region : awake) {
    memory.give_back(region->block, tag);
    region->awake = false;
    region->saved = keep;
  }
}

void CudaDevice::wake(std::string_view tag) {
  std::vector<CudaRegion*> asleep = state_->sleepables(tag, false);
  if (asleep.empty()) return;
  const Current current = make_current(*state_);
  state_->errors.require_context();
  state_->reap();
  cuda::CudaMemory& memory = *state_->memory;
  // All memory first: it is what may be missing.
  std::vector<std::uint64_t> physical;
  physical.reserve(asleep.size());
  std::size_t mapped = 0;
  try {
    for (const CudaRegion* region : asleep) {
      const std::uint64_t bytes = region->block.bytes;
      physical.push_back(bytes == 0 ? 0 : memory.make_physical(bytes, tag));
    }
    for (; mapped < asleep.size(); ++mapped) {
      if (physical[mapped] != 0) memory.put_back(asleep[mapped]->block, physical[mapped], tag);
    }
  } catch (const std::exception&) {
    for (std::size_t i = 0; i < mapped; ++i) {
      if (physical[i] != 0) memory.take_away(asleep[i]->block);
    }
    for (const std::uint64_t one : physical) {
      if (one != 0) memory.drop_physical(one);
    }
    throw;
  }
  for (CudaRegion* region : asleep) region->awake = true;
  std::erase_if(asleep, [](CudaRegion* region) { return !std::exchange(region->saved, false); });
  state_->copy_saved(asleep, cudaMemcpyHostToDevice, tag);
}

StreamId CudaDevice::create_stream() {
  const Current current = make_current(*state_);
  state_->errors.require_context();
  auto stream = std::make_unique<CudaStream>(state_->errors, state_->clock, *state_->staging);
  const StreamId id{state_->next_stream++};
  state_->streams.emplace(id, std::move(stream));
  return id;
}

void CudaDevice::destroy_stream(StreamId id) noexcept {
  const auto found = state_->streams.find(id);
  TPSYNC_ASSERT(found != state_->streams.end());
  const Current current = make_current(*state_);
  found->second->drop_downloads();
  auto node = state_->streams.extract(found);
  if (!node.mapped()->complete()) state_->undrained.insert(std::move(node));
}

template <typename Tile>
std::unique_ptr<CudaBatch> CudaDevice::State::prepare(cuda::BatchKind kind,
                                                      cuda::TileTable<Tile> table,
                                                      std::uint64_t item_count) {
  const Current current = make_current(*this);
  errors.require_context();
  CudaBatch::Tables content;
  content.tiles = table.tiles.data();
  content.tile_bytes = table.tiles.size() * sizeof(Tile);
  content.tile_count = table.tiles.size();
  content.item_count = item_count;
  return std::make_unique<CudaBatch>(kind, content, std::move(table.extents), errors, *tables,
                                     *service, clock);
}

std::unique_ptr<Prepared> CudaDevice::prepare_copies(std::span<const TileCopy> copies) {
  return state_->prepare(cuda::BatchKind::kCopies, cuda::cut_copies(copies), 0);
}

std::unique_ptr<Prepared> CudaDevice::prepare_packs(std::span<const PackPiece> pieces) {
  for (const PackPiece& piece : pieces) {
    TPSYNC_ASSERT(can_convert(piece.dst_dtype, piece.src_dtype));
  }
  return state_->prepare(cuda::BatchKind::kPacks, cuda::cut_packs(pieces), 0);
}

std::unique_ptr<Prepared> CudaDevice::prepare_digests(std::span<const DigestItem> items) {
  for (const DigestItem& item : items) {
    TPSYNC_ASSERT(item.item_bytes == 1 || item.item_bytes == 2 || item.item_bytes == 4 ||
                  item.item_bytes == 8);
  }
  return state_->prepare(cuda::BatchKind::kDigests, cuda::cut_digests(items), items.size());
}

void CudaDevice::State::launch(StreamId stream_id, const CudaBatch& batch,
                               std::span<const RegionId> bindings, std::span<std::uint64_t> sums) {
  CudaStream& stream = find(stream_id);
  const cuda::Extents& extents = batch.extents();
  TPSYNC_ASSERT(extents.size() <= bindings.size());
  std::vector<std::uint64_t> addresses(extents.size());
  for (std::size_t i = 0; i < extents.size(); ++i) {
    TPSYNC_ASSERT(extents[i].has_value());
    addresses[i] = address(bindings[i], 0, *extents[i]);
  }
  const Current current = make_current(*this);
  errors.require_context();
  batch.launch(stream, addresses, sums);
}

void CudaDevice::launch(StreamId stream, const Prepared& batch,
                        std::span<const RegionId> bindings) {
  const auto* prepared = dynamic_cast<const CudaBatch*>(&batch);
  TPSYNC_ASSERT(prepared != nullptr && prepared->kind() != cuda::BatchKind::kDigests);
  state_->launch(stream, *prepared, bindings, {});
}

void CudaDevice::launch_digests(StreamId stream, const Prepared& batch,
                                std::span<const RegionId> bindings, std::span<std::uint64_t> sums) {
  const auto* prepared = dynamic_cast<const CudaBatch*>(&batch);
  TPSYNC_ASSERT(prepared != nullptr && prepared->kind() == cuda::BatchKind::kDigests);
  TPSYNC_ASSERT(sums.size() == prepared->item_count());
  state_->launch(stream, *prepared, bindings, sums);
}

void CudaDevice::fill(StreamId stream_id, RegionId region, std::uint64_t offset,
                      std::uint64_t bytes, std::byte value) {
  const CudaStream& stream = state_->find(stream_id);
  const std::uint64_t address = state_->address(region, offset, bytes);
  const Current current = make_current(*state_);
  state_->errors.require_context();
  if (bytes == 0) return;
  state_->errors.check(
      cudaMemsetAsync(reinterpret_cast<void*>(address), std::to_integer<int>(value), bytes,
                      static_cast<cudaStream_t>(stream.native())),
      "cudaMemsetAsync", "fill");
}

// The driver gives copies between devices, and long ones within one, to copy engines or to kernels
// of its own; both are stream-ordered.
void CudaDevice::copy(StreamId stream_id, const RunCopy& run) {
  const CudaStream& stream = state_->find(stream_id);
  const std::uint64_t dst = state_->address(run.dst, run.dst_offset, run.bytes);
  const std::uint64_t src = state_->address(run.src, run.src_offset, run.bytes);
  const Current current = make_current(*state_);
  state_->errors.require_context();
  if (run.bytes == 0) return;
  state_->errors.check(
      cudaMemcpyAsync(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), run.bytes,
                      cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream.native())),
      "cudaMemcpyAsync", "copy");
}

void CudaDevice::upload(StreamId stream_id, RegionId region, std::uint64_t offset, ByteView from) {
  CudaStream& stream = state_->find(stream_id);
  const std::uint64_t address = state_->address(region, offset, from.size());
  const Current current = make_current(*state_);
  state_->errors.require_context();
  stream.upload(address, from, "upload");
}

void CudaDevice::download(StreamId stream_id, RegionId region, std::uint64_t offset,
                          MutableByteView into) {
  CudaStream& stream = state_->find(stream_id);
  const std::uint64_t address = state_->address(region, offset, into.size());
  const Current current = make_current(*state_);
  state_->errors.require_context();
  stream.download(address, into, "download");
}

void CudaDevice::synchronize(StreamId stream, Deadline deadline) {
  CudaStream& waited = state_->find(stream);
  const Current current = make_current(*state_);
  state_->errors.require_context();
  waited.synchronize(deadline);
}

void* CudaDevice::stream_of(StreamId stream) { return state_->find(stream).native(); }

void* CudaDevice::address_of(RegionId region) {
  return reinterpret_cast<void*>(state_->address(region, 0, 0));
}

}  // namespace tpsync::device
