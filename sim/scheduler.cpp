// The scheduler: see the header for its rules.
#include "sim/scheduler.h"

#include <algorithm>
#include <cstdlib>

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

void Fiber::on_timer(std::uint64_t) {
  timed_out = true;
  scheduler->leave_queue(*this);
  scheduler->make_ready(*this);
}

Scheduler::Scheduler(const SimConfig& config, Trace& trace, Pools& pools)
    : config_(config), trace_(trace), pools_(pools) {
  pools_.timers.clear();
  pools_.fibers_used = 0;
  root_.state = Fiber::State::kRunning;
  switcher_.adopt(root_.context);
}

Scheduler::~Scheduler() {
  for (std::size_t i = 0; i < pools_.fibers_used; ++i) {
    Fiber& fiber = *pools_.fibers[i];
    switcher_.discard(fiber.context);
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
  fiber.body();
  fiber.body = nullptr;
  fiber.scheduler->finish_current();
}

void Scheduler::finish_current() {
  Fiber& fiber = *current_;
  fiber.state = Fiber::State::kEnded;
  fiber.context.finished = true;
  --live_fibers_;
  wake(fiber.ended);
  Fiber* next = fiber.return_to != nullptr ? fiber.return_to : pick();
  current_ = next;
  next->state = Fiber::State::kRunning;
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
}

void Scheduler::yield() {
  ++steps_;
  if (steps_ > config_.step_limit) stop(StopReason::kStepLimit);
  const bool due = !pools_.timers.empty() && pools_.timers.front().time <= now_;
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
  if (deadline_ns != INT64_MAX) add_timer(deadline_ns, self, self.wait_number);
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

void Scheduler::add_timer(std::int64_t time_ns, TimerTarget& target, std::uint64_t argument) {
  const std::uint64_t serial = timers_made_++;
  const std::uint64_t order =
      config_.cruelty.shuffled_times ? draw(config_.seed, 0, Purpose::kTimerOrder, serial) : 0;
  pools_.timers.push_back(Timer{time_ns, order, serial, &target, argument});
  std::push_heap(pools_.timers.begin(), pools_.timers.end(), later);
}

void Scheduler::fire_first() {
  std::pop_heap(pools_.timers.begin(), pools_.timers.end(), later);
  const Timer timer = pools_.timers.back();
  pools_.timers.pop_back();
  if (!timer.target->timer_live(timer.argument)) return;
  now_ = std::max(now_, timer.time);
  timer.target->on_timer(timer.argument);
}

void Scheduler::fire_due() {
  while (must_run_ == nullptr && !pools_.timers.empty() && pools_.timers.front().time <= now_)
    fire_first();
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
      chosen = below(draw(config_.seed, 0, Purpose::kSchedule, number), count);
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
    if (pools_.timers.empty()) return &root_;
    fire_first();
  }
}

}  // namespace tpsync::sim
