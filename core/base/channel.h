// Seam: a duplex byte stream between two processes of one host. Framing is wire/frame.h, above it.
//
// Production: a Unix stream socket pair, close-on-exec. A channel end is owned by exactly one
// process; when every copy of the other end is closed, or its process ended, reads return what was
// accepted and then end of file.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tpsync/base/bytes.h"
#include "tpsync/base/clock.h"

namespace tpsync {

class Channel {
 public:
  virtual ~Channel() = default;  // closes; never throws, never waits

  // Blocks until at least one byte is there; returns how many were stored (1..into.size()), or 0 at
  // end of file. `into` must not be empty. Throws RuntimeBroken kTimeout at the deadline (nothing
  // consumed), kIo otherwise; PeerViolation kProtocol if descriptors are next.
  virtual std::size_t read_some(MutableByteView into, Deadline deadline) = 0;

  // Blocks until at least one byte was accepted; returns how many (1..from.size()). `from` must not
  // be empty. Throws RuntimeBroken kEndOfFile if the other end is gone, kTimeout at the deadline
  // (nothing accepted), kIo otherwise.
  virtual std::size_t write_some(ByteView from, Deadline deadline) = 0;

  // Passes open descriptors, at most 253 in one call (more assert), to the other process beside the
  // stream, in order: the receiver gets duplicates that it owns, and asks for exactly as many as
  // were sent together. Same failures as above; receive also throws RuntimeBroken kEndOfFile if the
  // other end is gone, kIo if this process cannot hold so many, and PeerViolation kProtocol if
  // something else than `count` descriptors is next.
  virtual void send_descriptors(std::span<const int> descriptors, Deadline deadline) = 0;
  virtual std::vector<int> receive_descriptors(std::size_t count, Deadline deadline) = 0;

  // Idempotent, and may be called by another thread: a call that is blocked on this end, and every
  // later one, then throws RuntimeBroken kIo. The other process sees end of file.
  virtual void close() noexcept = 0;
};

class ChannelFactory {
 public:
  virtual ~ChannelFactory() = default;
  // Two connected ends. Throws RuntimeBroken kIo if the system has no descriptors left.
  virtual std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_pair() = 0;

  // Blocks until one of `channels` can be read without waiting (bytes, descriptors, or end of file)
  // and returns its index; the lowest if several can. Returns channels.size() at the deadline. For
  // one that is closed on this side it throws RuntimeBroken kIo, or returns its index and the read
  // throws that; no other thread closes any of them during the call. Channels must come from this
  // factory.
  virtual std::size_t wait_readable(std::span<Channel* const> channels, Deadline deadline) = 0;
};

}  // namespace tpsync
