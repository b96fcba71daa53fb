// Host shared memory as the devices of a world; weights move over Gloo, and a worker's are read
// through the system.
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "conformance/judge/content.h"
#include "conformance/process/hardware.h"
#include "conformance/world/content_bytes.h"
#include "tpsync/collective/gloo_shard_group.h"
#include "tpsync/device/host_device.h"
#include "tpsync/device/host_memory.h"
#include "tpsync/model/tp_layout.h"

namespace tpsync::conformance {

namespace {

class HostContent final : public ContentPort {
 public:
  HostContent(device::HostDevice& device, std::uint64_t seed) : device_(device), seed_(seed) {}

  void write(device::Device&, device::RegionId region, std::uint64_t offset,
             const ContentRect& content) override {
    const std::uint64_t base =
        judge::content_base(seed_, judge::name_hash(content.tensor), content.version);
    const std::uint64_t bytes = content.count * item_size(content.dtype);
    for (std::uint64_t row = 0; row < content.rows; ++row) {
      std::byte* const at = device_.host_pointer(region, offset + row * content.pitch, bytes);
      fill_content({at, bytes}, content.dtype, base, content.element + row * content.stride);
    }
  }

  std::uint64_t hash_parameter(const runtime::ResidentModel& resident,
                               std::size_t parameter) override {
    const model::ResidentParameter& p = resident.layout.parameters[parameter];
    return XXH3_64bits(device_.host_pointer(resident.weights, p.offset, p.bytes), p.bytes);
  }

 private:
  device::HostDevice& device_;
  std::uint64_t seed_;
};

class HostHardware final : public Hardware {
 public:
  HostHardware(const WrittenWorld& world, int index)
      : world_(world),
        memory_(device::HostMemory::open(world.account)),
        device_(*memory_, {device_uuid(index), device::Landing::kAtLaunch}),
        content_(device_, world.spec.seed) {}

  device::Device& device() override { return device_; }
  ContentPort& content() override { return content_; }

  std::unique_ptr<collective::ShardGroup> join_shards(collective::ControlGroup& meeting,
                                                      const World& world,
                                                      Deadline deadline) override {
    return std::make_unique<collective::GlooShardGroup>(meeting, device_, collective::GlooAddress{},
                                                        world, deadline);
  }

  // Says where the weights lie; whoever looks reads them there.
  void publish_resident(const WorldFolder& folder, int tp_rank,
                        const runtime::ResidentModel& resident) override {
    // Any process of this user may read this one's memory, where the system restricts that.
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    const std::uint64_t bytes = resident.layout.resident_bytes;
    const void* const weights = device_.host_pointer(resident.weights, 0, bytes);
    const std::string path = folder.resident(tp_rank);
    const std::string fresh = path + "." + std::to_string(getpid());
    std::ofstream(fresh) << getpid() << ' ' << reinterpret_cast<std::uintptr_t>(weights) << ' '
                         << bytes;
    std::filesystem::rename(fresh, path);
  }

  std::optional<std::int64_t> observed_lane(const WorldFolder& folder, int tp_rank) override {
    return host_lane(folder, world_.spec, tp_rank);
  }

 private:
  const WrittenWorld& world_;
  std::unique_ptr<device::HostMemory> memory_;
  device::HostDevice device_;
  HostContent content_;
};

}  // namespace

std::optional<std::int64_t> host_lane(const WorldFolder& folder, const WorldSpec& spec,
                                      int tp_rank) {
  std::ifstream file(folder.resident(tp_rank));
  pid_t pid = 0;
  std::uintptr_t address = 0;
  std::uint64_t bytes = 0;
  if (!(file >> pid >> address >> bytes)) return std::nullopt;
  std::vector<std::byte> weights(bytes);
  const iovec local{weights.data(), bytes};
  const iovec remote{reinterpret_cast<void*>(address), bytes};
  if (process_vm_readv(pid, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes))
    return std::nullopt;
  const model::CanonicalPlan plan = model::plan_canonical(spec.config);
  const model::TpLayout layout = model::plan_tp_layout(spec.config, plan, spec.tp, tp_rank);
  std::uint64_t sum = 0;
  for (const model::ResidentParameter& p : layout.parameters)
    sum +=
        judge::lane_term(judge::name_hash(p.name), XXH3_64bits(weights.data() + p.offset, p.bytes));
  return judge::lane_token(sum);
}

std::unique_ptr<Hardware> open_host_hardware(const WrittenWorld& world, int index) {
  return std::make_unique<HostHardware>(world, index);
}

std::unique_ptr<Hardware> open_hardware(const WrittenWorld& world, int index) {
#ifdef TPSYNC_HAVE_GPU_WORLD
  if (!world.gpus.empty()) return open_gpu_hardware(world, index);
#endif
  TPSYNC_ASSERT(world.gpus.empty());
  return open_host_hardware(world, index);
}

}  // namespace tpsync::conformance
