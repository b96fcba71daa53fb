#include "tpsync/collective/os_shared_words.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_detail.h"

namespace tpsync::collective {

namespace {

using os_detail::Descriptor;

constexpr std::string_view kWordsSubject = "shared words";
constexpr std::int64_t kNsPerSecond = 1'000'000'000;
constexpr std::size_t kWordsMax = 1 << 20;
// Between looks at the clock while spinning.
constexpr int kPausesPerLook = 16;

// A futex lies in the lower half of its word.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);

// How another process finds the file, and knows that it is the right one. In host order.
struct Handle {
  std::int64_t pid = 0;
  std::int64_t descriptor = 0;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t count = 0;
};
static_assert(sizeof(Handle) == 40);

// The words, and behind them for each the number of its sleepers.
std::size_t bytes_of(std::size_t count) {
  return count * (sizeof(std::uint64_t) + sizeof(std::uint32_t));
}

// False too where the system does not tell.
bool may_use_processors(int count) noexcept {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) >= count;
}

void pause_briefly() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Mapping {
 public:
  // Of a file of as many bytes. Throws RuntimeBroken kOutOfMemory.
  Mapping(const Descriptor& file, std::size_t bytes) : bytes_(bytes) {
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
    if (address == MAP_FAILED)
      throw_broken(ErrorKind::kOutOfMemory, kWordsSubject, "there is no room for the mapping");
    address_ = address;
  }
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(other.bytes_) {}
  ~Mapping() {
    if (address_ != nullptr) munmap(address_, bytes_);
  }
  Mapping& operator=(Mapping&&) = delete;

  void* address() const { return address_; }

 private:
  void* address_ = nullptr;
  std::size_t bytes_;
};

class OsSharedWords final : public SharedWords {
 public:
  OsSharedWords(Descriptor file, Mapping mapping, std::size_t count, Duration spin)
      : file_(std::move(file)),
        mapping_(std::move(mapping)),
        words_(static_cast<std::uint64_t*>(mapping_.address()), count),
        sleepers_(reinterpret_cast<std::uint32_t*>(words_.data() + count), count),
        spin_(spin) {}

  std::size_t size() const noexcept override { return words_.size(); }
  std::uint64_t load(std::size_t index) override { return word(index).load(); }
  void store(std::size_t index, std::uint64_t value) noexcept override { word(index).store(value); }
  std::uint64_t add(std::size_t index, std::uint64_t amount) noexcept override {
    return word(index).fetch_add(amount) + amount;
  }

  bool wait(std::size_t index, std::uint64_t seen, Deadline deadline) override {
    if (spin(index, seen, deadline)) return true;
    // Either the waker sees this sleeper, or the sleeper sees the changed word: both sides write
    // before they read.
    const std::atomic_ref<std::uint32_t> sleepers(sleepers_[index]);
    sleepers.fetch_add(1);
    const bool woken = word(index).load() != seen || sleep(index, seen, deadline);
    sleepers.fetch_sub(1);
    return woken;
  }

  void wake(std::size_t index) noexcept override {
    TPSYNC_ASSERT(index < sleepers_.size());
    if (std::atomic_ref(sleepers_[index]).load() == 0) return;
    syscall(SYS_futex, &words_[index], FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

 private:
  std::atomic_ref<std::uint64_t> word(std::size_t index) const noexcept {
    TPSYNC_ASSERT(index < words_.size());
    return std::atomic_ref(words_[index]);
  }

  // True once the word has changed.
  bool spin(std::size_t index, std::uint64_t seen, Deadline deadline) const noexcept {
    if (word(index).load() != seen) return true;
    if (spin_.count() <= 0) return false;
    const Deadline until = deadline.earlier(Deadline::at(os_detail::monotonic_now() + spin_));
    do {
      for (int i = 0; i < kPausesPerLook; ++i) {
        if (word(index).load() != seen) return true;
        pause_briefly();
      }
    } while (!until.passed(os_detail::monotonic_now()));
    return false;
  }

  // False at the deadline.
  bool sleep(std::size_t index, std::uint64_t seen, Deadline deadline) noexcept {
    timespec until{};
    if (!deadline.is_never() && deadline.time().ns > 0) {
      until.tv_sec = deadline.time().ns / kNsPerSecond;
      until.tv_nsec = deadline.time().ns % kNsPerSecond;
    }
    const long result =
        syscall(SYS_futex, &words_[index], FUTEX_WAIT_BITSET, static_cast<std::uint32_t>(seen),
                deadline.is_never() ? nullptr : &until, nullptr, FUTEX_BITSET_MATCH_ANY);
    if (result == 0) return true;
    TPSYNC_ASSERT(errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT);
    return errno != ETIMEDOUT;
  }

  Descriptor file_;  // the maker's, by which others find the words; empty elsewhere
  Mapping mapping_;
  std::span<std::uint64_t> words_;
  std::span<std::uint32_t> sleepers_;
  Duration spin_;
};

[[noreturn]] void throw_unknown() {
  throw_broken(ErrorKind::kIo, kWordsSubject, "the handle leads to no such words");
}

}  // namespace

OsSharedWordsFactory::OsSharedWordsFactory(const OsSharedWordsOptions& options)
    : spin_(may_use_processors(options.processors_to_spin) ? options.spin : Duration(0)) {}

SharedWordsFactory::Made OsSharedWordsFactory::make(std::size_t count) {
  TPSYNC_ASSERT(count > 0 && count <= kWordsMax);
  const auto bytes = static_cast<off_t>(bytes_of(count));
  Descriptor file(memfd_create("tpsync-words", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) os_detail::throw_io(kWordsSubject, "making a memory file", errno);
  if (ftruncate(file.number(), bytes) != 0)
    os_detail::throw_io(kWordsSubject, "sizing a memory file", errno);
  // Without reserved pages, a store could end the process for lack of memory.
  if (const int error = posix_fallocate(file.number(), 0, bytes); error != 0)
    throw_broken(ErrorKind::kOutOfMemory, kWordsSubject, "memory can't be reserved");
  if (fcntl(file.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    os_detail::throw_io(kWordsSubject, "sealing a memory file", errno);
  struct stat found {};
  if (fstat(file.number(), &found) != 0) os_detail::throw_io(kWordsSubject, "fstat", errno);

  const Handle handle{getpid(), file.number(), found.st_dev, found.st_ino, count};
  Made made;
  made.handle.resize(sizeof handle);
  std::memcpy(made.handle.data(), &handle, sizeof handle);
  Mapping mapping(file, bytes_of(count));
  made.words = std::make_unique<OsSharedWords>(std::move(file), std::move(mapping), count, spin_);
  return made;
}

std::unique_ptr<SharedWords> OsSharedWordsFactory::open(ByteView bytes) {
  Handle handle;
  if (bytes.size() != sizeof handle) throw_unknown();
  std::memcpy(&handle, bytes.data(), sizeof handle);
  if (handle.count == 0 || handle.count > kWordsMax) throw_unknown();
  const std::string path = fmt::format("/proc/{}/fd/{}", handle.pid, handle.descriptor);
  // A pipe that stands there by now is not waited for.
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file) os_detail::throw_io(kWordsSubject, "opening a peer's memory file", errno);
  struct stat found {};
  if (fstat(file.number(), &found) != 0) os_detail::throw_io(kWordsSubject, "fstat", errno);
  const bool same = S_ISREG(found.st_mode) && found.st_dev == handle.device &&
                    found.st_ino == handle.inode &&
                    static_cast<std::uint64_t>(found.st_size) == bytes_of(handle.count);
  if (!same) throw_unknown();
  return std::make_unique<OsSharedWords>(Descriptor(), Mapping(file, bytes_of(handle.count)),
                                         handle.count, spin_);
}

}  // namespace tpsync::collective
