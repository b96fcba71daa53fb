// The processes of the worlds that bench_process measures: core over the operating system's seams,
// with the harness's test weights and test engine, and nothing that records between them. The
// program is all of them: it starts itself as whoever its first argument names.
//
// tpsync-test-runtime is set up alike and takes no part, because it sends every operation to a
// judge, which costs more than a small command takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/judge/slicer.h"
#include "conformance/process/process_world.h"
#include "conformance/process/world_groups.h"
#include "conformance/world/actor.h"
#include "tpsync/base/testing/temporary_folder.h"
#include "tpsync/device/host_device.h"
#include "tpsync/device/host_memory.h"

namespace tpsync::bench {

inline constexpr const char* kThisProgram = "/proc/self/exe";
// A bound on hanging: a process that died is found at once.
inline constexpr Duration kLongest = std::chrono::minutes(2);

// Runs the role that the arguments name (runtime, worker, actor, relay, leaf) and returns its exit
// status; nullopt if they name none.
std::optional<int> run_role(const std::vector<std::string>& arguments);

// A world as its maker has it: outlives its processes.
class BenchWorld {
 public:
  explicit BenchWorld(const conformance::WorldSpec& spec);

  const conformance::WorldSpec& spec() const { return spec_; }
  const conformance::WorldFolder& folder() const { return folder_; }
  const conformance::WrittenWorld& written() const { return written_; }

  // Looks at every byte that the workers hold. Throws PeerViolation kMismatch if it isn't what
  // `version` is made of.
  void check_resident(std::int64_t version);

 private:
  conformance::WorldSpec spec_;
  TemporaryFolder temporary_{"tpsync-bench"};
  conformance::WorldFolder folder_{temporary_.path()};
  std::unique_ptr<device::HostMemory> memory_;
  conformance::WrittenWorld written_;
  judge::ExpectedLanes lanes_;
};

// How to start the runtime of the world in `folder`.
SpawnRequest runtime_request(const conformance::WorldFolder& folder, std::int64_t version);

// One actor of a world, in step with the others. Throws the error of whatever fails.
class BenchActor {
 public:
  static constexpr std::uint64_t kGoOn = 1;
  static constexpr std::uint64_t kStop = 2;

  // Starts the engine, on rank 0, and sets up. Collective. Arguments outlive it.
  BenchActor(const conformance::WorldFolder& folder, const conformance::WrittenWorld& written,
             int rank, const World& world);
  ~BenchActor();
  BenchActor(const BenchActor&) = delete;
  BenchActor& operator=(const BenchActor&) = delete;

  // Collective: rank 0 says it and everyone hears it.
  std::uint64_t hear(std::uint64_t said);
  // Collective. An optimizer step on every rank, and then the publication of what it gave: returns
  // how long the publication alone took. `before` runs in between.
  Duration publish(const std::function<void()>& before = {});
  std::int64_t version() const { return version_; }

 private:
  World world_;
  std::unique_ptr<conformance::Hardware> hardware_;
  conformance::WorldGroups groups_;
  std::unique_ptr<collective::ControlGroup> turns_;
  std::vector<std::uint64_t> words_;
  std::unique_ptr<conformance::Recorder> recorder_;
  std::unique_ptr<conformance::Actor> actor_;
  std::int64_t version_;
};

// Starts the actor of another rank.
std::unique_ptr<Process> start_actor(const World& world, const conformance::WorldFolder& folder,
                                     int rank);

// Frames over the hops of a command (parent, runtime, each worker, and back), without meaning: what
// a command costs at least.
class Relay {
 public:
  Relay(const World& world, int leaves);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  // Returns how long it took until the reply was there.
  Duration round_trip(ByteView body);

 private:
  World world_;
  std::unique_ptr<Channel> channel_;
  std::unique_ptr<Process> process_;
  ByteBuffer reply_;
};

}  // namespace tpsync::bench
