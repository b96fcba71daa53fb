#include "tpsync/device/os_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "tpsync/base/errors.h"

namespace tpsync::device::os_memory {

namespace {

[[noreturn]] void throw_no_memory(std::string_view subject, std::string_view operation, int error) {
  throw_broken(ErrorKind::kOutOfMemory, subject,
               fmt::format("{} failed ({})", operation, symbol(error)));
}

// A length or offset as the system takes it; one that it cannot express is an allocation that is
// too large.
off_t as_offset(std::uint64_t bytes, std::string_view subject) {
  if (bytes > static_cast<std::uint64_t>(INT64_MAX)) throw_no_memory(subject, "mapping", EFBIG);
  return static_cast<off_t>(bytes);
}

// The text of a small file of the process file system; its error's number if there is none.
struct SmallText {
  std::array<char, 1024> content{};
  std::size_t length = 0;
  int error = 0;
  std::string_view view() const { return {content.data(), length}; }
};

SmallText read_small(const char* path) noexcept {
  SmallText text;
  const Descriptor file(open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t count =
      file ? read(file.number(), text.content.data(), text.content.size()) : ssize_t{-1};
  if (count < 0) {
    text.error = errno;
  } else {
    text.length = static_cast<std::size_t>(count);
  }
  return text;
}

struct ProcessStatus {
  char state = '?';
  std::uint64_t threads = 0;
  std::uint64_t start = 0;
};

// The fields of /proc/<pid>/stat. The program's name, in parentheses, may contain anything, so that
// fields are counted from the last parenthesis on.
std::optional<ProcessStatus> parse_status(std::string_view text) noexcept {
  constexpr int kState = 3, kThreads = 20, kStart = 22;
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  text.remove_prefix(name_end + 1);
  ProcessStatus status;
  for (int field = kState; field <= kStart; ++field) {
    const std::size_t begin = text.find_first_not_of(' ');
    if (begin == std::string_view::npos) return std::nullopt;
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(word.size());
    if (field == kState) status.state = word.front();
    if (field != kThreads && field != kStart) continue;
    std::uint64_t& into = field == kThreads ? status.threads : status.start;
    if (std::from_chars(word.data(), word.data() + word.size(), into).ec != std::errc()) {
      return std::nullopt;
    }
  }
  return status;
}

int protect(std::byte* data, std::uint64_t bytes, int access) {
  return mprotect(data, bytes, access) == 0 ? 0 : errno;
}

}  // namespace

std::string symbol(int error) {
  const char* name = strerrorname_np(error);
  return name != nullptr ? name : "unknown";
}

ProcessId own_process() {
  const SmallText text = read_small("/proc/self/stat");
  const auto status = parse_status(text.view());
  if (!status) os_detail::throw_io("host memory", "reading the process file system", text.error);
  return {getpid(), status->start};
}

bool is_alive(const ProcessId& process) noexcept {
  std::array<char, 64> path{};
  *fmt::format_to_n(path.data(), path.size() - 1, "/proc/{}/stat", process.pid).out = '\0';
  const SmallText text = read_small(path.data());
  if (text.error != 0) return text.error != ENOENT && text.error != ESRCH;
  const auto status = parse_status(text.view());
  if (!status) return true;
  if (status->start != process.start) return false;
  // A zombie has given up its memory, unless it is but the first thread of a living process.
  const bool ended = status->state == 'Z' || status->state == 'X';
  return !ended || status->threads > 1;
}

std::uint64_t pid_namespace() noexcept {
  struct stat found {};
  return stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Mapping::reset() noexcept {
  if (data_ != nullptr) TPSYNC_ASSERT(munmap(data_, bytes_) == 0);
  data_ = nullptr;
  bytes_ = 0;
}

Mapping Mapping::anonymous(std::uint64_t bytes, std::string_view subject) {
  if (bytes == 0) return Mapping();
  as_offset(bytes, subject);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw_no_memory(subject, "mapping", errno);
  return Mapping(static_cast<std::byte*>(data), bytes);
}

Mapping Mapping::of_file(const Descriptor& file, std::uint64_t bytes, std::string_view subject) {
  if (bytes == 0) return Mapping();
  as_offset(bytes, subject);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  if (data == MAP_FAILED) throw_no_memory(subject, "mapping", errno);
  return Mapping(static_cast<std::byte*>(data), bytes);
}

void Mapping::give_back(std::string_view subject) {
  if (data_ == nullptr) return;
  // Access ends first: while that may fail, nothing is lost.
  const int error = protect(data_, bytes_, PROT_NONE);
  if (error != 0) throw_no_memory(subject, "closing an address range", error);
  if (madvise(data_, bytes_, MADV_DONTNEED) != 0) {  // refused for locked memory
    const int refused = errno;
    protect(data_, bytes_, PROT_READ | PROT_WRITE);
    throw_no_memory(subject, "giving memory back", refused);
  }
}

void Mapping::bring_back(std::string_view subject) {
  if (data_ == nullptr) return;
  const int error = protect(data_, bytes_, PROT_READ | PROT_WRITE);
  if (error != 0) throw_no_memory(subject, "opening an address range", error);
}

Descriptor make_memory_file(std::uint64_t bytes, std::string_view subject) {
  const off_t length = as_offset(bytes, subject);
  Descriptor file(memfd_create("tpsync", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw_no_memory(subject, "making a memory file", errno);
  if (ftruncate(file.number(), length) != 0) {
    throw_no_memory(subject, "sizing a memory file", errno);
  }
  while (bytes > 0 && fallocate(file.number(), 0, 0, length) != 0) {
    if (errno != EINTR) throw_no_memory(subject, "reserving memory", errno);
  }
  if (fcntl(file.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_no_memory(subject, "sealing a memory file", errno);
  }
  return file;
}

FileIdentity identity(const Descriptor& file) {
  struct stat found {};
  if (fstat(file.number(), &found) != 0) os_detail::throw_io("host memory", "fstat", errno);
  return {found.st_dev, found.st_ino, static_cast<std::uint64_t>(found.st_size),
          S_ISREG(found.st_mode)};
}

Opened open_file(const std::string& path) {
  // Without O_NONBLOCK, a pipe at this path would block until somebody writes to it.
  Opened opened;
  opened.file = Descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!opened.file) opened.error = errno;
  return opened;
}

Opened make_file(const std::string& path, std::uint64_t bytes) {
  Opened opened;
  opened.file =
      Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!opened.file) {
    opened.error = errno;
    return opened;
  }
  opened.error = posix_fallocate(opened.file.number(), 0, static_cast<off_t>(bytes));
  if (opened.error != 0) {
    unlink(path.c_str());
    opened.file.reset();
  }
  return opened;
}

Opened take_descriptor(const ProcessId& process, int number) {
  Opened opened;
  const Descriptor handle(
      static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(process.pid), 0)));
  if (!handle) {
    opened.error = errno;
    return opened;
  }
  // Once its handle is held, the pid cannot come to mean another process.
  if (!is_alive(process)) {
    opened.error = ESRCH;
    return opened;
  }
  opened.file = Descriptor(static_cast<int>(syscall(SYS_pidfd_getfd, handle.number(), number, 0)));
  if (!opened.file) opened.error = errno;
  return opened;
}

std::string path_of_descriptor(std::int64_t pid, int number) {
  return fmt::format("/proc/{}/fd/{}", pid, number);
}

void remove_file(const std::string& path, const FileIdentity& file) noexcept {
  struct stat found {};
  if (lstat(path.c_str(), &found) == 0 && found.st_dev == file.device &&
      found.st_ino == file.inode) {
    unlink(path.c_str());
  }
}

void ProcessLock::make() {
  pthread_mutexattr_t attributes;
  TPSYNC_ASSERT(pthread_mutexattr_init(&attributes) == 0);
  TPSYNC_ASSERT(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
  TPSYNC_ASSERT(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
  TPSYNC_ASSERT(pthread_mutex_init(&mutex_, &attributes) == 0);
  pthread_mutexattr_destroy(&attributes);
}

bool ProcessLock::lock(Duration limit) noexcept {
  // Holders are done in microseconds. Asking again costs less than a timed wait would bring, which
  // counts on a clock that may be set, or is none that ThreadSanitizer follows.
  constexpr long kFirstPauseNs = 10'000, kLongestPauseNs = 1'000'000;
  const TimePoint until = os_detail::monotonic_now() + limit;
  for (long pause_ns = kFirstPauseNs;; pause_ns = std::min(2 * pause_ns, kLongestPauseNs)) {
    const int error = pthread_mutex_trylock(&mutex_);
    if (error == EOWNERDEAD) TPSYNC_ASSERT(pthread_mutex_consistent(&mutex_) == 0);
    if (error == 0 || error == EOWNERDEAD) return true;
    // Any other error says that the memory holds no lock: that is input from outside.
    if (error != EBUSY || os_detail::monotonic_now() >= until) return false;
    const timespec pause{0, pause_ns};
    nanosleep(&pause, nullptr);
  }
}

void ProcessLock::unlock() noexcept { TPSYNC_ASSERT(pthread_mutex_unlock(&mutex_) == 0); }

}  // namespace tpsync::device::os_memory
