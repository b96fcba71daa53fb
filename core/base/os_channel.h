// Channels over Unix stream socket pairs. Descriptors travel as SCM_RIGHTS with a marker byte of
// their own, so they keep their place in the stream.
//
// close() may come from another thread while a call of this end is blocked; that call then throws
// RuntimeBroken kIo. All else on one end is for one reader and one writer at a time.
#pragma once

#include "tpsync/base/channel.h"

namespace tpsync {

// Where a spawned process finds its end of the channel that it was given.
inline constexpr int kInheritedChannelDescriptor = 3;

class OsChannelFactory final : public ChannelFactory {
 public:
  // Throws RuntimeBroken kIo if the system has no descriptor left.
  std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_pair() override;
  std::size_t wait_readable(std::span<Channel* const> channels, Deadline deadline) override;

  // Takes ownership of an open stream socket, normally kInheritedChannelDescriptor in a spawned
  // process. Throws InvalidInput kInvalidState if the descriptor is no stream socket; then it is
  // left alone.
  std::unique_ptr<Channel> adopt(int descriptor);
};

namespace os_detail {
// For the launcher: the descriptor of an idle channel end from OsChannelFactory, which is closed
// for its holder from then on, but not for the process that receives it. Asserts that `channel`
// came from there; -1 if it was closed.
int release_descriptor(Channel& channel);
}  // namespace os_detail

}  // namespace tpsync
