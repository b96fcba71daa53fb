// The channel's decorator: closed ends, lost directions, and message faults on what is written.
//
// A message fault takes over at the first write of a frame: the whole frame is claimed, changed and
// written at once, or not at all, or late. A frame that the fault cannot change is written as it
// came.
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
constexpr std::string_view kStrayText = "Loading checkpoint shards: 100%\n";
constexpr std::uint64_t kOversizedBytes = 0x7fffffff;
constexpr std::size_t kTrickledBytes = 64;
constexpr Duration kLateness = std::chrono::seconds(1);
// What a message that is late has for its own write.
constexpr Duration kLateWrite = std::chrono::seconds(2);

class Decorator final : public FaultChannel {
 public:
  Decorator(ProcessFaults& faults, PeerName peer, std::unique_ptr<Channel> inner)
      : FaultChannel(std::move(inner)),
        faults_(faults),
        peer_(std::move(peer)),
        keeps_frames_(faults.has_named("channel.stale_reply")) {}

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
    if (!frame_fault_) {
      const std::size_t count = ForwardingChannel::write_some(from, deadline);
      if (keeps_frames_) keep(from.first(count));
      return count;
    }
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
    for (const Action action :
         {Action::kLoseExpert, Action::kDistortMessage, Action::kDistortPass}) {
      if (fault == nullptr) fault = faults_.due(action, "channel.write");
    }
    if (fault == nullptr || from.size() < wire::kFrameHeadBytes) return;
    for (std::size_t i = 0; i < kMagic.size(); ++i) {
      if (from[i] != static_cast<std::byte>(kMagic[i])) return;
    }
    if (fault->name == "channel.write_error") {
      faults_.apply(*fault);
      throw_broken(ErrorKind::kIo, "channel", "the system has no buffers left");
    }
    frame_fault_ = fault;
  }

  std::size_t frame_bytes() const { return bytes_of(frame_); }

  static std::size_t bytes_of(const ByteBuffer& frame) {
    std::size_t body = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      body |= std::to_integer<std::size_t>(frame[kMagic.size() + i]) << (8 * i);
    }
    return wire::kFrameHeadBytes + body;
  }

  // Remembers the last whole frame that was written.
  void keep(ByteView written) {
    writing_.insert(writing_.end(), written.begin(), written.end());
    if (writing_.size() < wire::kFrameHeadBytes || writing_.size() < bytes_of(writing_)) return;
    last_frame_ = std::exchange(writing_, {});
  }

  bool is_reply() const {
    return faults_.role() == rules::kWorker ||
           (faults_.role() == rules::kRuntime && peer_.role == rules::kActor);
  }

  std::optional<AlteredFrame> altered(const Fault& fault, ByteView body) const {
    if (fault.name == "weights.missing_expert") {
      auto request = lose_expert(fault, body);
      if (!request) return std::nullopt;
      return AlteredFrame{std::move(*request), 1};
    }
    if (find_kind(fault.name)->action != Action::kAlterResult) {
      const bool is_of_worker = faults_.role() == rules::kWorker;
      auto changed =
          distort_message(fault,
                          is_of_worker || faults_.role() == rules::kActor ? wire::Peer::kWorker
                                                                          : wire::Peer::kRuntime,
                          is_reply(), body);
      if (!changed) return std::nullopt;
      return AlteredFrame{std::move(*changed), 1};
    }
    if (faults_.role() == rules::kWorker) return alter_worker_reply(fault, body);
    return peer_.role == rules::kActor ? alter_runtime_reply(fault, body) : std::nullopt;
  }

  void deliver(Deadline deadline) {
    const Fault& fault = *std::exchange(frame_fault_, nullptr);
    const ByteBuffer frame = std::exchange(frame_, {});
    const ByteView body = ByteView(frame).subspan(wire::kFrameHeadBytes);
    if (deliver_raw(fault, frame, deadline)) return;
    const auto changed = altered(fault, body);
    if (!changed) return wire::send_frame(inner(), body, deadline);
    faults_.apply(fault);
    for (int copy = 0; copy < changed->copies; ++copy) {
      wire::send_frame(inner(), changed->body, deadline);
    }
  }

  // What is done to a frame without looking into it; false for other faults.
  bool deliver_raw(const Fault& fault, const ByteBuffer& frame, Deadline deadline) {
    const ByteView bytes = frame;
    if (fault.name == "channel.truncated_frame") {
      faults_.apply(fault);
      write_all(bytes.first(bytes.size() / 2), deadline);
      is_cut_ = true;
      inner().close();
    } else if (fault.name == "channel.oversized_frame") {
      faults_.apply(fault);
      ByteBuffer head(bytes.begin(), bytes.begin() + wire::kFrameHeadBytes);
      for (std::size_t i = 0; i < 4; ++i) {
        head[kMagic.size() + i] = static_cast<std::byte>((kOversizedBytes >> (8 * i)) & 0xff);
      }
      write_all(head, deadline);
      write_all(bytes.subspan(wire::kFrameHeadBytes), deadline);
    } else if (fault.name == "channel.stray_text") {
      faults_.apply(fault);
      write_all(as_view(kStrayText), deadline);
      write_all(bytes, deadline);
    } else if (fault.name == "channel.stale_reply") {
      if (last_frame_.empty()) return false;
      faults_.apply(fault);
      write_all(last_frame_, deadline);
    } else if (fault.name == "channel.duplicated") {
      faults_.apply(fault);
      write_all(bytes, deadline);
      write_all(bytes, deadline);
    } else if (fault.name == "channel.slow") {
      faults_.apply(fault);
      const std::size_t first = std::min(bytes.size(), kTrickledBytes);
      for (std::size_t i = 0; i < first; ++i) write_all(bytes.subspan(i, 1), deadline);
      write_all(bytes.subspan(first), deadline);
    } else if (fault.name == "channel.late_reply") {
      faults_.apply(fault);
      faults_.sleep_until(deadline.time() + kLateness);
      write_all(bytes, Deadline::at(deadline.time() + kLateWrite));
    } else {
      return false;
    }
    return true;
  }

  void write_all(ByteView bytes, Deadline deadline) {
    while (!bytes.empty()) bytes = bytes.subspan(inner().write_some(bytes, deadline));
  }

  ProcessFaults& faults_;
  PeerName peer_;
  const bool keeps_frames_;
  ByteBuffer writing_;
  ByteBuffer last_frame_;
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
