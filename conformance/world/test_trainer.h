// A trainer's weights: the state dict of a Qwen3-MoE model as FSDP shards on one actor's device,
// filled with the content of any version. Enumerates the model by itself, from the names and shapes
// that Hugging Face gives it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/world/ports.h"
#include "conformance/world/spec.h"
#include "tpsync/device/handles.h"
#include "tpsync/trainer/sharded_parameter.h"

namespace tpsync::conformance {

class TestTrainer {
 public:
  TestTrainer(const WorldSpec& spec, device::Device& device, ContentPort& content, int rank);

  // The shards, for the exporter. The memory stays with this object.
  const std::vector<trainer::ShardedParameter>& parameters() const { return parameters_; }

  // An optimizer step: every shard now holds this version.
  void step(std::uint64_t version);

 private:
  void add(std::string name, std::vector<std::uint64_t> shape);
  void write_rows(const trainer::ShardedParameter& parameter, std::uint64_t version);

  const WorldSpec& spec_;
  device::Device& device_;
  ContentPort& content_;
  std::uint64_t rank_;
  std::vector<trainer::ShardedParameter> parameters_;
  device::Region memory_;
  std::uint64_t bytes_ = 0;
};

}  // namespace tpsync::conformance
