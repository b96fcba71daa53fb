// A worker's side of the data plane: takes the chunks of one publication, moves each into the
// resident weights with one launch, from one packed buffer or from those of all actors, and attests
// what it received.
//
// Rules: chunks come in order, each exactly once; each tensor's name, dtype, shape and size equal
// the worker's own plan; the plan as a whole covers every resident byte exactly once. A decoder
// layer is reported complete when the last chunk that touches it was synchronized. The manifest is
// computed from the records that arrived in this publication.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tpsync/device/handles.h"
#include "tpsync/model/tp_layout.h"
#include "tpsync/transfer/copy_plan.h"
#include "tpsync/wire/messages.h"

namespace tpsync::transfer {

// Told when all weights of a part of the model are in place. Called between chunks, in ascending
// order; parameters outside decoder layers are reported once, last, as layer -1.
class LayerSink {
 public:
  virtual ~LayerSink() = default;
  virtual void layer_loaded(std::int64_t layer) = 0;
};

struct Attestation {
  wire::Manifest received;
  std::uint64_t resident_parameter_count = 0;
  std::vector<wire::DigestPart> digest;  // empty if the digest is off
};

class WeightLoader {
 public:
  // `plan` and `layout` are the worker's own, from its model configuration. All references outlive
  // the loader.
  WeightLoader(device::Device& device, device::RegionId resident, const model::CanonicalPlan& plan,
               const model::TpLayout& layout, LayerSink& layers);
  ~WeightLoader();

  // Begins a publication: checks the chunk table and the source layout, plans the copies (again
  // only if something changed), clears the vocabulary padding. Throws PeerViolation; then no
  // publication is begun.
  void begin(const wire::StartRequest& start, Deadline deadline);

  // Bytes of each packed buffer that the present publication needs.
  std::uint64_t buffer_bytes_needed() const { return buffer_bytes_; }

  // Loads one chunk from the packed buffer, or by the reshard route from those of the actors, in
  // rank order; returns when its bytes are in place. Throws PeerViolation
  // (kProtocol: a chunk out of order or too many; kMismatch: a tensor that the plan does not have
  // there), RuntimeBroken kDevice, kTimeout.
  void load(wire::UpdateRequest update, std::span<const device::RegionId> packed,
            Deadline deadline);

  // After the last chunk. Throws PeerViolation kMismatch if chunks are missing (subject: the first
  // tensor that did not come), RuntimeBroken kDevice, kTimeout.
  Attestation finish(Deadline deadline);

  // Forgets the publication, complete or not.
  void abandon() noexcept;
  bool active() const { return active_; }

 private:
  struct Prepared;
  void prepare(const wire::StartRequest& start, std::vector<Chunk> chunks);
  void check_record(const wire::TensorRecord& received, std::uint64_t tensor) const;
  void check_records(wire::UpdateRequest& update, const Chunk& chunk);
  void report_layers(std::uint64_t chunk);

  device::Device& device_;
  device::Stream stream_;
  device::RegionId resident_;
  const model::CanonicalPlan& plan_;
  const model::TpLayout& layout_;
  LayerSink& layers_;
  std::unique_ptr<Prepared> prepared_;
  std::vector<std::uint64_t> sums_;
  std::vector<device::RegionId> bindings_;
  bool active_ = false;
  bool digest_ = false;
  std::uint64_t next_chunk_ = 0;
  std::uint64_t buffer_bytes_ = 0;
  std::optional<wire::ManifestBuilder> manifest_;
};

}  // namespace tpsync::transfer
