// A handle is 56 bytes: a mark, and six numbers of eight bytes, the least significant first (pid,
// its start time, descriptor, inode, size, serial number).
#include "tpsync/device/host_device.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>
#include <variant>

#include "tpsync/base/errors.h"
#include "tpsync/device/host_kernels.h"
#include "tpsync/device/memory_account.h"
#include "tpsync/device/os_memory.h"

namespace tpsync::device {

namespace {

using os_memory::Mapping;

constexpr std::string_view kHandleMark = "tpshost2";
constexpr std::size_t kHandleBytes = 56;

void put_u64(ByteBuffer& out, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(std::byte(value >> shift & 0xff));
}

std::uint64_t get_u64(ByteView bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i > 0; --i) value = value << 8 | std::to_integer<unsigned>(bytes[i - 1]);
  return value;
}

ByteBuffer encode_handle(const ExportRecord& record) {
  const ByteView mark = as_view(kHandleMark);
  ByteBuffer handle(mark.begin(), mark.end());
  put_u64(handle, static_cast<std::uint64_t>(record.process.pid));
  put_u64(handle, record.process.start);
  put_u64(handle, static_cast<std::uint64_t>(record.descriptor));
  put_u64(handle, record.inode);
  put_u64(handle, record.bytes);
  put_u64(handle, record.serial);
  return handle;
}

// Any 56 bytes with the mark are a record: what is wrong with it shows when it is compared.
ExportRecord decode_handle(ByteView handle) {
  if (handle.size() != kHandleBytes || as_text(handle.first(8)) != kHandleMark) {
    throw_violation(ErrorKind::kProtocol, "import", "the bytes are no handle of host memory");
  }
  ExportRecord record;
  record.process.pid = static_cast<std::int64_t>(get_u64(handle.subspan(8)));
  record.process.start = get_u64(handle.subspan(16));
  const std::uint64_t descriptor = get_u64(handle.subspan(24));
  record.descriptor = descriptor <= INT32_MAX ? static_cast<int>(descriptor) : -1;
  record.inode = get_u64(handle.subspan(32));
  record.bytes = get_u64(handle.subspan(40));
  record.serial = get_u64(handle.subspan(48));
  return record;
}

// Opens the file behind an export that the account knows.
os_memory::Descriptor open_export(const ExportRecord& record) {
  os_memory::Opened opened =
      os_memory::open_file(os_memory::path_of_descriptor(record.process.pid, record.descriptor));
  if (opened.error == EACCES || opened.error == EPERM) {
    throw_broken(ErrorKind::kIpc, "import",
                 fmt::format("opening the export of process {} is not permitted ({}): run exporter "
                             "and importer as the same user, and let the exporter be dumpable",
                             record.process.pid, os_memory::symbol(opened.error)));
  }
  if (!opened.file) {
    throw_broken(ErrorKind::kIpc, "import",
                 fmt::format("opening the export of process {} failed ({})", record.process.pid,
                             os_memory::symbol(opened.error)));
  }
  const os_memory::FileIdentity found = os_memory::identity(opened.file);
  if (!found.regular || found.inode != record.inode || found.bytes != record.bytes) {
    throw_broken(
        ErrorKind::kIpc, "import",
        fmt::format("descriptor {} of process {} is no longer the export: its owner closed "
                    "it without revoking the export",
                    record.descriptor, record.process.pid));
  }
  return std::move(opened.file);
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

struct HostDevice::Region {
  std::uint64_t bytes = 0;
  RegionKind kind = RegionKind::kPlain;
  std::string tag;
  Mapping memory;
  bool awake = true;
  Mapping saved;  // content that sleep kept
  // Exportable regions and imports have an entry of their own; others count as the participant's.
  bool has_entry = false;
  AccountEntry entry{};
  os_memory::Descriptor file;       // of an exportable region
  std::uint64_t export_serial = 0;  // 0: not exported
  std::uint64_t import_serial = 0;  // 0: not an import

  void make_undefined() {
    constexpr int kValue = std::to_integer<int>(kUndefinedByte);
    if (memory.bytes() != 0) std::memset(memory.data(), kValue, memory.bytes());
  }
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
  struct Run {
    RunCopy copy;
  };
  struct Upload {
    std::uint64_t offset;
    ByteView from;
  };
  struct Download {
    std::uint64_t offset;
    MutableByteView into;
  };
  struct Awaited {
    std::function<void(Deadline)> wait;
  };
  std::variant<Copies, Packs, Digests, Fill, Run, Upload, Download, Awaited> operation;
  std::vector<RegionId> bindings;

  RegionId bound(Binding binding) const {
    TPSYNC_ASSERT(binding < bindings.size());
    return bindings[binding];
  }
};

struct HostDevice::Stream {
  std::deque<Work> pending;
};

HostDevice::HostDevice(HostMemory& memory, const HostDeviceOptions& options)
    : account_(*memory.account_),
      device_(account_.find_device(options.uuid)),
      uuid_(options.uuid),
      participant_(account_.join(device_)),
      landing_(options.landing) {}

HostDevice::~HostDevice() {
  streams_.clear();
  for (const auto& [id, region] : regions_) release(*region);
  account_.remove(participant_);
}

std::string HostDevice::uuid() { return uuid_; }

MemoryInfo HostDevice::memory() { return account_.memory(device_); }

RegionId HostDevice::allocate(const AllocationRequest& request) {
  TPSYNC_ASSERT((request.kind == RegionKind::kSleepable) == !request.tag.empty());
  return add(make_region(request));
}

// Memory is charged before it is touched, so that an allocation beyond the budget costs nothing.
std::unique_ptr<HostDevice::Region> HostDevice::make_region(const AllocationRequest& request) {
  auto region = std::make_unique<Region>();
  region->bytes = request.bytes;
  region->kind = request.kind;
  region->tag = request.tag;
  const std::string_view subject = request.tag.empty() ? "allocation" : request.tag;
  if (request.kind == RegionKind::kExportable) {
    region->entry = account_.add_block(participant_, request.bytes, subject);
    region->has_entry = true;
  } else {
    account_.charge(participant_, request.bytes, subject);
  }
  try {
    if (request.kind == RegionKind::kExportable) {
      region->file = os_memory::make_memory_file(request.bytes, subject);
      region->memory = Mapping::of_file(region->file, request.bytes, subject);
    } else {
      region->memory = Mapping::anonymous(request.bytes, subject);
    }
  } catch (const std::exception&) {
    release(*region);
    throw;
  }
  region->make_undefined();
  return region;
}

RegionId HostDevice::add(std::unique_ptr<Region> region) {
  const RegionId id{next_region_++};
  try {
    regions_.emplace(id, nullptr);
  } catch (const std::exception&) {
    release(*region);
    throw;
  }
  regions_[id] = std::move(region);
  return id;
}

// Gives memory back first, and the charge for it then.
void HostDevice::release(Region& region) noexcept {
  region.memory = Mapping();
  region.saved = Mapping();
  region.file.reset();
  if (region.has_entry) {
    account_.remove(region.entry);
  } else if (region.awake) {
    account_.discharge(participant_, region.bytes);
  }
}

void HostDevice::free(RegionId id) noexcept {
  Region& region = find(id);
  TPSYNC_ASSERT(region.import_serial == 0);
  release(region);
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
  const std::uint64_t inode = os_memory::identity(region.file).inode;
  const ExportRecord record = account_.publish(region.entry, region.file.number(), inode);
  region.export_serial = record.serial;
  return encode_handle(record);
}

void HostDevice::revoke_export(RegionId id) noexcept {
  Region& region = find(id);
  if (std::exchange(region.export_serial, 0) != 0) account_.revoke(region.entry);
}

ImportedRegion HostDevice::import_region(ByteView handle) {
  const ExportRecord record = decode_handle(handle);
  const std::optional<FoundExport> found = account_.find_export(record.serial);
  if (!found || found->record != record) {
    throw_broken(ErrorKind::kIpc, "import", "the export is gone, or the handle was altered");
  }
  if (found->participant == account_.participant(participant_)) {
    throw_broken(ErrorKind::kIpc, "import", "an export cannot be opened by its own exporter");
  }
  ImportedRegion imported;
  imported.bytes = record.bytes;
  imported.device_uuid = found->device_uuid;
  for (const auto& [id, region] : regions_) {
    if (region->import_serial == record.serial) {
      imported.region = id;
      return imported;
    }
  }
  auto region = std::make_unique<Region>();
  region->bytes = record.bytes;
  region->memory = Mapping::of_file(open_export(record), record.bytes, "import");
  region->import_serial = record.serial;
  // Looked up again: an owner that has the export still was the owner of the file just opened.
  const std::optional<AccountEntry> entry = account_.add_import(participant_, record.serial);
  if (!entry) throw_broken(ErrorKind::kIpc, "import", "the export went while it was opened");
  region->entry = *entry;
  region->has_entry = true;
  imported.region = add(std::move(region));
  return imported;
}

void HostDevice::close_import(RegionId id) noexcept {
  Region& region = find(id);
  TPSYNC_ASSERT(region.import_serial != 0);
  release(region);
  regions_.erase(id);
}

void HostDevice::sleep(std::string_view tag, bool keep) {
  for (const auto& [id, region] : regions_) {
    if (region->kind != RegionKind::kSleepable || region->tag != tag || !region->awake) continue;
    Mapping saved;
    if (keep) {
      saved = Mapping::anonymous(region->bytes, tag);
      if (saved.bytes() != 0) std::memcpy(saved.data(), region->memory.data(), saved.bytes());
    }
    region->memory.give_back(tag);
    region->saved = std::move(saved);
    region->awake = false;
    account_.discharge(participant_, region->bytes);
  }
}

void HostDevice::wake(std::string_view tag) {
  std::vector<Region*> asleep;
  std::uint64_t bytes = 0;
  for (const auto& [id, region] : regions_) {
    if (region->kind != RegionKind::kSleepable || region->tag != tag || region->awake) continue;
    asleep.push_back(region.get());
    bytes += region->bytes;
  }
  account_.charge(participant_, bytes, tag);
  try {
    for (Region* region : asleep) region->memory.bring_back(tag);
  } catch (const std::exception&) {
    account_.discharge(participant_, bytes);
    throw;  // addresses that are open already hold nothing, and stay so
  }
  // Nothing throws from here on, so that either all regions of the tag are awake or none is.
  for (Region* region : asleep) {
    region->awake = true;
    if (region->saved.bytes() != 0) {
      std::memcpy(region->memory.data(), region->saved.data(), region->saved.bytes());
    } else {
      region->make_undefined();
    }
    region->saved = Mapping();
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

void HostDevice::copy(StreamId stream, const RunCopy& run) {
  if (run.bytes != 0) submit(stream, Work{Work::Run{run}, {run.dst, run.src}});
}

void HostDevice::upload(StreamId stream, RegionId region, std::uint64_t offset, ByteView from) {
  submit(stream, Work{Work::Upload{offset, from}, {region}});
}

void HostDevice::download(StreamId stream, RegionId region, std::uint64_t offset,
                          MutableByteView into) {
  submit(stream, Work{Work::Download{offset, into}, {region}});
}

void HostDevice::await(StreamId stream, std::function<void(Deadline)> wait) {
  const auto found = streams_.find(stream);
  TPSYNC_ASSERT(found != streams_.end());
  found->second->pending.push_back(Work{Work::Awaited{std::move(wait)}, {}});
}

void HostDevice::synchronize(StreamId stream, Deadline deadline) {
  const auto found = streams_.find(stream);
  TPSYNC_ASSERT(found != streams_.end());
  std::deque<Work>& pending = found->second->pending;
  for (; !pending.empty(); pending.pop_front()) {
    if (const auto* awaited = std::get_if<Work::Awaited>(&pending.front().operation)) {
      awaited->wait(deadline);
    } else {
      perform(pending.front());
    }
  }
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
  TPSYNC_ASSERT(region.awake);
  TPSYNC_ASSERT(offset <= region.bytes && bytes <= region.bytes - offset);
  return region.memory.data() + offset;
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
  } else if (const auto* run = std::get_if<Work::Run>(&work.operation)) {
    at(run->copy.dst, run->copy.dst_offset, run->copy.bytes);
    at(run->copy.src, run->copy.src_offset, run->copy.bytes);
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
  } else if (const auto* run = std::get_if<Work::Run>(&work.operation)) {
    std::byte* dst = at(run->copy.dst, run->copy.dst_offset, run->copy.bytes);
    copy_rows(dst, 0, at(run->copy.src, run->copy.src_offset, run->copy.bytes), 0, run->copy.bytes,
              1);
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
  if (landing_ == Landing::kAtLaunch && found->second->pending.empty()) {
    perform(work);
  } else {
    found->second->pending.push_back(std::move(work));
  }
}

}  // namespace tpsync::device
