#include "tpsync/device/memory_account.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "tpsync/base/errors.h"

namespace tpsync::device {

namespace {

constexpr std::uint64_t kMark = 0x31746e6363617374;  // "tsacct1" and its version
constexpr std::size_t kMaxDevices = 64;
constexpr std::size_t kMaxUuidBytes = 63;
constexpr std::uint64_t kMaxEntries = 4096;
constexpr std::string_view kSubject = "memory account";

std::uint64_t load(const std::uint64_t& word) {
  // An atomic_ref to const needs a later standard; the word itself is never const.
  return std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}
void store(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

[[noreturn]] void throw_no_account(const std::string& path, std::string_view why) {
  throw_invalid(ErrorKind::kInvalidConfig, kSubject, fmt::format("'{}' {}", path, why));
}

}  // namespace

enum class MemoryAccount::Kind : std::uint64_t {
  kFree = 0,
  kParticipant = 1,
  kOwner = 2,
  kImport = 3,
};

// Everything but `kind`, `bytes` and `export_serial` is written before `kind` names the entry
// taken, under the lock, and stays until it is free.
struct MemoryAccount::Entry {
  std::uint64_t kind;
  std::uint64_t bytes;          // that a participant has charged, or of the block
  std::uint64_t export_serial;  // of an owner: 0 while not exported; of an import: what it opened
  std::uint64_t participant;
  std::uint64_t block;  // a block counts once, however many hold it
  std::uint64_t inode;
  os_memory::ProcessId process;
  std::uint32_t device;
  std::int32_t descriptor;
};

// Zeros are valid values of all parts but the mark and the lock.
struct MemoryAccount::Ledger {
  struct Physical {
    std::array<char, kMaxUuidBytes + 1> uuid;
    std::uint64_t total;
    std::string_view name() const { return uuid.data(); }
  };
  std::uint64_t mark;  // stored last
  std::uint64_t bytes;
  std::uint64_t pid_namespace;
  os_memory::ProcessLock lock;
  std::uint64_t last_serial;
  std::uint64_t device_count;
  std::uint64_t entry_limit;  // entries from here on were never taken
  std::array<Physical, kMaxDevices> devices;
  std::array<Entry, kMaxEntries> entries;
};

class MemoryAccount::Lock {
 public:
  explicit Lock(MemoryAccount& account) : lock_(account.ledger_->lock) {
    if (!lock_.lock(kAccountLockLimit)) {
      throw_broken(ErrorKind::kDevice, kSubject,
                   fmt::format("another process has held the account for {} s: continue or end "
                               "whichever of its users was stopped",
                               kAccountLockLimit / std::chrono::seconds(1)));
    }
  }
  ~Lock() { lock_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  os_memory::ProcessLock& lock_;
};

MemoryAccount::MemoryAccount()
    : MemoryAccount(os_memory::Mapping::anonymous(sizeof(Ledger), kSubject)) {
  make_ledger();
}

MemoryAccount::MemoryAccount(os_memory::Mapping mapping)
    : process_(os_memory::own_process()),
      mapping_(std::move(mapping)),
      ledger_(reinterpret_cast<Ledger*>(mapping_.data())) {}

std::unique_ptr<MemoryAccount> MemoryAccount::create(const std::string& path) {
  os_memory::Descriptor file;
  if (path.empty()) {
    file = os_memory::make_memory_file(sizeof(Ledger), kSubject);
  } else {
    os_memory::Opened made = os_memory::make_file(path, sizeof(Ledger));
    if (!made.file) {
      throw_no_account(path, fmt::format("cannot be made ({}): name a new file in a folder that "
                                         "this process may write to",
                                         os_memory::symbol(made.error)));
    }
    file = std::move(made.file);
  }
  const os_memory::FileIdentity made = os_memory::identity(file);
  try {
    std::unique_ptr<MemoryAccount> account(
        new MemoryAccount(os_memory::Mapping::of_file(file, sizeof(Ledger), kSubject)));
    account->make_ledger();
    if (path.empty()) {
      account->path_ = os_memory::path_of_descriptor(account->process_.pid, file.number());
      account->file_ = std::move(file);
    } else {
      account->path_ = path;
      account->made_ = made;
    }
    return account;
  } catch (const std::exception&) {
    if (!path.empty()) os_memory::remove_file(path, made);
    throw;
  }
}

std::unique_ptr<MemoryAccount> MemoryAccount::open(const std::string& path) {
  const os_memory::Opened opened = os_memory::open_file(path);
  if (!opened.file) {
    throw_no_account(path, fmt::format("cannot be opened ({}): its maker has removed it, or runs "
                                       "as another user",
                                       os_memory::symbol(opened.error)));
  }
  const os_memory::FileIdentity found = os_memory::identity(opened.file);
  if (!found.regular || found.bytes != sizeof(Ledger)) {
    throw_no_account(path, "is no memory account of this version");
  }
  std::unique_ptr<MemoryAccount> account(
      new MemoryAccount(os_memory::Mapping::of_file(opened.file, sizeof(Ledger), kSubject)));
  const Ledger& ledger = *account->ledger_;
  if (load(ledger.mark) != kMark || ledger.bytes != sizeof(Ledger)) {
    throw_no_account(path, "is no memory account of this version");
  }
  if (ledger.pid_namespace != os_memory::pid_namespace()) {
    throw_no_account(path, "was made in another process namespace: run all of its users in one");
  }
  account->maker_ = false;
  account->path_ = path;
  return account;
}

void MemoryAccount::make_ledger() {
  ledger_->bytes = sizeof(Ledger);
  ledger_->pid_namespace = os_memory::pid_namespace();
  ledger_->lock.make();
  store(ledger_->mark, kMark);
}

MemoryAccount::~MemoryAccount() {
  if (made_.inode != 0) os_memory::remove_file(path_, made_);
}

void MemoryAccount::add_device(std::string_view uuid, std::uint64_t total_bytes) {
  if (!maker_) {
    throw_invalid(ErrorKind::kInvalidState, kSubject, "only the process that made it adds devices");
  }
  const Lock lock(*this);
  const std::uint64_t count = load(ledger_->device_count);
  bool known = false;
  for (std::uint64_t i = 0; i < count; ++i) known = known || ledger_->devices[i].name() == uuid;
  if (uuid.empty() || known) {
    throw_invalid(ErrorKind::kInvalidConfig, "uuid",
                  fmt::format("'{}' is empty or already names a device: give each its own", uuid));
  }
  if (uuid.size() > kMaxUuidBytes || count == kMaxDevices) {
    throw_invalid(ErrorKind::kInvalidConfig, "uuid",
                  fmt::format("'{}' has more than {} bytes, or is one of more than {} devices",
                              uuid, kMaxUuidBytes, kMaxDevices));
  }
  Ledger::Physical& device = ledger_->devices[count];
  std::copy(uuid.begin(), uuid.end(), device.uuid.begin());
  device.total = total_bytes;
  store(ledger_->device_count, count + 1);
}

AccountDevice MemoryAccount::find_device(std::string_view uuid) {
  const std::uint64_t count = std::min<std::uint64_t>(load(ledger_->device_count), kMaxDevices);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (ledger_->devices[i].name() == uuid) return AccountDevice{i};
  }
  throw_invalid(ErrorKind::kInvalidConfig, "uuid",
                fmt::format("no device is named '{}': add it to the host memory first", uuid));
}

MemoryInfo MemoryAccount::memory(AccountDevice device) {
  const auto index = static_cast<std::uint32_t>(device);
  const Lock lock(*this);
  reclaim();
  MemoryInfo info;
  info.total_bytes = ledger_->devices[index].total;
  info.free_bytes = info.total_bytes - std::min(used(index), info.total_bytes);
  return info;
}

AccountEntry MemoryAccount::join(AccountDevice device) {
  const Lock lock(*this);
  Entry entry{};
  entry.device = static_cast<std::uint32_t>(device);
  entry.participant = ++ledger_->last_serial;
  return add_entry(Kind::kParticipant, entry);
}

std::uint64_t MemoryAccount::participant(AccountEntry entry) const { return at(entry).participant; }

void MemoryAccount::charge(AccountEntry participant, std::uint64_t bytes,
                           std::string_view subject) {
  if (bytes == 0) return;
  Entry& entry = at(participant);
  const Lock lock(*this);
  require(entry.device, bytes, subject);
  store(entry.bytes, entry.bytes + bytes);
}

AccountEntry MemoryAccount::add_block(AccountEntry participant, std::uint64_t bytes,
                                      std::string_view subject) {
  const Entry& holder = at(participant);
  const Lock lock(*this);
  require(holder.device, bytes, subject);
  Entry entry{};
  entry.device = holder.device;
  entry.participant = holder.participant;
  entry.block = ++ledger_->last_serial;
  entry.bytes = bytes;
  return add_entry(Kind::kOwner, entry);
}

void MemoryAccount::discharge(AccountEntry participant, std::uint64_t bytes) noexcept {
  if (bytes == 0) return;
  Entry& entry = at(participant);
  TPSYNC_ASSERT(bytes <= entry.bytes);
  store(entry.bytes, entry.bytes - bytes);
}

ExportRecord MemoryAccount::publish(AccountEntry block, int descriptor, std::uint64_t inode) {
  Entry& entry = at(block);
  const Lock lock(*this);
  entry.descriptor = descriptor;
  entry.inode = inode;
  const std::uint64_t serial = ++ledger_->last_serial;
  store(entry.export_serial, serial);
  return record_of_entry(entry);
}

ExportRecord MemoryAccount::record_of_entry(const Entry& entry) {
  return {entry.process, entry.descriptor, entry.inode, entry.bytes, load(entry.export_serial)};
}

void MemoryAccount::revoke(AccountEntry block) noexcept { store(at(block).export_serial, 0); }

std::optional<FoundExport> MemoryAccount::find_export(std::uint64_t serial) {
  const Lock lock(*this);
  const Entry* entry = exported(serial);
  if (entry == nullptr) return std::nullopt;
  FoundExport found;
  found.record = record_of_entry(*entry);
  found.participant = entry->participant;
  found.device_uuid = ledger_->devices[entry->device].name();
  return found;
}

std::optional<AccountEntry> MemoryAccount::add_import(AccountEntry participant,
                                                      std::uint64_t serial) {
  const Lock lock(*this);
  const Entry* owner = exported(serial);
  if (owner == nullptr) return std::nullopt;
  Entry entry{};
  entry.device = owner->device;
  entry.participant = at(participant).participant;
  entry.block = owner->block;
  entry.bytes = owner->bytes;
  entry.export_serial = serial;
  return add_entry(Kind::kImport, entry);
}

void MemoryAccount::remove(AccountEntry entry) noexcept {
  store(at(entry).kind, static_cast<std::uint64_t>(Kind::kFree));
}

std::uint64_t MemoryAccount::live_exports() {
  const Lock lock(*this);
  reclaim();
  return count(Kind::kOwner);
}

std::uint64_t MemoryAccount::open_imports() {
  const Lock lock(*this);
  reclaim();
  return count(Kind::kImport);
}

MemoryAccount::Entry& MemoryAccount::at(AccountEntry entry) const {
  return ledger_->entries[static_cast<std::uint32_t>(entry)];
}

// With the lock held, like everything below. Those that were ever taken.
std::span<MemoryAccount::Entry> MemoryAccount::entries() const {
  return std::span(ledger_->entries).first(std::min(ledger_->entry_limit, kMaxEntries));
}

MemoryAccount::Entry& MemoryAccount::take_entry() {
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (Entry& entry : entries()) {
      if (load(entry.kind) == 0) return entry;
    }
    if (ledger_->entry_limit < kMaxEntries) return ledger_->entries[ledger_->entry_limit++];
    reclaim();
  }
  throw_broken(ErrorKind::kOutOfMemory, kSubject,
               fmt::format("all {} entries are taken: export fewer regions", kMaxEntries));
}

AccountEntry MemoryAccount::add_entry(Kind kind, const Entry& content) {
  Entry& entry = take_entry();
  entry = content;  // of kind kFree
  entry.process = process_;
  store(entry.kind, static_cast<std::uint64_t>(kind));
  return AccountEntry{static_cast<std::uint32_t>(&entry - ledger_->entries.data())};
}

std::uint64_t MemoryAccount::used(std::uint32_t device) {
  std::uint64_t sum = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> blocks;
  for (const Entry& entry : entries()) {
    const auto kind = Kind{load(entry.kind)};
    if (kind == Kind::kFree || entry.device != device) continue;
    if (kind == Kind::kParticipant) {
      sum += load(entry.bytes);
    } else {
      blocks.emplace_back(entry.block, entry.bytes);
    }
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  for (const auto& [block, bytes] : blocks) sum += bytes;
  return sum;
}

void MemoryAccount::require(std::uint32_t device, std::uint64_t bytes, std::string_view subject) {
  const Ledger::Physical& physical = ledger_->devices[device];
  const auto free_bytes = [&] { return physical.total - std::min(used(device), physical.total); };
  std::uint64_t free = free_bytes();
  if (bytes > free) {
    reclaim();
    free = free_bytes();
  }
  if (bytes > free) {
    throw_broken(ErrorKind::kOutOfMemory, subject,
                 fmt::format("{} bytes are needed and {} of {} are free on device {}", bytes, free,
                             physical.total, physical.name()));
  }
}

// Frees the entries of processes that have ended. Each process is looked up once.
void MemoryAccount::reclaim() {
  std::vector<std::pair<os_memory::ProcessId, bool>> known{{process_, true}};
  for (Entry& entry : entries()) {
    if (load(entry.kind) == 0) continue;
    auto found = std::find_if(known.begin(), known.end(),
                              [&](const auto& one) { return one.first == entry.process; });
    if (found == known.end()) {
      found = known.emplace(known.end(), entry.process, os_memory::is_alive(entry.process));
    }
    if (!found->second) store(entry.kind, static_cast<std::uint64_t>(Kind::kFree));
  }
}

MemoryAccount::Entry* MemoryAccount::exported(std::uint64_t serial) {
  if (serial == 0) return nullptr;
  for (Entry& entry : entries()) {
    if (Kind{load(entry.kind)} == Kind::kOwner && load(entry.export_serial) == serial) {
      return entry.process == process_ || os_memory::is_alive(entry.process) ? &entry : nullptr;
    }
  }
  return nullptr;
}

std::uint64_t MemoryAccount::count(Kind kind) {
  std::uint64_t sum = 0;
  for (const Entry& entry : entries()) {
    sum += Kind{load(entry.kind)} == kind && load(entry.export_serial) != 0 ? 1 : 0;
  }
  return sum;
}

}  // namespace tpsync::device
