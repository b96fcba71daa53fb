// Requests of one valid publication of the tiny model to a runtime of two workers, and ways to
// make them wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/fuzz/worlds.h"
#include "tpsync/transfer/chunk_plan.h"
#include "tpsync/wire/messages.h"

namespace tpsync::fuzz {

struct PublicationInputs {
  static constexpr std::int64_t kWorkers = 2;
  static constexpr std::uint64_t kBufferBytes = 1024;

  model::ModelConfig config = world_of(1).config;
  model::CanonicalPlan plan = model::plan_canonical(config);
  std::vector<transfer::Chunk> chunks = transfer::plan_chunks(plan.tensors, kBufferBytes);
  wire::Manifest manifest = wire::build_manifest(plan.tensors);

  wire::PublicationHeader header(std::int64_t version) const {
    wire::PublicationHeader header;
    header.publication_id = "00112233445566778899aabbccddeeff";
    header.model_version = version;
    header.tp_world_size = kWorkers;
    header.expected_manifest = manifest;
    header.device_uuids = {"gpu-0", "gpu-1"};
    return header;
  }

  // The request of a command, of version or chunk `argument` where it has one.
  wire::Payload request(wire::Command command, std::uint8_t argument,
                        const wire::HandleMap& handles) const {
    switch (command) {
      case wire::Command::kStartup:
        return wire::StartupRequest{};
      case wire::Command::kGenerate:
        return wire::GenerateRequest{};
      case wire::Command::kSleep:
        return wire::SleepRequest{argument % 4};
      case wire::Command::kWakeUp: {
        wire::WakeUpRequest request;
        if ((argument & 1) != 0) request.tags.emplace_back("weights");
        if ((argument & 2) != 0) request.tags.emplace_back("kv_cache");
        if ((argument & 4) != 0) request.tags.emplace_back("other");
        return request;
      }
      case wire::Command::kHealth:
        return wire::HealthRequest{};
      case wire::Command::kProbeIpc: {
        wire::ProbeIpcRequest request;
        request.handles = handles;
        request.words.assign(argument % 4, 0xa5a5a5a5a5a5a5a5ULL);  // memory never written
        return request;
      }
      case wire::Command::kInit:
        return wire::InitRequest{argument % 8 != 7};
      case wire::Command::kStart: {
        wire::StartRequest request;
        request.header = header(argument);
        for (const transfer::Chunk& chunk : chunks) {
          request.chunk_tensor_counts.push_back(chunk.count);
        }
        request.buffer_bytes = kBufferBytes;
        return request;
      }
      case wire::Command::kUpdate: {
        wire::UpdateRequest request;
        request.chunk_index = argument;
        request.handles = handles;
        const transfer::Chunk& chunk = chunks[argument % chunks.size()];
        for (std::uint64_t i = chunk.first; i < chunk.first + chunk.count; ++i) {
          const wire::TensorRecord& tensor = plan.tensors[i];
          request.names.push_back(tensor.name);
          request.dtype_names.emplace_back("bfloat16");
          request.shapes.push_back(tensor.shape);
          request.tensor_sizes.push_back(tensor.nbytes);
        }
        return request;
      }
      case wire::Command::kFinish: {
        wire::FinishRequest request;
        request.header = header(argument);
        request.weight_version = std::to_string(argument);
        return request;
      }
      case wire::Command::kRelease:
        return wire::ReleaseRequest{};
      case wire::Command::kShutdown:
        return wire::ShutdownRequest{};
    }
    return wire::StartupRequest{};
  }

  // One small change of the kind `how`, at `where`.
  static void distort(wire::Payload& payload, std::uint8_t how, std::uint8_t where) {
    if (auto* start = std::get_if<wire::StartRequest>(&payload)) {
      distort_header(start->header, how, where);
      auto& counts = start->chunk_tensor_counts;
      if (how == 8) counts[where % counts.size()] += 1;
      if (how == 9) counts.push_back(0);
      if (how == 10) start->buffer_bytes = where;
      if (how == 11) start->slots = where;
      if (how == 12) start->content_digest = true;
      if (how == 13) {
        start->layout = wire::Layout::kRankMajor;
        start->source_layout = wire::SourceLayout{where, std::vector<std::uint64_t>(where + 1U)};
      }
    } else if (auto* update = std::get_if<wire::UpdateRequest>(&payload)) {
      const std::size_t at = where % update->names.size();
      if (how == 0) update->names[at] += "x";
      if (how == 1) update->dtype_names[at] = "float16";
      if (how == 2 && !update->shapes[at].empty()) update->shapes[at][0] += 1;
      if (how == 3) update->tensor_sizes[at] += 2;
      if (how == 4) update->handles.entries.clear();
      if (how == 5 && !update->handles.entries.empty()) {
        ByteBuffer& handle = update->handles.entries.back().second;
        if (!handle.empty()) handle[where % handle.size()] ^= std::byte{1};
      }
      if (how == 6) std::swap(update->names.front(), update->names[at]);
    } else if (auto* finish = std::get_if<wire::FinishRequest>(&payload)) {
      distort_header(finish->header, how, where);
      if (how == 8) finish->flush_cache = false;
      if (how == 9) finish->weight_version += "0";
      if (how == 10) finish->digest.tensors.resize(where);
    }
  }

 private:
  static void distort_header(wire::PublicationHeader& header, std::uint8_t how,
                             std::uint8_t where) {
    if (how == 0) header.protocol_version += 1;
    if (how == 1) header.transport += "x";
    if (how == 2) header.publication_id.resize(where % 33);
    if (how == 3) header.model_version = -1;
    if (how == 4) header.tp_world_size = where;
    if (how == 5) header.expected_manifest.fingerprint.assign(where % 66, 'a');
    if (how == 6) header.expected_manifest.tensor_count += where;
    if (how == 7) header.device_uuids.resize(where % 4);
  }
};

}  // namespace tpsync::fuzz
