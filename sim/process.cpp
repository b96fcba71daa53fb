// One simulated process: what every seam operation does first and last, phases, descriptors.
#include <algorithm>

#include "sim/device.h"
#include "sim/sanitizers.h"
#include "sim/seams.h"
#include "sim/world.h"

namespace tpsync::sim {

SimProcess::SimProcess(SimWorld& world, std::uint32_t index) : world_(world), index_(index) {
  phases_ = world_.pools().take_phases();
  phases_.emplace_back();
}

SimProcess::~SimProcess() { world_.pools().give_phases(std::move(phases_)); }

std::string_view SimProcess::phase() const { return world_.pools_.trace.texts.at(phase_text_); }

std::uint32_t SimProcess::occurrences(Op op) const {
  return phases_[phase_slot_].occurrences[static_cast<std::size_t>(op)];
}

void SimProcess::set_phase(std::string_view name, std::int32_t number) {
  const HarnessAccess harness;
  phase_text_ = world_.trace().texts.intern(name);
  chunk_ = number;
  for (std::size_t i = 0; i < phases_.size(); ++i) {
    if (phases_[i].phase == phase_text_ && phases_[i].chunk == number) {
      phase_slot_ = i;
      return;
    }
  }
  phase_slot_ = phases_.size();
  PhaseCounts& slot = phases_.emplace_back();
  slot.phase = phase_text_;
  slot.chunk = number;
}

int SimProcess::open_descriptor(std::uint64_t object) {
  const HarnessAccess harness;
  const int number = next_descriptor_++;
  descriptors_.push_back({number, object});
  world_.record_for(this, EventKind::kDescriptorGot, static_cast<std::uint64_t>(number), object);
  return number;
}

void SimProcess::close_descriptor(int descriptor) noexcept {
  const HarnessAccess harness;
  if (dead_) return;
  const auto found =
      std::find_if(descriptors_.begin(), descriptors_.end(),
                   [&](const Descriptor& entry) { return entry.number == descriptor; });
  if (found == descriptors_.end()) return;
  world_.record_for(this, EventKind::kDescriptorClosed, static_cast<std::uint64_t>(descriptor),
                    found->object);
  descriptors_.erase(found);
}

std::optional<std::uint64_t> SimProcess::descriptor_object(int descriptor) const {
  for (const Descriptor& entry : descriptors_)
    if (entry.number == descriptor) return entry.object;
  return std::nullopt;
}

bool SimProcess::in_own_fiber() const {
  const Fiber* fiber = world_.scheduler_.current();
  return fiber != nullptr && fiber->process == this;
}

std::uint64_t SimProcess::next_draw(Purpose purpose) {
  return draw(world_.config_.seed, key_, purpose, draws_[static_cast<std::size_t>(purpose)]++);
}

void SimProcess::release_clock(VectorClock& into) {
  into = clock_;
  clock_.tick(index_);
}

void SimProcess::dead_operation() {
  ++dead_operations_;
  if (dead_operations_ > world_.config_.dead_operation_limit && in_own_fiber()) {
    world_.harness_error("kill swallowed at " + std::string(role_) + " " + std::to_string(rank_) +
                         ", phase " + std::string(phase()));
    world_.scheduler_.abandon_current();
  }
}

std::optional<std::size_t> SimProcess::begin_quiet(Op op, std::uint64_t a, std::uint64_t b,
                                                   std::uint64_t c) noexcept {
  if (dead_) {
    dead_operation();
    return std::nullopt;
  }
  std::uint16_t thread = 0;
  if (in_own_fiber()) {
    Scheduler& scheduler = world_.scheduler_;
    scheduler.advance(within(next_draw(Purpose::kOpCost), world_.config_.op_cost_ns));
    scheduler.yield();
    if (dead_) return std::nullopt;
    thread = scheduler.current()->thread;
  }
  const auto number = static_cast<std::size_t>(op);
  std::vector<Event>& events = world_.pools_.trace.events;
  Event& event = events.emplace_back();
  event.time = world_.scheduler_.now();
  event.end = -1;
  event.a = a;
  event.b = b;
  event.c = c;
  event.process = index_;
  event.phase = phase_text_;
  event.chunk = chunk_;
  event.occurrence = phases_[phase_slot_].occurrences[number]++;
  event.kind = static_cast<std::uint16_t>(EventKind::kOp);
  event.op = static_cast<std::uint16_t>(op);
  event.result = kPending;
  event.thread = thread;
  return events.size() - 1;
}

std::size_t SimProcess::begin(Op op, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  const auto index = begin_quiet(op, a, b, c);
  if (!index) throw Killed{};
  return *index;
}

Event& SimProcess::event(std::size_t index) { return world_.pools_.trace.events[index]; }

void SimProcess::finish(std::size_t index, std::uint16_t result) {
  Event& record = event(index);
  record.end = world_.scheduler_.now();
  record.result = result;
}

void SimProcess::fail(std::size_t index, ErrorKind kind, std::string_view subject,
                      std::string_view detail) {
  finish(index, static_cast<std::uint16_t>(kind));
  throw_broken(kind, subject, detail);
}

void SimProcess::refuse(std::size_t index, std::string_view subject, std::string_view detail) {
  finish(index, static_cast<std::uint16_t>(ErrorKind::kProtocol));
  throw_violation(ErrorKind::kProtocol, subject, detail);
}

bool SimProcess::block_quiet(WaitQueue& queue, Deadline deadline) noexcept {
  if (!in_own_fiber()) {
    world_.harness_error("a blocking operation was called from outside of its process");
    return false;
  }
  const bool woken = world_.scheduler_.wait(queue, deadline.time().ns);
  return woken && !dead_;
}

bool SimProcess::block(WaitQueue& queue, Deadline deadline) {
  if (!in_own_fiber())
    throw_broken(ErrorKind::kInternal, "sim",
                 "a blocking operation was called from outside of its process");
  const bool woken = world_.scheduler_.wait(queue, deadline.time().ns);
  if (dead_) throw Killed{};
  return woken;
}

}  // namespace tpsync::sim
