// What the tests of the groups over Gloo start as a rank in a process of its own: small behaviours
// by name, over the general group or, as "lane:<name>", over the lane. A byte on the inherited
// channel says that the behaviour is in place.
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_world.h"
#include "tpsync/collective/gloo_control_group.h"
#include "tpsync/collective/lane_control_group.h"
#include "tpsync/collective/os_shared_words.h"
#include "tpsync/collective/peer_copy_shard_group.h"
#include "tpsync/device/forwarding_device.h"
#include "tpsync/device/host_device.h"

namespace {

using namespace tpsync;
using namespace tpsync::collective;

class SilentLog final : public Log {
 public:
  bool wants(LogLevel) const noexcept override { return false; }
  void record(const LogRecord&) noexcept override {}
};

void say(Channel& channel) {
  const std::byte byte{1};
  channel.write_some({&byte, 1}, Deadline::never());
}

[[noreturn]] void pause_for_ever() {
  for (;;) pause();
}

// Stops for ever in its first copy, once it has opened a peer's buffer.
class StuckDevice final : public device::ForwardingDevice {
 public:
  StuckDevice(device::Device& inner, Channel& channel)
      : ForwardingDevice(inner), channel_(channel) {}
  void copy(device::StreamId, const device::RunCopy&) override {
    say(channel_);
    pause_for_ever();
  }

 private:
  Channel& channel_;
};

// A rank that gathers two parts by copies, with what "memory" in the folder says of the devices.
void pull(ControlGroup& group, const World& world, const std::string& folder, Channel& channel) {
  const auto memory = device::HostMemory::open(folder + "/memory");
  device::HostDevice host(*memory, {.uuid = "gpu-" + std::to_string(group.rank())});
  StuckDevice stuck(host, channel);
  OsSharedWordsFactory factory;
  PeerCopyShardGroup shards(group, stuck, factory, world, Deadline::never());
  const device::RegionId buffer =
      host.allocate({.bytes = 2 * kMiB, .kind = device::RegionKind::kExportable});
  const GatherPart parts[] = {{0, kMiB}, {kMiB, kMiB}};
  const device::StreamId stream = host.create_stream();
  shards.all_gather(stream, buffer, parts);
  shards.wait(stream, Deadline::never(), group);
}

}  // namespace

// behaviour, folder, group, rank, size
int main(int argc, char** argv) {
  if (argc != 6) return 64;
  std::string_view behaviour = argv[1];
  SilentLog log;
  OsWorld world(log);
  const std::unique_ptr<Channel> channel = world.channels().adopt(kInheritedChannelDescriptor);
  GlooControlOptions options;
  options.meeting.folder = argv[2];
  options.meeting.group = argv[3];
  options.meeting.rank = std::atoi(argv[4]);
  options.meeting.size = std::atoi(argv[5]);
  OsSharedWordsFactory factory;
  try {
    std::unique_ptr<ControlGroup> owned =
        std::make_unique<GlooControlGroup>(options, world.world());
    constexpr std::string_view kLane = "lane:";
    if (behaviour.starts_with(kLane)) {
      behaviour.remove_prefix(kLane.size());
      OpenedLane lane = open_lane(std::move(owned), world.world(), factory, Deadline::never());
      if (!lane.shared) return 66;
      owned = std::move(lane.group);
    }
    ControlGroup& group = *owned;
    std::vector<std::uint64_t> words(static_cast<std::size_t>(group.size()));
    if (behaviour == "idle") {
      group.all_gather({}, Deadline::never());
      say(*channel);
      pause_for_ever();
    } else if (behaviour == "send-much") {
      say(*channel);
      const ByteBuffer much(64 * kMiB, std::byte{0x5a});
      group.all_gather(much, Deadline::never());
      pause_for_ever();
    } else if (behaviour == "gather-till-lost") {
      // Ends in order once it has lost a rank.
      say(*channel);
      for (;;) group.all_gather({}, Deadline::never());
    } else if (behaviour == "say-each-gather") {
      say(*channel);
      for (;;) {
        group.all_gather({}, Deadline::never());
        say(*channel);
      }
    } else if (behaviour == "agree-till-lost") {
      say(*channel);
      for (;;) group.all_gather_word(1, words, Deadline::never());
    } else if (behaviour == "stuck-in-copy") {
      pull(group, world.world(), argv[2], *channel);
    } else if (behaviour == "exit") {
      // Not before its peers have met it too.
      std::byte told{};
      if (channel->read_some({&told, 1}, Deadline::never()) == 1) _exit(0);
    }
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kPeerLost ? error.record().rank : 65;
  }
  return 64;
}
