// Interning, names and the hash of a trace. Uses no core library.
#include "sim/trace.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

namespace tpsync::sim {

namespace {

constexpr std::size_t kFirstSlots = 128;

constexpr std::array<std::string_view, kOpCount> kOpNames = {
    "none",
    "clock.now",
    "clock.sleep",
    "host.query",
    "random.fill",
    "thread.spawn",
    "thread.join",
    "mutex.lock",
    "mutex.unlock",
    "condition.wait",
    "condition.notify",
    "channel.pair",
    "channel.read",
    "channel.write",
    "channel.send_descriptors",
    "channel.receive_descriptors",
    "channel.close",
    "channel.wait_readable",
    "process.spawn",
    "process.attach",
    "process.wait",
    "process.signal",
    "process.signal_group",
    "process.group_alive",
    "control.word",
    "control.gather",
    "control.broadcast",
    "control.lost_peer",
    "control.raise_alarm",
    "control.alarm",
    "control.leave",
    "shard.gather",
    "shard.wait",
    "shard.abort",
    "device.memory",
    "device.allocate",
    "device.free",
    "device.export",
    "device.revoke",
    "device.import",
    "device.close_import",
    "device.sleep",
    "device.wake",
    "device.create_stream",
    "device.destroy_stream",
    "device.prepare",
    "device.launch",
    "device.launch_digests",
    "device.fill",
    "device.upload",
    "device.download",
    "device.synchronize",
    "words.make",
    "words.open",
    "words.load",
    "words.store",
    "words.add",
    "words.wait",
    "words.wake",
};

}  // namespace

void TextTable::clear() {
  bytes_.clear();
  starts_.assign({0, 0});
  slots_.assign(kFirstSlots, 0);
  slots_[XXH3_64bits("", 0) & (kFirstSlots - 1)] = 1;
}

std::uint32_t TextTable::intern(std::string_view text) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = XXH3_64bits(text.data(), text.size()) & mask;
  while (slots_[slot] != 0) {
    const std::uint32_t id = slots_[slot] - 1;
    if (at(id) == text) return id;
    slot = (slot + 1) & mask;
  }
  const std::uint32_t id = size();
  bytes_.append(text);
  starts_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  slots_[slot] = id + 1;
  if (size() * 2 > slots_.size()) grow();
  return id;
}

void TextTable::grow() {
  slots_.assign(slots_.size() * 2, 0);
  const std::size_t mask = slots_.size() - 1;
  for (std::uint32_t id = 0; id < size(); ++id) {
    const std::string_view text = at(id);
    std::size_t slot = XXH3_64bits(text.data(), text.size()) & mask;
    while (slots_[slot] != 0) slot = (slot + 1) & mask;
    slots_[slot] = id + 1;
  }
}

std::string_view to_string(Op op) {
  const auto index = static_cast<std::size_t>(op);
  return index < kOpCount ? kOpNames[index] : std::string_view("unknown");
}

std::optional<Op> op_named(std::string_view name) {
  for (std::size_t i = 1; i < kOpCount; ++i)
    if (kOpNames[i] == name) return static_cast<Op>(i);
  return std::nullopt;
}

std::string_view to_string(EventKind kind) {
  switch (kind) {
    case EventKind::kNone:
      return "none";
    case EventKind::kOp:
      return "op";
    case EventKind::kProcessStart:
      return "process.start";
    case EventKind::kProcessExit:
      return "process.exit";
    case EventKind::kProcessKill:
      return "process.kill";
    case EventKind::kProcessCrash:
      return "process.crash";
    case EventKind::kProcessStop:
      return "process.stop";
    case EventKind::kProcessResume:
      return "process.resume";
    case EventKind::kProcessReaped:
      return "process.reaped";
    case EventKind::kProcessLeft:
      return "process.left";
    case EventKind::kProcessOrphaned:
      return "process.orphaned";
    case EventKind::kChannelEnd:
      return "channel.end";
    case EventKind::kDescriptorGot:
      return "descriptor.got";
    case EventKind::kDescriptorClosed:
      return "descriptor.closed";
    case EventKind::kGroupMade:
      return "group.made";
    case EventKind::kGroupMember:
      return "group.member";
    case EventKind::kGroupEnter:
      return "group.enter";
    case EventKind::kGroupDelivered:
      return "group.delivered";
    case EventKind::kGroupComplete:
      return "group.complete";
    case EventKind::kGroupFail:
      return "group.fail";
    case EventKind::kGroupLost:
      return "group.lost";
    case EventKind::kGroupLeave:
      return "group.leave";
    case EventKind::kGroupAlarm:
      return "group.alarm";
    case EventKind::kGroupPiece:
      return "group.piece";
    case EventKind::kDeviceAllocated:
      return "device.allocated";
    case EventKind::kDeviceFreed:
      return "device.freed";
    case EventKind::kDeviceExported:
      return "device.exported";
    case EventKind::kDeviceRevoked:
      return "device.revoked";
    case EventKind::kDeviceImported:
      return "device.imported";
    case EventKind::kDeviceImportClosed:
      return "device.import_closed";
    case EventKind::kDeviceSlept:
      return "device.slept";
    case EventKind::kDeviceWoken:
      return "device.woken";
    case EventKind::kDeviceLanding:
      return "device.landing";
    case EventKind::kDeviceVanished:
      return "device.vanished";
    case EventKind::kDeviceGone:
      return "device.gone";
    case EventKind::kDevicePeak:
      return "device.peak";
    case EventKind::kLog:
      return "log";
    case EventKind::kLogText:
      return "log.text";
    case EventKind::kViolation:
      return "violation";
    case EventKind::kKernelCounter:
      return "kernel.counter";
    case EventKind::kHarness:
      return "harness";
  }
  return "harness";
}

TraceHash hash_of(const Trace& trace) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const std::array<std::uint64_t, 5> head = {trace.seed, trace.parameters.size(),
                                             trace.events.size(), trace.choices.size(),
                                             trace.texts.size()};
  XXH3_128bits_update(&state, head.data(), sizeof head);
  XXH3_128bits_update(&state, trace.parameters.data(), trace.parameters.size());
  XXH3_128bits_update(&state, trace.events.data(), trace.events.size() * sizeof(Event));
  XXH3_128bits_update(&state, trace.choices.data(), trace.choices.size() * sizeof(Choice));
  const auto& starts = trace.texts.starts();
  XXH3_128bits_update(&state, starts.data(), starts.size() * sizeof(std::uint32_t));
  XXH3_128bits_update(&state, trace.texts.bytes().data(), trace.texts.bytes().size());
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return {hash.low64, hash.high64};
}

std::string to_text(const TraceHash& hash) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(32);
  for (const std::uint64_t half : {hash.high, hash.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text.push_back(kDigits[(half >> shift) & 15]);
  }
  return text;
}

}  // namespace tpsync::sim
