// What ThreadSanitizer must be told of: which events between simulated processes order memory, and
// which accesses are the harness's own.
// The functions are weak: without the sanitizer each call is one test.
#pragma once

extern "C" {
__attribute__((weak)) void __tsan_acquire(void* address);
__attribute__((weak)) void __tsan_release(void* address);
__attribute__((weak)) void AnnotateIgnoreReadsBegin(const char* file, int line);
__attribute__((weak)) void AnnotateIgnoreReadsEnd(const char* file, int line);
__attribute__((weak)) void AnnotateIgnoreWritesBegin(const char* file, int line);
__attribute__((weak)) void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace tpsync::sim {

inline void sanitizer_acquire(void* address) {
  if (__tsan_acquire != nullptr) __tsan_acquire(address);
}
inline void sanitizer_release(void* address) {
  if (__tsan_release != nullptr) __tsan_release(address);
}

// Memory accesses of the harness: of the simulated kernel and hardware, and of whoever looks across
// processes. Every operation of a seam, and whatever else reads or writes what processes share,
// holds one. The harness's own state is shared by all processes and needs no order, since one
// thread runs them all; the order of what it moves for them is checked by vector clocks. Without it
// the sanitizer would see what the simulator does through allocation, memmove and templates that
// were compiled elsewhere.
class HarnessAccess {
 public:
  HarnessAccess() {
    if (AnnotateIgnoreReadsBegin != nullptr) {
      AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
      AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
  }
  ~HarnessAccess() {
    if (AnnotateIgnoreReadsBegin != nullptr) {
      AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
      AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
  }
  HarnessAccess(const HarnessAccess&) = delete;
  HarnessAccess& operator=(const HarnessAccess&) = delete;
};

}  // namespace tpsync::sim
