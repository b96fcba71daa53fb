// Processes of the simulated world: starting, ending, signals, the run and its end.
#include "sim/world.h"

#include <algorithm>
#include <charconv>

#include "sim/channel.h"
#include "sim/device.h"
#include "sim/groups.h"
#include "sim/sanitizers.h"
#include "sim/seams.h"

namespace tpsync::sim {

namespace {

constexpr std::int64_t kFirstPid = 1000;

int rank_from(Arguments arguments) {
  for (std::size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (arguments[i] != "--rank") continue;
    int rank = 0;
    const std::string& text = arguments[i + 1];
    std::from_chars(text.data(), text.data() + text.size(), rank);
    return rank;
  }
  return 0;
}

}  // namespace

// A child whose parent ended is told to die a little later.
class SimWorld::ParentDeath final : public TimerTarget {
 public:
  explicit ParentDeath(SimWorld& world) : world_(world) {}
  bool timer_live(std::uint64_t argument) const override {
    return world_.processes_[argument]->alive();
  }
  void on_timer(std::uint64_t argument) override {
    SimProcess& process = *world_.processes_[argument];
    world_.record_for(&process, EventKind::kProcessOrphaned);
    world_.end_process(process, {Outcome::Kind::kKilled, kSignalKill, {}});
  }

 private:
  SimWorld& world_;
};

SimWorld::SimWorld(SimConfig config, Pools& pools, Hooks hooks)
    : config_(std::move(config)),
      pools_(pools),
      hooks_(std::move(hooks)),
      scheduler_(config_, pools_.trace, pools_),
      channels_(std::make_unique<ChannelSystem>(*this)),
      devices_(std::make_unique<DeviceSystem>(*this)),
      groups_(std::make_unique<GroupSystem>(*this)),
      parent_death_(std::make_unique<ParentDeath>(*this)) {
  pools_.trace.clear();
  pools_.trace.seed = config_.seed;
  processes_.reserve(16);
}

SimWorld::~SimWorld() {
  closing_ = true;
  for (auto& process : processes_) {
    process->dead_ = true;
    for (Fiber* fiber : process->fibers_) scheduler_.detach(*fiber);
  }
  for (auto& process : processes_) unwind_fibers(*process);
  for (auto& process : processes_) {
    process->channel_.reset();
    process->kept_.clear();
  }
  groups_->closing();
  processes_.clear();
}

std::vector<std::unique_ptr<collective::ControlGroup>> SimWorld::make_control_group(
    std::span<SimProcess* const> members) {
  return groups_->make_control(members);
}

std::vector<std::unique_ptr<collective::ShardGroup>> SimWorld::make_shard_group(
    std::span<SimProcess* const> members) {
  return groups_->make_shard(members);
}

void SimWorld::register_program(std::string name, Program program) {
  programs_.emplace_back(std::move(name), std::move(program));
}

SimProcess& SimWorld::make_process(std::string_view role, int rank, std::size_t device,
                                   SimProcess* parent) {
  const auto index = static_cast<std::uint32_t>(processes_.size());
  TPSYNC_ASSERT(index < kMaxProcesses);
  TPSYNC_ASSERT(device < config_.devices.size());
  std::uint64_t incarnation = 0;
  for (const auto& other : processes_)
    if (other->role_ == role && other->rank_ == rank) ++incarnation;
  SimProcess& process = *processes_.emplace_back(std::make_unique<SimProcess>(*this, index));
  process.role_ = role;
  process.rank_ = rank;
  process.device_index_ = device;
  process.parent_ = parent;
  process.pid_ = kFirstPid + index;
  process.group_ = process.pid_;
  process.key_ = component_key(role, static_cast<std::uint64_t>(rank), incarnation);
  if (parent != nullptr) parent->release_clock(process.clock_);
  process.clock_.tick(index);
  record_for(&process, EventKind::kProcessStart, static_cast<std::uint64_t>(rank),
             parent != nullptr ? parent->index_ + 1 : 0, device, pools_.trace.texts.intern(role));
  return process;
}

void SimWorld::install_seams(SimProcess& process) {
  process.bundle_ = std::make_unique<SeamBundle>(process);
  process.sim_device_ = std::make_unique<SimDevice>(process, *devices_);
  SeamBundle& bundle = *process.bundle_;
  SeamSet set{&bundle.clock,  &bundle.channels, &bundle.processes, &bundle.host,
              &bundle.random, &bundle.log,      &bundle.threads,   process.sim_device_.get()};
  if (hooks_.process_created) hooks_.process_created(process, set);
  process.seams_.emplace(World{*set.clock, *set.channels, *set.processes, *set.host, *set.random,
                               *set.log, *set.threads});
  process.device_ = set.device;
}

void SimWorld::run_body(SimProcess& process, const Body& body) {
  if (process.dead_) return;
  Outcome outcome;
  try {
    outcome.code = body(process);
    outcome.kind = Outcome::Kind::kExited;
  } catch (const Killed&) {
    return;
  } catch (const std::exception& error) {
    outcome.kind = Outcome::Kind::kCrashed;
    outcome.code = kSignalAbort;
    outcome.error = to_text(record_of(error));
  }
  if (process.dead_) return;
  end_process(process, std::move(outcome));
}

void SimWorld::start_main(SimProcess& process, Body body) {
  Fiber& fiber =
      scheduler_.make_fiber(process, process.index_, 0,
                            [this, &process, main = std::move(body)] { run_body(process, main); });
  process.fibers_.push_back(&fiber);
}

SimProcess& SimWorld::start_process(std::string_view role, int rank, std::size_t device,
                                    Body body) {
  SimProcess& process = make_process(role, rank, device, nullptr);
  install_seams(process);
  start_main(process, std::move(body));
  return process;
}

SimProcess& SimWorld::spawn(SimProcess& parent, SpawnRequest& request) {
  const auto found = std::find_if(programs_.begin(), programs_.end(), [&](const auto& entry) {
    return entry.first == request.program;
  });
  if (found == programs_.end()) throw_broken(ErrorKind::kIo, request.program, "no such program");
  const Program& program = found->second;
  const int rank = program.rank ? program.rank(request.arguments) : rank_from(request.arguments);
  const std::size_t device =
      program.device ? program.device(request.arguments)
                     : std::min<std::size_t>(static_cast<std::size_t>(std::max(rank, 0)),
                                             config_.devices.size() - 1);
  SimProcess& child = make_process(program.role, rank, device, &parent);
  child.spawned_ = true;
  child.arguments_ = std::move(request.arguments);
  child.environment_ = std::move(request.environment);
  if (!request.own_group) child.group_ = parent.group_;
  install_seams(child);
  if (request.channel) child.channel_ = channels_->hand_over(std::move(request.channel), child);
  sanitizer_release(&child);
  start_main(child, program.body);
  return child;
}

void SimWorld::run_thread(SimProcess& process, const std::function<void()>& body) {
  if (process.dead_) return;
  try {
    body();
  } catch (const Killed&) {
    return;
  } catch (const std::exception& error) {
    end_process(process, {Outcome::Kind::kCrashed, kSignalAbort, to_text(record_of(error))});
  }
}

void SimWorld::start_thread(SimProcess& process, std::function<void()> body, Fiber*& fiber) {
  const HarnessAccess harness;
  const auto thread = static_cast<std::uint16_t>(process.fibers_.size());
  fiber = &scheduler_.make_fiber(process, process.index_, thread,
                                 [this, &process, run = std::move(body)] {
                                   run_thread(process, run);
                                   if (process.dead_)
                                     unwind_below(process, scheduler_.current()->thread);
                                   sanitizer_release(scheduler_.current());
                                 });
  process.fibers_.push_back(fiber);
}

// The latest thread first: a thread uses what lies on the stack of whoever started it. If the
// running fiber is one of them, those started before it follow when it has ended.
void SimWorld::unwind_fibers(SimProcess& process) {
  for (Fiber* fiber : process.fibers_) scheduler_.detach(*fiber);
  unwind_below(process, process.fibers_.size());
}

void SimWorld::unwind_below(SimProcess& process, std::size_t count) {
  while (count > 0) {
    Fiber& fiber = *process.fibers_[--count];
    scheduler_.unwind(fiber);
    if (&fiber == scheduler_.current() && fiber.state != Fiber::State::kEnded) return;
  }
}

void SimWorld::end_process(SimProcess& process, Outcome outcome) {
  const HarnessAccess harness;
  if (!process.alive()) return;
  process.dead_ = true;
  process.state_ = process.spawned_ && process.parent_ != nullptr && process.parent_->alive()
                       ? SimProcess::State::kZombie
                       : SimProcess::State::kReaped;
  switch (outcome.kind) {
    case Outcome::Kind::kExited:
      record_for(&process, EventKind::kProcessExit, static_cast<std::uint64_t>(outcome.code));
      break;
    case Outcome::Kind::kCrashed:
      crashed_ = true;
      crash_ = process.role_ + " " + std::to_string(process.rank_) + ": " + outcome.error;
      record_for(&process, EventKind::kProcessCrash, 0, 0, 0,
                 pools_.trace.texts.intern(outcome.error));
      break;
    default: {
      const SimProcess* killer = current_process();
      record_for(&process, EventKind::kProcessKill, static_cast<std::uint64_t>(outcome.code),
                 killer != nullptr ? killer->index() + 1 : 0);
      break;
    }
  }
  process.outcome_ = std::move(outcome);
  channels_->process_ended(process);
  process.descriptors_.clear();
  devices_->process_ended(process);
  groups_->process_ended(process);
  for (auto& child : processes_) {
    if (child->parent_ != &process) continue;
    if (child->state_ == SimProcess::State::kZombie) {
      child->state_ = SimProcess::State::kReaped;
    } else if (child->alive() && child->spawned_ && config_.cruelty.children_die_with_parent) {
      scheduler_.add_timer(
          now() + within(child->next_draw(Purpose::kParentDeath), config_.parent_death_ns),
          *parent_death_, child->index_);
    }
  }
  sanitizer_release(&process);
  scheduler_.wake(process.exited_);
  unwind_fibers(process);
}

void SimWorld::kill(SimProcess& process) {
  end_process(process, {Outcome::Kind::kKilled, kSignalKill, {}});
}

void SimWorld::exit(SimProcess& process, int status) {
  end_process(process, {Outcome::Kind::kExited, status, {}});
}

void SimWorld::terminate(SimProcess& process) {
  if (!process.alive()) return;
  if (process.stopped()) {
    process.pending_terminate_ = true;
    return;
  }
  end_process(process, {Outcome::Kind::kKilled, kSignalTerminate, {}});
}

void SimWorld::stop(SimProcess& process) {
  const HarnessAccess harness;
  if (process.state_ != SimProcess::State::kRunning) return;
  process.state_ = SimProcess::State::kStopped;
  record_for(&process, EventKind::kProcessStop);
  for (Fiber* fiber : process.fibers_) scheduler_.hold(*fiber);
}

void SimWorld::resume(SimProcess& process) {
  const HarnessAccess harness;
  if (process.state_ != SimProcess::State::kStopped) return;
  process.state_ = SimProcess::State::kRunning;
  record_for(&process, EventKind::kProcessResume);
  if (process.pending_terminate_) {
    end_process(process, {Outcome::Kind::kKilled, kSignalTerminate, {}});
    return;
  }
  for (Fiber* fiber : process.fibers_) scheduler_.release(*fiber);
}

void SimWorld::give_way(SimProcess& process) {
  const HarnessAccess harness;
  if (!process.dead_ && process.in_own_fiber()) scheduler_.yield();
  if (process.dead_ && process.in_own_fiber()) throw Killed{};
}

bool SimWorld::signal(SimProcess& target, Signal signal) {
  if (!target.alive()) return false;
  if (signal == Signal::kKill)
    kill(target);
  else
    terminate(target);
  return true;
}

bool SimWorld::signal_group(std::int64_t group, Signal number) {
  bool any = false;
  for (std::size_t i = 0; i < processes_.size(); ++i)
    if (processes_[i]->group_ == group && signal(*processes_[i], number)) any = true;
  return any;
}

bool SimWorld::group_alive(std::int64_t group) const {
  return std::any_of(processes_.begin(), processes_.end(), [&](const auto& process) {
    return process->group_ == group && process->alive();
  });
}

void SimWorld::reap(SimProcess& child, SimProcess& parent) {
  if (child.state_ != SimProcess::State::kZombie) return;
  child.state_ = SimProcess::State::kReaped;
  record_for(&child, EventKind::kProcessReaped, parent.index_);
}

SimProcess* SimWorld::by_pid(std::int64_t pid) {
  const std::int64_t index = pid - kFirstPid;
  if (index < 0 || index >= static_cast<std::int64_t>(processes_.size())) return nullptr;
  return processes_[static_cast<std::size_t>(index)].get();
}

SimProcess* SimWorld::find(std::string_view role, int rank) {
  for (auto process = processes_.rbegin(); process != processes_.rend(); ++process)
    if ((*process)->role_ == role && (*process)->rank_ == rank) return process->get();
  return nullptr;
}

SimProcess* SimWorld::current_process() const {
  const Fiber* fiber = scheduler_.current();
  return fiber != nullptr ? fiber->process : nullptr;
}

void SimWorld::record(std::uint16_t kind, std::uint64_t a, std::uint64_t b, std::uint64_t c,
                      std::string_view text) {
  const HarnessAccess harness;
  record_for(current_process(), static_cast<EventKind>(kind), a, b, c,
             pools_.trace.texts.intern(text));
}

void SimWorld::record_for(const SimProcess* process, EventKind kind, std::uint64_t a,
                          std::uint64_t b, std::uint64_t c, std::uint32_t text,
                          std::uint16_t result) {
  const HarnessAccess harness;
  if (closing_) return;
  Event& event = pools_.trace.events.emplace_back();
  event.time = scheduler_.now();
  event.end = event.time;
  event.a = a;
  event.b = b;
  event.c = c;
  event.text = text;
  event.kind = static_cast<std::uint16_t>(kind);
  event.result = result;
  if (process != nullptr) {
    event.process = process->index_;
    event.phase = process->phase_text_;
    event.chunk = process->chunk_;
  }
}

void SimWorld::violation(const SimProcess* process, std::string_view name, std::uint64_t a,
                         std::uint64_t b, std::uint64_t c) {
  const HarnessAccess harness;
  if (closing_) return;
  violations_.emplace_back(name);
  record_for(process, EventKind::kViolation, a, b, c, pools_.trace.texts.intern(name));
}

void SimWorld::harness_error(std::string detail) {
  const HarnessAccess harness;
  if (harness_error_.empty()) harness_error_ = std::move(detail);
}

RunResult SimWorld::run() {
  TPSYNC_ASSERT(!ran_);
  ran_ = true;
  StopReason reason = scheduler_.run();
  // A process that was stopped and that nobody resumes would stay for ever. When all others are
  // done, somebody ends it, as an operator would.
  while (reason == StopReason::kStuck && kill_stopped()) reason = scheduler_.run();
  record_counters();
  RunResult result;
  if (!harness_error_.empty()) {
    result = {RunResult::Kind::kHarnessError, harness_error_, 0};
  } else if (crashed_) {
    result = {RunResult::Kind::kCrash, crash_, 0};
  } else if (reason == StopReason::kReplayMismatch) {
    result = {RunResult::Kind::kReplayMismatch, "a choice has other candidates than recorded",
              scheduler_.mismatch_at()};
  } else if (reason == StopReason::kStepLimit) {
    result = {RunResult::Kind::kHang, "the step limit was reached", 0};
  } else if (reason == StopReason::kStuck) {
    std::string who;
    for (const auto& process : processes_)
      if (process->alive())
        who += (who.empty() ? "" : ", ") + process->role_ + " " + std::to_string(process->rank_) +
               (process->stopped() ? " (stopped)" : "");
    result = {RunResult::Kind::kHang, "nobody can go on: " + who, 0};
  }
  return result;
}

bool SimWorld::kill_stopped() {
  bool any = false;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    if (!processes_[i]->stopped()) continue;
    kill(*processes_[i]);
    any = true;
  }
  return any;
}

void SimWorld::record_counters() {
  std::uint64_t live = 0;
  std::uint64_t zombies = 0;
  std::uint64_t descriptors = 0;
  for (const auto& process : processes_) {
    live += process->alive() ? 1 : 0;
    zombies += process->state_ == SimProcess::State::kZombie ? 1 : 0;
    descriptors += process->descriptors_.size();
  }
  const auto counter = [this](std::string_view name, std::uint64_t value) {
    record_for(nullptr, EventKind::kKernelCounter, value, 0, 0, pools_.trace.texts.intern(name));
  };
  counter("processes.live", live);
  counter("processes.zombies", zombies);
  counter("channels.open_ends", channels_->open_ends());
  counter("descriptors", descriptors);
  counter("fibers", scheduler_.live_fibers());
  devices_->record_counters();
}

}  // namespace tpsync::sim
