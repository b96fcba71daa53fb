// The physical devices of one host that has none: their names, their budgets, and who holds how
// much of them. HostDevice is one of these devices as one participant sees it.
//
// A HostMemory is of one process, for participants that are its threads, or one that several
// processes of the host opened by its path: then an allocation in one is missing in the free memory
// of all, and exports of one can be imported by the others. Memory is charged when it is allocated
// or woken, and stays charged until its owner freed it and the last import was closed, as a driver
// does it. The end of a process, SIGKILL included, ends all that it held, exported and imported.
//
// What is shared is some 330 KiB of numbers: no content, and no use of /dev/shm. A robust mutex in
// it guards it: that costs no system call, is held by a thread, and passes on when its holder is
// killed, where a file lock costs two calls and is held by all threads that share the open file.
// Not carried over a fork: the child may only end or exec.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace tpsync::device {

class MemoryAccount;

// Outlives every HostDevice that was made on it. May be used from any thread. Any call may throw
// RuntimeBroken kDevice if another process was stopped while it held the account for an instant.
class HostMemory {
 public:
  // Of this process alone. Throws RuntimeBroken kOutOfMemory, and kIo where no process file system
  // is mounted.
  HostMemory();
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // For several processes. With a `path`: a new file there, for this user alone, which the
  // destructor removes (a maker that is killed leaves it). Without one: memory of this process that
  // others reach at path() while this object lives; nothing is ever left of it. Whoever has opened
  // the account goes on with it after its maker has gone. Throws InvalidInput kInvalidConfig if
  // there is a file already, or none can be made.
  static std::unique_ptr<HostMemory> create(const std::string& path = {});
  // Opens what create() made, in a process of the same user. Throws InvalidInput kInvalidConfig if
  // nothing is at `path`, or no complete account of this version and of this process namespace.
  // Nobody but its users may write to the file or cut it short.
  static std::unique_ptr<HostMemory> open(const std::string& path);
  // Empty for an account of this process alone.
  const std::string& path() const;

  // Throws InvalidInput kInvalidConfig for an empty or a known uuid, one of more than 63 bytes, and
  // the 65th device; kInvalidState where another process made the account.
  void add_device(std::string uuid, std::uint64_t total_bytes);

  // Of all living participants: exports that are neither revoked nor freed, and open imports of
  // them or of dead ones.
  std::uint64_t live_exports();
  std::uint64_t open_imports();

 private:
  friend class HostDevice;
  explicit HostMemory(std::unique_ptr<MemoryAccount> account);

  std::unique_ptr<MemoryAccount> account_;
};

}  // namespace tpsync::device
