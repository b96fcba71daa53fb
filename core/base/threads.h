// Seam: threads and locks. No lock is held over a call of another seam.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tpsync/base/clock.h"

namespace tpsync {

// Not recursive: a thread that locks it twice waits for itself. Unlocked by the thread that locked
// it. lock() blocks without a bound, so holders never wait for anything but a Condition.
class Mutex {
 public:
  virtual ~Mutex() = default;
  virtual void lock() noexcept = 0;
  virtual void unlock() noexcept = 0;
};

class MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class Condition {
 public:
  virtual ~Condition() = default;
  // Releases `mutex` (held by the caller), waits for a notification or the deadline, and holds it
  // again; false at the deadline. Spurious wake-ups happen.
  virtual bool wait(Mutex& mutex, Deadline deadline) noexcept = 0;
  virtual void notify_all() noexcept = 0;
};

class Thread {
 public:
  virtual ~Thread() = default;  // asserts that the thread was joined
  // Blocks until the body has returned, without a bound: whoever joins has seen to it that the body
  // ends. May be repeated; by one thread at a time, and not by the thread itself.
  virtual void join() = 0;
};

class Threads {
 public:
  virtual ~Threads() = default;
  // A condition works with mutexes of the same Threads alone.
  virtual std::unique_ptr<Mutex> make_mutex() = 0;
  virtual std::unique_ptr<Condition> make_condition() = 0;
  // `body` must not throw. Throws RuntimeBroken kIo if the system starts no more threads; then the
  // body does not run.
  virtual std::unique_ptr<Thread> spawn(std::string name, std::function<void()> body) = 0;
};

}  // namespace tpsync
