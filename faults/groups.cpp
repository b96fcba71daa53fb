// The decorators of both groups: a rank that fails or hangs inside a collective, contributions and
// results that are not what they were, and gathers that belong to a late stream.
#include <utility>

#include "faults/injector.h"
#include "faults/late_streams.h"
#include "faults/messages.h"
#include "tpsync/base/errors.h"
#include "tpsync/collective/forwarding_groups.h"

namespace tpsync::faults {
namespace {

constexpr std::uint64_t kGateBit = std::uint64_t{1} << 20;  // of an agreement's word
constexpr std::byte kGarbage{0xa5};

// The device that a rank says that it is on, where its contribution says so.
std::string uuid_in(ByteView bytes) {
  try {
    const wire::HandleMap handles = wire::decode_handle_map(bytes);
    if (!handles.entries.empty()) return handles.entries.front().first;
  } catch (const Error&) {
    // Then it is a preflight's report, or says nothing.
  }
  try {
    return wire::decode_preflight_report(bytes).device_uuid;
  } catch (const Error&) {
    return {};
  }
}

class FaultControlGroup final : public collective::ForwardingControlGroup {
 public:
  FaultControlGroup(ProcessFaults& faults, std::unique_ptr<collective::ControlGroup> inner)
      : ForwardingControlGroup(std::move(inner)), faults_(faults) {}

  void all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                       Deadline deadline) override {
    enter("control.word", deadline);
    if (faults_.fire(Action::kDistortContribution, "control.word") != nullptr) word ^= kGateBit;
    ForwardingControlGroup::all_gather_word(word, words, deadline);
  }

  std::vector<ByteBuffer> all_gather(ByteView bytes, Deadline deadline) override {
    enter("control.gather", deadline);
    const Fault* fault = faults_.due(Action::kDistortContribution, "control.gather");
    std::optional<ByteBuffer> changed;
    if (fault != nullptr) changed = distorted(*fault, bytes);
    if (changed) faults_.apply(*fault);
    auto gathered = ForwardingControlGroup::all_gather(changed ? *changed : bytes, deadline);
    if (!gathered.empty()) first_uuid_ = uuid_in(gathered.front());
    return gathered;
  }

  void broadcast(ByteBuffer& bytes, int root, Deadline deadline) override {
    enter("control.broadcast", deadline);
    // Asked before the call: afterwards the operation has its number.
    const Fault* fault = faults_.due(Action::kAlterResult, "control.broadcast");
    const Fault* cut = faults_.due(Action::kDistortContribution, "control.broadcast");
    ForwardingControlGroup::broadcast(bytes, root, deadline);
    if (rank() == root) return;
    if (cut != nullptr && !bytes.empty()) {
      faults_.apply(*cut);
      bytes.resize(bytes.size() / 2);
    }
    if (fault == nullptr) return;
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
  void enter(std::string_view op, Deadline deadline) {
    faults_.pass(op);
    const bool hangs = faults_.fire(Action::kHangGroup, op) != nullptr;
    if (hangs) faults_.sleep_until(deadline.time());
    if (hangs || faults_.fire(Action::kBreakGroup, op) != nullptr) {
      is_broken_ = true;
      ForwardingControlGroup::leave();
    }
    if (is_broken_) {
      throw_broken(ErrorKind::kPeerLost, "control group", "the connections to the peers broke");
    }
  }

  std::optional<ByteBuffer> distorted(const Fault& fault, ByteView bytes) const {
    if (fault.name == "collective.truncated_bytes") {
      if (bytes.empty()) return std::nullopt;
      return ByteBuffer(bytes.begin(),
                        bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2));
    }
    return with_other_uuid(bytes, fault.arguments.at("uuid") == "foreign" ? "" : first_uuid_);
  }

  ProcessFaults& faults_;
  bool is_broken_ = false;
  std::string first_uuid_;  // of rank 0's device, where the last gather told
};

class FaultShardGroup final : public collective::ForwardingShardGroup {
 public:
  FaultShardGroup(ProcessFaults& faults, std::unique_ptr<collective::ShardGroup> inner)
      : ForwardingShardGroup(std::move(inner)), faults_(faults) {}

  void all_gather(device::StreamId stream, device::RegionId buffer,
                  std::span<const collective::GatherPart> parts) override {
    enter("shard.gather", stream);
    buffer_ = buffer;
    is_gathering_ = true;
    parts_.assign(parts.begin(), parts.end());
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
    if (faults_.fire(Action::kHangGroup, "shard.wait") != nullptr) {
      faults_.sleep_until(deadline.time());
      ForwardingShardGroup::abort();
      throw_broken(ErrorKind::kTimeout, "shard group", "this rank's collective did not end");
    }
    const Fault* garble = faults_.due(Action::kGarbleGather, "shard.wait");
    ForwardingShardGroup::wait(stream, deadline, watch);
    const bool gathered = std::exchange(is_gathering_, false);
    if (garble == nullptr || !gathered || faults_.plain_device() == nullptr) return;
    faults_.apply(*garble);
    device::Device& device = *faults_.plain_device();
    for (const collective::GatherPart& part : parts_) {
      if (part.bytes != 0) device.fill(stream, buffer_, part.offset, part.bytes, kGarbage);
    }
    device.synchronize(stream, deadline);
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
  device::RegionId buffer_ = device::RegionId::kNone;  // of the last gather
  std::vector<collective::GatherPart> parts_;
  bool is_gathering_ = false;  // since the last wait
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
