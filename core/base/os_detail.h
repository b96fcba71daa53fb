// What the operating-system implementations share: descriptors that close themselves, waiting on
// descriptors with a deadline, and errors named by their symbol (texts differ between libraries and
// locales). For files of core that are named os_* alone.
#pragma once

#include <poll.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "tpsync/base/clock.h"

namespace tpsync::os_detail {

TimePoint monotonic_now();

// Throws RuntimeBroken kIo: "<operation> failed (EACCES)".
[[noreturn]] void throw_io(std::string_view subject, std::string_view operation, int error);

// An open descriptor; closed by the destructor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  int release() { return std::exchange(number_, -1); }
  void reset() noexcept;

 private:
  int number_ = -1;
};

enum class Polled : std::uint8_t { kReady, kPassed, kFailed };

// Blocks until an event of one of `polls` or the deadline. Interruptions are continued. kFailed:
// the system refused, with errno.
Polled poll_events(std::span<pollfd> polls, Deadline deadline) noexcept;
// The same; false at the deadline. Throws RuntimeBroken kIo if the system refuses.
bool poll_until(std::span<pollfd> polls, Deadline deadline);

}  // namespace tpsync::os_detail
