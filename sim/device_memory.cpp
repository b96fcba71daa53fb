// Budgets, addresses, lifetimes and the order of accesses: see the header.
#include "sim/device_memory.h"

#include <algorithm>

#include "sim/device.h"
#include "sim/stream.h"

namespace tpsync::sim {

namespace {

constexpr std::uint64_t kAddressStep = 512;

struct Span {
  std::uint64_t offset, row_bytes, rows, pitch;
  std::uint64_t end() const { return offset + (rows - 1) * pitch + row_bytes; }
};

// What item `index` of a batch does to `binding`; false: nothing.
bool spans_of(const BatchData& batch, std::size_t index, device::Binding binding, bool write,
              Span& span) {
  std::size_t at = index;
  if (at < batch.copies.size()) {
    const device::TileCopy& copy = batch.copies[at];
    if ((write ? copy.dst : copy.src) != binding || copy.rows == 0 || copy.row_bytes == 0)
      return false;
    span = write ? Span{copy.dst_offset, copy.row_bytes, copy.rows, copy.dst_pitch}
                 : Span{copy.src_offset, copy.row_bytes, copy.rows, copy.src_pitch};
    return true;
  }
  at -= batch.copies.size();
  if (at < batch.packs.size()) {
    const device::PackPiece& piece = batch.packs[at];
    if ((write ? piece.dst : piece.src) != binding || piece.count == 0) return false;
    span = write ? Span{piece.dst_offset, piece.count * item_size(piece.dst_dtype), 1, 0}
                 : Span{piece.src_offset, piece.count * item_size(piece.src_dtype), 1, 0};
    return true;
  }
  at -= batch.packs.size();
  const device::DigestItem& item = batch.digests[at];
  if (write || item.region != binding || item.rows == 0 || item.cols == 0) return false;
  span = {item.offset, item.cols * item.item_bytes, item.rows, item.pitch};
  return true;
}

bool meet(const Span& a, const Span& b) {
  if (a.end() <= b.offset || b.end() <= a.offset) return false;
  if (a.rows == 1 && b.rows == 1) return true;
  if (a.rows > 1 && b.rows > 1 && a.pitch == b.pitch) {
    // Windows of columns that do not wrap: they meet iff the windows do.
    const std::uint64_t first = a.offset % a.pitch;
    const std::uint64_t second = b.offset % a.pitch;
    if (first + a.row_bytes <= a.pitch && second + b.row_bytes <= a.pitch)
      return first < second + b.row_bytes && second < first + a.row_bytes;
  }
  if (b.rows == 1 && a.rows > 1) {
    const std::uint64_t row = b.offset > a.offset ? (b.offset - a.offset) / a.pitch : 0;
    for (std::uint64_t r = row; r < a.rows && a.offset + r * a.pitch < b.end(); ++r)
      if (a.offset + r * a.pitch + a.row_bytes > b.offset) return true;
    return false;
  }
  if (a.rows == 1 && b.rows > 1) return meet(b, a);
  return true;
}

// Whether two accesses whose hulls meet really touch the same bytes.
bool really_meet(const Access& a, const Access& b) {
  const auto each = [](const Access& access, const auto& visit) {
    if (!access.batch) return visit(Span{access.begin, access.end - access.begin, 1, 0});
    for (std::size_t i = 0; i < access.batch->items(); ++i) {
      Span span{};
      if (spans_of(*access.batch, i, access.binding, access.write, span) && visit(span))
        return true;
    }
    return false;
  };
  return each(a, [&](const Span& first) {
    return each(b, [&](const Span& second) { return meet(first, second); });
  });
}

}  // namespace

DeviceSystem::DeviceSystem(SimWorld& world) : world_(world) {
  for (const DeviceConfig& device : world.config().devices) {
    Physical& made = physical_.emplace_back();
    made.used = made.peak = device.reserved_bytes;
  }
}

DeviceSystem::~DeviceSystem() {
  for (auto& memory : memories_) world_.pools().give_buffer(std::move(memory->data));
}

std::uint64_t DeviceSystem::free_bytes(std::size_t device) const {
  return world_.config().devices[device].budget_bytes - physical_[device].used;
}

std::uint64_t DeviceSystem::take_address(Physical& physical, std::uint64_t bytes) {
  const std::uint64_t wanted = align_up(std::max<std::uint64_t>(bytes, 1), kAddressStep);
  if (world_.config().cruelty.address_reuse) {
    for (auto hole = physical.holes.begin(); hole != physical.holes.end(); ++hole) {
      if (hole->bytes < wanted) continue;
      const std::uint64_t address = hole->address;
      hole->address += wanted;
      hole->bytes -= wanted;
      if (hole->bytes == 0) physical.holes.erase(hole);
      return address;
    }
  }
  const std::uint64_t address = physical.next_address;
  physical.next_address += wanted;
  return address;
}

void DeviceSystem::take_physical(Memory& memory) {
  Physical& physical = physical_[memory.device];
  physical.used += memory.bytes;
  physical.peak = std::max(physical.peak, physical.used);
  memory.physical = true;
}

void DeviceSystem::give_physical(Memory& memory) {
  if (!memory.physical) return;
  physical_[memory.device].used -= memory.bytes;
  memory.physical = false;
}

void DeviceSystem::make_content(Memory& memory) {
  if (world_.config().phantom) return;
  if (memory.data.empty()) memory.data = world_.pools().take_buffer(memory.bytes);
  std::fill(memory.data.begin(), memory.data.end(), kCanary);
}

void DeviceSystem::drop_content(Memory& memory) {
  memory.extents.clear();
  world_.pools().give_buffer(std::move(memory.data));
  memory.data = {};
}

Memory* DeviceSystem::allocate(SimProcess& owner, std::size_t device,
                               const device::AllocationRequest& request) {
  if (request.bytes > free_bytes(device)) return nullptr;
  Memory& memory = *memories_.emplace_back(std::make_unique<Memory>());
  memory.key = memories_.size();
  memory.owner = &owner;
  memory.device = device;
  memory.bytes = request.bytes;
  memory.kind = request.kind;
  memory.tag = request.tag;
  memory.address = take_address(physical_[device], request.bytes);
  take_physical(memory);
  make_content(memory);
  world_.record_for(&owner, EventKind::kDeviceAllocated, memory.key, memory.address, memory.bytes);
  return &memory;
}

// Gives the memory back to the device once neither owner nor importer holds it.
void DeviceSystem::give_up(Memory& memory) {
  memory.owned = false;
  memory.exported = false;
  if (memory.imports != 0) return;
  give_physical(memory);
  drop_content(memory);
  memory.accesses.clear();
  Physical& physical = physical_[memory.device];
  const std::uint64_t bytes = align_up(std::max<std::uint64_t>(memory.bytes, 1), kAddressStep);
  auto place = std::lower_bound(
      physical.holes.begin(), physical.holes.end(), memory.address,
      [](const Physical::Hole& hole, std::uint64_t address) { return hole.address < address; });
  place = physical.holes.insert(place, {memory.address, bytes});
  if (place + 1 != physical.holes.end() && place->address + place->bytes == (place + 1)->address) {
    place->bytes += (place + 1)->bytes;
    physical.holes.erase(place + 1);
  }
  if (place != physical.holes.begin() &&
      (place - 1)->address + (place - 1)->bytes == place->address) {
    (place - 1)->bytes += place->bytes;
    physical.holes.erase(place);
  }
  world_.record_for(memory.owner, EventKind::kDeviceGone, memory.key, memory.bytes);
}

void DeviceSystem::close_import(Memory& memory) {
  --memory.imports;
  if (memory.imports == 0 && !memory.owned) give_up(memory);
}

bool DeviceSystem::sleep(Memory& memory, bool keep) {
  if (memory.asleep) return false;
  memory.asleep = true;
  memory.kept = keep;
  give_physical(memory);
  if (!keep) drop_content(memory);
  world_.record_for(memory.owner, EventKind::kDeviceSlept, memory.key, keep ? 1 : 0);
  return true;
}

void DeviceSystem::wake(Memory& memory) {
  memory.asleep = false;
  take_physical(memory);
  if (!memory.kept) make_content(memory);
  memory.kept = false;
  world_.record_for(memory.owner, EventKind::kDeviceWoken, memory.key);
}

Memory* DeviceSystem::exported_at(std::int64_t pid, std::uint64_t address) {
  for (const auto& memory : memories_)
    if (memory->exported && memory->owned && memory->owner->pid() == pid &&
        memory->address == address)
      return memory.get();
  return nullptr;
}

std::unique_ptr<StreamOperation> DeviceSystem::take_operation() {
  std::unique_ptr<StreamOperation> operation;
  if (spare_operations_.empty()) {
    operation = std::make_unique<StreamOperation>();
  } else {
    operation = std::move(spare_operations_.back());
    spare_operations_.pop_back();
  }
  operation->serial = ++operations_;
  return operation;
}

void DeviceSystem::give_operation(std::unique_ptr<StreamOperation> operation) {
  std::vector<Memory*> kept = std::move(operation->memories);
  kept.clear();
  *operation = StreamOperation{};
  operation->memories = std::move(kept);
  spare_operations_.push_back(std::move(operation));
}

void DeviceSystem::note_access(SimProcess& process, Memory& memory, Access access) {
  if (access.begin >= access.end) return;
  const VectorClock& clock = process.clock();
  auto kept = memory.accesses.begin();
  for (auto old = memory.accesses.begin(); old != memory.accesses.end(); ++old) {
    const bool same_stream = old->process == access.process && old->stream == access.stream;
    const bool ordered = same_stream || (old->done && clock.at(old->process) >= old->done_at);
    if (!ordered && (old->write || access.write) && old->begin < access.end &&
        access.begin < old->end && really_meet(*old, access))
      world_.violation(&process, "race.copy", memory.key, std::max(old->begin, access.begin),
                       old->process);
    // Later accesses that are ordered after the new write are ordered after what it covers.
    const bool covered = ordered && access.write && !access.batch && access.begin <= old->begin &&
                         old->end <= access.end;
    const bool repeated = ordered && old->write == access.write && old->begin == access.begin &&
                          old->end == access.end && old->batch == access.batch &&
                          old->binding == access.binding && old->process == access.process;
    if (covered || repeated) continue;
    if (kept != old) *kept = std::move(*old);
    ++kept;
  }
  constexpr std::size_t kUsualAccesses = 8;
  memory.accesses.erase(kept, memory.accesses.end());
  if (memory.accesses.capacity() == 0) memory.accesses.reserve(kUsualAccesses);
  memory.accesses.push_back(std::move(access));
}

void DeviceSystem::process_ended(SimProcess& process) {
  process.sim_device().process_ended();
  for (auto& memory : memories_) {
    for (Access& access : memory->accesses) {
      if (access.process == process.index() && !access.done) {
        access.done = true;
        access.done_at = process.clock().at(process.index());
      }
    }
    if (memory->owner == &process && memory->owned) give_up(*memory);
  }
  process.clock().tick(process.index());
}

void DeviceSystem::record_counters() {
  std::uint64_t exports = 0;
  std::uint64_t imports = 0;
  std::uint64_t regions = 0;
  for (const auto& memory : memories_) {
    exports += memory->exported ? 1 : 0;
    imports += memory->imports;
    regions += memory->owned || memory->imports != 0 ? 1 : 0;
  }
  const auto counter = [this](std::string_view name, std::uint64_t value) {
    world_.record_for(nullptr, EventKind::kKernelCounter, value, 0, 0,
                      world_.trace().texts.intern(name));
  };
  counter("device.exports", exports);
  counter("device.imports", imports);
  counter("device.regions", regions);
  counter("device.streams", streams);
  for (std::size_t i = 0; i < physical_.size(); ++i)
    world_.record_for(nullptr, EventKind::kDevicePeak, i, physical_[i].peak, physical_[i].used);
}

}  // namespace tpsync::sim
