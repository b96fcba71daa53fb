#include "tpsync/base/os_threads.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "tpsync/base/errors.h"

namespace tpsync {

namespace {

class OsMutex final : public Mutex {
 public:
  void lock() noexcept override { mutex_.lock(); }
  void unlock() noexcept override { mutex_.unlock(); }
  std::mutex& native() { return mutex_; }

 private:
  std::mutex mutex_;
};

class OsCondition final : public Condition {
 public:
  bool wait(Mutex& mutex, Deadline deadline) noexcept override {
    auto* os_mutex = dynamic_cast<OsMutex*>(&mutex);
    TPSYNC_ASSERT(os_mutex != nullptr);
    std::unique_lock lock(os_mutex->native(), std::adopt_lock);
    bool in_time = true;
    if (deadline.is_never()) {
      condition_.wait(lock);
    } else {
      // steady_clock counts CLOCK_MONOTONIC from the same start as OsClock.
      const std::chrono::steady_clock::time_point until{Duration(deadline.time().ns)};
      in_time = condition_.wait_until(lock, until) == std::cv_status::no_timeout;
    }
    lock.release();  // the caller goes on holding it
    return in_time;
  }
  void notify_all() noexcept override { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

class OsThread final : public Thread {
 public:
  OsThread(std::string name, std::function<void()> body) : thread_(std::move(body)) {
    name.resize(std::min<std::size_t>(name.size(), 15));
    pthread_setname_np(thread_.native_handle(), name.c_str());
  }
  ~OsThread() override { TPSYNC_ASSERT(!thread_.joinable()); }
  void join() override {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Mutex> OsThreads::make_mutex() { return std::make_unique<OsMutex>(); }
std::unique_ptr<Condition> OsThreads::make_condition() { return std::make_unique<OsCondition>(); }

std::unique_ptr<Thread> OsThreads::spawn(std::string name, std::function<void()> body) {
  try {
    return std::make_unique<OsThread>(std::move(name), std::move(body));
  } catch (const std::system_error&) {
    throw_broken(ErrorKind::kIo, "thread", "the system can start no more threads");
  }
}

}  // namespace tpsync
