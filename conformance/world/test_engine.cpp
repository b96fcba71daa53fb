#include "conformance/world/test_engine.h"

#include "conformance/judge/content.h"
#include "tpsync/device/handles.h"

namespace tpsync::conformance {

TestEngine::TestEngine(const runtime::ResidentModel& resident, const WorldSpec& spec,
                       ContentPort& content, EngineRoster* roster)
    : resident_(resident), spec_(spec), content_(content), roster_(roster) {
  if (roster_ != nullptr) roster_->enter(*this, resident.layout.tp_rank);
}

TestEngine::~TestEngine() {
  if (roster_ != nullptr) roster_->leave(*this);
}

void TestEngine::load_checkpoint() {
  const auto dtype = resident_.config.dtype;
  for (const model::Placement& p : resident_.layout.placements) {
    const wire::TensorRecord& tensor = resident_.plan.tensors[p.tensor];
    const std::uint64_t cols = model::rows_cols(tensor).cols;
    content_.write(resident_.device, resident_.weights, p.offset,
                   {.tensor = tensor.name,
                    .version = static_cast<std::uint64_t>(spec_.base_version),
                    .dtype = dtype,
                    .element = p.row0 * cols + p.col0,
                    .count = p.col1 - p.col0,
                    .rows = p.row1 - p.row0,
                    .stride = cols,
                    .pitch = p.pitch});
  }
  if (resident_.layout.zero_fills.empty()) return;
  const device::Stream stream = device::create_stream(resident_.device);
  for (const model::ZeroFill& fill : resident_.layout.zero_fills) {
    resident_.device.fill(stream.id(), resident_.weights, fill.offset, fill.bytes, std::byte{0});
  }
  resident_.device.synchronize(stream.id(), Deadline::never());
}

std::int64_t TestEngine::lane() {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < resident_.layout.parameters.size(); ++i) {
    sum += judge::lane_term(judge::name_hash(resident_.layout.parameters[i].name),
                            content_.hash_parameter(resident_, i));
  }
  return judge::lane_token(sum);
}

std::vector<std::string> TestEngine::differences(std::int64_t version, std::int64_t lane) {
  std::uint64_t sum = 0;
  for (const model::ResidentParameter& parameter : resident_.layout.parameters) {
    sum += judge::lane_term(judge::name_hash(parameter.name),
                            judge::mix(static_cast<std::uint64_t>(version)));
  }
  // What every parameter of exactly this version gives; looking for differences takes longer.
  if (judge::lane_token(sum) == lane) return {};
  return content_.differences(resident_, version);
}

wire::GenerateResult TestEngine::generate(const wire::GenerateRequest& request) {
  const std::int64_t token = lane();
  wire::GenerateResult result;
  for (const wire::GeneratePayload& payload : request.payloads) {
    wire::GeneratedRow row;
    // As an engine that keeps what it computed for a prompt.
    const std::int64_t prompt = payload.input_ids.empty() ? 0 : payload.input_ids.front();
    row.token_ids.push_back(prefix_cache_.emplace(prompt, token).first->second);
    row.logprobs.push_back(0.0);
    row.finish_reason = "length";
    result.rows.push_back(std::move(row));
  }
  return result;
}

bool TestEngine::reset_prefix_cache() {
  prefix_cache_.clear();
  return true;
}

wire::GenerateResult combine_lanes(std::vector<wire::GenerateResult> parts) {
  wire::GenerateResult result = std::move(parts.front());
  for (std::size_t rank = 1; rank < parts.size(); ++rank) {
    for (std::size_t r = 0; r < result.rows.size() && r < parts[rank].rows.size(); ++r) {
      const wire::GeneratedRow& part = parts[rank].rows[r];
      wire::GeneratedRow& row = result.rows[r];
      row.token_ids.insert(row.token_ids.end(), part.token_ids.begin(), part.token_ids.end());
      row.logprobs.insert(row.logprobs.end(), part.logprobs.begin(), part.logprobs.end());
    }
  }
  return result;
}

}  // namespace tpsync::conformance
