// The channel's decorator: closed ends, lost directions, and message faults on what is written.
//
// A message fault takes over at the first write of a frame: the whole frame is claimed, changed and
// written at once. A frame that the fault cannot change is written as it came.
#include <algorithm>
#include <array>
#include <utility>

#include "faults/injector.h"
#include "faults/messages.h"
#include "faults/rules.h"
#include "tpsync/base/errors.h"
#include "tpsync/wire/frame.h"

namespace tpsync::faults {
namespace {

constexpr std::size_t kDrainBytes = 4096;
constexpr std::array<char, 4> kMagic = {'T', 'P', 'S', '1'};

class Decorator final : public FaultChannel {
 public:
  Decorator(ProcessFaults& faults, PeerName peer, std::unique_ptr<Channel> inner)
      : FaultChannel(std::move(inner)), faults_(faults), peer_(std::move(peer)) {}

  std::size_t read_some(MutableByteView into, Deadline deadline) override {
    enter("channel.read", is_deaf_);
    if (is_cut()) return 0;
    if (is_deaf_ && faults_.active()) {
      drain(deadline);
      return 0;
    }
    return ForwardingChannel::read_some(into, deadline);
  }

  std::size_t write_some(ByteView from, Deadline deadline) override {
    enter("channel.write", is_mute_);
    check_writable();
    if (is_mute_ && faults_.active()) return from.size();
    if (!frame_fault_) take_frame(from);
    if (!frame_fault_) return ForwardingChannel::write_some(from, deadline);
    frame_.insert(frame_.end(), from.begin(), from.end());
    if (frame_.size() >= frame_bytes()) deliver(deadline);
    return from.size();
  }

  void send_descriptors(std::span<const int> descriptors, Deadline deadline) override {
    faults_.pass("channel.send_descriptors");
    check_writable();
    if (is_mute_ && faults_.active()) return;
    ForwardingChannel::send_descriptors(descriptors, deadline);
  }

  std::vector<int> receive_descriptors(std::size_t count, Deadline deadline) override {
    faults_.pass("channel.receive_descriptors");
    const bool is_deaf = is_deaf_ && faults_.active();
    if (is_deaf && !is_cut()) drain(deadline);
    if (is_deaf || is_cut()) {
      throw_broken(ErrorKind::kEndOfFile, "channel", "the other end is closed");
    }
    return ForwardingChannel::receive_descriptors(count, deadline);
  }

  void close() noexcept override {
    faults_.pass("channel.close");
    is_closed_by_owner_ = true;
    ForwardingChannel::close();
  }

  Readiness readiness() override {
    if (is_cut()) return Readiness::kReadable;
    return is_deaf_ && faults_.active() ? Readiness::kOnlyEndOfFile : Readiness::kAsInner;
  }

 private:
  // Cut by a fault; what the owner closes answers as every closed end does.
  bool is_cut() const { return is_cut_ && !is_closed_by_owner_; }

  void enter(std::string_view op, std::atomic<bool>& silenced) {
    faults_.pass(op);
    if (faults_.fire(Action::kCloseChannel, op) != nullptr) {
      is_cut_ = true;
      inner().close();
    }
    if (faults_.fire(Action::kMuteChannel, op) != nullptr) silenced = true;
  }

  void check_writable() const {
    if (is_cut()) throw_broken(ErrorKind::kEndOfFile, "channel", "the other end is closed");
  }

  // Takes what arrives and forgets it, until end of file; the deadline leaves as kTimeout.
  void drain(Deadline deadline) {
    std::array<std::byte, kDrainBytes> lost;
    while (ForwardingChannel::read_some(lost, deadline) != 0) {
    }
  }

  void take_frame(ByteView from) {
    const Fault* fault = faults_.due(Action::kAlterResult, "channel.write");
    if (fault == nullptr) fault = faults_.due(Action::kLoseExpert, "channel.write");
    if (fault == nullptr || from.size() < wire::kFrameHeadBytes) return;
    for (std::size_t i = 0; i < kMagic.size(); ++i) {
      if (from[i] != static_cast<std::byte>(kMagic[i])) return;
    }
    frame_fault_ = fault;
  }

  std::size_t frame_bytes() const {
    std::size_t body = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      body |= std::to_integer<std::size_t>(frame_[kMagic.size() + i]) << (8 * i);
    }
    return wire::kFrameHeadBytes + body;
  }

  std::optional<AlteredFrame> altered(const Fault& fault, ByteView body) const {
    if (fault.name == "weights.missing_expert") {
      auto request = lose_expert(fault, body);
      if (!request) return std::nullopt;
      return AlteredFrame{std::move(*request), 1};
    }
    if (faults_.role() == rules::kWorker) return alter_worker_reply(fault, body);
    return peer_.role == rules::kActor ? alter_runtime_reply(fault, body) : std::nullopt;
  }

  void deliver(Deadline deadline) {
    const Fault& fault = *std::exchange(frame_fault_, nullptr);
    const ByteBuffer frame = std::exchange(frame_, {});
    const ByteView body = ByteView(frame).subspan(wire::kFrameHeadBytes);
    const auto changed = altered(fault, body);
    if (!changed) return wire::send_frame(inner(), body, deadline);
    faults_.apply(fault);
    for (int copy = 0; copy < changed->copies; ++copy) {
      wire::send_frame(inner(), changed->body, deadline);
    }
  }

  ProcessFaults& faults_;
  PeerName peer_;
  std::atomic<bool> is_cut_{false};
  std::atomic<bool> is_closed_by_owner_{false};
  std::atomic<bool> is_deaf_{false};
  std::atomic<bool> is_mute_{false};
  const Fault* frame_fault_ = nullptr;
  ByteBuffer frame_;
};

}  // namespace

std::unique_ptr<FaultChannel> ProcessFaults::channel(PeerName peer,
                                                     std::unique_ptr<Channel>& inner) {
  if (!wants(Seam::kChannel)) return nullptr;
  return std::make_unique<Decorator>(*this, std::move(peer), std::move(inner));
}

}  // namespace tpsync::faults
