// Threads, locks and conditions of the operating system.
#pragma once

#include "tpsync/base/threads.h"

namespace tpsync {

// May be used from any thread. Conditions wait only on mutexes from here. A body that lets an
// exception out ends the process, as does destroying a thread that was not joined.
class OsThreads final : public Threads {
 public:
  std::unique_ptr<Mutex> make_mutex() override;
  std::unique_ptr<Condition> make_condition() override;
  // The name is cut to 15 bytes, which is what the system keeps.
  std::unique_ptr<Thread> spawn(std::string name, std::function<void()> body) override;
};

}  // namespace tpsync
