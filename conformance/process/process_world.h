// What every process of a real world is made of: its seams, with what passes through them on
// record, and the folder that the world's processes share.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "conformance/process/traced_seams.h"
#include "conformance/world/ports.h"
#include "conformance/world/spec.h"
#include "tpsync/base/os_world.h"
#include "tpsync/device/host_device.h"

namespace tpsync::conformance {

// The folder: names of what lies in it.
struct WorldFolder {
  std::filesystem::path path;

  std::string events() const { return path / "events"; }
  std::string spec() const { return path / "spec.json"; }
  std::string resident(int tp_rank) const { return path / ("resident-" + std::to_string(tp_rank)); }
  std::string log(const std::string& who) const { return path / (who + ".log"); }
};

// What the harness tells the processes that are executed: the world, and where its device memory is
// accounted for.
void write_world(const WorldFolder& folder, const WorldSpec& spec, const std::string& account);
struct WrittenWorld {
  WorldSpec spec;
  std::string account;
};
WrittenWorld read_world(const WorldFolder& folder);

// The seams of one process. Lives in its main function.
class ProcessSeams {
 public:
  ProcessSeams(const WorldFolder& folder, const Hello& hello)
      : stream_(folder.events(), hello),
        tracer_(stream_),
        log_(tracer_),
        os_(log_),
        channels_(os_.channels(), tracer_),
        launcher_(os_.world().processes, tracer_),
        recorder_(tracer_) {}

  World world() {
    World world = os_.world();
    return {world.clock, channels_, launcher_, world.host, world.random, log_, world.threads};
  }
  // The channel that this process was started with.
  std::unique_ptr<Channel> inherited_channel();
  ProcessTracer& tracer() { return tracer_; }
  Recorder& recorder() { return recorder_; }
  // The last words of a process that ends by itself.
  void goodbye(int status, const TracedDevice* device);

 private:
  EventStream stream_;
  ProcessTracer tracer_;
  TracedLog log_;
  OsWorld os_;
  TracedChannels channels_;
  TracedLauncher launcher_;
  TracedRecorder recorder_;
};

// Test weights in a host device.
class HostContent final : public ContentPort {
 public:
  HostContent(device::HostDevice& device, const WorldSpec& spec)
      : device_(device), seed_(spec.seed) {}
  void write(device::Device& device, device::RegionId region, std::uint64_t offset,
             const ContentRect& content) override;
  std::uint64_t hash_parameter(const runtime::ResidentModel& resident,
                               std::size_t parameter) override;

 private:
  device::HostDevice& device_;
  std::uint64_t seed_;
};

// A worker says where its weights lie; whoever looks from outside reads them there, through the
// system, and computes the lane that the worker would generate. nullopt if that worker is no more.
void publish_resident(const WorldFolder& folder, int tp_rank, const void* weights,
                      std::uint64_t bytes);
std::optional<std::int64_t> observed_lane(const WorldFolder& folder, const WorldSpec& spec,
                                          int tp_rank);

}  // namespace tpsync::conformance
