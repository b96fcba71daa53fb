// Time: a monotonic clock as a seam, and deadlines. Nothing in core reads another clock.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>

namespace tpsync {

using Duration = std::chrono::nanoseconds;

// Nanoseconds since an arbitrary start; comparable within one host only.
struct TimePoint {
  std::int64_t ns = 0;
  friend auto operator<=>(const TimePoint&, const TimePoint&) = default;
};
// Saturates, so that a timeout of any length may be added to any time.
constexpr TimePoint operator+(TimePoint t, Duration d) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(t.ns, d.count(), &sum)) return {t.ns < 0 ? INT64_MIN : INT64_MAX};
  return {sum};
}
constexpr Duration operator-(TimePoint a, TimePoint b) { return Duration(a.ns - b.ns); }

// Never throws: destructors and the kill routine read it.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() noexcept = 0;
  // Blocks the calling thread until `until`; returns at once if that has passed.
  virtual void sleep_until(TimePoint until) noexcept = 0;
};

// A point in time after which a wait gives up. `never()` is for waits that another event must end
// (a server waiting for its next request); every wait for a reply or a peer has a finite one.
class Deadline {
 public:
  static Deadline after(Clock& clock, Duration timeout) { return Deadline(clock.now() + timeout); }
  static constexpr Deadline at(TimePoint t) { return Deadline(t); }
  static constexpr Deadline never() { return Deadline(TimePoint{INT64_MAX}); }

  constexpr TimePoint time() const { return time_; }
  constexpr bool is_never() const { return time_.ns == INT64_MAX; }
  constexpr bool passed(TimePoint now) const { return now >= time_; }
  constexpr Deadline earlier(Deadline other) const { return other.time_ < time_ ? other : *this; }

 private:
  explicit constexpr Deadline(TimePoint t) : time_(t) {}
  TimePoint time_;
};

}  // namespace tpsync
