// The inference engine's decorator: calls that fail, and an engine that does something else than it
// was asked. Memory, loading and publication are the worker's, so an engine can only fail, lie
// about its cache, and write where it should not.
#include <utility>

#include "faults/injector.h"
#include "tpsync/base/errors.h"
#include "tpsync/device/handles.h"

namespace tpsync::faults {
namespace {

constexpr std::uint64_t kRewrittenBytes = 2;
constexpr std::byte kRewritten{0xa5};

class FaultEngine final : public runtime::InferenceEngine {
 public:
  FaultEngine(ProcessFaults& faults, const runtime::ResidentModel& resident,
              std::unique_ptr<runtime::InferenceEngine> inner)
      : faults_(faults), resident_(resident), inner_(std::move(inner)) {}

  void load_checkpoint() override {
    if (misbehaves(kEngineLoad) != nullptr) {
      throw_broken(ErrorKind::kIo, "checkpoint", "is not there");
    }
    inner_->load_checkpoint();
  }

  void layer_loaded(std::int64_t layer) override {
    const Fault* fault = misbehaves(kEngineLayer);
    if (fault != nullptr && fault->name == "engine.finalize_fail") {
      throw_broken(ErrorKind::kDevice, "layer", "could not be finalized");
    }
    inner_->layer_loaded(layer);
    if (fault != nullptr) rewrite();
  }

  wire::GenerateResult generate(const wire::GenerateRequest& request) override {
    if (misbehaves(kEngineGenerate) != nullptr) {
      throw_nothing_happened(ErrorKind::kOutOfMemory, "cache", "has no room for this request");
    }
    return inner_->generate(request);
  }

  bool reset_prefix_cache() override {
    if (misbehaves(kEngineReset) != nullptr) return false;
    return inner_->reset_prefix_cache();
  }

 private:
  const Fault* misbehaves(std::string_view call) {
    const Fault* fault = faults_.fire(Action::kMisbehave, call);
    faults_.count(call);
    return fault;
  }

  void rewrite() {
    device::Device& device = resident_.device;
    const device::Stream stream = device::create_stream(device);
    device.fill(stream.id(), resident_.weights, resident_.layout.placements.front().offset,
                kRewrittenBytes, kRewritten);
    device.synchronize(stream.id(), Deadline::never());
  }

  ProcessFaults& faults_;
  runtime::ResidentModel resident_;
  std::unique_ptr<runtime::InferenceEngine> inner_;
};

}  // namespace

std::unique_ptr<runtime::InferenceEngine> ProcessFaults::engine(
    const runtime::ResidentModel& resident, std::unique_ptr<runtime::InferenceEngine>& inner) {
  if (!wants(Seam::kInferenceEngine)) return nullptr;
  return std::make_unique<FaultEngine>(*this, resident, std::move(inner));
}

}  // namespace tpsync::faults
