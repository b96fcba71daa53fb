// Regions hold their content in a shared block, which an import shares with its exporter; the block
// gives its bytes back to the physical device when the last holder lets go. A handle is 24 bytes: a
// mark, the export's serial number and its size.
#include "tpsync/device/host_device.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "tpsync/base/errors.h"
#include "tpsync/device/host_kernels.h"

namespace tpsync::device {

namespace {

constexpr std::string_view kHandleMark = "tpshost1";
constexpr std::size_t kHandleBytes = 24;

void put_u64(ByteBuffer& out, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(std::byte(value >> shift & 0xff));
}

std::uint64_t get_u64(ByteView bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i > 0; --i) value = value << 8 | std::to_integer<unsigned>(bytes[i - 1]);
  return value;
}

class HostCopies final : public Prepared {
 public:
  explicit HostCopies(std::span<const TileCopy> from) : items(from.begin(), from.end()) {}
  std::vector<TileCopy> items;
};

class HostPacks final : public Prepared {
 public:
  explicit HostPacks(std::span<const PackPiece> from) : items(from.begin(), from.end()) {}
  std::vector<PackPiece> items;
};

class HostDigests final : public Prepared {
 public:
  explicit HostDigests(std::span<const DigestItem> from) : items(from.begin(), from.end()) {}
  std::vector<DigestItem> items;
};

}  // namespace

struct HostMemory::Physical {
  std::string uuid;
  std::uint64_t total = 0;
  std::uint64_t used = 0;
};

// Charged memory of a device. Made and destroyed with the mutex held.
struct HostMemory::Block {
  Block(Physical& charged, std::uint64_t bytes) : device(charged), content(bytes, kUndefinedByte) {
    device.used += bytes;
  }
  ~Block() { device.used -= content.size(); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  Physical& device;
  ByteBuffer content;
};

struct HostMemory::Export {
  std::shared_ptr<Block> block;
  const HostDevice* exporter = nullptr;
};

HostMemory::HostMemory(Threads& threads) : mutex_(threads.make_mutex()) {}
HostMemory::~HostMemory() = default;

void HostMemory::add_device(std::string uuid, std::uint64_t total_bytes) {
  MutexLock lock(*mutex_);
  if (uuid.empty() || devices_.contains(uuid)) {
    throw_invalid(ErrorKind::kInvalidConfig, "uuid",
                  fmt::format("'{}' is empty or already names a device: give each its own", uuid));
  }
  auto physical = std::make_unique<Physical>();
  physical->uuid = uuid;
  physical->total = total_bytes;
  devices_.emplace(std::move(uuid), std::move(physical));
}

std::uint64_t HostMemory::live_exports() {
  MutexLock lock(*mutex_);
  return exports_.size();
}

std::uint64_t HostMemory::open_imports() {
  MutexLock lock(*mutex_);
  return open_imports_;
}

HostMemory::Physical& HostMemory::find(const std::string& uuid) {
  MutexLock lock(*mutex_);
  const auto found = devices_.find(uuid);
  if (found == devices_.end()) {
    throw_invalid(ErrorKind::kInvalidConfig, "uuid",
                  fmt::format("no device is named '{}': add it to the host memory first", uuid));
  }
  return *found->second;
}

// The mutex is held.
std::shared_ptr<HostMemory::Block> HostMemory::charge(Physical& device, std::uint64_t bytes,
                                                      std::string_view subject) {
  const std::uint64_t free_bytes = device.total - device.used;
  if (bytes > free_bytes) {
    throw_broken(ErrorKind::kOutOfMemory, subject,
                 fmt::format("{} bytes are needed and {} of {} are free on device {}", bytes,
                             free_bytes, device.total, device.uuid));
  }
  return std::make_shared<Block>(device, bytes);
}

struct HostDevice::Region {
  std::uint64_t bytes = 0;
  RegionKind kind = RegionKind::kPlain;
  std::string tag;
  std::shared_ptr<HostMemory::Block> block;  // null while asleep
  ByteBuffer saved;                          // content that sleep kept
  bool kept = false;
  std::uint64_t export_serial = 0;  // 0: not exported
  std::uint64_t import_serial = 0;  // 0: not an import
};

// One operation in a stream, with what it was launched with.
struct HostDevice::Work {
  struct Copies {
    const HostCopies* batch;
  };
  struct Packs {
    const HostPacks* batch;
  };
  struct Digests {
    const HostDigests* batch;
    std::span<std::uint64_t> sums;
  };
  struct Fill {
    std::uint64_t offset;
    std::uint64_t bytes;
    std::byte value;
  };
  struct Upload {
    std::uint64_t offset;
    ByteView from;
  };
  struct Download {
    std::uint64_t offset;
    MutableByteView into;
  };
  std::variant<Copies, Packs, Digests, Fill, Upload, Download> operation;
  std::vector<RegionId> bindings;

  RegionId bound(Binding binding) const {
    TPSYNC_ASSERT(binding < bindings.size());
    return bindings[binding];
  }
};

struct HostDevice::Stream {
  std::vector<Work> pending;
};

HostDevice::HostDevice(HostMemory& memory, const HostDeviceOptions& options)
    : memory_(memory), physical_(memory.find(options.uuid)), landing_(options.landing) {}

HostDevice::~HostDevice() {
  streams_.clear();
  MutexLock lock(*memory_.mutex_);
  for (const auto& [id, region] : regions_) {
    if (region->export_serial != 0) memory_.exports_.erase(region->export_serial);
    if (region->import_serial != 0) --memory_.open_imports_;
  }
  regions_.clear();
}

std::string HostDevice::uuid() { return physical_.uuid; }

MemoryInfo HostDevice::memory() {
  MutexLock lock(*memory_.mutex_);
  MemoryInfo info;
  info.free_bytes = physical_.total - physical_.used;
  info.total_bytes = physical_.total;
  return info;
}

RegionId HostDevice::allocate(const AllocationRequest& request) {
  TPSYNC_ASSERT((request.kind == RegionKind::kSleepable) == !request.tag.empty());
  auto region = std::make_unique<Region>();
  region->bytes = request.bytes;
  region->kind = request.kind;
  region->tag = request.tag;
  const std::string_view subject = request.tag.empty() ? "allocation" : request.tag;
  MutexLock lock(*memory_.mutex_);
  region->block = memory_.charge(physical_, request.bytes, subject);
  const RegionId id{next_region_++};
  regions_.emplace(id, std::move(region));
  return id;
}

void HostDevice::free(RegionId id) noexcept {
  Region& region = find(id);
  TPSYNC_ASSERT(region.import_serial == 0);
  MutexLock lock(*memory_.mutex_);
  if (region.export_serial != 0) memory_.exports_.erase(region.export_serial);
  regions_.erase(id);
}

ByteBuffer HostDevice::export_region(RegionId id) {
  Region& region = find(id);
  if (region.kind != RegionKind::kExportable || region.import_serial != 0) {
    throw_broken(ErrorKind::kIpc, "export", "the region was not allocated as exportable");
  }
  if (region.export_serial != 0) {
    throw_broken(ErrorKind::kIpc, "export", "the region is exported already");
  }
  MutexLock lock(*memory_.mutex_);
  const std::uint64_t serial = memory_.next_serial_++;
  memory_.exports_.emplace(serial, HostMemory::Export{region.block, this});
  region.export_serial = serial;
  const ByteView mark = as_view(kHandleMark);
  ByteBuffer handle(mark.begin(), mark.end());
  put_u64(handle, serial);
  put_u64(handle, region.bytes);
  return handle;
}

void HostDevice::revoke_export(RegionId id) noexcept {
  Region& region = find(id);
  if (region.export_serial == 0) return;
  MutexLock lock(*memory_.mutex_);
  memory_.exports_.erase(std::exchange(region.export_serial, 0));
}

ImportedRegion HostDevice::import_region(ByteView handle) {
  if (handle.size() != kHandleBytes || as_text(handle.first(8)) != kHandleMark) {
    throw_violation(ErrorKind::kProtocol, "import", "the bytes are no handle of host memory");
  }
  const std::uint64_t serial = get_u64(handle.subspan(8));
  const std::uint64_t bytes = get_u64(handle.subspan(16));
  MutexLock lock(*memory_.mutex_);
  const auto found = memory_.exports_.find(serial);
  if (found == memory_.exports_.end() || found->second.block->content.size() != bytes) {
    throw_broken(ErrorKind::kIpc, "import", "the export is gone, or the handle was altered");
  }
  if (found->second.exporter == this) {
    throw_broken(ErrorKind::kIpc, "import", "an export cannot be opened by its own exporter");
  }
  ImportedRegion imported;
  imported.bytes = bytes;
  imported.device_uuid = found->second.block->device.uuid;
  for (const auto& [id, region] : regions_) {
    if (region->import_serial == serial) {
      imported.region = id;
      return imported;
    }
  }
  auto region = std::make_unique<Region>();
  region->bytes = bytes;
  region->block = found->second.block;
  region->import_serial = serial;
  imported.region = RegionId{next_region_++};
  regions_.emplace(imported.region, std::move(region));
  ++memory_.open_imports_;
  return imported;
}

void HostDevice::close_import(RegionId id) noexcept {
  TPSYNC_ASSERT(find(id).import_serial != 0);
  MutexLock lock(*memory_.mutex_);
  --memory_.open_imports_;
  regions_.erase(id);
}

void HostDevice::sleep(std::string_view tag, bool keep) {
  MutexLock lock(*memory_.mutex_);
  for (const auto& [id, region] : regions_) {
    if (region->kind != RegionKind::kSleepable || region->tag != tag || !region->block) continue;
    region->kept = keep;
    if (keep) region->saved = region->block->content;
    region->block.reset();
  }
}

void HostDevice::wake(std::string_view tag) {
  MutexLock lock(*memory_.mutex_);
  std::vector<std::pair<Region*, std::shared_ptr<HostMemory::Block>>> woken;
  for (const auto& [id, region] : regions_) {
    if (region->kind != RegionKind::kSleepable || region->tag != tag || region->block) continue;
    woken.emplace_back(region.get(), memory_.charge(physical_, region->bytes, tag));
  }
  // Nothing throws from here on, so that either all regions of the tag are awake or none is.
  for (auto& [region, block] : woken) {
    if (region->kept) block->content.swap(region->saved);
    region->saved = ByteBuffer();
    region->kept = false;
    region->block = std::move(block);
  }
}

StreamId HostDevice::create_stream() {
  const StreamId id{next_stream_++};
  streams_.emplace(id, std::make_unique<Stream>());
  return id;
}

void HostDevice::destroy_stream(StreamId stream) noexcept {
  TPSYNC_ASSERT(streams_.erase(stream) == 1);
}

std::unique_ptr<Prepared> HostDevice::prepare_copies(std::span<const TileCopy> copies) {
  return std::make_unique<HostCopies>(copies);
}

std::unique_ptr<Prepared> HostDevice::prepare_packs(std::span<const PackPiece> pieces) {
  for (const PackPiece& piece : pieces) {
    TPSYNC_ASSERT(can_convert(piece.dst_dtype, piece.src_dtype));
  }
  return std::make_unique<HostPacks>(pieces);
}

std::unique_ptr<Prepared> HostDevice::prepare_digests(std::span<const DigestItem> items) {
  for (const DigestItem& item : items) {
    TPSYNC_ASSERT(item.item_bytes == 1 || item.item_bytes == 2 || item.item_bytes == 4 ||
                  item.item_bytes == 8);
  }
  return std::make_unique<HostDigests>(items);
}

void HostDevice::launch(StreamId stream, const Prepared& batch,
                        std::span<const RegionId> bindings) {
  Work work;
  work.bindings.assign(bindings.begin(), bindings.end());
  if (const auto* copies = dynamic_cast<const HostCopies*>(&batch)) {
    work.operation = Work::Copies{copies};
  } else {
    const auto* packs = dynamic_cast<const HostPacks*>(&batch);
    TPSYNC_ASSERT(packs != nullptr);
    work.operation = Work::Packs{packs};
  }
  submit(stream, std::move(work));
}

void HostDevice::launch_digests(StreamId stream, const Prepared& batch,
                                std::span<const RegionId> bindings, std::span<std::uint64_t> sums) {
  const auto* digests = dynamic_cast<const HostDigests*>(&batch);
  TPSYNC_ASSERT(digests != nullptr && sums.size() == digests->items.size());
  submit(stream, Work{Work::Digests{digests, sums}, {bindings.begin(), bindings.end()}});
}

void HostDevice::fill(StreamId stream, RegionId region, std::uint64_t offset, std::uint64_t bytes,
                      std::byte value) {
  submit(stream, Work{Work::Fill{offset, bytes, value}, {region}});
}

void HostDevice::upload(StreamId stream, RegionId region, std::uint64_t offset, ByteView from) {
  submit(stream, Work{Work::Upload{offset, from}, {region}});
}

void HostDevice::download(StreamId stream, RegionId region, std::uint64_t offset,
                          MutableByteView into) {
  submit(stream, Work{Work::Download{offset, into}, {region}});
}

void HostDevice::synchronize(StreamId stream, Deadline) {
  const auto found = streams_.find(stream);
  TPSYNC_ASSERT(found != streams_.end());
  for (const Work& work : std::exchange(found->second->pending, {})) perform(work);
}

HostDevice::Region& HostDevice::find(RegionId id) {
  const auto found = regions_.find(id);
  TPSYNC_ASSERT(found != regions_.end());
  return *found->second;
}

std::byte* HostDevice::host_pointer(RegionId region, std::uint64_t offset, std::uint64_t bytes) {
  return at(region, offset, bytes);
}

std::byte* HostDevice::at(RegionId id, std::uint64_t offset, std::uint64_t bytes) {
  Region& region = find(id);
  TPSYNC_ASSERT(region.block != nullptr);
  TPSYNC_ASSERT(offset <= region.bytes && bytes <= region.bytes - offset);
  return region.block->content.data() + offset;
}

std::byte* HostDevice::at(RegionId id, std::uint64_t offset, std::uint64_t pitch,
                          std::uint64_t row_bytes, std::uint64_t rows) {
  if (rows == 0) return at(id, offset, 0);
  const auto before_last = checked_mul(pitch, rows - 1);
  TPSYNC_ASSERT(before_last.has_value());
  const auto length = checked_add(*before_last, row_bytes);
  TPSYNC_ASSERT(length.has_value());
  return at(id, offset, *length);
}

// Everything that perform() will touch is there: asserted when the work is launched, so that a
// mistake shows at its cause, and again by at() when the work lands.
void HostDevice::check(const Work& work) {
  if (const auto* copies = std::get_if<Work::Copies>(&work.operation)) {
    for (const TileCopy& copy : copies->batch->items) {
      at(work.bound(copy.dst), copy.dst_offset, copy.dst_pitch, copy.row_bytes, copy.rows);
      at(work.bound(copy.src), copy.src_offset, copy.src_pitch, copy.row_bytes, copy.rows);
    }
  } else if (const auto* packs = std::get_if<Work::Packs>(&work.operation)) {
    for (const PackPiece& piece : packs->batch->items) {
      at(work.bound(piece.dst), piece.dst_offset, item_size(piece.dst_dtype),
         item_size(piece.dst_dtype), piece.count);
      at(work.bound(piece.src), piece.src_offset, item_size(piece.src_dtype),
         item_size(piece.src_dtype), piece.count);
    }
  } else if (const auto* digests = std::get_if<Work::Digests>(&work.operation)) {
    for (const DigestItem& item : digests->batch->items) {
      const auto row_bytes = checked_mul(item.cols, item.item_bytes);
      TPSYNC_ASSERT(row_bytes.has_value());
      at(work.bound(item.region), item.offset, item.pitch, *row_bytes, item.rows);
    }
  } else if (const auto* fill_work = std::get_if<Work::Fill>(&work.operation)) {
    at(work.bound(0), fill_work->offset, fill_work->bytes);
  } else if (const auto* upload_work = std::get_if<Work::Upload>(&work.operation)) {
    at(work.bound(0), upload_work->offset, upload_work->from.size());
  } else {
    const auto& download_work = std::get<Work::Download>(work.operation);
    at(work.bound(0), download_work.offset, download_work.into.size());
  }
}

void HostDevice::perform(const Work& work) {
  if (const auto* copies = std::get_if<Work::Copies>(&work.operation)) {
    for (const TileCopy& copy : copies->batch->items) {
      std::byte* dst =
          at(work.bound(copy.dst), copy.dst_offset, copy.dst_pitch, copy.row_bytes, copy.rows);
      const std::byte* src =
          at(work.bound(copy.src), copy.src_offset, copy.src_pitch, copy.row_bytes, copy.rows);
      copy_rows(dst, copy.dst_pitch, src, copy.src_pitch, copy.row_bytes, copy.rows);
    }
  } else if (const auto* packs = std::get_if<Work::Packs>(&work.operation)) {
    for (const PackPiece& piece : packs->batch->items) {
      const std::uint64_t dst_item = item_size(piece.dst_dtype);
      const std::uint64_t src_item = item_size(piece.src_dtype);
      std::byte* dst = at(work.bound(piece.dst), piece.dst_offset, dst_item, dst_item, piece.count);
      const std::byte* src =
          at(work.bound(piece.src), piece.src_offset, src_item, src_item, piece.count);
      convert(dst, piece.dst_dtype, src, piece.src_dtype, piece.count);
    }
  } else if (const auto* digests = std::get_if<Work::Digests>(&work.operation)) {
    for (std::size_t i = 0; i < digests->sums.size(); ++i) {
      const DigestItem& item = digests->batch->items[i];
      const std::byte* first = at(work.bound(item.region), item.offset, item.pitch,
                                  item.cols * item.item_bytes, item.rows);
      digests->sums[i] = digest_rect(first, item.pitch, item.item_bytes, item.row0, item.rows,
                                     item.col0, item.cols, item.key);
    }
  } else if (const auto* fill_work = std::get_if<Work::Fill>(&work.operation)) {
    std::byte* dst = at(work.bound(0), fill_work->offset, fill_work->bytes);
    std::fill_n(dst, fill_work->bytes, fill_work->value);
  } else if (const auto* upload_work = std::get_if<Work::Upload>(&work.operation)) {
    const ByteView from = upload_work->from;
    std::copy(from.begin(), from.end(), at(work.bound(0), upload_work->offset, from.size()));
  } else {
    const auto& download_work = std::get<Work::Download>(work.operation);
    const std::size_t bytes = download_work.into.size();
    std::copy_n(at(work.bound(0), download_work.offset, bytes), bytes, download_work.into.data());
  }
}

void HostDevice::submit(StreamId stream, Work work) {
  const auto found = streams_.find(stream);
  TPSYNC_ASSERT(found != streams_.end());
  check(work);
  if (landing_ == Landing::kAtLaunch) {
    perform(work);
  } else {
    found->second->pending.push_back(std::move(work));
  }
}

}  // namespace tpsync::device
