// Injects the faults of a plan: decorators over the seams of the processes that the plan targets.
//
// The world creates one Injector per run (or per process, where processes share no memory), enters
// each process, and puts the decorators around the seams that it hands down. A process that no
// fault targets gets none and pays nothing. A fault applies at most once; what lasts (a closed or
// mute channel, a broken group, a late stream) lasts until heal().
//
// A decorator looks at the moment before it forwards: phase, chunk and the number that the
// operation is about to get. An operation that does not happen because of the fault (a refused
// allocation, a lost write) is not forwarded and so gets no number.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "faults/catalogue.h"
#include "faults/plan.h"
#include "tpsync/base/forwarding.h"
#include "tpsync/base/world.h"
#include "tpsync/collective/control_group.h"
#include "tpsync/collective/shard_group.h"
#include "tpsync/device/device.h"
#include "tpsync/runtime/inference_engine.h"
#include "tpsync/transfer/weight_source.h"

namespace tpsync::faults {

// What clock.stall adds to one operation.
inline constexpr Duration kStall = std::chrono::seconds(3);

// Where a process stands, as its world counts.
class MomentSource {
 public:
  virtual ~MomentSource() = default;
  virtual std::string_view phase() = 0;
  virtual std::int64_t chunk() = 0;
  // How often `op` was entered in this phase and chunk so far.
  virtual std::uint64_t occurrence(std::string_view op) = 0;
};

// What a fault does to its own process beside the seams.
class ProcessControl {
 public:
  virtual ~ProcessControl() = default;
  // May return: the next seam operation then ends the process.
  virtual void kill_self() noexcept = 0;
  // May return: the next seam operation then does not go on.
  virtual void stop_self() noexcept = 0;
  // As exit(status) without anything being unwound. May return, as kill_self may.
  virtual void exit_self(int status) noexcept = 0;
  // The fault with this index in the plan takes effect now. Called before the effect.
  virtual void mark(std::size_t fault, Visibility visibility) noexcept = 0;
};

struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct FaultPorts {
  MomentSource& moments;
  ProcessControl& control;
  // Where the tensors of `expert` (their names begin with it and a dot) lie in this worker's
  // resident weights; needed by weights.missing_expert where=loader alone.
  std::function<std::vector<ByteRange>(std::string_view expert)> resident_places = {};
  // The process's own clock, which faults that take time wait by. Without it they take none.
  Clock* clock = nullptr;
};

// What wait_readable must know of a decorated channel. A world that decorates channels has a type
// of its own for it: faults know no world, worlds know no faults, and core knows no decorators. Who
// puts them together translates (conformance/world/sim_faults.cpp).
class HasReadiness {
 public:
  enum class Readiness : std::uint8_t {
    kAsInner,
    kReadable,       // a read returns at once
    kOnlyEndOfFile,  // what has arrived stays hidden; readable once the other end is closed
  };
  virtual ~HasReadiness() = default;
  virtual Readiness readiness() = 0;
};

class FaultChannel : public ForwardingChannel, public HasReadiness {
 public:
  using ForwardingChannel::ForwardingChannel;
};

// The process at the other end of a channel.
struct PeerName {
  std::string role;
  int rank = 0;
};

enum class Seam : std::uint8_t {
  kClock,
  kChannelFactory,
  kProcesses,
  kHost,
  kRandom,
  kThreads,
  kDevice,
  kChannel,
  kControlGroup,
  kShardGroup,
  kWeightSource,
  kInferenceEngine,
};

// What has applied, and whether all is healed. Of one run, wherever its processes are: in memory
// that they share where they share no objects. All zero is the state at the start.
inline constexpr std::size_t kFaultsMax = 256;
struct InjectorState {
  std::atomic<bool> healed{false};
  std::array<std::atomic<bool>, kFaultsMax> applied{};
};
static_assert(std::atomic<bool>::is_always_lock_free);

class Injector;

// The faults of one process. Outlives every decorator that it makes; the Injector, the ports and
// the wrapped objects outlive it. Each maker returns nullptr if no fault of the plan needs that
// seam; then `inner` is left alone, else it is borrowed, or taken over where it is a unique_ptr.
class ProcessFaults {
 public:
  ProcessFaults(Injector& injector, std::vector<std::size_t> faults, FaultPorts ports);
  ~ProcessFaults();
  ProcessFaults(const ProcessFaults&) = delete;
  ProcessFaults& operator=(const ProcessFaults&) = delete;

  bool wants(Seam seam) const;
  std::unique_ptr<Clock> clock(Clock& inner);
  std::unique_ptr<ChannelFactory> channel_factory(ChannelFactory& inner);
  std::unique_ptr<ProcessLauncher> processes(ProcessLauncher& inner);
  std::unique_ptr<Host> host(Host& inner);
  std::unique_ptr<Random> random(Random& inner);
  std::unique_ptr<Threads> threads(Threads& inner);
  std::unique_ptr<device::Device> device(device::Device& inner);
  std::unique_ptr<FaultChannel> channel(PeerName peer, std::unique_ptr<Channel>& inner);
  std::unique_ptr<collective::ControlGroup> control_group(
      std::unique_ptr<collective::ControlGroup>& inner);
  std::unique_ptr<collective::ShardGroup> shard_group(
      std::unique_ptr<collective::ShardGroup>& inner);
  std::unique_ptr<transfer::WeightSource> weight_source(transfer::WeightSource& inner);
  std::unique_ptr<runtime::InferenceEngine> engine(
      const runtime::ResidentModel& resident, std::unique_ptr<runtime::InferenceEngine>& inner);

  // ---- for the decorators ----
  class LateStreams;

  // Every decorated operation begins with it: kills or stops the process if it is time.
  void pass(std::string_view op) noexcept;
  // The fault with this action whose moment this is, if it is still to come; nothing changes.
  const Fault* due(Action action, std::string_view op);
  // `fault` takes effect: marked, and never due again.
  void apply(const Fault& fault) noexcept;
  // due and apply in one.
  const Fault* fire(Action action, std::string_view op);
  // False once healed.
  bool active() const noexcept;
  // Any fault of this process with this action and, where given, this value of `where`.
  bool has(Action action, std::string_view where = {}) const;
  bool has_named(std::string_view name) const;
  // Waits by the process's clock.
  void sleep(Duration duration) noexcept;
  void sleep_until(TimePoint until) noexcept;
  // The device that was decorated last, without its decorator; nullptr if there is none.
  device::Device* plain_device() const noexcept { return plain_device_; }

  LateStreams& late() { return *late_; }
  FaultPorts& ports() { return ports_; }
  std::string_view role() const;
  // Of a moment that is no operation of a seam: it was, so the next is another.
  void count(std::string_view own_moment);

 private:
  bool is_now(const Moment& moment, std::string_view op);
  std::uint64_t count_of(std::string_view own_moment);
  void disturb(std::string_view op) noexcept;

  Injector& injector_;
  std::vector<std::size_t> faults_;  // indices in the plan
  FaultPorts ports_;
  std::unique_ptr<LateStreams> late_;
  device::Device* plain_device_ = nullptr;
  bool disturbs_processes_ = false;  // a fault that may strike at any operation is among them
  std::atomic<int> slow_operations_left_{0};
  // Of own moments; those of engines begin anew with each phase and chunk.
  std::map<std::string, std::uint64_t, std::less<>> counts_;
  std::string counted_phase_;
  std::int64_t counted_chunk_ = 0;
};

class Injector {
 public:
  // Throws InvalidInput kInvalidConfig for a fault that the catalogue refuses, and for one that no
  // injector can do (weights.missing_expert where=trainer), and for more than
  // kFaultsMax faults. `shared` outlives the injector; without it, the injector has a state of its
  // own.
  explicit Injector(Plan plan, InjectorState* shared = nullptr);

  // nullptr if no fault targets this process.
  std::unique_ptr<ProcessFaults> enter(std::string_view role, int rank, FaultPorts ports);

  // Nothing applies any more, on any process. What is lost stays lost; a channel that was closed
  // stays closed.
  void heal() noexcept { state_->healed.store(true); }
  bool healed() const noexcept { return state_->healed.load(); }

  const Plan& plan() const { return plan_; }
  std::size_t applied() const;

 private:
  friend class ProcessFaults;
  Plan plan_;
  std::vector<const FaultKind*> kinds_;  // of the plan's faults
  std::unique_ptr<InjectorState> own_;
  InjectorState* state_;
};

}  // namespace tpsync::faults
