// Channels between real processes, and the start of processes that get one.
//
// From the outside in, a channel of a world is: what core holds, the fault decorator once the
// process at the other end is known, the record of what passes, the system's own channel. Waits
// look through all of it at the system's.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "conformance/process/traced_seams.h"
#include "faults/injector.h"
#include "tpsync/base/forwarding.h"
#include "tpsync/base/os_channel.h"

namespace tpsync::conformance {

// Puts a decorator around a channel to `peer`, or leaves it alone and returns nullptr.
using ChannelDecorator = std::function<std::unique_ptr<faults::FaultChannel>(
    faults::PeerName peer, std::unique_ptr<Channel>& inner)>;
// The process that a request starts.
using PeerNamer = std::function<faults::PeerName(const SpawnRequest&)>;

class WorldChannel;

class TracedChannels final : public ChannelFactory {
 public:
  TracedChannels(OsChannelFactory& inner, ProcessTracer& tracer) : inner_(inner), tracer_(tracer) {}
  // Before any channel is made.
  void set_decorator(ChannelDecorator decorate) { decorate_ = std::move(decorate); }

  std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_pair() override;
  std::size_t wait_readable(std::span<Channel* const> channels, Deadline deadline) override;
  // The channel that this process was started with.
  std::unique_ptr<Channel> inherited(faults::PeerName peer);
  // Gives up this process's hold on the end that a request hands over; the end that stays is from
  // now on the channel to `peer`. Returns it; nullptr if it is gone.
  WorldChannel* hand_over(std::unique_ptr<Channel>& channel, faults::PeerName peer);
  // Both ends of a channel to a child are numbered after the child in the record.
  static void name_end(WorldChannel& kept, std::int64_t child_pid);

 private:
  std::unique_ptr<WorldChannel> make(std::unique_ptr<Channel> system);

  OsChannelFactory& inner_;
  ProcessTracer& tracer_;
  ChannelDecorator decorate_;
};

class TracedLauncher final : public ForwardingProcessLauncher {
 public:
  TracedLauncher(ProcessLauncher& inner, ProcessTracer& tracer, TracedChannels& channels,
                 PeerNamer peer_of)
      : ForwardingProcessLauncher(inner),
        tracer_(tracer),
        channels_(channels),
        peer_of_(std::move(peer_of)) {}
  std::unique_ptr<Process> spawn(SpawnRequest request) override;
  std::unique_ptr<Process> attach(std::int64_t pid) override;

 private:
  ProcessTracer& tracer_;
  TracedChannels& channels_;
  PeerNamer peer_of_;
};

}  // namespace tpsync::conformance
