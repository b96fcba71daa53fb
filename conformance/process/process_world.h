// What every process of a real world is made of: its seams, with what passes through them on
// record, and the folder that the world's processes share.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "conformance/process/process_channels.h"
#include "conformance/process/process_faults.h"
#include "conformance/process/traced_seams.h"
#include "conformance/world/spec.h"
#include "tpsync/base/os_world.h"
#include "tpsync/device/device.h"

namespace tpsync::conformance {

// The folder: names of what lies in it.
struct WorldFolder {
  std::filesystem::path path;

  std::string events() const { return path / "events"; }
  std::string spec() const { return path / "spec.json"; }
  std::string fault_state() const { return path / "fault-state"; }
  std::string resident(int tp_rank) const { return path / ("resident-" + std::to_string(tp_rank)); }
  std::string log(const std::string& who) const { return path / (who + ".log"); }
};

// What the harness tells the processes of a world: the world, its faults, where its device memory
// is accounted for, and what its devices are.
struct WrittenWorld {
  WorldSpec spec;
  faults::Plan plan;
  std::string account;
  std::vector<std::string> gpus;  // UUIDs, one per device; empty: host memory serves as devices
};
// Throws RuntimeBroken kIo.
void write_world(const WorldFolder& folder, const WrittenWorld& world);
WrittenWorld read_world(const WorldFolder& folder);

// The arguments with which processes start each other, and whom they name.
std::vector<std::string> runtime_arguments(const WorldFolder& folder, const std::string& version);
std::vector<std::string> worker_arguments(const WorldFolder& folder, const std::string& version,
                                          int rank);
// Of such an argument. Throws InvalidInput kInvalidConfig for what is no number.
std::int64_t number_in(const std::string& argument);
faults::PeerName peer_of(const SpawnRequest& request);

// The seams of one process. Lives in its main function.
class ProcessSeams {
 public:
  ProcessSeams(const WorldFolder& folder, const Hello& hello, const WrittenWorld& world);

  World world();
  // The channel that this process was started with.
  std::unique_ptr<Channel> inherited_channel(const char* peer_role);
  // `inner`, which must live as long as the result, with what passes through it on record, and
  // with the process's faults.
  device::Device& device(device::Device& inner, int index);
  std::unique_ptr<collective::ControlGroup> group(std::unique_ptr<collective::ControlGroup> inner,
                                                  std::uint64_t id);
  std::unique_ptr<collective::ShardGroup> group(std::unique_ptr<collective::ShardGroup> inner,
                                                std::uint64_t id);
  ProcessFaultSeams& faults() { return faults_; }
  Recorder& recorder() { return recorder_; }
  // The last words of a process that ends by itself.
  void goodbye(int status);

 private:
  EventStream stream_;
  ProcessTracer tracer_;
  TracedLog log_;
  OsWorld os_;
  ProcessFaultSeams faults_;
  TracedChannels channels_;
  TracedLauncher launcher_;
  std::unique_ptr<ChannelFactory> fault_channels_;
  std::unique_ptr<ProcessLauncher> fault_launcher_;
  std::unique_ptr<TracedDevice> device_;
  std::unique_ptr<device::Device> fault_device_;
  TracedRecorder recorder_;
};

}  // namespace tpsync::conformance
