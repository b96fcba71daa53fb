// Seam: threads and locks. No lock is held over a call of another seam.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tpsync/base/clock.h"

namespace tpsync {

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
  virtual void join() = 0;
};

class Threads {
 public:
  virtual ~Threads() = default;
  virtual std::unique_ptr<Mutex> make_mutex() = 0;
  virtual std::unique_ptr<Condition> make_condition() = 0;
  // `body` must not throw.
  virtual std::unique_ptr<Thread> spawn(std::string name, std::function<void()> body) = 0;
};

}  // namespace tpsync
