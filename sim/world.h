// The simulated world: processes made of fibers, and everything between them. One SimWorld is one
// run: build it, start the root processes, run(), read the trace, throw it away.
//
// A SimProcess gives core its seams. Killing a process is one step of the world: its descriptors,
// device memory, group memberships and children go as the kernel and the driver would do it, and
// its stacks are unwound (by Killed) before any other fiber runs. All calls are made from one
// thread, from inside the world's fibers or from whoever owns the world.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/config.h"
#include "sim/scheduler.h"
#include "sim/trace.h"
#include "sim/vector_clock.h"
#include "tpsync/base/errors.h"
#include "tpsync/base/world.h"
#include "tpsync/collective/control_group.h"
#include "tpsync/collective/shard_group.h"
#include "tpsync/device/device.h"

namespace tpsync::sim {

class SimWorld;
class SimProcess;
class SimDevice;
class SimChannel;
class DeviceSystem;
class GroupSystem;
class ChannelSystem;
class SeamBundle;

// Unwinds the stacks of a killed process. Not a std::exception on purpose: core must not catch it.
struct Killed final {};

// The seams of one process, as core will see them. A hook may replace any pointer by a wrapper that
// the process keeps (SimProcess::keep).
struct SeamSet {
  Clock* clock = nullptr;
  ChannelFactory* channels = nullptr;
  ProcessLauncher* processes = nullptr;
  Host* host = nullptr;
  Random* random = nullptr;
  Log* log = nullptr;
  Threads* threads = nullptr;
  device::Device* device = nullptr;
};

// Who is at the other end of a channel.
struct PeerName {
  std::string_view role;
  int rank = 0;
};

// A decorated channel that holds bytes back, or hides them, says so to wait_readable.
class ReadinessOverride {
 public:
  enum class Readiness : std::uint8_t {
    kAsInner,
    kReadable,       // a read returns at once
    kOnlyEndOfFile,  // what has arrived stays hidden; readable once the other end is closed
  };
  virtual ~ReadinessOverride() = default;
  virtual Readiness readiness() = 0;
};

// Places where decorators come in. An empty hook costs a branch.
struct Hooks {
  std::function<void(SimProcess&, SeamSet&)> process_created;
  // A channel between two processes, once per end, when its child is spawned. Ends of which both
  // stay in one process are not wrapped.
  std::function<std::unique_ptr<Channel>(SimProcess&, PeerName, std::unique_ptr<Channel>)>
      wrap_channel;
  std::function<std::unique_ptr<collective::ControlGroup>(
      SimProcess&, std::unique_ptr<collective::ControlGroup>)>
      wrap_control_group;
  std::function<std::unique_ptr<collective::ShardGroup>(SimProcess&,
                                                        std::unique_ptr<collective::ShardGroup>)>
      wrap_shard_group;
};

using Body = std::function<int(SimProcess&)>;
using Arguments = std::span<const std::string>;

// What a name that ProcessLauncher::spawn is given stands for.
struct Program {
  std::string role;  // "runtime", "worker"
  Body body;
  // From the arguments; where empty, the value of "--rank" (0 if there is none), and the device
  // whose index equals the rank.
  std::function<int(Arguments)> rank;
  std::function<std::size_t(Arguments)> device;
};

// Numbers as Linux has them.
inline constexpr int kSignalAbort = 6;
inline constexpr int kSignalKill = 9;
inline constexpr int kSignalTerminate = 15;

struct Outcome {
  enum class Kind : std::uint8_t { kRunning, kExited, kKilled, kCrashed };
  Kind kind = Kind::kRunning;
  int code = 0;       // exit code, or the signal's number
  std::string error;  // what left the body, if it crashed
};

struct RunResult {
  enum class Kind : std::uint8_t {
    kFinished,        // every process ended
    kHang,            // processes are left and nobody can go on, or the step limit was reached
    kCrash,           // an exception left a process's body
    kHarnessError,    // the world was misused, or a kill was swallowed
    kReplayMismatch,  // a choice had other candidates than the recorded one
  };
  Kind kind = Kind::kFinished;
  std::string detail;
  std::uint64_t choice = 0;  // kReplayMismatch: the first choice that differs
};

class SimProcess {
 public:
  SimProcess(SimWorld& world, std::uint32_t index);
  ~SimProcess();
  SimProcess(const SimProcess&) = delete;
  SimProcess& operator=(const SimProcess&) = delete;

  // ---- what a program sees ----
  World& world() { return *seams_; }
  device::Device& device() { return *device_; }
  std::string_view role() const { return role_; }
  int rank() const { return rank_; }
  std::int64_t pid() const { return pid_; }
  std::int64_t group() const { return group_; }
  Arguments arguments() const { return arguments_; }
  // The channel that this process was spawned with; nullptr if none, or taken before.
  std::unique_ptr<Channel> take_channel() { return std::move(channel_); }

  // ---- what the harness and decorators see ----
  SimWorld& sim() { return world_; }
  std::uint32_t index() const { return index_; }
  std::size_t device_index() const { return device_index_; }
  std::uint64_t key() const { return key_; }  // component key of its draws
  bool alive() const { return state_ == State::kRunning || state_ == State::kStopped; }
  bool stopped() const { return state_ == State::kStopped; }
  // Being unwound, or gone: operations have no effect.
  bool dead() const { return dead_; }
  const Outcome& outcome() const { return outcome_; }
  SimProcess* parent() const { return parent_; }
  std::string_view phase() const;
  std::int32_t chunk() const { return chunk_; }
  // How often `op` was entered in the present phase and chunk: the number that its next event gets.
  std::uint32_t occurrences(Op op) const;
  SimDevice& sim_device() { return *sim_device_; }
  // Keeps an object (a wrapper) alive as long as the process.
  void keep(std::shared_ptr<void> object) { kept_.push_back(std::move(object)); }
  void set_phase(std::string_view phase, std::int32_t chunk);

  // Simulated descriptors: numbers that name an object of the harness's choice.
  int open_descriptor(std::uint64_t object);
  void close_descriptor(int descriptor) noexcept;
  std::optional<std::uint64_t> descriptor_object(int descriptor) const;

  // ---- what seams are made of: for the implementations in sim/ ----
  // Costs time, may switch, counts and records the operation. Throws Killed on a dead process.
  std::size_t begin(Op op, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0);
  // The same for operations that must not throw; nullopt on a dead process.
  std::optional<std::size_t> begin_quiet(Op op, std::uint64_t a = 0, std::uint64_t b = 0,
                                         std::uint64_t c = 0) noexcept;
  Event& event(std::size_t index);
  void finish(std::size_t index, std::uint16_t result = kOk);
  [[noreturn]] void fail(std::size_t index, ErrorKind kind, std::string_view subject,
                         std::string_view detail);
  // The same for a peer that broke the protocol.
  [[noreturn]] void refuse(std::size_t index, std::string_view subject, std::string_view detail);
  // Waits; false at the deadline. Throws Killed if the process was killed meanwhile.
  bool block(WaitQueue& queue, Deadline deadline);
  // Waits; false at the deadline or if the process was killed meanwhile.
  bool block_quiet(WaitQueue& queue, Deadline deadline) noexcept;
  bool in_own_fiber() const;
  std::uint64_t next_draw(Purpose purpose);
  VectorClock& clock() { return clock_; }
  void release_clock(VectorClock& into);  // `into` becomes this clock; then this clock ticks
  WaitQueue& readable() { return readable_; }

 private:
  friend class SimWorld;
  friend class SeamBundle;
  enum class State : std::uint8_t { kRunning, kStopped, kZombie, kReaped };
  struct Descriptor {
    int number = 0;
    std::uint64_t object = 0;
  };

  void dead_operation();

  SimWorld& world_;
  std::uint32_t index_;
  std::int64_t pid_ = 0;
  std::int64_t group_ = 0;
  SimProcess* parent_ = nullptr;
  std::string role_;
  int rank_ = 0;
  std::size_t device_index_ = 0;
  std::uint64_t key_ = 0;
  std::vector<std::string> arguments_;
  Environment environment_;
  State state_ = State::kRunning;
  bool dead_ = false;
  bool pending_terminate_ = false;
  bool spawned_ = false;
  std::uint64_t dead_operations_ = 0;
  Outcome outcome_;
  WaitQueue exited_;
  WaitQueue readable_;
  VectorClock clock_;
  std::uint32_t phase_text_ = 0;
  std::int32_t chunk_ = 0;
  std::vector<PhaseCounts> phases_;
  std::size_t phase_slot_ = 0;
  std::array<std::uint64_t, static_cast<std::size_t>(Purpose::kHarness) + 1> draws_{};
  std::vector<Descriptor> descriptors_;
  int next_descriptor_ = 3;
  std::vector<Fiber*> fibers_;
  std::vector<std::shared_ptr<void>> kept_;
  std::unique_ptr<SeamBundle> bundle_;
  std::unique_ptr<SimDevice> sim_device_;
  std::optional<World> seams_;
  device::Device* device_ = nullptr;
  std::unique_ptr<Channel> channel_;
};

class SimWorld final {
 public:
  // `pools` outlives the world; one world at a time uses it.
  SimWorld(SimConfig config, Pools& pools, Hooks hooks = {});
  ~SimWorld();
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  // ---- building ----
  void register_program(std::string name, Program program);
  // A root process ("actor"): runs when run() is called, or at once if it runs already.
  SimProcess& start_process(std::string_view role, int rank, std::size_t device, Body body);
  // One group object per member, in the members' order, already wrapped. May be called during the
  // run as well.
  std::vector<std::unique_ptr<collective::ControlGroup>> make_control_group(
      std::span<SimProcess* const> members);
  std::vector<std::unique_ptr<collective::ShardGroup>> make_shard_group(
      std::span<SimProcess* const> members);

  // Runs until every process has ended or nobody can go on, stopped processes being killed when
  // only they are left; then records the kernel's counters. Called once.
  RunResult run();

  // ---- acting on processes: one step of the world each, from anywhere ----
  // From inside the process itself kill() returns; the next operation unwinds it.
  void kill(SimProcess& process);
  void exit(SimProcess& process, int status);  // as exit() of a process that unwinds nothing
  void terminate(SimProcess& process);         // as SIGTERM: kept pending while stopped
  void stop(SimProcess& process);  // its fibers are not chosen; from inside, after this call
  void resume(SimProcess& process);
  // From a fiber of a stopped or killed process: gives way (until resumed), or throws Killed.
  void give_way(SimProcess& process);

  // ---- records ----
  // kind is EventKind::kHarness or above. Recorded for the running process, if there is one.
  void record(std::uint16_t kind, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0,
              std::string_view text = {});
  void record_for(const SimProcess* process, EventKind kind, std::uint64_t a = 0,
                  std::uint64_t b = 0, std::uint64_t c = 0, std::uint32_t text = 0,
                  std::uint16_t result = kOk);
  void violation(const SimProcess* process, std::string_view name, std::uint64_t a = 0,
                 std::uint64_t b = 0, std::uint64_t c = 0);
  const std::vector<std::string>& violations() const { return violations_; }
  // The run cannot be judged: the world was misused.
  void harness_error(std::string detail);

  Trace& trace() { return pools_.trace; }
  const SimConfig& config() const { return config_; }
  const Hooks& hooks() const { return hooks_; }
  Scheduler& scheduler() { return scheduler_; }
  Pools& pools() { return pools_; }
  std::int64_t now() const { return scheduler_.now(); }
  std::span<const std::unique_ptr<SimProcess>> processes() const { return processes_; }
  SimProcess* find(std::string_view role, int rank);  // the latest of that name, or nullptr
  SimProcess* current_process() const;
  bool closing() const { return closing_; }
  DeviceSystem& devices() { return *devices_; }
  ChannelSystem& channels() { return *channels_; }
  GroupSystem& groups() { return *groups_; }

  // ---- for the implementations in sim/ ----
  SimProcess& spawn(SimProcess& parent, SpawnRequest& request);
  SimProcess* by_pid(std::int64_t pid);
  bool group_alive(std::int64_t group) const;
  bool signal(SimProcess& target, Signal signal);
  bool signal_group(std::int64_t group, Signal signal);
  void reap(SimProcess& child, SimProcess& parent);
  WaitQueue& exit_queue(SimProcess& process) { return process.exited_; }
  bool ended(const SimProcess& process) const { return !process.alive(); }
  void start_thread(SimProcess& process, std::function<void()> body, Fiber*& fiber);

 private:
  friend class SimProcess;
  class ParentDeath;

  SimProcess& make_process(std::string_view role, int rank, std::size_t device, SimProcess* parent);
  void install_seams(SimProcess& process);
  void start_main(SimProcess& process, Body body);
  void run_body(SimProcess& process, const Body& body);
  void end_process(SimProcess& process, Outcome outcome);
  void run_thread(SimProcess& process, const std::function<void()>& body);
  void unwind_fibers(SimProcess& process);
  void unwind_below(SimProcess& process, std::size_t count);  // the first `count`, the last first
  void record_counters();
  bool kill_stopped();

  SimConfig config_;
  Pools& pools_;
  Hooks hooks_;
  Scheduler scheduler_;
  std::vector<std::pair<std::string, Program>> programs_;
  std::vector<std::unique_ptr<SimProcess>> processes_;
  std::unique_ptr<ChannelSystem> channels_;
  std::unique_ptr<DeviceSystem> devices_;
  std::unique_ptr<GroupSystem> groups_;
  std::unique_ptr<ParentDeath> parent_death_;
  std::vector<std::string> violations_;
  std::string harness_error_;
  bool crashed_ = false;
  std::string crash_;
  bool ran_ = false;
  bool closing_ = false;
};

}  // namespace tpsync::sim
