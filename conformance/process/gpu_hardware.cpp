// The GPUs of this host as the devices of a world; weights move over NCCL or by copy engines, and a
// worker tells what its weights hold (resident_service.h), for no other process may map them.
#include <optional>

#include "conformance/judge/content.h"
#include "conformance/process/accounted_device.h"
#include "conformance/process/gpu_content.h"
#include "conformance/process/hardware.h"
#include "conformance/process/resident_service.h"
#include "tpsync/base/errors.h"
#include "tpsync/base/os_clock.h"
#include "tpsync/base/os_threads.h"
#include "tpsync/collective/nccl_shard_group.h"
#include "tpsync/device/cuda_device.h"

namespace tpsync::conformance {

namespace {

class GpuHardware final : public Hardware {
 public:
  GpuHardware(const WrittenWorld& world, int index)
      : world_(world),
        account_(device::MemoryAccount::open(world.account)),
        cuda_(clock_, {.ordinal = index,
                       .export_kind = world.spec.vmm_exports ? device::CudaExportKind::kVmmFd
                                                             : device::CudaExportKind::kCudaIpc}),
        device_(cuda_, *account_, threads_, options(world, index)),
        content_(cuda_, clock_, world.spec) {
    if (cuda_.uuid() != world.gpus[static_cast<std::size_t>(index)]) {
      throw_broken(ErrorKind::kDevice, cuda_.uuid(),
                   "is not the GPU that the harness saw under this number");
    }
  }

  device::Device& device() override { return device_; }
  ContentPort& content() override { return content_; }

  std::unique_ptr<collective::ShardGroup> join_shards(collective::ControlGroup& meeting,
                                                      const World& world,
                                                      Deadline deadline) override {
    return std::make_unique<collective::NcclShardGroup>(meeting, device_, cuda_, world, deadline);
  }

  void publish_resident(const WorldFolder& folder, int tp_rank,
                        const runtime::ResidentModel& resident) override {
    looking_.emplace(cuda_, clock_, world_.spec);
    service_.emplace(folder.resident(tp_rank), [this, resident] { return lane(resident); });
  }

  std::optional<std::int64_t> observed_lane(const WorldFolder& folder, int tp_rank) override {
    return ask_resident(folder.resident(tp_rank));
  }

 private:
  static AccountedDeviceOptions options(const WrittenWorld& world, int index) {
    AccountedDeviceOptions options;
    options.name = device_uuid(index);
    options.device_uuids = world.gpus;
    for (std::size_t i = 0; i < world.gpus.size(); ++i)
      options.names.push_back(device_uuid(static_cast<int>(i)));
    options.report_account = world.spec.device_bytes != 0;
    return options;
  }

  std::optional<std::int64_t> lane(const runtime::ResidentModel& resident) {
    std::optional<std::int64_t> lane;
    device_.while_awake(resident.weights, [&](device::Device&) {
      std::uint64_t sum = 0;
      try {
        for (std::size_t i = 0; i < resident.layout.parameters.size(); ++i) {
          sum += judge::lane_term(judge::name_hash(resident.layout.parameters[i].name),
                                  looking_->hash_parameter(resident, i));
        }
        lane = judge::lane_token(sum);
      } catch (const std::exception&) {
        // Of a lost device nothing can be said.
      }
    });
    return lane;
  }

  const WrittenWorld& world_;
  OsClock clock_;
  OsThreads threads_;
  std::unique_ptr<device::MemoryAccount> account_;
  device::CudaDevice cuda_;
  AccountedDevice device_;
  GpuContent content_;
  std::optional<GpuContent> looking_;  // of the service's thread
  std::optional<ResidentService> service_;
};

}  // namespace

std::unique_ptr<Hardware> open_gpu_hardware(const WrittenWorld& world, int index) {
  return std::make_unique<GpuHardware>(world, index);
}

}  // namespace tpsync::conformance
