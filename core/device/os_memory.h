// Memory of the operating system for host devices: mappings that can be put to sleep, memory files
// that other processes of this host open, the identity of processes, and a lock between them. All
// system calls of this folder are made here. For files of this folder alone.
//
// Errors are named by their symbol (EACCES), never by the library's text.
#pragma once

#include <pthread.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tpsync/base/bytes.h"
#include "tpsync/base/os_detail.h"

namespace tpsync::device::os_memory {

using os_detail::Descriptor;

// The symbol of an errno value, "unknown" for a number that has none.
std::string symbol(int error);

// ---- processes ----------------------------------------------------------------------------------

// Names one process until the host starts anew: a pid that is used again has another start time.
struct ProcessId {
  std::int64_t pid = 0;
  std::uint64_t start = 0;  // clock ticks since boot, as the process file system tells it
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

// Throws RuntimeBroken kIo where the process file system is not mounted.
ProcessId own_process();
// False once the process has ended, reaped or not. True if that cannot be learned: what a living
// process holds is never taken from it.
bool is_alive(const ProcessId& process) noexcept;
// Pids of two processes mean the same exactly if these are equal. 0 if the system does not tell.
std::uint64_t pid_namespace() noexcept;

// ---- memory -------------------------------------------------------------------------------------

// A range of addresses of this process; unmapped by the destructor. Move-only. Empty where it has
// no bytes.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping() { reset(); }

  // Zeros, for this process alone. Throws RuntimeBroken kOutOfMemory.
  static Mapping anonymous(std::uint64_t bytes, std::string_view subject);
  // The first `bytes` of a file, shared with everybody who maps it. Throws RuntimeBroken
  // kOutOfMemory. The descriptor may be closed afterwards.
  static Mapping of_file(const Descriptor& file, std::uint64_t bytes, std::string_view subject);

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  MutableByteView view() const { return {data_, static_cast<std::size_t>(bytes_)}; }

  // Of anonymous mappings: give_back returns the physical memory to the system and keeps the
  // addresses, which nobody may touch until bring_back; then they hold zeros. Both may be repeated.
  // Throw RuntimeBroken kOutOfMemory if the system cannot split or join address ranges; then the
  // memory is as it was.
  void give_back(std::string_view subject);
  void bring_back(std::string_view subject);

 private:
  Mapping(std::byte* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {}
  void reset() noexcept;

  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// A memory file of exactly `bytes`, with its pages reserved, so that a write never fails for lack
// of memory, and sealed, so that nobody can change its size. Throws RuntimeBroken kOutOfMemory.
Descriptor make_memory_file(std::uint64_t bytes, std::string_view subject);

// What tells one open file from another.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
  bool regular = false;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};
FileIdentity identity(const Descriptor& file);

// Both return the descriptor, or the error's number.
struct Opened {
  Descriptor file;
  int error = 0;
};
Opened open_file(const std::string& path);
// Fails with EEXIST if there is one already. Readable and writable by this user alone; `bytes` of
// zeros, reserved.
Opened make_file(const std::string& path, std::uint64_t bytes);
// A duplicate of descriptor `number` of a process, also where it is no file that a path leads to.
// The system may refuse it (EPERM) where it lets the same process's files be opened: it asks for
// the right to trace that process.
Opened take_descriptor(const ProcessId& process, int number);
// Of process `pid`, its descriptor `number`; the file that this path leads to.
std::string path_of_descriptor(std::int64_t pid, int number);
// Removes `path` if it still is that file.
void remove_file(const std::string& path, const FileIdentity& file) noexcept;

// ---- lock ---------------------------------------------------------------------------------------

// A lock in memory that processes share; zeros are not yet a lock. A process that ends while it
// holds the lock passes it on, so that what it guards must be whole after every single store.
class ProcessLock {
 public:
  void make();
  // Blocks until the lock is held. False if `limit` has passed, because its holder was stopped, or
  // if there is no lock.
  bool lock(Duration limit) noexcept;
  void unlock() noexcept;

 private:
  pthread_mutex_t mutex_;
};

}  // namespace tpsync::device::os_memory
