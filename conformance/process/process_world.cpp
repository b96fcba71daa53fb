#include "conformance/process/process_world.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "conformance/judge/content.h"
#include "conformance/world/content_bytes.h"
#include "conformance/world/spec_json.h"
#include "tpsync/base/errors.h"
#include "tpsync/model/tp_layout.h"

namespace tpsync::conformance {

namespace {

std::uint64_t hash_at(const std::byte* bytes, std::uint64_t count) {
  return XXH3_64bits(bytes, count);
}

}  // namespace

void write_world(const WorldFolder& folder, const WorldSpec& spec, const std::string& account) {
  nlohmann::ordered_json json;
  add_spec(json, spec);
  json["account"] = account;
  std::ofstream(folder.spec()) << json.dump();
}

WrittenWorld read_world(const WorldFolder& folder) {
  std::ifstream file(folder.spec());
  const auto json = nlohmann::ordered_json::parse(file);
  return {spec_from_json(json), json.at("account").get<std::string>()};
}

std::unique_ptr<Channel> ProcessSeams::inherited_channel() {
  return channels_.traced(os_.channels().adopt(kInheritedChannelDescriptor));
}

void ProcessSeams::goodbye(int status, const TracedDevice* device) {
  if (device != nullptr && device->exports() + device->imports() + device->regions() != 0)
    tracer_.record(sim::EventKind::kProcessLeft, device->exports(), device->imports(),
                   device->regions());
  tracer_.record(sim::EventKind::kProcessExit, static_cast<std::uint64_t>(status));
}

void HostContent::write(device::Device&, device::RegionId region, std::uint64_t offset,
                        const ContentRect& content) {
  const std::uint64_t item = item_size(content.dtype);
  const std::uint64_t base =
      judge::content_base(seed_, judge::name_hash(content.tensor), content.version);
  const std::uint64_t bytes = content.count * item;
  for (std::uint64_t row = 0; row < content.rows; ++row) {
    std::byte* const at = device_.host_pointer(region, offset + row * content.pitch, bytes);
    fill_content({at, bytes}, content.dtype, base, content.element + row * content.stride);
  }
}

std::uint64_t HostContent::hash_parameter(const runtime::ResidentModel& resident,
                                          std::size_t parameter) {
  const model::ResidentParameter& p = resident.layout.parameters[parameter];
  return hash_at(device_.host_pointer(resident.weights, p.offset, p.bytes), p.bytes);
}

void publish_resident(const WorldFolder& folder, int tp_rank, const void* weights,
                      std::uint64_t bytes) {
  // Any process of this user may read this one's memory, where the system restricts that.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  const std::string path = folder.resident(tp_rank);
  const std::string fresh = path + "." + std::to_string(getpid());
  std::ofstream(fresh) << getpid() << ' ' << reinterpret_cast<std::uintptr_t>(weights) << ' '
                       << bytes;
  std::filesystem::rename(fresh, path);
}

std::optional<std::int64_t> observed_lane(const WorldFolder& folder, const WorldSpec& spec,
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
    sum += judge::lane_term(judge::name_hash(p.name), hash_at(weights.data() + p.offset, p.bytes));
  return judge::lane_token(sum);
}

}  // namespace tpsync::conformance
