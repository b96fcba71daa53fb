#include "conformance/process/process_run.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>

#include "conformance/process/child.h"
#include "conformance/process/event_stream.h"
#include "conformance/process/hardware.h"
#include "conformance/process/process_world.h"
#include "conformance/process/world_groups.h"
#include "conformance/world/actor.h"
#include "conformance/world/claimed_uuid.h"
#include "tpsync/base/errors.h"
#include "tpsync/base/testing/temporary_folder.h"
#include "tpsync/device/host_device.h"
#include "tpsync/device/host_memory.h"
#include "tpsync/rollout/environment.h"

namespace tpsync::conformance {

namespace {

constexpr std::uint64_t kAmpleDevice = 1ULL << 40;
constexpr std::int64_t kSecond = 1'000'000'000;
// An end is known at once, but a loaded machine takes its time to say so.
constexpr const char* kParameters = "notice_ns=8000000000\nslack_ns=2000000000\n";
// For processes to end once the actors have: the kill routine and a little.
constexpr std::int64_t kLeaveNs = 12 * kSecond;

struct ActorSetting {
  const WorldFolder& folder;
  const WrittenWorld& world;
  const SimOptions& options;
  const Script& script;
  const std::string& runtime_program;
};

// Of the runtime, whose workers get the same; with how a sanitizer reports, so that what it finds
// in them ends them and shows.
Environment environment_of(Host& host, const WrittenWorld& world) {
  std::vector<std::string> devices;
  for (const std::string& uuid : world.gpus) devices.push_back("GPU-" + uuid);
  for (int rank = 0; world.gpus.empty() && rank < world.spec.tp; ++rank)
    devices.push_back(std::to_string(rank));
  rollout::RuntimeEnvironment own{.devices = devices};
  for (const char* name : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"})
    if (const auto value = host.environment(name)) own.extras.emplace_back(name, *value);
  return rollout::runtime_environment(host.environment(), own);
}

int run_actor(const ActorSetting& setting, int rank, std::int64_t parent) {
  const WorldSpec& spec = setting.world.spec;
  ProcessSeams seams(setting.folder, {"actor", rank, rank, getpid(), parent}, setting.world);
  const std::unique_ptr<Hardware> hardware = open_hardware(setting.world, rank);
  device::Device* device = &seams.device(hardware->device(), rank);
  std::optional<ClaimedUuid> claimed;
  if (!spec.actor_uuids.empty())
    device = &claimed.emplace(*device, spec.actor_uuids[static_cast<std::size_t>(rank)]);
  {
    WorldGroups groups(setting.folder, spec, rank, seams.world(), *hardware);
    std::uint64_t controls = 0;
    std::uint64_t shards = 0;
    ActorPorts ports{.world = seams.world(),
                     .device = *device,
                     .rank = rank,
                     .recorder = seams.recorder(),
                     .content = hardware->content()};
    ports.join_control = [&] { return seams.group(groups.control(), 2 * controls++ + 1); };
    ports.join_shards = [&] { return seams.group(groups.shards(*device), 2 * shards++); };
    ports.runtime = [&](std::int64_t version) {
      SpawnRequest request;
      request.program = setting.runtime_program;
      request.arguments = runtime_arguments(setting.folder, std::to_string(version));
      request.environment = environment_of(seams.world().host, setting.world);
      request.log_path = setting.folder.log("runtime");
      return request;
    };
    if (faults::ProcessFaults* faults = seams.faults().faults(); faults != nullptr)
      ports.wrap_source = [faults](transfer::WeightSource& source) {
        return faults->weight_source(source);
      };
    if (setting.options.wrap_source)
      ports.wrap_source = [&](transfer::WeightSource& source) {
        return setting.options.wrap_source(rank, source);
      };
    ports.observe = [&](std::int64_t version) {
      for (int r = 0; r < spec.tp; ++r) {
        const auto lane = hardware->observed_lane(setting.folder, r);
        if (!lane) continue;
        seams.recorder().record(judge::Record::kResident, static_cast<std::uint64_t>(r),
                                static_cast<std::uint64_t>(*lane),
                                static_cast<std::uint64_t>(version));
      }
    };
    ports.heal = [&] { seams.faults().heal(); };
    ports.die = [] { kill(getpid(), SIGKILL); };
    Actor actor(spec, std::move(ports));
    setting.script(actor);
  }
  seams.goodbye(0);
  return 0;
}

// Waits until every actor has ended. What a fault stopped would stay for ever: when all others are
// done and what they started had its time to leave, it is killed, as an operator would. The same
// becomes of all at the deadline.
class ActorWait {
 public:
  ActorWait(const std::vector<pid_t>& actors, EventCollector& collector)
      : actors_(actors), collector_(collector), states_(actors.size()) {}

  // False if the deadline passed. `leave_ns`: what the children of a stopped actor have.
  bool run(std::int64_t deadline_ns, std::int64_t leave_ns) {
    std::int64_t alone_since = 0;
    for (bool in_time = true;;) {
      look();
      if (count(State::kEnded) == states_.size()) return in_time;
      if (count(State::kRunning) == 0) {
        if (alone_since == 0) alone_since = monotonic_ns();
        const bool left = collector_.living().size() == count(State::kStopped);
        if (left || monotonic_ns() - alone_since > leave_ns) kill_all();
      } else if (monotonic_ns() > deadline_ns && std::exchange(in_time, false)) {
        kill_all();
      }
      poll(nullptr, 0, 5);
    }
  }

  // Of an actor that ended: its exit status; nullopt if it was killed.
  std::optional<int> exit_status(std::size_t actor) const {
    const int status = states_[actor].status;
    return WIFEXITED(status) ? std::optional(WEXITSTATUS(status)) : std::nullopt;
  }

 private:
  enum class State { kRunning, kStopped, kEnded };
  struct Actor {
    State state = State::kRunning;
    int status = 0;
  };

  void look() {
    for (std::size_t i = 0; i < states_.size(); ++i) {
      Actor& actor = states_[i];
      if (actor.state == State::kEnded) continue;
      if (waitpid(actors_[i], &actor.status, WNOHANG | WUNTRACED) != actors_[i]) continue;
      actor.state = WIFSTOPPED(actor.status) ? State::kStopped : State::kEnded;
    }
  }
  std::size_t count(State state) const {
    return static_cast<std::size_t>(
        std::count_if(states_.begin(), states_.end(),
                      [state](const Actor& actor) { return actor.state == state; }));
  }
  void kill_all() {
    for (std::size_t i = 0; i < states_.size(); ++i)
      if (states_[i].state != State::kEnded) kill(actors_[i], SIGKILL);
  }

  const std::vector<pid_t>& actors_;
  EventCollector& collector_;
  std::vector<Actor> states_;
};

// While it lives, processes whose parent ended become children of this one, so that the system
// itself tells when nobody of a world is left, and their ends are collected here. Children that
// this process had before are left alone.
class Adoption {
 public:
  Adoption() : others_(children()) {
    prctl(PR_GET_CHILD_SUBREAPER, &before_);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Adoption() { prctl(PR_SET_CHILD_SUBREAPER, before_); }
  Adoption(const Adoption&) = delete;
  Adoption& operator=(const Adoption&) = delete;

  // Waits until no process of the world is left. Those that are after a time are counted and ended.
  std::uint64_t wait_for_all() {
    const std::int64_t deadline = monotonic_ns() + kLeaveNs;
    std::uint64_t late = 0;
    // A list that is read while it changes may miss somebody once.
    for (int empty = 0; empty < 2;) {
      std::uint64_t left = 0;
      for (const pid_t child : children()) {
        if (others_.contains(child) || waitpid(child, nullptr, WNOHANG) == child) continue;
        ++left;
        if (monotonic_ns() > deadline) kill(child, SIGKILL);
      }
      if (monotonic_ns() > deadline) late = std::max(late, left);
      empty = left == 0 ? empty + 1 : 0;
      poll(nullptr, 0, 2);
    }
    return late;
  }

 private:
  static std::set<pid_t> children() {
    std::ifstream file(fmt::format("/proc/self/task/{}/children", getpid()));
    std::set<pid_t> pids;
    for (pid_t pid = 0; file >> pid;) pids.insert(pid);
    return pids;
  }

  std::set<pid_t> others_;
  int before_ = 0;
};

void add_counter(sim::Trace& trace, std::string_view name, std::uint64_t value) {
  sim::Event event;
  event.time = event.end = monotonic_ns();
  event.kind = static_cast<std::uint16_t>(sim::EventKind::kKernelCounter);
  event.a = value;
  event.text = trace.texts.intern(name);
  trace.events.push_back(event);
}

// What every device has in use, as the account says after everybody left.
void add_devices(sim::Trace& trace, device::HostMemory& memory, const WorldSpec& spec,
                 std::uint64_t bytes) {
  add_counter(trace, "device.exports", memory.live_exports());
  add_counter(trace, "device.imports", memory.open_imports());
  for (int i = 0; i < std::max(spec.tp, spec.actors); ++i) {
    device::HostDevice look(memory, {device_uuid(i), device::Landing::kAtLaunch});
    sim::Event event;
    event.time = event.end = monotonic_ns();
    event.kind = static_cast<std::uint16_t>(sim::EventKind::kDevicePeak);
    event.a = static_cast<std::uint64_t>(i);
    event.c = bytes - look.memory().free_bytes;
    trace.events.push_back(event);
  }
}

std::int64_t longest_run(const WorldSpec& spec) {
  const std::int64_t control = spec.sync.control_timeout.count();
  return 4 * (control + 2 * rollout::longest(spec.timeouts).count()) + 60 * kSecond;
}

}  // namespace

ProcessRunner::ProcessRunner(ProcessOptions options) : options_(std::move(options)) {
  collect_children();
}
ProcessRunner::~ProcessRunner() = default;

Run ProcessRunner::run(const WorldSpec& spec, const SimOptions& options, const Script& script) {
  if (spec.phantom)
    throw_invalid(ErrorKind::kUnsupported, "phantom", "a world of processes has real bytes");
  check_plan(options.plan);
  const auto devices = static_cast<std::size_t>(std::max(spec.tp, spec.actors));
  std::vector<std::string> gpus = options_.gpus;
  if (!gpus.empty() && gpus.size() < devices) {
    throw_invalid(
        ErrorKind::kUnsupported, "gpu",
        fmt::format("{} ranks need a GPU each, and this machine has {}", devices, gpus.size()));
  }
  gpus.resize(std::min(gpus.size(), devices));
  Run run;
  trace_.clear();
  const TemporaryFolder temporary("tpsync-world");
  const WorldFolder folder{temporary.path()};
  const auto memory = device::HostMemory::create();
  const std::uint64_t bytes = spec.device_bytes != 0 ? spec.device_bytes : kAmpleDevice;
  for (std::size_t i = 0; i < devices; ++i)
    memory->add_device(device_uuid(static_cast<int>(i)), bytes);
  const WrittenWorld written{spec, options.plan, memory->path(), std::move(gpus)};
  write_world(folder, written);
  const SharedFaultState faults = SharedFaultState::create(folder.fault_state());

  Adoption adoption;
  EventCollector collector(folder.events());
  const ActorSetting setting{folder, written, options, script, options_.runtime_program};
  const pid_t harness = getpid();
  std::vector<pid_t> actors;
  try {
    for (int rank = 0; rank < spec.actors; ++rank)
      actors.push_back(fork_child(fmt::format("actor {}", rank),
                                  [&] { return run_actor(setting, rank, harness); }));
  } catch (const Error&) {
    for (const pid_t actor : actors) kill(actor, SIGKILL);
    adoption.wait_for_all();
    throw;
  }
  collector.start();
  ActorWait wait(actors, collector);
  const bool in_time =
      wait.run(monotonic_ns() + longest_run(spec), spec.sync.control_timeout.count() + kLeaveNs);
  const std::uint64_t left = adoption.wait_for_all();

  collector.merge_into(trace_);
  trace_.seed = spec.seed;
  trace_.parameters = trace_parameters(spec, options, world()) + kParameters;
  add_counter(trace_, "processes.live", left);
  add_devices(trace_, *memory, spec, bytes);
  if (const std::string failure = collector.failure(); !failure.empty()) {
    run.end = {sim::RunResult::Kind::kHarnessError, "the harness: " + failure, 0};
  } else if (!in_time) {
    run.end = {sim::RunResult::Kind::kHang, "an actor did not come to its end", 0};
  } else {
    for (std::size_t i = 0; i < actors.size(); ++i) {
      if (const int status = wait.exit_status(i).value_or(0); status != 0)
        run.end = {sim::RunResult::Kind::kCrash,
                   fmt::format("actor {} exited with status {}", i, status), 0};
    }
  }
  run.faults_applied = faults.applied();
  run.hash = sim::hash_of(trace_);
  run.log = read_actor_log(trace_, spec.actors);
  if (options.judge) run.judgement = judge_.judge(trace_);
  return run;
}

}  // namespace tpsync::conformance
