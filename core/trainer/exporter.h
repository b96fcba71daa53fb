// The lazy canonical export of a trainer's FSDP shards (transfer/weight_source.h).
//
// It enumerates from the shards that it holds and from nothing else: what the trainer lost is
// missing here, and shows as a difference from the plan, which is made from the configuration by
// other code. Rules: experts come in the fused order (all gate and up of a layer's experts, then
// all down) whichever form they are stored in; shards are cast to the wire dtype before the gather;
// one group of collectives per chunk, without any by the reshard route; the records emitted are
// those of the chunks that were prepared, and what bytes were packed for them is proven by the
// content digest alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tpsync/collective/shard_group.h"
#include "tpsync/device/device.h"
#include "tpsync/trainer/sharded_parameter.h"
#include "tpsync/transfer/weight_source.h"

namespace tpsync::trainer {

struct ExporterOptions {
  std::optional<DType> wire_dtype;          // of floating tensors; default: as stored
  bool tie_word_embeddings = false;         // lm_head.weight is then the embedding and is left out
  std::uint64_t moe_intermediate_size = 0;  // checked against fused experts unless 0
};

// This actor among all.
struct ActorPlace {
  int rank = 0;
  int world = 1;
};

class Exporter final : public transfer::WeightSource {
 public:
  // `parameters` in state-dict order, the same on every rank but for region and offset; read here
  // only. Device, group and the regions outlive the exporter. Throws InvalidInput kInvalidConfig,
  // subject the parameter: bounds that do not ascend over its rows, a missing region, fused experts
  // of odd or unexpected size, or not cut at expert bounds.
  Exporter(device::Device& device, collective::ShardGroup& shards,
           std::span<const ShardedParameter> parameters, const ExporterOptions& options);
  // Without a weight group: for the reshard route alone. Throws also InvalidInput kInvalidConfig,
  // subject "place", unless the rank is one of the world, which is that of the control group.
  Exporter(device::Device& device, ActorPlace place, std::span<const ShardedParameter> parameters,
           const ExporterOptions& options);
  ~Exporter() override;

  std::span<const wire::TensorRecord> metadata() override;
  const wire::SourceLayout& layout() override;
  std::unique_ptr<transfer::WeightPass> begin(const transfer::PassTarget& target) override;
  bool usable(wire::Route route) const noexcept override;

 private:
  struct Plan;
  class Pass;
  Exporter(device::Device& device, collective::ShardGroup* shards, ActorPlace place,
           std::span<const ShardedParameter> parameters, const ExporterOptions& options);
  void add_tensor(std::string name, std::vector<std::int64_t> shape, DType stored,
                  const std::vector<std::uint64_t>& bounds, std::uint32_t binding,
                  std::uint64_t offset);
  void add_parameter(const ShardedParameter& parameter);
  void add_fused_experts(const ShardedParameter& parameter, bool gate_up);
  std::uint32_t bind(device::RegionId region);

  device::Device& device_;
  collective::ShardGroup* shards_;  // null: there is none
  ExporterOptions options_;
  std::uint64_t rank_ = 0;
  std::uint64_t world_ = 0;
  std::vector<wire::TensorRecord> records_;
  wire::SourceLayout layout_;
  struct Source {  // this rank's rows of a tensor
    std::uint32_t binding = 0;
    std::uint64_t offset = 0;
    DType stored = DType::kBFloat16;
    DType wire = DType::kBFloat16;
  };
  std::vector<Source> sources_;
  std::vector<device::RegionId> regions_;  // binding b + 1; binding 0 is the target
  std::unique_ptr<Plan> plan_;  // prepared batches of the last target's chunks and layout
};

}  // namespace tpsync::trainer
