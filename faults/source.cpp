// The weight source's decorator: a pass that emits without an expert, has one tensor more to give,
// or says other things of its tensors than its metadata does. The metadata stays true, so that only
// the pass can give it away.
#include <utility>

#include "faults/injector.h"
#include "tpsync/base/errors.h"

namespace tpsync::faults {
namespace {

// The record under a wrapper's name, with another shape of as many elements, or with another dtype.
void alter(wire::TensorRecord& record, std::string_view field) {
  if (field == "name") record.name = "module." + record.name;
  if (field == "shape") record.shape.insert(record.shape.begin(), 1);
  if (field == "dtype") record.dtype = "torch.float64";
}

class FaultPass final : public transfer::WeightPass {
 public:
  // `distortion` may be null.
  FaultPass(ProcessFaults& faults, std::unique_ptr<transfer::WeightPass> inner,
            std::string lost_prefix, bool has_more, const Fault* distortion,
            std::uint64_t last_chunk)
      : faults_(faults),
        inner_(std::move(inner)),
        lost_prefix_(std::move(lost_prefix)),
        has_more_(has_more),
        distortion_(distortion),
        last_chunk_(last_chunk) {}

  std::uint64_t group_count(std::uint64_t chunk) override { return inner_->group_count(chunk); }
  void prepare(std::uint64_t chunk, std::uint64_t group) override {
    if (chunk == last_chunk_ && group == 0 && is_distorted("weights.materialize_fail")) {
      throw_broken(ErrorKind::kDevice, "source", "this chunk could not be materialized");
    }
    inner_->prepare(chunk, group);
    const auto all = inner_->emitted();
    const std::size_t before = emitted_.size();
    for (; seen_ < all.size(); ++seen_) {
      const bool is_lost = !lost_prefix_.empty() && all[seen_].name.starts_with(lost_prefix_);
      if (!is_lost || !faults_.active()) emitted_.push_back(all[seen_]);
    }
    distort_from(before);
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
  std::span<const std::uint64_t> digest_sums() const override {
    if (!is_distorted("weights.digest_sums")) return inner_->digest_sums();
    const auto sums = inner_->digest_sums();
    sums_.assign(sums.begin(), sums.end());
    // By another amount than receipt.digest alters a receipt, or the two would agree.
    if (!sums_.empty()) sums_.front() += 2;
    return sums_;
  }

 private:
  bool is_distorted(std::string_view name) const {
    return distortion_ != nullptr && distortion_->name == name && faults_.active();
  }

  // What was emitted since `first` may be the first that can be distorted.
  void distort_from(std::size_t first) {
    if (is_done_) return;
    const std::size_t count = emitted_.size() - first;
    if (is_distorted("weights.duplicated") && count > 0) {
      const wire::TensorRecord copy = emitted_[first];
      emitted_.insert(emitted_.begin() + static_cast<std::ptrdiff_t>(first), copy);
      is_done_ = true;
    }
    if (is_distorted("weights.reordered") && count > 1) {
      std::swap(emitted_[first], emitted_[first + 1]);
      is_done_ = true;
    }
    if (is_distorted("weights.record") && count > 0) {
      alter(emitted_[first], distortion_->arguments.at(std::string(kField)));
      is_done_ = true;
    }
  }

  ProcessFaults& faults_;
  std::unique_ptr<transfer::WeightPass> inner_;
  std::string lost_prefix_;  // empty: none
  bool has_more_;
  const Fault* distortion_;
  std::uint64_t last_chunk_;
  bool is_done_ = false;  // what is distorted once, was
  std::size_t seen_ = 0;
  std::vector<wire::TensorRecord> emitted_;
  mutable std::vector<std::uint64_t> sums_;
};

class FaultSource final : public transfer::WeightSource {
 public:
  FaultSource(ProcessFaults& faults, transfer::WeightSource& inner)
      : faults_(faults), inner_(inner) {}

  std::span<const wire::TensorRecord> metadata() override { return inner_.metadata(); }
  const wire::SourceLayout& layout() override { return inner_.layout(); }
  bool usable(wire::Route route) const noexcept override { return inner_.usable(route); }

  std::unique_ptr<transfer::WeightPass> begin(const transfer::PassTarget& target) override {
    const Fault* loss = faults_.fire(Action::kLoseExpert, kSourceBegin);
    const Fault* extension = faults_.fire(Action::kExtendSource, kSourceBegin);
    const Fault* distortion = faults_.fire(Action::kDistortPass, kSourceBegin);
    faults_.count(kSourceBegin);
    auto pass = inner_.begin(target);
    if (loss == nullptr && extension == nullptr && distortion == nullptr) return pass;
    const std::uint64_t last_chunk = target.chunks.empty() ? 0 : target.chunks.size() - 1;
    return std::make_unique<FaultPass>(faults_, std::move(pass),
                                       loss == nullptr ? std::string() : expert_of(*loss) + ".",
                                       extension != nullptr, distortion, last_chunk);
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
