// The decorators of both groups: a rank that fails inside a collective, a result that arrives
// altered on one rank, and gathers that belong to a late stream.
#include <utility>

#include "faults/injector.h"
#include "faults/late_streams.h"
#include "faults/messages.h"
#include "tpsync/base/errors.h"
#include "tpsync/collective/forwarding_groups.h"

namespace tpsync::faults {
namespace {

class FaultControlGroup final : public collective::ForwardingControlGroup {
 public:
  FaultControlGroup(ProcessFaults& faults, std::unique_ptr<collective::ControlGroup> inner)
      : ForwardingControlGroup(std::move(inner)), faults_(faults) {}

  void all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                       Deadline deadline) override {
    enter("control.word");
    ForwardingControlGroup::all_gather_word(word, words, deadline);
  }

  std::vector<ByteBuffer> all_gather(ByteView bytes, Deadline deadline) override {
    enter("control.gather");
    return ForwardingControlGroup::all_gather(bytes, deadline);
  }

  void broadcast(ByteBuffer& bytes, int root, Deadline deadline) override {
    enter("control.broadcast");
    // Asked before the call: afterwards the operation has its number.
    const Fault* fault = faults_.due(Action::kAlterResult, "control.broadcast");
    ForwardingControlGroup::broadcast(bytes, root, deadline);
    if (fault == nullptr || rank() == root) return;
    if (auto changed = alter_broadcast(*fault, bytes)) {
      faults_.apply(*fault);
      bytes = std::move(*changed);
    }
  }

  std::optional<int> lost_peer() override {
    faults_.pass("control.lost_peer");
    if (!is_broken_) return ForwardingControlGroup::lost_peer();
    // Without its connections this rank knows nobody.
    if (size() == 1) return std::nullopt;
    return rank() == 0 ? 1 : 0;
  }

  void raise_alarm() noexcept override {
    faults_.pass("control.raise_alarm");
    if (!is_broken_) ForwardingControlGroup::raise_alarm();
  }

  std::optional<int> alarm() override {
    faults_.pass("control.alarm");
    return is_broken_ ? std::nullopt : ForwardingControlGroup::alarm();
  }

  void leave() noexcept override {
    faults_.pass("control.leave");
    ForwardingControlGroup::leave();
  }

 private:
  void enter(std::string_view op) {
    faults_.pass(op);
    if (faults_.fire(Action::kBreakGroup, op) != nullptr) {
      is_broken_ = true;
      ForwardingControlGroup::leave();
    }
    if (is_broken_) {
      throw_broken(ErrorKind::kPeerLost, "control group", "the connections to the peers broke");
    }
  }

  ProcessFaults& faults_;
  bool is_broken_ = false;
};

class FaultShardGroup final : public collective::ForwardingShardGroup {
 public:
  FaultShardGroup(ProcessFaults& faults, std::unique_ptr<collective::ShardGroup> inner)
      : ForwardingShardGroup(std::move(inner)), faults_(faults) {}

  void all_gather(device::StreamId stream, device::RegionId buffer,
                  std::span<const collective::GatherPart> parts) override {
    enter("shard.gather", stream);
    if (!faults_.late().holds(stream, faults_.active())) {
      return ForwardingShardGroup::all_gather(stream, buffer, parts);
    }
    faults_.late().hold(stream,
                        [this, stream, buffer, kept = std::vector(parts.begin(), parts.end())] {
                          ForwardingShardGroup::all_gather(stream, buffer, kept);
                        });
  }

  void wait(device::StreamId stream, Deadline deadline, collective::ControlGroup& watch) override {
    enter("shard.wait", stream);
    faults_.late().flush(stream);
    ForwardingShardGroup::wait(stream, deadline, watch);
  }

  void abort() noexcept override {
    faults_.pass("shard.abort");
    ForwardingShardGroup::abort();
  }

 private:
  void enter(std::string_view op, device::StreamId stream) {
    faults_.pass(op);
    if (faults_.fire(Action::kBreakGroup, op) == nullptr) return;
    faults_.late().drop(stream);
    ForwardingShardGroup::abort();
    throw_broken(ErrorKind::kDevice, "shard group", "the collective failed on this rank");
  }

  ProcessFaults& faults_;
};

}  // namespace

std::unique_ptr<collective::ControlGroup> ProcessFaults::control_group(
    std::unique_ptr<collective::ControlGroup>& inner) {
  if (!wants(Seam::kControlGroup)) return nullptr;
  return std::make_unique<FaultControlGroup>(*this, std::move(inner));
}

std::unique_ptr<collective::ShardGroup> ProcessFaults::shard_group(
    std::unique_ptr<collective::ShardGroup>& inner) {
  if (!wants(Seam::kShardGroup)) return nullptr;
  return std::make_unique<FaultShardGroup>(*this, std::move(inner));
}

}  // namespace tpsync::faults
