// Gates of a group of one, which write down what the sender does between them.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/transfer/sender.h"

namespace tpsync::transfer::fakes {

class GroupOfOne final : public collective::ControlGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_gather_word(std::uint64_t word, std::span<std::uint64_t> words, Deadline) override {
    words[0] = word;
  }
  std::vector<ByteBuffer> all_gather(ByteView bytes, Deadline) override {
    return {ByteBuffer(bytes.begin(), bytes.end())};
  }
  void broadcast(ByteBuffer&, int, Deadline) override {}
  std::optional<int> lost_peer() override { return std::nullopt; }
  void raise_alarm() noexcept override { ++alarms; }
  std::optional<int> alarm() override { return std::nullopt; }
  void leave() noexcept override {}
  int alarms = 0;
};

class RecordingGates final : public Gates {
 public:
  explicit RecordingGates(std::vector<std::string>& steps) : steps_(steps) {}

  void enter(std::string_view phase, std::int64_t index) override {
    phase_ = std::string(phase) + "-" + std::to_string(index);
  }
  void agree(const std::optional<ErrorRecord>& local) override {
    steps_.push_back("agree " + phase_);
    if (local) throw_record(*local);
  }
  std::vector<ByteBuffer> exchange(ByteView own, std::optional<ErrorRecord>& error) override {
    steps_.push_back("exchange of " + phase_);
    if (error) return {ByteBuffer()};
    return {ByteBuffer(own.begin(), own.end())};
  }
  Deadline begin_wait() override { return Deadline::never(); }
  GroupOfOne& group() override { return group_; }

 private:
  std::vector<std::string>& steps_;
  std::string phase_;
  GroupOfOne group_;
};

// Emits its tensors chunk by chunk in as many groups as the test wants, and moves no byte.
class ScriptedSource final : public WeightSource {
 public:
  ScriptedSource(std::vector<wire::TensorRecord> records, std::vector<std::string>& steps,
                 int world = 1)
      : steps_(steps) {
    source_layout.world = static_cast<std::uint64_t>(world);
    hold(std::move(records));
  }
  // Other tensors, all of whose rows are rank 0's.
  void hold(std::vector<wire::TensorRecord> records) {
    tensors = std::move(records);
    source_layout.row_bounds.clear();
    for (const auto& tensor : tensors) {
      source_layout.row_bounds.push_back(0);
      source_layout.row_bounds.insert(source_layout.row_bounds.end(), source_layout.world,
                                      static_cast<std::uint64_t>(tensor.shape.at(0)));
    }
  }

  std::vector<wire::TensorRecord> tensors;
  std::uint64_t groups = 1;
  std::uint64_t extra = 0;  // tensors that are emitted with the last chunk beyond it
  bool has_more = false;    // what exhausted() denies
  bool is_usable = true;
  bool drains = true;                // what quiesce() answers
  wire::SourceLayout source_layout;  // all rows at one rank, unless the test says otherwise
  // "metadata", "layout", "begin", "group_count", "exhausted", "digest_sums", "quiesce"
  std::function<void(std::string_view call)> before_call = [](std::string_view) {};
  std::string failing_step;  // "prepare 1.0" throws
  std::vector<std::uint64_t> sums;

  std::span<const wire::TensorRecord> metadata() override {
    before_call("metadata");
    return tensors;
  }
  const wire::SourceLayout& layout() override {
    before_call("layout");
    return source_layout;
  }
  bool usable(wire::Route) const noexcept override { return is_usable; }
  std::unique_ptr<WeightPass> begin(const PassTarget& target) override {
    before_call("begin");
    step("begin");
    return std::make_unique<Pass>(*this, target);
  }

 private:
  class Pass final : public WeightPass {
   public:
    Pass(ScriptedSource& owner, const PassTarget& target) : owner_(owner), target_(target) {}
    ~Pass() override { owner_.steps_.push_back("end"); }

    std::uint64_t group_count(std::uint64_t) override {
      owner_.before_call("group_count");
      return owner_.groups;
    }
    void prepare(std::uint64_t chunk, std::uint64_t group) override {
      owner_.step("prepare " + std::to_string(chunk) + "." + std::to_string(group));
      if (group + 1 < owner_.groups) return;
      std::uint64_t end = target_.chunks[chunk].first + target_.chunks[chunk].count;
      if (chunk + 1 == target_.chunks.size()) end += owner_.extra;
      emitted_ = std::min(end, owner_.tensors.size());
    }
    void gather(std::uint64_t chunk, std::uint64_t group, Deadline,
                collective::ControlGroup&) override {
      owner_.step("gather " + std::to_string(chunk) + "." + std::to_string(group));
    }
    // Those of the source as they are now: a test may change them after the last chunk.
    std::span<const wire::TensorRecord> emitted() const override {
      return std::span(owner_.tensors).first(std::min(emitted_, owner_.tensors.size()));
    }
    bool exhausted() override {
      owner_.before_call("exhausted");
      return !owner_.has_more;
    }
    bool quiesce(Deadline) override {
      owner_.before_call("quiesce");
      return owner_.drains;
    }
    std::span<const std::uint64_t> digest_sums() const override {
      owner_.before_call("digest_sums");
      return owner_.sums;
    }

   private:
    ScriptedSource& owner_;
    PassTarget target_;
    std::size_t emitted_ = 0;
  };

  void step(const std::string& name) {
    steps_.push_back(name);
    if (name == failing_step) throw_broken(ErrorKind::kDevice, name, "injected by the test");
  }

  std::vector<std::string>& steps_;
};

}  // namespace tpsync::transfer::fakes
