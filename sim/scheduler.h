// Virtual time and the choice of who runs: one clock, one heap of timers, one list of runnable
// fibers, one thread.
//
// A fiber that blocks picks its successor itself and switches to it directly. Timers fire in the
// context of whoever picks; their handlers neither block nor throw. When nobody can run, time jumps
// to the next live timer; when there is none, the root context goes on. Every choice among several
// runnable fibers is recorded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "sim/config.h"
#include "sim/fiber.h"
#include "sim/pools.h"
#include "sim/trace.h"

namespace tpsync::sim {

class SimProcess;
class Scheduler;

// Something that a timer can wake. Outlives the world's run.
class TimerTarget {
 public:
  virtual ~TimerTarget() = default;
  // False: the timer has become pointless and must not move time.
  virtual bool timer_live(std::uint64_t argument) const = 0;
  virtual void on_timer(std::uint64_t argument) = 0;
};

class Fiber;

// Fibers that wait for one condition. Woken in the order of their arrival.
class WaitQueue {
 public:
  bool empty() const { return fibers_.empty(); }

 private:
  friend class Scheduler;
  std::vector<Fiber*> fibers_;
};

class Fiber final : public TimerTarget {
 public:
  enum class State : std::uint8_t { kNew, kReady, kRunning, kBlocked, kEnded };

  bool timer_live(std::uint64_t argument) const override {
    return state == State::kBlocked && argument == wait_number;
  }
  void on_timer(std::uint64_t argument) override;

  Context context;
  Scheduler* scheduler = nullptr;
  SimProcess* process = nullptr;
  std::uint32_t identity = 0;  // process and thread numbers, for traces
  std::uint16_t thread = 0;
  State state = State::kNew;
  bool timed_out = false;
  bool held = false;  // ready, but its process is stopped
  bool abandoned = false;
  std::uint32_t lowered = 0;  // from 1: the change at which it fell below all that did not
  std::uint64_t wait_number = 0;
  WaitQueue* queue = nullptr;
  Fiber* return_to = nullptr;  // set while another fiber waits for this one to unwind
  WaitQueue ended;
  std::function<void()> body;
};

enum class StopReason : std::uint8_t {
  kNobodyLeft,
  kStuck,
  kStepLimit,
  kAbandoned,
  kReplayMismatch
};

class Scheduler {
 public:
  Scheduler(const SimConfig& config, Trace& trace, Pools& pools);
  ~Scheduler();

  std::int64_t now() const { return now_; }
  Fiber* current() const { return current_ == &root_ ? nullptr : current_; }
  void advance(std::int64_t ns) { now_ += ns; }

  // A new fiber; it becomes runnable at once and runs when chosen.
  Fiber& make_fiber(SimProcess& process, std::uint32_t process_index, std::uint16_t thread,
                    std::function<void()> body);

  // Runs until nobody can go on.
  StopReason run();

  // --- from a running fiber ---
  // Due timers fire, and any runnable fiber may be chosen instead. Counts as one step.
  void yield();
  // Waits on `queue`; true if woken, false at `deadline_ns`. Both may be spurious for the caller:
  // it checks its condition again. A killed fiber returns at once (true).
  bool wait(WaitQueue& queue, std::int64_t deadline_ns);
  bool sleep_until(std::int64_t time_ns);

  // --- from anywhere ---
  void wake(WaitQueue& queue);
  void add_timer(std::int64_t time_ns, TimerTarget& target, std::uint64_t argument);
  void hold(Fiber& fiber);  // not chosen until released
  void release(Fiber& fiber);
  // Takes the fiber out of every queue: before a process is unwound, for all of its fibers, since a
  // queue may lie on the stack of another one.
  void detach(Fiber& fiber);
  // Detaches the fiber and runs it until it ended (unless it is the running one).
  // Its operations must throw or return at once.
  void unwind(Fiber& fiber);
  // Ends the run at the next pick.
  void stop(StopReason reason);
  // The running fiber will never run again; its stack is given up as it is.
  [[noreturn]] void abandon_current();

  std::uint64_t steps() const { return steps_; }
  std::uint64_t mismatch_at() const { return mismatch_at_; }
  std::size_t live_fibers() const { return live_fibers_; }
  bool running() const { return running_; }

 private:
  friend class Fiber;
  static void fiber_main(void* argument);
  [[noreturn]] void finish_current();
  void make_ready(Fiber& fiber);
  Timer made_timer(std::int64_t time_ns, TimerTarget& target, std::uint64_t argument);
  void add_deadline(std::int64_t time_ns, Fiber& fiber);
  void drop_dead_deadlines();
  const Timer* first_timer() const;
  void fire_due();
  void fire_first();
  Fiber* pick();
  std::size_t choose(std::size_t count);
  std::uint64_t priority_of(const Fiber& fiber) const;
  std::size_t highest() const;  // index in ready_
  std::size_t choose_by_priority(std::uint64_t number);
  void switch_to(Fiber& next);
  void remove_ready(Fiber& fiber);
  void leave_queue(Fiber& fiber);

  const SimConfig& config_;
  Trace& trace_;
  Pools& pools_;
  Switcher switcher_;
  Fiber root_;
  Fiber* current_ = &root_;
  Fiber* must_run_ = nullptr;  // killed while it was picking: unwinds before anybody runs
  std::int64_t now_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t choices_ = 0;
  std::size_t next_deviation_ = 0;
  std::uint64_t timers_made_ = 0;
  std::size_t deadlines_kept_ = 0;  // by the last look for dead ones
  std::uint64_t mismatch_at_ = 0;
  std::size_t live_fibers_ = 0;
  bool running_ = false;
  bool stopping_ = false;
  StopReason reason_ = StopReason::kNobodyLeft;
  std::vector<Fiber*> ready_;  // in the order in which they became ready
};

}  // namespace tpsync::sim
