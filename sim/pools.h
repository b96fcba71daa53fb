// What worlds reuse: stacks, fiber records, timers, counts, byte buffers and trace storage. Handed
// in by whoever makes worlds; one world at a time takes from it, and gives everything back at its
// end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/fiber.h"
#include "sim/trace.h"

namespace tpsync::sim {

class Fiber;
class TimerTarget;

struct Timer {
  std::int64_t time = 0;
  std::uint64_t order = 0;
  std::uint64_t serial = 0;
  TimerTarget* target = nullptr;
  std::uint64_t argument = 0;
};

// How often a process entered each operation in one of its phases.
struct PhaseCounts {
  std::uint32_t phase = 0;
  std::int32_t chunk = 0;
  std::array<std::uint32_t, kOpCount> occurrences{};
};

class Pools {
 public:
  Pools();
  ~Pools();
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  StackPool stacks;
  std::vector<std::unique_ptr<Fiber>> fibers;  // records; the first fibers_used are in use
  std::size_t fibers_used = 0;
  std::vector<Timer> timers;     // a heap
  std::vector<Timer> deadlines;  // a heap of those that end a fiber's wait
  Trace trace;

  std::vector<std::byte> take_buffer(std::size_t bytes);  // of that size, content undefined
  void give_buffer(std::vector<std::byte> buffer);
  std::vector<PhaseCounts> take_phases();  // empty
  void give_phases(std::vector<PhaseCounts> phases);

 private:
  std::vector<std::vector<PhaseCounts>> phases_;
  std::vector<std::vector<std::byte>> buffers_;
};

}  // namespace tpsync::sim
