#include "faults/plan.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>

#include "faults/catalogue.h"
#include "faults/json_document.h"
#include "tpsync/base/errors.h"

namespace tpsync::faults {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 3> kRoles = {"actor", "runtime", "worker"};

constexpr std::array kOperations = std::to_array<std::string_view>({
    "clock.now",
    "clock.sleep",
    "host.query",
    "random.fill",
    "thread.spawn",
    "thread.join",
    "mutex.lock",
    "mutex.unlock",
    "condition.wait",
    "condition.notify",
    "channel.pair",
    "channel.read",
    "channel.write",
    "channel.send_descriptors",
    "channel.receive_descriptors",
    "channel.close",
    "channel.wait_readable",
    "process.spawn",
    "process.attach",
    "process.wait",
    "process.signal",
    "process.signal_group",
    "process.group_alive",
    "control.word",
    "control.gather",
    "control.broadcast",
    "control.lost_peer",
    "control.raise_alarm",
    "control.alarm",
    "control.leave",
    "shard.gather",
    "shard.wait",
    "shard.abort",
    "device.memory",
    "device.allocate",
    "device.free",
    "device.export",
    "device.revoke",
    "device.import",
    "device.close_import",
    "device.sleep",
    "device.wake",
    "device.create_stream",
    "device.destroy_stream",
    "device.prepare",
    "device.launch",
    "device.launch_digests",
    "device.fill",
    "device.upload",
    "device.download",
    "device.synchronize",
    kSourceBegin,
    kEngineLoad,
    kEngineLayer,
    kEngineGenerate,
    kEngineReset,
});

[[noreturn]] void refuse(const std::string& path, const std::string& detail) {
  throw_invalid(ErrorKind::kInvalidConfig, path.empty() ? "plan" : path, detail);
}

std::string joined(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}

void require_object(const Json& value, const std::string& path,
                    std::initializer_list<std::string_view> known) {
  if (!value.is_object()) refuse(path, "must be an object");
  for (const auto& [key, unused] : value.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      refuse(joined(path, key), "is not a field of a fault plan; remove it");
    }
  }
}

std::string text_at(const Json& object, const std::string& path, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) refuse(joined(path, key), "is missing; add it as a text");
  if (!found->is_string()) refuse(joined(path, key), "must be a text");
  return found->get<std::string>();
}

std::uint64_t natural_at(const Json& object, const std::string& path, const char* key,
                         std::uint64_t limit) {
  const auto found = object.find(key);
  if (found == object.end()) return 0;
  if (!found->is_number_unsigned() || found->get<std::uint64_t>() > limit) {
    refuse(joined(path, key), "must be a whole number from 0 to " + std::to_string(limit));
  }
  return found->get<std::uint64_t>();
}

Moment moment_from(const Json& value, const std::string& path) {
  require_object(value, path, {"role", "rank", "phase", "chunk", "op", "occurrence"});
  Moment moment;
  moment.role = text_at(value, path, "role");
  if (!is_role(moment.role)) {
    refuse(joined(path, "role"), "must be actor, runtime or worker, not " + moment.role);
  }
  moment.rank = static_cast<int>(natural_at(value, path, "rank", 65535));
  if (value.contains("phase")) moment.phase = text_at(value, path, "phase");
  moment.chunk = static_cast<std::int64_t>(
      natural_at(value, path, "chunk", std::numeric_limits<std::int32_t>::max()));
  moment.op = text_at(value, path, "op");
  if (!is_operation(moment.op)) {
    refuse(joined(path, "op"),
           "must name an operation of a seam, such as channel.read, not " + moment.op);
  }
  moment.occurrence =
      natural_at(value, path, "occurrence", std::numeric_limits<std::uint32_t>::max());
  return moment;
}

Fault fault_from(const Json& value, const std::string& path) {
  require_object(value, path, {"name", "moment", "arguments"});
  Fault fault;
  fault.name = text_at(value, path, "name");
  if (!value.contains("moment")) refuse(joined(path, "moment"), "is missing; add it as an object");
  fault.moment = moment_from(value["moment"], joined(path, "moment"));
  if (value.contains("arguments")) {
    const std::string at = joined(path, "arguments");
    const Json& arguments = value["arguments"];
    if (!arguments.is_object()) refuse(at, "must be an object of texts");
    for (const auto& [key, argument] : arguments.items()) {
      if (!argument.is_string()) refuse(joined(at, key), "must be a text");
      fault.arguments[key] = argument.get<std::string>();
    }
  }
  check_fault(fault, path);
  return fault;
}

}  // namespace

std::span<const std::string_view> operation_names() { return kOperations; }

bool is_operation(std::string_view name) {
  return std::find(kOperations.begin(), kOperations.end(), name) != kOperations.end();
}

bool is_own_moment(std::string_view name) {
  return name == kSourceBegin || name.starts_with("engine.");
}

bool is_role(std::string_view name) {
  return std::find(kRoles.begin(), kRoles.end(), name) != kRoles.end();
}

Plan plan_from_json(std::string_view text) {
  const Json root = parse_document(text, "plan");
  require_object(root, "", {"seed", "faults"});
  Plan plan;
  plan.seed = natural_at(root, "", "seed", std::numeric_limits<std::uint64_t>::max());
  if (!root.contains("faults")) refuse("faults", "is missing; add it as a list");
  if (!root["faults"].is_array()) refuse("faults", "must be a list");
  for (std::size_t i = 0; i < root["faults"].size(); ++i) {
    plan.faults.push_back(fault_from(root["faults"][i], "faults[" + std::to_string(i) + "]"));
  }
  return plan;
}

std::string to_json(const Plan& plan) {
  Json faults = Json::array();
  for (const Fault& fault : plan.faults) {
    Json arguments = Json::object();
    for (const auto& [key, value] : fault.arguments) arguments[key] = value;
    Json moment;
    moment["role"] = fault.moment.role;
    moment["rank"] = fault.moment.rank;
    moment["phase"] = fault.moment.phase;
    moment["chunk"] = fault.moment.chunk;
    moment["op"] = fault.moment.op;
    moment["occurrence"] = fault.moment.occurrence;
    Json entry;
    entry["name"] = fault.name;
    entry["moment"] = std::move(moment);
    entry["arguments"] = std::move(arguments);
    faults.push_back(std::move(entry));
  }
  Json root;
  root["seed"] = plan.seed;
  root["faults"] = std::move(faults);
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_text(const Moment& moment) {
  std::string text = moment.role + " " + std::to_string(moment.rank) + ": " + moment.op + "#" +
                     std::to_string(moment.occurrence);
  if (moment.phase.empty()) return text;
  return text + " in " + moment.phase + "/" + std::to_string(moment.chunk);
}

std::string to_text(const Fault& fault) {
  std::string text = fault.name + " at " + to_text(fault.moment);
  std::string arguments;
  for (const auto& [key, value] : fault.arguments) {
    arguments += (arguments.empty() ? "" : ", ") + key + "=" + value;
  }
  return arguments.empty() ? text : text + " (" + arguments + ")";
}

}  // namespace tpsync::faults
