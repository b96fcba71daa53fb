#include "conformance/process/process_world.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/world/spec_json.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

void write_world(const WorldFolder& folder, const WrittenWorld& world) {
  nlohmann::ordered_json json;
  add_spec(json, world.spec);
  json["faults"] = nlohmann::ordered_json::parse(faults::to_json(world.plan));
  json["account"] = world.account;
  json["gpus"] = world.gpus;
  std::ofstream file(folder.spec());
  file << json.dump();
  file.close();
  if (!file) throw_broken(ErrorKind::kIo, folder.spec(), "can't be written");
}

WrittenWorld read_world(const WorldFolder& folder) {
  std::ifstream file(folder.spec());
  const auto json = nlohmann::ordered_json::parse(file);
  return {spec_from_json(json), faults::plan_from_json(json.at("faults").dump()),
          json.at("account").get<std::string>(), json.at("gpus").get<std::vector<std::string>>()};
}

std::vector<std::string> runtime_arguments(const WorldFolder& folder, const std::string& version) {
  return {"runtime", folder.path.string(), version};
}

std::vector<std::string> worker_arguments(const WorldFolder& folder, const std::string& version,
                                          int rank) {
  return {"worker", folder.path.string(), version, std::to_string(rank)};
}

std::int64_t number_in(const std::string& argument) {
  std::int64_t number = 0;
  const char* const end = argument.data() + argument.size();
  const auto [stop, error] = std::from_chars(argument.data(), end, number);
  if (error != std::errc() || stop != end)
    throw_invalid(ErrorKind::kInvalidConfig, argument, "is no number");
  return number;
}

faults::PeerName peer_of(const SpawnRequest& request) {
  const std::vector<std::string>& arguments = request.arguments;
  return {arguments.at(0), arguments.size() > 3 ? std::stoi(arguments[3]) : 0};
}

ProcessSeams::ProcessSeams(const WorldFolder& folder, const Hello& hello, const WrittenWorld& world)
    : stream_(folder.events(), hello),
      tracer_(stream_),
      log_(tracer_),
      os_(log_),
      faults_(folder.fault_state(), world.spec, world.plan, hello.role, hello.rank, tracer_),
      channels_(os_.channels(), tracer_),
      launcher_(os_.world().processes, tracer_, channels_, peer_of),
      recorder_(tracer_) {
  faults::ProcessFaults* faults = faults_.faults();
  if (faults == nullptr) return;
  fault_channels_ = faults->channel_factory(channels_);
  fault_launcher_ = faults->processes(launcher_);
  channels_.set_decorator([faults](faults::PeerName peer, std::unique_ptr<Channel>& inner) {
    return faults->channel(std::move(peer), inner);
  });
}

World ProcessSeams::world() {
  World world = os_.world();
  ChannelFactory& channels = fault_channels_ ? *fault_channels_ : channels_;
  ProcessLauncher& launcher = fault_launcher_ ? *fault_launcher_ : launcher_;
  return {world.clock, channels, launcher, world.host, world.random, log_, world.threads};
}

std::unique_ptr<Channel> ProcessSeams::inherited_channel(const char* peer_role) {
  return channels_.inherited({peer_role, 0});
}

device::Device& ProcessSeams::device(device::Device& inner, int index) {
  device_ = std::make_unique<TracedDevice>(inner, tracer_, index);
  if (faults_.faults() != nullptr) fault_device_ = faults_.faults()->device(*device_);
  return fault_device_ ? *fault_device_ : *device_;
}

std::unique_ptr<collective::ControlGroup> ProcessSeams::group(
    std::unique_ptr<collective::ControlGroup> inner, std::uint64_t id) {
  std::unique_ptr<collective::ControlGroup> traced =
      std::make_unique<TracedControlGroup>(std::move(inner), tracer_, id);
  if (faults_.faults() == nullptr) return traced;
  auto wrapped = faults_.faults()->control_group(traced);
  return wrapped ? std::move(wrapped) : std::move(traced);
}

std::unique_ptr<collective::ShardGroup> ProcessSeams::group(
    std::unique_ptr<collective::ShardGroup> inner, std::uint64_t id) {
  std::unique_ptr<collective::ShardGroup> traced =
      std::make_unique<TracedShardGroup>(std::move(inner), tracer_, id);
  if (faults_.faults() == nullptr) return traced;
  auto wrapped = faults_.faults()->shard_group(traced);
  return wrapped ? std::move(wrapped) : std::move(traced);
}

void ProcessSeams::goodbye(int status) {
  if (device_ && device_->exports() + device_->imports() + device_->regions() != 0)
    tracer_.record(sim::EventKind::kProcessLeft, device_->exports(), device_->imports(),
                   device_->regions());
  tracer_.record(sim::EventKind::kProcessExit, static_cast<std::uint64_t>(status));
}

}  // namespace tpsync::conformance
