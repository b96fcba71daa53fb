#include "conformance/fuzz/target.h"

#include <algorithm>

#include "conformance/fuzz/targets.h"

namespace tpsync::fuzz {

namespace {

constexpr Target kTargets[] = {
    {"request", "a request's envelope and payload; what decodes must encode to what decodes alike",
     decode_request, request_seeds},
    {"response", "a response of runtime or worker, likewise", decode_response, response_seeds},
    {"report", "what actors say to one another, likewise", decode_report, report_seeds},
    {"frame", "frames in a stream that comes in pieces", decode_frames, frame_seeds},
    {"manifest", "a manifest's records, whole and one by one", build_manifest_of, manifest_seeds},
    {"handle", "an exported handle of host memory, opened by a worker's importer", open_handle,
     handle_seeds},
    {"model-config", "a model's config.json", read_model_config, model_config_seeds},
    {"config-file", "a configuration of engine, sync and trainer, YAML or JSON", read_config_file,
     config_file_seeds},
    {"fault-plan", "a fault plan; what is read must be written so that it is read alike",
     read_fault_plan, fault_plan_seeds},
    {"replay", "a replay file with its world's description, likewise", read_replay, replay_seeds},
    {"result", "an exploration's result.json, likewise, and merged with itself", read_result,
     result_seeds},
    {"trace", "a trace file, which is then judged and explained", read_and_judge_trace,
     trace_seeds},
    {"runtime",
     "the command server between a foreign parent and foreign workers: it ends, with "
     "its workers, and reports no success that a worker did not report",
     serve_as_runtime, runtime_seeds},
    {"worker",
     "a worker under a foreign runtime: it ends with nothing open, and attests only what "
     "came",
     serve_as_worker, worker_seeds},
    {"engine",
     "the parent's engine over a foreign runtime: each call ends by its deadline, and "
     "leaves the connection idle or the process tree gone",
     drive_engine, engine_seeds},
    {"plan", "faults, schedule and pipe of one simulated publication: no invariant breaks",
     run_plan, plan_seeds},
};

}  // namespace

std::span<const Target> all_targets() { return kTargets; }

const Target* target_named(std::string_view name) {
  for (const Target& target : kTargets) {
    if (target.name == name) return &target;
  }
  return nullptr;
}

std::uint8_t Input::byte() {
  const ByteView one = take(1);
  return one.empty() ? 0 : std::to_integer<std::uint8_t>(one[0]);
}

std::uint16_t Input::word() {
  const std::uint8_t low = byte();
  const std::uint8_t high = byte();
  return static_cast<std::uint16_t>(high << 8 | low);
}

ByteView Input::take(std::size_t size) {
  const ByteView taken = bytes_.first(std::min(size, bytes_.size()));
  bytes_ = bytes_.subspan(taken.size());
  return taken;
}

Output& Output::byte(std::uint64_t value) {
  buffer.push_back(static_cast<std::byte>(value & 0xff));
  return *this;
}

Output& Output::word(std::uint64_t value) { return byte(value).byte(value >> 8); }

Output& Output::bytes(ByteView value) {
  buffer.insert(buffer.end(), value.begin(), value.end());
  return *this;
}

Output& Output::piece(ByteView value) {
  const ByteView cut = value.first(std::min<std::size_t>(value.size(), 0xffff));
  return word(cut.size()).bytes(cut);
}

ByteBuffer buffer_of(std::string_view text) {
  const ByteView view = as_view(text);
  return {view.begin(), view.end()};
}

}  // namespace tpsync::fuzz
