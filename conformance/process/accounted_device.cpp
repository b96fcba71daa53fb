#include "conformance/process/accounted_device.h"

#include <utility>

#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

constexpr std::size_t kSerialBytes = 8;

void append_serial(ByteBuffer& handle, std::uint64_t serial) {
  for (std::size_t i = 0; i < kSerialBytes; ++i)
    handle.push_back(static_cast<std::byte>(serial >> (8 * i) & 0xff));
}

std::uint64_t serial_of(ByteView bytes) {
  std::uint64_t serial = 0;
  for (std::size_t i = kSerialBytes; i > 0; --i)
    serial = serial << 8 | std::to_integer<std::uint64_t>(bytes[i - 1]);
  return serial;
}

}  // namespace

AccountedDevice::AccountedDevice(device::Device& inner, device::MemoryAccount& account,
                                 Threads& threads, AccountedDeviceOptions options)
    : ForwardingDevice(inner),
      account_(account),
      options_(std::move(options)),
      device_(account.find_device(options_.name)),
      participant_(account.join(device_)),
      mutex_(threads.make_mutex()) {
  TPSYNC_ASSERT(options_.device_uuids.size() == options_.names.size());
}

AccountedDevice::~AccountedDevice() {
  for (const auto& [id, region] : regions_)
    if (region.entry) account_.remove(*region.entry);
  account_.remove(participant_);
}

device::MemoryInfo AccountedDevice::memory() {
  if (options_.report_account) return account_.memory(device_);
  const MutexLock lock(*mutex_);
  return inner().memory();
}

device::RegionId AccountedDevice::allocate(const device::AllocationRequest& request) {
  const MutexLock lock(*mutex_);
  const std::string_view subject = request.tag.empty() ? "allocation" : request.tag;
  Region region{.bytes = request.bytes, .tag = std::string(request.tag)};
  if (request.kind == device::RegionKind::kExportable) {
    region.entry = account_.add_block(participant_, request.bytes, subject);
  } else {
    account_.charge(participant_, request.bytes, subject);
  }
  try {
    const device::RegionId id = inner().allocate(request);
    regions_.emplace(id, region);
    return id;
  } catch (const std::exception&) {
    if (region.entry) {
      account_.remove(*region.entry);
    } else {
      account_.discharge(participant_, request.bytes);
    }
    throw;
  }
}

void AccountedDevice::free(device::RegionId id) noexcept {
  const MutexLock lock(*mutex_);
  inner().free(id);
  const auto found = regions_.find(id);
  TPSYNC_ASSERT(found != regions_.end());
  const Region& region = found->second;
  if (region.entry) {
    account_.remove(*region.entry);
  } else if (region.awake) {
    account_.discharge(participant_, region.bytes);
  }
  regions_.erase(found);
}

ByteBuffer AccountedDevice::export_region(device::RegionId id) {
  const MutexLock lock(*mutex_);
  ByteBuffer handle = inner().export_region(id);
  Region& region = regions_.at(id);
  append_serial(handle, account_.publish(*region.entry, -1, 0).serial);
  region.exported = true;
  return handle;
}

void AccountedDevice::revoke_export(device::RegionId id) noexcept {
  const MutexLock lock(*mutex_);
  inner().revoke_export(id);
  Region& region = regions_.at(id);
  if (std::exchange(region.exported, false)) account_.revoke(*region.entry);
}

device::ImportedRegion AccountedDevice::import_region(ByteView handle) {
  const MutexLock lock(*mutex_);
  // Bytes that are too short to be one of our handles are for the wrapped device to refuse.
  const std::size_t own = handle.size() < kSerialBytes ? 0 : kSerialBytes;
  device::ImportedRegion imported = inner().import_region(handle.first(handle.size() - own));
  for (std::size_t i = 0; i < options_.names.size(); ++i) {
    if (imported.device_uuid == options_.device_uuids[i]) imported.device_uuid = options_.names[i];
  }
  // A second import of the same export is the same region, which is on the account already.
  if (own != 0 && !regions_.contains(imported.region)) {
    Region region{.bytes = imported.bytes};
    region.entry = account_.add_import(participant_, serial_of(handle.last(own)));
    regions_.emplace(imported.region, std::move(region));
  }
  return imported;
}

void AccountedDevice::close_import(device::RegionId id) noexcept {
  const MutexLock lock(*mutex_);
  inner().close_import(id);
  const auto found = regions_.find(id);
  if (found == regions_.end()) return;
  if (found->second.entry) account_.remove(*found->second.entry);
  regions_.erase(found);
}

std::vector<AccountedDevice::Region*> AccountedDevice::with_tag(std::string_view tag, bool awake) {
  std::vector<Region*> found;
  for (auto& [id, region] : regions_)
    if (!region.tag.empty() && region.tag == tag && region.awake == awake) found.push_back(&region);
  return found;
}

void AccountedDevice::sleep(std::string_view tag, bool keep) {
  const MutexLock lock(*mutex_);
  inner().sleep(tag, keep);
  for (Region* region : with_tag(tag, true)) {
    region->awake = false;
    account_.discharge(participant_, region->bytes);
  }
}

void AccountedDevice::wake(std::string_view tag) {
  const MutexLock lock(*mutex_);
  const std::vector<Region*> asleep = with_tag(tag, false);
  std::uint64_t bytes = 0;
  for (const Region* region : asleep) bytes += region->bytes;
  account_.charge(participant_, bytes, tag);
  try {
    inner().wake(tag);
  } catch (const std::exception&) {
    account_.discharge(participant_, bytes);
    throw;
  }
  for (Region* region : asleep) region->awake = true;
}

device::StreamId AccountedDevice::create_stream() {
  const MutexLock lock(*mutex_);
  return inner().create_stream();
}

void AccountedDevice::destroy_stream(device::StreamId stream) noexcept {
  const MutexLock lock(*mutex_);
  inner().destroy_stream(stream);
}

std::unique_ptr<device::Prepared> AccountedDevice::prepare_copies(
    std::span<const device::TileCopy> copies) {
  const MutexLock lock(*mutex_);
  return inner().prepare_copies(copies);
}

std::unique_ptr<device::Prepared> AccountedDevice::prepare_packs(
    std::span<const device::PackPiece> pieces) {
  const MutexLock lock(*mutex_);
  return inner().prepare_packs(pieces);
}

std::unique_ptr<device::Prepared> AccountedDevice::prepare_digests(
    std::span<const device::DigestItem> items) {
  const MutexLock lock(*mutex_);
  return inner().prepare_digests(items);
}

void AccountedDevice::launch(device::StreamId stream, const device::Prepared& batch,
                             std::span<const device::RegionId> bindings) {
  const MutexLock lock(*mutex_);
  inner().launch(stream, batch, bindings);
}

void AccountedDevice::launch_digests(device::StreamId stream, const device::Prepared& batch,
                                     std::span<const device::RegionId> bindings,
                                     std::span<std::uint64_t> sums) {
  const MutexLock lock(*mutex_);
  inner().launch_digests(stream, batch, bindings, sums);
}

void AccountedDevice::fill(device::StreamId stream, device::RegionId region, std::uint64_t offset,
                           std::uint64_t bytes, std::byte value) {
  const MutexLock lock(*mutex_);
  inner().fill(stream, region, offset, bytes, value);
}

void AccountedDevice::copy(device::StreamId stream, const device::RunCopy& run) {
  const MutexLock lock(*mutex_);
  inner().copy(stream, run);
}

void AccountedDevice::upload(device::StreamId stream, device::RegionId region, std::uint64_t offset,
                             ByteView from) {
  const MutexLock lock(*mutex_);
  inner().upload(stream, region, offset, from);
}

void AccountedDevice::download(device::StreamId stream, device::RegionId region,
                               std::uint64_t offset, MutableByteView into) {
  const MutexLock lock(*mutex_);
  inner().download(stream, region, offset, into);
}

void AccountedDevice::synchronize(device::StreamId stream, Deadline deadline) {
  const MutexLock lock(*mutex_);
  inner().synchronize(stream, deadline);
}

bool AccountedDevice::while_awake(device::RegionId id,
                                  const std::function<void(device::Device&)>& use) {
  const MutexLock lock(*mutex_);
  const auto found = regions_.find(id);
  if (found == regions_.end() || !found->second.awake) return false;
  use(inner());
  return true;
}

}  // namespace tpsync::conformance
