// The Device seam over simulated memory: regions, exports, imports, sleep, launches.
#include "sim/device.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "sim/sanitizers.h"
#include "sim/stream.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tpsync::sim {

namespace {

constexpr std::uint64_t kHandleMagic = 0x747073796e636d65ULL;

struct Handle {
  std::uint64_t magic = kHandleMagic;
  std::uint64_t pid = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};

}  // namespace

class SimDevice::Batch final : public device::Prepared {
 public:
  explicit Batch(std::shared_ptr<const BatchData> made) : data(std::move(made)) {}
  std::shared_ptr<const BatchData> data;
};

SimDevice::SimDevice(SimProcess& process, DeviceSystem& system)
    : process_(process), system_(system) {}

SimDevice::~SimDevice() = default;

std::string SimDevice::uuid() {
  return process_.sim().config().devices[process_.device_index()].uuid;
}

bool SimDevice::phantom() const { return process_.sim().config().phantom; }

device::MemoryInfo SimDevice::memory() {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kDeviceMemory);
  const std::uint64_t free = system_.free_bytes(process_.device_index());
  const std::uint64_t total = process_.sim().config().devices[process_.device_index()].budget_bytes;
  Event& event = process_.event(op);
  event.a = free;
  event.b = total;
  process_.finish(op);
  return {free, total};
}

SimDevice::Entry* SimDevice::find(device::RegionId region) {
  const auto index = static_cast<std::uint64_t>(region);
  if (index == 0 || index > regions_.size()) return nullptr;
  Entry& entry = regions_[index - 1];
  return entry.memory != nullptr ? &entry : nullptr;
}

const SimDevice::Entry* SimDevice::find(device::RegionId region) const {
  return const_cast<SimDevice*>(this)->find(region);
}

device::RegionId SimDevice::add(Memory& memory, bool imported) {
  regions_.push_back({&memory, imported});
  return static_cast<device::RegionId>(regions_.size());
}

device::RegionId SimDevice::allocate(const device::AllocationRequest& request) {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kDeviceAllocate, 0, request.bytes,
                                        static_cast<std::uint64_t>(request.kind));
  Memory* memory = system_.allocate(process_, process_.device_index(), request);
  if (memory == nullptr)
    process_.fail(op, ErrorKind::kOutOfMemory, "device memory",
                  "the device has fewer free bytes than were asked for");
  process_.event(op).a = memory->key;
  process_.finish(op);
  return add(*memory, false);
}

void SimDevice::check_pending(const Memory& memory, std::string_view name) {
  for (const Access& access : memory.accesses) {
    if (access.done) continue;
    process_.sim().violation(&process_, name, memory.key, access.process, access.operation);
    return;
  }
}

void SimDevice::free(device::RegionId region) noexcept {
  const HarnessAccess harness;
  const auto op = process_.begin_quiet(Op::kDeviceFree, 0, 0, static_cast<std::uint64_t>(region));
  if (!op) return;
  Entry* entry = find(region);
  if (entry == nullptr || entry->imported) {
    process_.sim().violation(&process_, "free.unknown", static_cast<std::uint64_t>(region));
    process_.finish(*op, kOtherError);
    return;
  }
  Memory& memory = *entry->memory;
  process_.event(*op).a = memory.key;
  process_.event(*op).b = memory.bytes;
  if (memory.imports != 0)
    process_.sim().violation(&process_, "free.while.imported", memory.key, memory.imports);
  check_pending(memory, "free.pending");
  process_.sim().record_for(&process_, EventKind::kDeviceFreed, memory.key, memory.imports);
  entry->memory = nullptr;
  system_.give_up(memory);
  process_.finish(*op);
}

ByteBuffer SimDevice::export_region(device::RegionId region) {
  const HarnessAccess harness;
  const std::size_t op =
      process_.begin(Op::kDeviceExport, 0, 0, static_cast<std::uint64_t>(region));
  Entry* entry = find(region);
  if (entry == nullptr || entry->imported || entry->memory->exported ||
      entry->memory->kind != device::RegionKind::kExportable)
    process_.fail(op, ErrorKind::kIpc, "export",
                  "only an exportable region of this process can be exported, and once");
  Memory& memory = *entry->memory;
  process_.event(op).a = memory.key;
  process_.event(op).b = memory.bytes;
  memory.exported = true;
  process_.sim().record_for(&process_, EventKind::kDeviceExported, memory.key, memory.address);
  const Handle handle{kHandleMagic, static_cast<std::uint64_t>(process_.pid()), memory.address,
                      memory.bytes};
  ByteBuffer bytes(sizeof handle);
  std::memcpy(bytes.data(), &handle, sizeof handle);
  process_.finish(op);
  return bytes;
}

void SimDevice::revoke_export(device::RegionId region) noexcept {
  const HarnessAccess harness;
  const auto op = process_.begin_quiet(Op::kDeviceRevoke, 0, 0, static_cast<std::uint64_t>(region));
  if (!op) return;
  Entry* entry = find(region);
  if (entry == nullptr || entry->imported || !entry->memory->exported) {
    process_.sim().violation(&process_, "revoke.unknown", static_cast<std::uint64_t>(region));
    process_.finish(*op, kOtherError);
    return;
  }
  process_.event(*op).a = entry->memory->key;
  entry->memory->exported = false;
  process_.sim().record_for(&process_, EventKind::kDeviceRevoked, entry->memory->key,
                            entry->memory->imports);
  process_.finish(*op);
}

device::ImportedRegion SimDevice::import_region(ByteView bytes) {
  const HarnessAccess harness;
  const std::size_t op =
      process_.begin(Op::kDeviceImport, 0, bytes.size(), XXH3_64bits(bytes.data(), bytes.size()));
  Handle handle;
  if (bytes.size() == sizeof handle) std::memcpy(&handle, bytes.data(), sizeof handle);
  if (bytes.size() != sizeof handle || handle.magic != kHandleMagic) {
    process_.refuse(op, "import", "these bytes are no exported handle");
  }
  if (handle.pid == static_cast<std::uint64_t>(process_.pid()))
    process_.fail(op, ErrorKind::kIpc, "import", "a process cannot open its own export");
  Memory* memory = system_.exported_at(static_cast<std::int64_t>(handle.pid), handle.address);
  if (memory == nullptr) process_.fail(op, ErrorKind::kIpc, "import", "the export is gone");
  process_.event(op).a = memory->key;
  device::RegionId region = device::RegionId::kNone;
  for (std::size_t i = 0; i < regions_.size(); ++i)
    if (regions_[i].memory == memory) region = static_cast<device::RegionId>(i + 1);
  if (region == device::RegionId::kNone) {
    ++memory->imports;
    region = add(*memory, true);
  }
  process_.sim().record_for(&process_, EventKind::kDeviceImported, memory->key, memory->imports,
                            memory->device);
  process_.finish(op);
  return {region, memory->bytes, process_.sim().config().devices[memory->device].uuid};
}

void SimDevice::close_import(device::RegionId region) noexcept {
  const HarnessAccess harness;
  const auto op =
      process_.begin_quiet(Op::kDeviceCloseImport, 0, 0, static_cast<std::uint64_t>(region));
  if (!op) return;
  Entry* entry = find(region);
  if (entry == nullptr || !entry->imported) {
    process_.sim().violation(&process_, "close.unknown", static_cast<std::uint64_t>(region));
    process_.finish(*op, kOtherError);
    return;
  }
  Memory& memory = *entry->memory;
  process_.event(*op).a = memory.key;
  for (const Access& access : memory.accesses) {
    if (access.process != process_.index() || access.done) continue;
    process_.sim().violation(&process_, "close.pending", memory.key, access.operation);
    break;
  }
  entry->memory = nullptr;
  process_.sim().record_for(&process_, EventKind::kDeviceImportClosed, memory.key,
                            memory.imports - 1);
  system_.close_import(memory);
  process_.finish(*op);
}

void SimDevice::sleep(std::string_view tag, bool keep) {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kDeviceSleep, 0, 0, keep ? 1 : 0);
  process_.event(op).text = process_.sim().trace().texts.intern(tag);
  for (const Entry& entry : regions_) {
    if (entry.memory == nullptr || entry.imported || entry.memory->tag != tag ||
        entry.memory->kind != device::RegionKind::kSleepable)
      continue;
    check_pending(*entry.memory, "sleep.pending");
    if (system_.sleep(*entry.memory, keep)) process_.event(op).b += entry.memory->bytes;
  }
  process_.finish(op);
}

void SimDevice::wake(std::string_view tag) {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kDeviceWake);
  process_.event(op).text = process_.sim().trace().texts.intern(tag);
  std::uint64_t needed = 0;
  const auto concerned = [&](const Entry& entry) {
    return entry.memory != nullptr && !entry.imported && entry.memory->asleep &&
           entry.memory->tag == tag;
  };
  for (const Entry& entry : regions_)
    if (concerned(entry)) needed += entry.memory->bytes;
  process_.event(op).b = needed;
  if (needed > system_.free_bytes(process_.device_index()))
    process_.fail(op, ErrorKind::kOutOfMemory, "device memory",
                  "the device has too few free bytes to wake the regions");
  for (const Entry& entry : regions_)
    if (concerned(entry)) system_.wake(*entry.memory);
  process_.finish(op);
}

device::StreamId SimDevice::create_stream() {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kDeviceCreateStream);
  const auto number = static_cast<std::uint32_t>(streams_.size() + 1);
  streams_.push_back(std::make_unique<Stream>(*this, number));
  ++system_.streams;
  process_.event(op).a = number;
  process_.finish(op);
  return static_cast<device::StreamId>(number);
}

void SimDevice::destroy_stream(device::StreamId id) noexcept {
  const HarnessAccess harness;
  const auto op = process_.begin_quiet(Op::kDeviceDestroyStream, static_cast<std::uint64_t>(id));
  if (!op) return;
  Stream& stream = stream_of(id);
  stream.drop();
  --system_.streams;
  // What was dropped writes nothing any more.
  for (const Entry& entry : regions_) {
    if (entry.memory == nullptr) continue;
    std::erase_if(entry.memory->accesses, [&](const Access& access) {
      return access.process == process_.index() && access.stream == stream.number() && !access.done;
    });
  }
  process_.finish(*op);
}

Stream& SimDevice::stream_of(device::StreamId id) {
  const auto index = static_cast<std::size_t>(id);
  TPSYNC_ASSERT(index >= 1 && index <= streams_.size() && !streams_[index - 1]->destroyed);
  return *streams_[index - 1];
}

namespace {

void widen(std::uint64_t& begin, std::uint64_t& end, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0) return;
  begin = std::min(begin, offset);
  end = std::max(end, offset + bytes);
}

std::uint64_t span_bytes(std::uint64_t row_bytes, std::uint64_t rows, std::uint64_t pitch) {
  return rows == 0 || row_bytes == 0 ? 0 : (rows - 1) * pitch + row_bytes;
}

BatchData::Hull& hull_of(BatchData& data, device::Binding binding) {
  constexpr std::size_t kUsualBindings = 2;
  if (data.hulls.capacity() == 0) data.hulls.reserve(kUsualBindings);
  if (data.hulls.size() <= binding) data.hulls.resize(binding + 1);
  return data.hulls[binding];
}

// Field by field: items have padding.
template <typename... Values>
void add_hash(std::uint64_t& hash, Values... values) {
  for (const std::uint64_t value : {static_cast<std::uint64_t>(values)...})
    hash = (hash ^ value) * 0x9fb21c651e98df25ULL + (hash >> 29);
}

}  // namespace

std::shared_ptr<const BatchData> SimDevice::batch_of(std::span<const device::TileCopy> copies) {
  auto data = std::make_shared<BatchData>();
  data->copies.assign(copies.begin(), copies.end());
  for (const device::TileCopy& copy : copies) {
    BatchData::Hull& dst = hull_of(*data, copy.dst);
    widen(dst.write_begin, dst.write_end, copy.dst_offset,
          span_bytes(copy.row_bytes, copy.rows, copy.dst_pitch));
    BatchData::Hull& src = hull_of(*data, copy.src);
    widen(src.read_begin, src.read_end, copy.src_offset,
          span_bytes(copy.row_bytes, copy.rows, copy.src_pitch));
    data->bytes += copy.row_bytes * copy.rows;
    add_hash(data->hash, copy.dst, copy.src, copy.dst_offset, copy.dst_pitch, copy.src_offset,
             copy.src_pitch, copy.row_bytes, copy.rows);
  }
  return data;
}

std::unique_ptr<device::Prepared> SimDevice::prepare_copies(
    std::span<const device::TileCopy> copies) {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kDevicePrepare, 0, copies.size(), 1);
  auto data = batch_of(copies);
  process_.finish(op);
  return std::make_unique<Batch>(std::move(data));
}

std::unique_ptr<device::Prepared> SimDevice::prepare_packs(
    std::span<const device::PackPiece> pieces) {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kDevicePrepare, 0, pieces.size(), 2);
  auto data = std::make_shared<BatchData>();
  data->packs.assign(pieces.begin(), pieces.end());
  for (const device::PackPiece& piece : pieces) {
    BatchData::Hull& dst = hull_of(*data, piece.dst);
    widen(dst.write_begin, dst.write_end, piece.dst_offset,
          piece.count * item_size(piece.dst_dtype));
    BatchData::Hull& src = hull_of(*data, piece.src);
    widen(src.read_begin, src.read_end, piece.src_offset, piece.count * item_size(piece.src_dtype));
    data->bytes += piece.count * item_size(piece.src_dtype);
    add_hash(data->hash, piece.dst, piece.src, piece.dst_offset, piece.src_offset, piece.count,
             piece.dst_dtype, piece.src_dtype);
  }
  process_.finish(op);
  return std::make_unique<Batch>(std::move(data));
}

std::unique_ptr<device::Prepared> SimDevice::prepare_digests(
    std::span<const device::DigestItem> items) {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kDevicePrepare, 0, items.size(), 3);
  auto data = std::make_shared<BatchData>();
  data->digests.assign(items.begin(), items.end());
  for (const device::DigestItem& item : items) {
    BatchData::Hull& hull = hull_of(*data, item.region);
    widen(hull.read_begin, hull.read_end, item.offset,
          span_bytes(item.cols * item.item_bytes, item.rows, item.pitch));
    data->bytes += item.rows * item.cols * item.item_bytes;
    add_hash(data->hash, item.region, item.offset, item.pitch, item.item_bytes, item.row0,
             item.rows, item.col0, item.cols, item.key);
  }
  process_.finish(op);
  return std::make_unique<Batch>(std::move(data));
}

Memory& SimDevice::usable(device::RegionId region, std::uint64_t begin, std::uint64_t end) {
  Entry* entry = find(region);
  const auto refuse = [&](std::string_view name, std::string_view what) {
    process_.sim().violation(&process_, name, static_cast<std::uint64_t>(region), begin, end);
    throw_broken(ErrorKind::kDevice, "device memory", what);
  };
  if (entry == nullptr) refuse("use.after.free", "the region does not exist");
  Memory& memory = *entry->memory;
  if (end > memory.bytes) refuse("out.of.bounds", "the access goes past the region's end");
  if (memory.asleep && begin < end) refuse("use.asleep", "the region is asleep");
  return memory;
}

void SimDevice::enqueue(device::StreamId id, std::unique_ptr<StreamOperation> operation,
                        std::uint64_t bytes_per_us) {
  const auto cost = static_cast<std::int64_t>(operation->bytes * 1000 / bytes_per_us);
  stream_of(id).push(std::move(operation), cost);
}

void SimDevice::launch_batch(device::StreamId id, const std::shared_ptr<const BatchData>& data,
                             std::span<const device::RegionId> bindings,
                             std::span<std::uint64_t> sums) {
  const HarnessAccess harness;
  const bool digests = !data->digests.empty();
  TPSYNC_ASSERT(!digests || sums.size() == data->items());
  TPSYNC_ASSERT(bindings.size() >= data->hulls.size());
  const std::size_t op = process_.begin(digests ? Op::kDeviceLaunchDigests : Op::kDeviceLaunch,
                                        static_cast<std::uint64_t>(id), 0, data->items());
  auto operation = system_.take_operation();
  operation->kind = StreamOperation::Kind::kBatch;
  operation->batch = data;
  operation->sums = sums;
  operation->bytes = data->bytes;
  if (data->items() == 1 && data->copies.size() == 1)
    operation->units = data->copies[0].rows;
  else if (data->items() == 1 && data->packs.size() == 1)
    operation->units = data->packs[0].count;
  else
    operation->units = data->items();
  process_.event(op).b = operation->serial;
  try {
    operation->memories.reserve(data->hulls.size());
    for (std::size_t i = 0; i < data->hulls.size(); ++i) {
      const BatchData::Hull& hull = data->hulls[i];
      const std::uint64_t begin = std::min(hull.read_begin, hull.write_begin);
      const std::uint64_t end = std::max(hull.read_end, hull.write_end);
      if (begin > end) {  // a binding that nothing uses
        operation->memories.push_back(nullptr);
        continue;
      }
      operation->memories.push_back(&usable(bindings[i], begin, end));
      operation->bindings_hash = mix(operation->bindings_hash ^ operation->memories[i]->key);
    }
  } catch (const Error& error) {
    process_.finish(op, static_cast<std::uint16_t>(error.kind()));
    throw;
  }
  Access access;
  access.process = process_.index();
  access.stream = static_cast<std::uint32_t>(id);
  access.operation = operation->serial;
  access.batch = data;
  for (std::size_t i = 0; i < data->hulls.size(); ++i) {
    const BatchData::Hull& hull = data->hulls[i];
    access.binding = static_cast<device::Binding>(i);
    if (hull.read_begin < hull.read_end) {
      access.write = false;
      access.begin = hull.read_begin;
      access.end = hull.read_end;
      system_.note_access(process_, *operation->memories[i], access);
    }
    if (hull.write_begin < hull.write_end) {
      access.write = true;
      access.begin = hull.write_begin;
      access.end = hull.write_end;
      system_.note_access(process_, *operation->memories[i], access);
    }
  }
  enqueue(id, std::move(operation), process_.sim().config().copy_bytes_per_us);
  process_.finish(op);
}

void SimDevice::launch(device::StreamId stream, const device::Prepared& batch,
                       std::span<const device::RegionId> bindings) {
  launch_batch(stream, static_cast<const Batch&>(batch).data, bindings, {});
}

void SimDevice::launch_digests(device::StreamId stream, const device::Prepared& batch,
                               std::span<const device::RegionId> bindings,
                               std::span<std::uint64_t> sums) {
  launch_batch(stream, static_cast<const Batch&>(batch).data, bindings, sums);
}

// A launch of the run in a few parts, of which each lands on its own.
void SimDevice::copy(device::StreamId stream, const device::RunCopy& run) {
  if (run.bytes == 0) return;
  const HarnessAccess harness;
  const std::uint64_t part = align_up(ceil_div(run.bytes, StreamOperation::kMostPieces), 16);
  std::vector<device::TileCopy> parts;
  for (std::uint64_t at = 0; at < run.bytes; at += part) {
    parts.push_back({.dst = 0,
                     .src = 1,
                     .dst_offset = run.dst_offset + at,
                     .src_offset = run.src_offset + at,
                     .row_bytes = std::min(part, run.bytes - at),
                     .rows = 1});
  }
  const device::RegionId both[] = {run.dst, run.src};
  launch_batch(stream, batch_of(parts), both, {});
}

void SimDevice::host_copy(Op kind, device::StreamId id, device::RegionId region,
                          std::uint64_t offset, std::uint64_t bytes, const std::byte* from,
                          std::byte* into, std::byte value) {
  const std::size_t op = process_.begin(kind, static_cast<std::uint64_t>(id), 0, bytes);
  auto operation = system_.take_operation();
  operation->kind = kind == Op::kDeviceFill     ? StreamOperation::Kind::kFill
                    : kind == Op::kDeviceUpload ? StreamOperation::Kind::kUpload
                                                : StreamOperation::Kind::kDownload;
  operation->offset = offset;
  operation->bytes = bytes;
  operation->units = bytes;
  operation->from = from;
  operation->into = into;
  operation->value = value;
  process_.event(op).b = operation->serial;
  try {
    operation->memories.push_back(&usable(region, offset, offset + bytes));
  } catch (const Error& error) {
    process_.finish(op, static_cast<std::uint16_t>(error.kind()));
    throw;
  }
  Memory& memory = *operation->memories[0];
  operation->bindings_hash = mix(memory.key);
  Access access;
  access.process = process_.index();
  access.stream = static_cast<std::uint32_t>(id);
  access.operation = operation->serial;
  access.write = kind != Op::kDeviceDownload;
  access.begin = offset;
  access.end = offset + bytes;
  system_.note_access(process_, memory, access);
  const SimConfig& config = process_.sim().config();
  enqueue(id, std::move(operation),
          kind == Op::kDeviceFill ? config.copy_bytes_per_us : config.host_copy_bytes_per_us);
  process_.finish(op);
}

void SimDevice::fill(device::StreamId stream, device::RegionId region, std::uint64_t offset,
                     std::uint64_t bytes, std::byte value) {
  const HarnessAccess harness;
  host_copy(Op::kDeviceFill, stream, region, offset, bytes, nullptr, nullptr, value);
}

void SimDevice::upload(device::StreamId stream, device::RegionId region, std::uint64_t offset,
                       ByteView from) {
  const HarnessAccess harness;
  host_copy(Op::kDeviceUpload, stream, region, offset, from.size(), from.data(), nullptr, {});
}

void SimDevice::download(device::StreamId stream, device::RegionId region, std::uint64_t offset,
                         MutableByteView into) {
  const HarnessAccess harness;
  host_copy(Op::kDeviceDownload, stream, region, offset, into.size(), nullptr, into.data(), {});
}

bool SimDevice::drain(Stream& stream, Deadline deadline) {
  SimWorld& world = process_.sim();
  WaitQueue nobody;
  while (!stream.failed) {
    if (stream.busy_until() > world.now()) {
      if (deadline.passed(TimePoint{world.now()})) return false;
      process_.block(nobody, deadline.earlier(Deadline::at(TimePoint{stream.busy_until()})));
      continue;
    }
    if (stream.land(true)) break;
    if (deadline.passed(TimePoint{world.now()})) return false;
    process_.block(stream.progress, deadline);
  }
  return true;
}

void SimDevice::synchronize(device::StreamId id, Deadline deadline) {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kDeviceSynchronize, static_cast<std::uint64_t>(id));
  Stream& stream = stream_of(id);
  if (!drain(stream, deadline))
    process_.fail(op, ErrorKind::kTimeout, "stream", "its work was not complete at the deadline");
  if (std::exchange(stream.failed, false)) {
    stream.land(true);
    stream.settle();
    process_.fail(op, ErrorKind::kDevice, "stream", "work of the stream failed");
  }
  process_.event(op).b = settle_stream(stream);
  process_.finish(op);
}

std::size_t SimDevice::settle_stream(Stream& stream) {
  for (const Entry& entry : regions_) {
    if (entry.memory == nullptr) continue;
    for (Access& access : entry.memory->accesses) {
      if (access.process != process_.index() || access.stream != stream.number() || access.done)
        continue;
      access.done = true;
      access.done_at = process_.clock().at(process_.index());
    }
  }
  process_.clock().tick(process_.index());
  return stream.settle();
}

void SimDevice::process_ended() {
  std::uint64_t exports = 0;
  std::uint64_t imports = 0;
  std::uint64_t regions = 0;
  for (auto& stream : streams_) {
    if (stream->destroyed) continue;
    stream->abandon();
    --system_.streams;
  }
  for (Entry& entry : regions_) {
    if (entry.memory == nullptr) continue;
    exports += !entry.imported && entry.memory->exported ? 1 : 0;
    imports += entry.imported ? 1 : 0;
    regions += entry.imported ? 0 : 1;
    if (!entry.imported) continue;
    Memory& memory = *entry.memory;
    entry.memory = nullptr;
    process_.sim().record_for(&process_, EventKind::kDeviceImportClosed, memory.key,
                              memory.imports - 1);
    system_.close_import(memory);
  }
  for (Entry& entry : regions_) entry.memory = nullptr;
  if (exports + imports + regions != 0)
    process_.sim().record_for(&process_, EventKind::kProcessLeft, exports, imports, regions);
}

std::uint64_t SimDevice::region_bytes(device::RegionId region) const {
  const Entry* entry = find(region);
  return entry != nullptr ? entry->memory->bytes : 0;
}

std::uint64_t SimDevice::region_key(device::RegionId region) const {
  const Entry* entry = find(region);
  return entry != nullptr ? entry->memory->key : 0;
}

Memory& SimDevice::looked_at(device::RegionId region) const {
  if (process_.dead() && process_.in_own_fiber()) throw Killed{};
  const Entry* entry = find(region);
  TPSYNC_ASSERT(entry != nullptr);
  return *entry->memory;
}

void SimDevice::poke(device::RegionId region, std::uint64_t offset, ByteView bytes) {
  const HarnessAccess harness;
  Memory& memory = looked_at(region);
  TPSYNC_ASSERT(offset + bytes.size() <= memory.data.size());
  std::copy(bytes.begin(), bytes.end(), memory.data.begin() + static_cast<std::ptrdiff_t>(offset));
}

void SimDevice::peek(device::RegionId region, std::uint64_t offset, MutableByteView into) const {
  const HarnessAccess harness;
  const Memory& memory = looked_at(region);
  TPSYNC_ASSERT(offset + into.size() <= memory.bytes);
  if (phantom())
    memory.extents.bytes(offset, into);
  else
    std::copy_n(memory.data.begin() + static_cast<std::ptrdiff_t>(offset), into.size(),
                into.begin());
}

ByteView SimDevice::view(device::RegionId region) const {
  const Memory& memory = looked_at(region);
  return memory.data;
}

void SimDevice::stamp(device::RegionId region, const Extent& extent) {
  const HarnessAccess harness;
  Memory& memory = looked_at(region);
  TPSYNC_ASSERT(extent.end() <= memory.bytes);
  memory.extents.write(extent);
}

std::vector<Extent> SimDevice::query(device::RegionId region, const Rect& rect) const {
  const HarnessAccess harness;
  const Memory& memory = looked_at(region);
  return memory.extents.read(rect);
}

void SimDevice::fail_stream(device::StreamId stream) {
  const HarnessAccess harness;
  stream_of(stream).failed = true;
}

}  // namespace tpsync::sim
