// The scheduler: see the header for its rules.
#include "sim/scheduler.h"

#include <algorithm>
#include <cstdlib>

#include "sim/sanitizers.h"
#include "tpsync/base/errors.h"

namespace tpsync::sim {

namespace {

bool later(const Timer& a, const Timer& b) {
  if (a.time != b.time) return a.time > b.time;
  if (a.order != b.order) return a.order > b.order;
  return a.serial > b.serial;
}

}  // namespace

Pools::Pools() = default;
Pools::~Pools() = default;

std::vector<std::byte> Pools::take_buffer(std::size_t bytes) {
  std::vector<std::byte> buffer;
  if (!buffers_.empty()) {
    buffer = std::move(buffers_.back());
    buffers_.pop_back();
  }
  buffer.resize(bytes);
  return buffer;
}

void Pools::give_buffer(std::vector<std::byte> buffer) {
  constexpr std::size_t kKept = 256;
  constexpr std::size_t kLargestKept = std::size_t{1} << 20;
  if (buffers_.size() < kKept && buffer.capacity() != 0 && buffer.capacity() <= kLargestKept)
    buffers_.push_back(std::move(buffer));
}

std::vector<PhaseCounts> Pools::take_phases() {
  std::vector<PhaseCounts> phases;
  if (phases_.empty()) return phases;
  phases = std::move(phases_.back());
  phases_.pop_back();
  return phases;
}

void Pools::give_phases(std::vector<PhaseCounts> phases) {
  phases.clear();
  phases_.push_back(std::move(phases));
}

void Fiber::on_timer(std::uint64_t) {
  timed_out = true;
  scheduler->leave_queue(*this);
  scheduler->make_ready(*this);
}

Scheduler::Scheduler(const SimConfig& config, Trace& trace, Pools& pools)
    : config_(config), trace_(trace), pools_(pools) {
  pools_.timers.clear();
  pools_.deadlines.clear();
  pools_.fibers_used = 0;
  root_.state = Fiber::State::kRunning;
  switcher_.adopt(root_.context);
}

Scheduler::~Scheduler() {
  for (std::size_t i = 0; i < pools_.fibers_used; ++i) {
    Fiber& fiber = *pools_.fibers[i];
    // An abandoned fiber is still inside an operation: the sanitizer would report its end.
    if (!fiber.abandoned) switcher_.discard(fiber.context);
    if (fiber.context.stack.low != nullptr) pools_.stacks.give(fiber.context.stack);
    fiber.context.stack = {};
    fiber.body = nullptr;
  }
  pools_.fibers_used = 0;
}

Fiber& Scheduler::make_fiber(SimProcess& process, std::uint32_t process_index, std::uint16_t thread,
                             std::function<void()> body) {
  if (pools_.fibers_used == pools_.fibers.size())
    pools_.fibers.push_back(std::make_unique<Fiber>());
  Fiber& fiber = *pools_.fibers[pools_.fibers_used++];
  fiber.scheduler = this;
  fiber.process = &process;
  fiber.identity = process_index * 64 + thread;
  fiber.thread = thread;
  fiber.timed_out = false;
  fiber.held = false;
  fiber.abandoned = false;
  fiber.lowered = 0;
  fiber.wait_number = 0;
  fiber.queue = nullptr;
  fiber.return_to = nullptr;
  fiber.ended.fibers_.clear();
  fiber.body = std::move(body);
  switcher_.prepare(fiber.context, pools_.stacks.take(), &Scheduler::fiber_main, &fiber);
  ++live_fibers_;
  fiber.state = Fiber::State::kBlocked;
  make_ready(fiber);
  return fiber;
}

void Scheduler::fiber_main(void* argument) {
  Fiber& fiber = *static_cast<Fiber*>(argument);
  sanitizer_acquire(&fiber.scheduler->root_);
  fiber.body();
  fiber.body = nullptr;
  fiber.scheduler->finish_current();
}

void Scheduler::finish_current() {
  Fiber& fiber = *current_;
  fiber.state = Fiber::State::kEnded;
  fiber.context.finished = true;
  --live_fibers_;
  Fiber* next = fiber.return_to;
  {
    const HarnessAccess harness;
    wake(fiber.ended);
    if (next == nullptr) next = pick();
  }
  current_ = next;
  next->state = Fiber::State::kRunning;
  sanitizer_release(this);
  switcher_.switch_to(fiber.context, next->context);
  std::abort();
}

void Scheduler::abandon_current() {
  current_->abandoned = true;
  stop(StopReason::kAbandoned);
  finish_current();
}

StopReason Scheduler::run() {
  stopping_ = false;
  running_ = true;
  reason_ = StopReason::kNobodyLeft;
  sanitizer_release(&root_);  // what was built before the run is known to every fiber
  Fiber* next = pick();
  if (next != &root_) switch_to(*next);
  running_ = false;
  if (reason_ == StopReason::kNobodyLeft && live_fibers_ != 0) return StopReason::kStuck;
  return reason_;
}

void Scheduler::stop(StopReason reason) {
  if (stopping_) return;
  stopping_ = true;
  reason_ = reason;
}

void Scheduler::switch_to(Fiber& next) {
  Fiber& from = *current_;
  current_ = &next;
  next.state = Fiber::State::kRunning;
  switcher_.switch_to(from.context, next.context);
  // Whoever made the world goes on after the fibers that have ended: it reads what they left, frees
  // it, and hands their stacks to the next world.
  if (&from == &root_) sanitizer_acquire(this);
}

void Scheduler::yield() {
  ++steps_;
  if (steps_ > config_.step_limit) stop(StopReason::kStepLimit);
  const Timer* first = first_timer();
  const bool due = first != nullptr && first->time <= now_;
  Fiber& self = *current_;
  if (!due && ready_.empty() && !stopping_ && !self.held) return;
  self.state = Fiber::State::kReady;
  if (!self.held) ready_.push_back(&self);
  Fiber* next = pick();
  if (next == &self) {
    self.state = Fiber::State::kRunning;
    return;
  }
  switch_to(*next);
}

bool Scheduler::wait(WaitQueue& queue, std::int64_t deadline_ns) {
  Fiber& self = *current_;
  ++self.wait_number;
  self.timed_out = false;
  if (deadline_ns != INT64_MAX) add_deadline(deadline_ns, self);
  self.state = Fiber::State::kBlocked;
  self.queue = &queue;
  queue.fibers_.push_back(&self);
  Fiber* next = pick();
  if (next == &self)
    self.state = Fiber::State::kRunning;
  else
    switch_to(*next);
  return !self.timed_out;
}

bool Scheduler::sleep_until(std::int64_t time_ns) {
  WaitQueue nobody;
  return wait(nobody, time_ns);
}

void Scheduler::wake(WaitQueue& queue) {
  if (queue.fibers_.empty()) return;
  for (Fiber* fiber : queue.fibers_) {
    fiber->queue = nullptr;
    make_ready(*fiber);
  }
  queue.fibers_.clear();
}

void Scheduler::make_ready(Fiber& fiber) {
  fiber.state = Fiber::State::kReady;
  if (!fiber.held) ready_.push_back(&fiber);
}

void Scheduler::remove_ready(Fiber& fiber) {
  const auto found = std::find(ready_.begin(), ready_.end(), &fiber);
  if (found != ready_.end()) ready_.erase(found);
}

void Scheduler::leave_queue(Fiber& fiber) {
  if (fiber.queue == nullptr) return;
  auto& fibers = fiber.queue->fibers_;
  fibers.erase(std::find(fibers.begin(), fibers.end(), &fiber));
  fiber.queue = nullptr;
}

void Scheduler::hold(Fiber& fiber) {
  if (fiber.held || fiber.state == Fiber::State::kEnded) return;
  fiber.held = true;
  if (fiber.state == Fiber::State::kReady) remove_ready(fiber);
}

void Scheduler::release(Fiber& fiber) {
  if (!fiber.held) return;
  fiber.held = false;
  if (fiber.state == Fiber::State::kReady) ready_.push_back(&fiber);
}

void Scheduler::detach(Fiber& fiber) {
  if (fiber.state == Fiber::State::kEnded) return;
  leave_queue(fiber);
  remove_ready(fiber);
  fiber.held = false;
  ++fiber.wait_number;  // its timers are pointless now
}

void Scheduler::unwind(Fiber& fiber) {
  if (fiber.state == Fiber::State::kEnded) return;
  detach(fiber);
  if (&fiber == current_) {
    // It is running, or picking its successor: then it must unwind before that one runs.
    if (fiber.state != Fiber::State::kRunning) must_run_ = &fiber;
    return;
  }
  if (fiber.body != nullptr && fiber.state != Fiber::State::kEnded) {
    fiber.return_to = current_;
    const Fiber::State state = current_->state;
    Fiber& self = *current_;
    switch_to(fiber);
    self.state = state;
    current_ = &self;
  }
}

Timer Scheduler::made_timer(std::int64_t time_ns, TimerTarget& target, std::uint64_t argument) {
  const std::uint64_t serial = timers_made_++;
  const std::uint64_t order =
      config_.cruelty.shuffled_times ? draw(config_.seed, 0, Purpose::kTimerOrder, serial) : 0;
  return Timer{time_ns, order, serial, &target, argument};
}

void Scheduler::add_timer(std::int64_t time_ns, TimerTarget& target, std::uint64_t argument) {
  pools_.timers.push_back(made_timer(time_ns, target, argument));
  std::push_heap(pools_.timers.begin(), pools_.timers.end(), later);
}

// Nearly every wait is over long before its deadline, and a wait that is over never comes back:
// such deadlines are thrown away in bulk, before they make the heap deep.
void Scheduler::add_deadline(std::int64_t time_ns, Fiber& fiber) {
  constexpr std::size_t kSlack = 32;
  if (pools_.deadlines.size() >= 2 * deadlines_kept_ + kSlack) drop_dead_deadlines();
  pools_.deadlines.push_back(made_timer(time_ns, fiber, fiber.wait_number));
  std::push_heap(pools_.deadlines.begin(), pools_.deadlines.end(), later);
}

void Scheduler::drop_dead_deadlines() {
  std::erase_if(pools_.deadlines,
                [](const Timer& timer) { return !timer.target->timer_live(timer.argument); });
  std::make_heap(pools_.deadlines.begin(), pools_.deadlines.end(), later);
  deadlines_kept_ = pools_.deadlines.size();
}

const Timer* Scheduler::first_timer() const {
  const Timer* timer = pools_.timers.empty() ? nullptr : &pools_.timers.front();
  const Timer* deadline = pools_.deadlines.empty() ? nullptr : &pools_.deadlines.front();
  if (timer == nullptr || deadline == nullptr) return timer != nullptr ? timer : deadline;
  return later(*timer, *deadline) ? deadline : timer;
}

void Scheduler::fire_first() {
  const bool deadline = pools_.timers.empty() || first_timer() != &pools_.timers.front();
  std::vector<Timer>& heap = deadline ? pools_.deadlines : pools_.timers;
  std::pop_heap(heap.begin(), heap.end(), later);
  const Timer timer = heap.back();
  heap.pop_back();
  if (!timer.target->timer_live(timer.argument)) return;
  now_ = std::max(now_, timer.time);
  timer.target->on_timer(timer.argument);
}

void Scheduler::fire_due() {
  for (const Timer* first = first_timer();
       must_run_ == nullptr && first != nullptr && first->time <= now_; first = first_timer())
    fire_first();
}

std::uint64_t Scheduler::priority_of(const Fiber& fiber) const {
  if (fiber.lowered != 0) return fiber.lowered;
  constexpr std::uint64_t kAboveAllLowered = std::uint64_t{1} << 63;
  return kAboveAllLowered |
         draw(config_.seed, mix(config_.schedule) ^ fiber.identity, Purpose::kPriority, 0);
}

std::size_t Scheduler::highest() const {
  std::size_t best = 0;
  for (std::size_t i = 1; i < ready_.size(); ++i) {
    if (priority_of(*ready_[i]) > priority_of(*ready_[best])) best = i;
  }
  return best;
}

std::size_t Scheduler::choose_by_priority(std::uint64_t number) {
  for (std::uint32_t change = 0; change < config_.priority_changes; ++change) {
    const std::uint64_t word =
        draw(config_.seed, mix(config_.schedule), Purpose::kPriorityChange, change);
    if (below(word, config_.priority_choices) == number) ready_[highest()]->lowered = change + 1;
  }
  return highest();
}

std::size_t Scheduler::choose(std::size_t count) {
  std::uint32_t candidates = 2166136261u;
  for (const Fiber* fiber : ready_) candidates = (candidates ^ fiber->identity) * 16777619u;
  const std::uint64_t number = choices_++;
  std::size_t chosen = 0;
  switch (config_.policy) {
    case Policy::kFirstReady:
      chosen = 0;
      break;
    case Policy::kLastReady:
      chosen = count - 1;
      break;
    case Policy::kSeeded:
      chosen = below(draw(config_.seed, config_.schedule, Purpose::kSchedule, number), count);
      break;
    case Policy::kPriority:
      chosen = choose_by_priority(number);
      break;
  }
  while (next_deviation_ < config_.deviations.size() &&
         config_.deviations[next_deviation_].choice < number)
    ++next_deviation_;
  if (next_deviation_ < config_.deviations.size() &&
      config_.deviations[next_deviation_].choice == number)
    chosen = std::min<std::size_t>(config_.deviations[next_deviation_].candidate, count - 1);
  if (!config_.replay.empty() && !stopping_) {
    const bool matches = number < config_.replay.size() && config_.replay[number].count == count &&
                         config_.replay[number].candidates == candidates &&
                         config_.replay[number].at_event == trace_.events.size();
    if (matches) {
      chosen = config_.replay[number].chosen;
    } else {
      mismatch_at_ = number;
      stop(StopReason::kReplayMismatch);
    }
  }
  trace_.choices.push_back(Choice{static_cast<std::uint32_t>(trace_.events.size()), candidates,
                                  static_cast<std::uint16_t>(count),
                                  static_cast<std::uint16_t>(chosen)});
  return chosen;
}

Fiber* Scheduler::pick() {
  for (;;) {
    if (must_run_ != nullptr) {
      Fiber* fiber = must_run_;
      must_run_ = nullptr;
      return fiber;
    }
    if (stopping_) return &root_;
    fire_due();
    if (must_run_ != nullptr) continue;
    if (!ready_.empty()) {
      const std::size_t count = ready_.size();
      const std::size_t index = count == 1 ? 0 : choose(count);
      if (stopping_) return &root_;
      Fiber* fiber = ready_[index];
      ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(index));
      return fiber;
    }
    if (pools_.timers.empty()) {
      drop_dead_deadlines();
      if (pools_.deadlines.empty()) return &root_;
    }
    fire_first();
  }
}

}  // namespace tpsync::sim
