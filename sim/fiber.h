// Fibers: a stack with a guard page and the switch between two of them.
//
// A switch saves and restores what is per thread but must be per fiber: the C++ runtime's exception
// state and errno. It is announced to AddressSanitizer and ThreadSanitizer where those are linked.
// Single-threaded: a Switcher and its fibers belong to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tpsync::sim {

// Stacks are mapped once and reused; below each lies a page that faults.
class StackPool {
 public:
  struct Stack {
    std::byte* low = nullptr;  // usable bytes start here
    std::size_t bytes = 0;
  };

  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  Stack take();  // aborts the program if the system has no memory
  void give(Stack stack);

 private:
  std::vector<Stack> free_;
  std::size_t made_ = 0;
};

// The part of a fiber that the switch needs.
struct Context {
  void* context = nullptr;
  StackPool::Stack stack;
  void* caught_exceptions = nullptr;
  unsigned uncaught_exceptions = 0;
  int saved_errno = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
  void* sanitizer_fiber = nullptr;
  bool finished = false;
};

class Switcher {
 public:
  // Runs on the fiber's own stack; must not return.
  using Entry = void (*)(void* argument);

  // Makes `context` stand for what is running now.
  void adopt(Context& context);
  void prepare(Context& context, StackPool::Stack stack, Entry entry, void* argument);
  // Leaves `from`, which must be running, for `to`. Returns when something switches back to `from`;
  // never, if from.finished.
  void switch_to(Context& from, Context& to);
  // Gives up what a context that will never run again has beside its stack.
  void discard(Context& context);

 private:
  struct Passing {
    Context* from;
    Context* to;
  };
  struct Start;
  static void arrive(void* context, Passing* passing, Context& self);
};

}  // namespace tpsync::sim
