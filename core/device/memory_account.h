// The account of a host's devices: who holds how much memory of which device, and which blocks can
// be opened by others. It lies in one small piece of memory, of this process alone or mapped by
// several, and is the table of a driver that isn't there.
//
// Rules. What is in use is never stored, but summed over the entries; an entry changes by one
// store, so that a process may end at any instruction and leaves the account whole. Entries of a
// process that has ended count no longer and are used again. Charges and look-ups take a lock
// between processes, and wait for it at most kAccountLockLimit; whatever gives back is a single
// store, takes no lock and cannot fail. No part of the installed interface.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tpsync/base/clock.h"
#include "tpsync/device/device.h"
#include "tpsync/device/os_memory.h"

namespace tpsync::device {

// Holders of the lock wait for nothing, so that only one that was stopped holds it this long.
inline constexpr Duration kAccountLockLimit = std::chrono::seconds(5);

// The entry of one holder: a participant with its private memory, the owner of a block, or an
// import of one.
enum class AccountEntry : std::uint32_t {};
// A device of the account.
enum class AccountDevice : std::uint32_t {};

// What the account knows of an export.
struct ExportRecord {
  os_memory::ProcessId process;
  int descriptor = -1;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
  std::uint64_t serial = 0;
  friend bool operator==(const ExportRecord&, const ExportRecord&) = default;
};

struct FoundExport {
  ExportRecord record;
  std::uint64_t participant = 0;  // the exporter's serial number
  std::string device_uuid;
};

// May be used from any thread. Everything that takes the lock throws RuntimeBroken kDevice if it
// does not get it, and RuntimeBroken kOutOfMemory where it needs an entry and all are taken.
class MemoryAccount {
 public:
  // Of this process alone. Throws RuntimeBroken kOutOfMemory.
  MemoryAccount();
  // A file at `path`, or, without a path, a memory file that is reached through the process file
  // system. Throws InvalidInput kInvalidConfig if it cannot be made.
  static std::unique_ptr<MemoryAccount> create(const std::string& path);
  // Throws InvalidInput kInvalidConfig for whatever is no complete account of this host.
  static std::unique_ptr<MemoryAccount> open(const std::string& path);
  ~MemoryAccount();
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  const std::string& path() const { return path_; }

  // Throw InvalidInput kInvalidConfig for names that are empty, known, too long or too many, and
  // for a name that is not known; add_device kInvalidState where another process made the account.
  void add_device(std::string_view uuid, std::uint64_t total_bytes);
  AccountDevice find_device(std::string_view uuid);
  MemoryInfo memory(AccountDevice device);

  // A participant, whose entry counts its private memory. One thread at a time uses an entry.
  AccountEntry join(AccountDevice device);
  std::uint64_t participant(AccountEntry entry) const;
  // Throw RuntimeBroken kOutOfMemory if the device has less than `bytes` free; nothing is charged
  // then.
  void charge(AccountEntry participant, std::uint64_t bytes, std::string_view subject);
  AccountEntry add_block(AccountEntry participant, std::uint64_t bytes, std::string_view subject);
  void discharge(AccountEntry participant, std::uint64_t bytes) noexcept;

  // Makes a block known under a new serial number; descriptor and inode are those of its file in
  // this process.
  ExportRecord publish(AccountEntry block, int descriptor, std::uint64_t inode);
  void revoke(AccountEntry block) noexcept;
  // The export with this serial number, if its owner lives and has neither revoked nor freed it.
  std::optional<FoundExport> find_export(std::uint64_t serial);
  // Holds the block of that export, so that it stays charged to the device when its owner has gone.
  std::optional<AccountEntry> add_import(AccountEntry participant, std::uint64_t serial);

  // Ends an entry of any kind, with everything that it charges or exports.
  void remove(AccountEntry entry) noexcept;

  std::uint64_t live_exports();
  std::uint64_t open_imports();

 private:
  struct Ledger;
  struct Entry;
  class Lock;
  enum class Kind : std::uint64_t;

  explicit MemoryAccount(os_memory::Mapping mapping);

  void make_ledger();
  Entry& at(AccountEntry entry) const;
  std::span<Entry> entries() const;
  static ExportRecord record_of_entry(const Entry& entry);
  Entry& take_entry();
  AccountEntry add_entry(Kind kind, const Entry& content);
  std::uint64_t used(std::uint32_t device);
  void require(std::uint32_t device, std::uint64_t bytes, std::string_view subject);
  void reclaim();
  Entry* exported(std::uint64_t serial);
  std::uint64_t count(Kind kind);

  os_memory::ProcessId process_;
  os_memory::Mapping mapping_;
  Ledger* ledger_ = nullptr;
  bool maker_ = true;
  os_memory::Descriptor file_;  // of the maker of a memory file: its path leads here
  std::string path_;
  os_memory::FileIdentity made_;  // of the maker of a file at a path: what it removes
};

}  // namespace tpsync::device
