#include "tpsync/base/os_detail.h"

#include <fmt/core.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "tpsync/base/errors.h"

namespace tpsync::os_detail {

namespace {
constexpr std::int64_t kNsPerSecond = 1'000'000'000;
}

TimePoint monotonic_now() {
  timespec time{};
  TPSYNC_ASSERT(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
  return TimePoint{std::int64_t{time.tv_sec} * kNsPerSecond + time.tv_nsec};
}

void throw_io(std::string_view subject, std::string_view operation, int error) {
  const char* name = strerrorname_np(error);
  throw_broken(ErrorKind::kIo, subject,
               fmt::format("{} failed ({})", operation, name != nullptr ? name : "unknown"));
}

void Descriptor::reset() noexcept {
  // An interrupted close has closed the descriptor on Linux: it is never repeated.
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

Polled poll_events(std::span<pollfd> polls, Deadline deadline) noexcept {
  for (;;) {
    timespec left{};
    if (!deadline.is_never()) {
      const Duration remaining = deadline.time() - monotonic_now();
      if (remaining.count() > 0) {
        left.tv_sec = remaining.count() / kNsPerSecond;
        left.tv_nsec = remaining.count() % kNsPerSecond;
      }
    }
    const int count =
        ppoll(polls.data(), polls.size(), deadline.is_never() ? nullptr : &left, nullptr);
    if (count > 0) return Polled::kReady;
    if (count < 0 && errno != EINTR) return Polled::kFailed;
    if (count == 0 && deadline.passed(monotonic_now())) return Polled::kPassed;
  }
}

bool poll_until(std::span<pollfd> polls, Deadline deadline) {
  const Polled polled = poll_events(polls, deadline);
  if (polled == Polled::kFailed) throw_io("poll", "waiting on a descriptor", errno);
  return polled == Polled::kReady;
}

}  // namespace tpsync::os_detail
