// Switching by Boost.Context's fcontext, which has no hooks of its own: everything that a sanitizer
// or the C++ runtime must know is said here by hand. The sanitizers' functions are weak, so that
// this file need not be compiled with them.
#include "sim/fiber.h"

#include <cxxabi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack_save,
                                                          const void* bottom, std::size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack_save,
                                                           const void** bottom_old,
                                                           std::size_t* size_old);
__attribute__((weak)) void __asan_unpoison_memory_region(void const volatile* addr,
                                                         std::size_t size);
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void* fiber);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}

namespace tpsync::sim {

namespace {

namespace context = boost::context::detail;

// What <cxxabi.h> keeps opaque; the layout is fixed by the Itanium C++ ABI.
struct ExceptionGlobals {
  void* caught;
  unsigned uncaught;
};

ExceptionGlobals& exception_globals() {
  return *reinterpret_cast<ExceptionGlobals*>(abi::__cxa_get_globals());
}

constexpr std::size_t kStackBytes = 512 * 1024;
// Stacks end at different places of their last page, or the frames that all fibers use most would
// compete for the same few lines of the first cache.
constexpr std::size_t kStackShifts = 16;
constexpr std::size_t kStackShiftBytes = 704;  // 11 cache lines
constexpr unsigned kNoSynchronization = 1;     // of __tsan_switch_to_fiber

}  // namespace

StackPool::~StackPool() {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (const Stack& stack : free_) munmap(stack.low - page, kStackBytes + page);
}

StackPool::Stack StackPool::take() {
  if (!free_.empty()) {
    const Stack stack = free_.back();
    free_.pop_back();
    return stack;
  }
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, kStackBytes + page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
    std::fputs("sim: no memory for a fiber's stack\n", stderr);
    std::abort();
  }
  const std::size_t shift = made_++ % kStackShifts * kStackShiftBytes;
  return {static_cast<std::byte*>(memory) + page, kStackBytes - shift};
}

void StackPool::give(Stack stack) {
  if (__asan_unpoison_memory_region != nullptr)
    __asan_unpoison_memory_region(stack.low, stack.bytes);
  free_.push_back(stack);
}

struct Switcher::Start {
  Entry entry;
  void* argument;

  static void run(context::transfer_t transfer) {
    auto* passing = static_cast<Passing*>(transfer.data);
    Context& self = *passing->to;
    // The entry and its argument wait at the top of the new stack.
    const Start start =
        *reinterpret_cast<Start*>(self.stack.low + self.stack.bytes - sizeof(Start));
    arrive(transfer.fctx, passing, self);
    start.entry(start.argument);
    std::abort();
  }
};

void Switcher::adopt(Context& running) {
  if (__tsan_get_current_fiber != nullptr) running.sanitizer_fiber = __tsan_get_current_fiber();
}

void Switcher::prepare(Context& fiber, StackPool::Stack stack, Entry entry, void* argument) {
  fiber = Context{};
  fiber.stack = stack;
  auto* top = stack.low + stack.bytes - sizeof(Start);
  *reinterpret_cast<Start*>(top) = Start{entry, argument};
  fiber.context = context::make_fcontext(top, stack.bytes - sizeof(Start), &Start::run);
  if (__tsan_create_fiber != nullptr) fiber.sanitizer_fiber = __tsan_create_fiber(0);
}

void Switcher::arrive(void* came_from, Passing* passing, Context& self) {
  Context& from = *passing->from;
  from.context = came_from;
  if (__sanitizer_finish_switch_fiber != nullptr) {
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(self.fake_stack, &bottom, &size);
    if (from.stack.low == nullptr) {  // the root's stack is the system's; learn its bounds
      from.stack.low = static_cast<std::byte*>(const_cast<void*>(bottom));
      from.stack.bytes = size;
    }
  }
  ExceptionGlobals& globals = exception_globals();
  globals.caught = self.caught_exceptions;
  globals.uncaught = self.uncaught_exceptions;
  errno = self.saved_errno;
}

void Switcher::switch_to(Context& from, Context& to) {
  const ExceptionGlobals& globals = exception_globals();
  from.caught_exceptions = globals.caught;
  from.uncaught_exceptions = globals.uncaught;
  from.saved_errno = errno;
  Passing passing{&from, &to};
  if (__sanitizer_start_switch_fiber != nullptr)
    __sanitizer_start_switch_fiber(from.finished ? nullptr : &from.fake_stack, to.stack.low,
                                   to.stack.bytes);
  if (__tsan_switch_to_fiber != nullptr)
    __tsan_switch_to_fiber(to.sanitizer_fiber, kNoSynchronization);
  const context::transfer_t transfer = context::jump_fcontext(to.context, &passing);
  arrive(transfer.fctx, static_cast<Passing*>(transfer.data), from);
}

void Switcher::discard(Context& fiber) {
  if (__tsan_destroy_fiber != nullptr && fiber.sanitizer_fiber != nullptr)
    __tsan_destroy_fiber(fiber.sanitizer_fiber);
  fiber.sanitizer_fiber = nullptr;
}

}  // namespace tpsync::sim
