#include "conformance/process/process_run.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "conformance/process/event_stream.h"
#include "conformance/process/process_world.h"
#include "conformance/world/actor.h"
#include "tpsync/collective/gloo_control_group.h"
#include "tpsync/collective/gloo_shard_group.h"
#include "tpsync/device/host_memory.h"

namespace tpsync::conformance {

namespace {

constexpr std::uint64_t kAmpleDevice = 1ULL << 40;
constexpr std::int64_t kSecond = 1'000'000'000;
// For processes to end once the actors have: the kill routine and a little.
constexpr std::int64_t kLeaveNs = 12 * kSecond;

// A folder of its own under the system's, gone with its content.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "tpsync-world-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr)
      throw_broken(ErrorKind::kIo, pattern, "this folder can't be made");
    folder.path = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(folder.path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  WorldFolder folder;
};

struct ActorSetting {
  const WorldFolder& folder;
  const WorldSpec& spec;
  const SimOptions& options;
  const Script& script;
  const std::string& account;
  const std::string& runtime_program;
};

// The groups of one actor: each time all actors ask, they meet under the next name.
class Groups {
 public:
  Groups(const ActorSetting& setting, int rank, World world, device::HostDevice& device,
         ProcessTracer& tracer)
      : setting_(setting), rank_(rank), world_(world), device_(device), tracer_(tracer) {}

  std::unique_ptr<collective::ControlGroup> control() {
    const std::uint64_t number = controls_++;
    return std::make_unique<TracedControlGroup>(meet("control", number), tracer_, 2 * number + 1);
  }
  std::unique_ptr<collective::ShardGroup> shards() {
    const std::uint64_t number = shards_++;
    const auto meeting = meet("shards", number);
    auto group = std::make_unique<collective::GlooShardGroup>(
        *meeting, device_, collective::GlooAddress{}, world_,
        Deadline::after(world_.clock, setting_.spec.sync.control_timeout));
    return std::make_unique<TracedShardGroup>(std::move(group), tracer_, 2 * number);
  }

 private:
  std::unique_ptr<collective::GlooControlGroup> meet(const std::string& name,
                                                     std::uint64_t number) {
    collective::GlooControlOptions options;
    options.meeting.rank = rank_;
    options.meeting.size = setting_.spec.actors;
    options.meeting.group = fmt::format("{}-{}", name, number);
    options.meeting.folder = setting_.folder.path;
    options.timeout = setting_.spec.sync.control_timeout;
    return std::make_unique<collective::GlooControlGroup>(options, world_);
  }

  const ActorSetting& setting_;
  int rank_;
  World world_;
  device::HostDevice& device_;
  ProcessTracer& tracer_;
  std::uint64_t controls_ = 0;
  std::uint64_t shards_ = 0;
};

int run_actor(const ActorSetting& setting, int rank, std::int64_t parent) {
  Hello hello{"actor", rank, rank, getpid(), parent};
  ProcessSeams seams(setting.folder, hello);
  const auto memory = device::HostMemory::open(setting.account);
  device::HostDevice host(*memory, {device_uuid(rank), device::Landing::kAtLaunch});
  TracedDevice device(host, seams.tracer());
  HostContent content(host, setting.spec);
  {
    Groups groups(setting, rank, seams.world(), host, seams.tracer());
    ActorPorts ports{.world = seams.world(),
                     .device = device,
                     .rank = rank,
                     .recorder = seams.recorder(),
                     .content = content};
    ports.join_control = [&] { return groups.control(); };
    ports.join_shards = [&] { return groups.shards(); };
    ports.runtime = [&](std::int64_t version) {
      SpawnRequest request;
      request.program = setting.runtime_program;
      request.arguments = {"runtime", setting.folder.path.string(), std::to_string(version)};
      request.log_path = setting.folder.log("runtime");
      return request;
    };
    if (setting.options.wrap_source) {
      ports.wrap_source = [&](transfer::WeightSource& source) {
        return setting.options.wrap_source(rank, source);
      };
    }
    ports.observe = [&](std::int64_t version) {
      for (int r = 0; r < setting.spec.tp; ++r) {
        const auto lane = observed_lane(setting.folder, setting.spec, r);
        if (!lane) continue;
        seams.recorder().record(judge::Record::kResident, static_cast<std::uint64_t>(r),
                                static_cast<std::uint64_t>(*lane),
                                static_cast<std::uint64_t>(version));
      }
    };
    Actor actor(setting.spec, std::move(ports));
    setting.script(actor);
  }
  seams.goodbye(0, &device);
  return 0;
}

// Forks an actor, which never returns from here.
pid_t fork_actor(const ActorSetting& setting, int rank) {
  const pid_t harness = getpid();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int status = 70;
  try {
    if (getppid() == harness) status = run_actor(setting, rank, harness);
  } catch (const std::exception& error) {
    fmt::print(stderr, "actor {}: {}\n", rank, to_text(record_of(error)));
  }
  fflush(nullptr);
  _exit(status);
}

// False if not all of them ended before the deadline; then they are killed.
bool wait_for(const std::vector<pid_t>& actors, std::int64_t deadline_ns,
              std::vector<int>& statuses) {
  bool in_time = true;
  for (std::size_t i = 0; i < actors.size(); ++i) {
    const auto handle = static_cast<int>(syscall(SYS_pidfd_open, actors[i], 0));
    pollfd poll_actor{handle, POLLIN, 0};
    const std::int64_t left = std::max<std::int64_t>(deadline_ns - monotonic_ns(), 0);
    if (poll(&poll_actor, 1, static_cast<int>(left / 1'000'000) + 1) == 0) {
      in_time = false;
      for (const pid_t actor : actors) kill(actor, SIGKILL);
      poll(&poll_actor, 1, -1);
    }
    waitpid(actors[i], &statuses[i], 0);
    ::close(handle);
  }
  return in_time;
}

std::vector<std::int64_t> wait_for_leaving(EventCollector& collector) {
  const std::int64_t deadline = monotonic_ns() + kLeaveNs;
  std::vector<std::int64_t> living = collector.living();
  while (!living.empty() && monotonic_ns() < deadline) {
    poll(nullptr, 0, 2);
    living = collector.living();
  }
  return living;
}

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

ProcessRunner::ProcessRunner(ProcessOptions options) : options_(std::move(options)) {}
ProcessRunner::~ProcessRunner() = default;

Run ProcessRunner::run(const WorldSpec& spec, const SimOptions& options, const Script& script) {
  if (spec.phantom)
    throw_invalid(ErrorKind::kUnsupported, "phantom", "a world of processes has real bytes");
  Run run;
  trace_.clear();
  const TemporaryFolder temporary;
  const WorldFolder& folder = temporary.folder;
  const auto memory = device::HostMemory::create();
  const std::uint64_t bytes = spec.device_bytes != 0 ? spec.device_bytes : kAmpleDevice;
  for (int i = 0; i < std::max(spec.tp, spec.actors); ++i)
    memory->add_device(device_uuid(i), bytes);
  write_world(folder, spec, memory->path());

  EventCollector collector(folder.events());
  const ActorSetting setting{folder, spec,           options,
                             script, memory->path(), options_.runtime_program};
  std::vector<pid_t> actors;
  for (int rank = 0; rank < spec.actors; ++rank) actors.push_back(fork_actor(setting, rank));
  collector.start();
  std::vector<int> statuses(actors.size(), 0);
  const bool in_time = wait_for(actors, monotonic_ns() + longest_run(spec), statuses);
  const std::vector<std::int64_t> left = wait_for_leaving(collector);
  for (const std::int64_t pid : left) kill(static_cast<pid_t>(pid), SIGKILL);

  collector.merge_into(trace_);
  trace_.seed = spec.seed;
  trace_.parameters = trace_parameters(spec, options, world());
  add_counter(trace_, "processes.live", left.size());
  add_devices(trace_, *memory, spec, bytes);
  if (!in_time) {
    run.end = {sim::RunResult::Kind::kHang, "an actor did not come to its end", 0};
  } else {
    for (std::size_t i = 0; i < statuses.size(); ++i) {
      if (WIFEXITED(statuses[i]) && WEXITSTATUS(statuses[i]) != 0)
        run.end = {sim::RunResult::Kind::kCrash,
                   fmt::format("actor {} exited with status {}", i, WEXITSTATUS(statuses[i])), 0};
    }
  }
  run.hash = sim::hash_of(trace_);
  run.log = read_actor_log(trace_, spec.actors);
  if (options.judge) run.judgement = judge_.judge(trace_);
  return run;
}

}  // namespace tpsync::conformance
