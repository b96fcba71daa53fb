#include "conformance/command/publication_memory.h"

#include <fmt/format.h>

#include <map>
#include <optional>

#include "conformance/command/output.h"

namespace tpsync::conformance {

namespace {

constexpr std::string_view kPreflight = "topology-memory-preflight";

struct Publication {
  std::uint64_t free_bytes = 0;
  std::uint64_t used_bytes = 0;
};

std::string mebibytes(std::uint64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

std::vector<DeviceUse> read_device_use(const sim::Trace& trace) {
  std::map<std::uint32_t, int> rank_of;          // of actors, by process
  std::map<std::uint32_t, Publication> now;      // by process
  std::map<int, std::optional<DeviceUse>> most;  // by rank
  for (const sim::Event& event : trace.events) {
    if (event.kind == static_cast<std::uint16_t>(sim::EventKind::kProcessStart) &&
        trace.texts.at(event.text) == "actor") {
      rank_of[event.process] = static_cast<int>(event.a);
    }
    const auto actor = rank_of.find(event.process);
    if (event.kind != static_cast<std::uint16_t>(sim::EventKind::kOp) || actor == rank_of.end() ||
        event.result != sim::kOk) {
      continue;
    }
    if (event.op == static_cast<std::uint16_t>(sim::Op::kDeviceMemory) &&
        trace.texts.at(event.phase) == kPreflight) {
      now[event.process] = {event.a, event.b - event.a};
    }
    const auto publication = now.find(event.process);
    if (event.op != static_cast<std::uint16_t>(sim::Op::kDeviceFree) || event.b == 0 ||
        publication == now.end()) {
      continue;
    }
    const std::uint64_t before = publication->second.used_bytes;
    const std::uint64_t more = event.b > before ? event.b - before : 0;
    std::optional<DeviceUse>& use = most[actor->second];
    if (!use || more > use->more_bytes) {
      use = DeviceUse{actor->second, publication->second.free_bytes, more};
    }
  }
  std::vector<DeviceUse> uses;
  for (const auto& [rank, use] : most) uses.push_back(*use);
  return uses;
}

std::string device_use_table(const std::vector<DeviceUse>& uses, std::uint64_t required_bytes) {
  if (uses.empty()) return "";
  std::vector<std::vector<std::string>> rows = {
      {"device memory, MiB", "free before", "asked for", "used at most"}};
  for (const DeviceUse& use : uses) {
    rows.push_back({fmt::format("rank {}", use.rank), mebibytes(use.free_bytes),
                    mebibytes(required_bytes), mebibytes(use.more_bytes)});
  }
  return table(rows);
}

std::vector<std::string> beyond_preflight(const std::vector<DeviceUse>& uses,
                                          std::uint64_t required_bytes) {
  std::vector<std::string> sentences;
  for (const DeviceUse& use : uses) {
    if (use.more_bytes <= required_bytes) continue;
    sentences.push_back(
        fmt::format("rank {}: {} bytes more were in use on its device during a publication, the "
                    "preflight asks for {}",
                    use.rank, use.more_bytes, required_bytes));
  }
  return sentences;
}

}  // namespace tpsync::conformance
