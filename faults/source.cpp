// The weight source's decorator: a pass that emits without an expert, or has one tensor more to
// give than its metadata says. The metadata stays true, so that only the pass can give it away.
#include <utility>

#include "faults/injector.h"

namespace tpsync::faults {
namespace {

class FaultPass final : public transfer::WeightPass {
 public:
  FaultPass(ProcessFaults& faults, std::unique_ptr<transfer::WeightPass> inner,
            std::string lost_prefix, bool has_more)
      : faults_(faults),
        inner_(std::move(inner)),
        lost_prefix_(std::move(lost_prefix)),
        has_more_(has_more) {}

  std::uint64_t group_count(std::uint64_t chunk) override { return inner_->group_count(chunk); }
  void prepare(std::uint64_t chunk, std::uint64_t group) override {
    inner_->prepare(chunk, group);
    const auto all = inner_->emitted();
    for (; seen_ < all.size(); ++seen_) {
      const bool is_lost = !lost_prefix_.empty() && all[seen_].name.starts_with(lost_prefix_);
      if (!is_lost || !faults_.active()) emitted_.push_back(all[seen_]);
    }
  }
  void gather(std::uint64_t chunk, std::uint64_t group, Deadline deadline,
              collective::ControlGroup& watch) override {
    inner_->gather(chunk, group, deadline, watch);
  }
  std::span<const wire::TensorRecord> emitted() const override { return emitted_; }
  bool exhausted() override {
    const bool is_exhausted = inner_->exhausted();
    return is_exhausted && !(has_more_ && faults_.active());
  }
  bool quiesce(Deadline deadline) override { return inner_->quiesce(deadline); }
  std::span<const std::uint64_t> digest_sums() const override { return inner_->digest_sums(); }

 private:
  ProcessFaults& faults_;
  std::unique_ptr<transfer::WeightPass> inner_;
  std::string lost_prefix_;  // empty: none
  bool has_more_;
  std::size_t seen_ = 0;
  std::vector<wire::TensorRecord> emitted_;
};

class FaultSource final : public transfer::WeightSource {
 public:
  FaultSource(ProcessFaults& faults, transfer::WeightSource& inner)
      : faults_(faults), inner_(inner) {}

  std::span<const wire::TensorRecord> metadata() override { return inner_.metadata(); }
  const wire::SourceLayout& layout() override { return inner_.layout(); }
  bool usable() const noexcept override { return inner_.usable(); }

  std::unique_ptr<transfer::WeightPass> begin(const transfer::PassTarget& target) override {
    const Fault* loss = faults_.fire(Action::kLoseExpert, kSourceBegin);
    const Fault* extension = faults_.fire(Action::kExtendSource, kSourceBegin);
    faults_.count_pass();
    auto pass = inner_.begin(target);
    if (loss == nullptr && extension == nullptr) return pass;
    return std::make_unique<FaultPass>(faults_, std::move(pass),
                                       loss == nullptr ? std::string() : expert_of(*loss) + ".",
                                       extension != nullptr);
  }

 private:
  ProcessFaults& faults_;
  transfer::WeightSource& inner_;
};

}  // namespace

std::unique_ptr<transfer::WeightSource> ProcessFaults::weight_source(
    transfer::WeightSource& inner) {
  if (!wants(Seam::kWeightSource)) return nullptr;
  return std::make_unique<FaultSource>(*this, inner);
}

}  // namespace tpsync::faults
