// What the tests of the groups between GPUs start as a rank in a process of its own, on the device
// of its rank's number. A byte on the inherited channel says that the behaviour is in place; the
// exit status says what came of it: 0, or the kind of the error.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "tpsync/base/os_world.h"
#include "tpsync/collective/gloo_control_group.h"
#include "tpsync/collective/nccl_shard_group.h"
#include "tpsync/collective/os_shared_words.h"
#include "tpsync/collective/peer_copy_shard_group.h"
#include "tpsync/collective/testing/gloo_ranks.h"
#include "tpsync/device/cuda_device.h"

namespace {

using namespace tpsync;
using namespace tpsync::collective;

constexpr std::uint64_t kPart = 64 * kMiB;

void say(Channel& channel) {
  const std::byte byte{1};
  channel.write_some({&byte, 1}, Deadline::never());
}

[[noreturn]] void pause_for_ever() {
  for (;;) pause();
}

// Gathers `rounds` times and looks at every byte of each first and last kilobyte of a part.
void gather(ControlGroup& control, ShardGroup& shards, device::Device& device, int rounds,
            Channel& channel) {
  const auto ranks = static_cast<std::size_t>(control.size());
  const auto mine = static_cast<std::size_t>(control.rank());
  std::vector<GatherPart> parts(ranks);
  for (std::size_t r = 0; r < ranks; ++r) parts[r] = {kPart * r, kPart};
  const device::RegionId buffer =
      device.allocate({.bytes = kPart * ranks, .kind = device::RegionKind::kExportable});
  const device::StreamId stream = device.create_stream();
  for (int round = 0; round < rounds; ++round) {
    const auto value = [&](std::size_t rank) {
      return static_cast<std::byte>(7 * rank + static_cast<std::size_t>(round) + 1);
    };
    device.fill(stream, buffer, parts[mine].offset, kPart, value(mine));
    shards.all_gather(stream, buffer, parts);
    shards.wait(stream, Deadline::never(), control);
    ByteBuffer found(kKiB);
    for (std::size_t r = 0; r < ranks; ++r) {
      for (const std::uint64_t at : {parts[r].offset, parts[r].offset + kPart - kKiB}) {
        device.download(stream, buffer, at, found);
        device.synchronize(stream, Deadline::never());
        if (found != ByteBuffer(kKiB, value(r)))
          throw_broken(ErrorKind::kMismatch, "gather", "a part has other bytes");
      }
    }
    if (round == 0) say(channel);
  }
  if (!shards.detach(buffer, Deadline::never()))
    throw_broken(ErrorKind::kIpc, "detach", "a peer has the buffer open");
  device.free(buffer);
}

// Fails a gather, agrees, and gathers in a new group: what a peer in the test's process does too.
void alarm_and_rebuild(ControlGroup& control, device::CudaDevice& device,
                       std::unique_ptr<ShardGroup>& shards, const World& world) {
  constexpr std::uint64_t kSmall = 4 * kMiB;
  const GatherPart parts[] = {{0, kSmall}, {kSmall, kSmall}};
  const device::StreamId stream = device.create_stream();
  const device::RegionId buffer = device.allocate({.bytes = 2 * kSmall});
  const ByteBuffer own = fakes::patterned(1, kSmall);
  std::vector<std::uint64_t> words(2);
  for (int round = 0; round < 3; ++round) {
    control.raise_alarm();
    shards->abort();
    control.all_gather_word(1, words, Deadline::never());
    shards.reset();
    shards = std::make_unique<NcclShardGroup>(control, device, device, world, Deadline::never());
    device.upload(stream, buffer, kSmall, own);
    shards->all_gather(stream, buffer, parts);
    shards->wait(stream, Deadline::never(), control);
    ByteBuffer found(2 * kSmall);
    device.download(stream, buffer, 0, found);
    device.synchronize(stream, Deadline::never());
    ByteBuffer expected = fakes::patterned(0, kSmall);
    expected.insert(expected.end(), own.begin(), own.end());
    if (found != expected) throw_broken(ErrorKind::kMismatch, "gather", "it has other bytes");
    control.all_gather({}, Deadline::never());
  }
}

}  // namespace

// "<group>:<behaviour>", folder, group, rank, size
int main(int argc, char** argv) {
  if (argc != 6) return 64;
  const std::string_view what = argv[1];
  const std::string_view kind = what.substr(0, what.find(':'));
  const std::string_view behaviour = what.substr(what.find(':') + 1);
  fakes::SilentLog log;
  OsWorld os(log);
  const World world = os.world();
  const std::unique_ptr<Channel> channel = os.channels().adopt(kInheritedChannelDescriptor);
  GlooControlOptions options;
  options.meeting.folder = argv[2];
  options.meeting.group = argv[3];
  options.meeting.rank = std::atoi(argv[4]);
  options.meeting.size = std::atoi(argv[5]);
  OsSharedWordsFactory factory;
  try {
    GlooControlGroup control(options, world);
    device::CudaDevice device(world.clock, {.ordinal = options.meeting.rank});
    std::unique_ptr<ShardGroup> shards;
    if (kind == "nccl") {
      shards = std::make_unique<NcclShardGroup>(control, device, device, world, Deadline::never());
    } else {
      shards =
          std::make_unique<PeerCopyShardGroup>(control, device, factory, world, Deadline::never());
    }
    if (behaviour == "gather") {
      gather(control, *shards, device, 20, *channel);
      control.all_gather({}, Deadline::never());
      return 0;
    }
    if (behaviour == "alarm-and-rebuild") {
      alarm_and_rebuild(control, device, shards, world);
      return 0;
    }
    if (behaviour == "gather-till-lost") gather(control, *shards, device, 1 << 30, *channel);
    say(*channel);
    if (behaviour == "stop") raise(SIGSTOP);
    pause_for_ever();  // "idle"
  } catch (const Error& error) {
    return static_cast<int>(error.kind());
  }
}
