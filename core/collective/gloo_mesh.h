// A Gloo TCP connection between every pair of ranks, for the two groups of this folder. It knows
// how to connect within a deadline, how to be closed without a peer's help, and what Gloo needs
// around it; what travels over it is the groups' business.
//
// Rules: Gloo's own timeouts close all pairs of a context, and its waits can't be tried, so after
// connecting nobody waits in Gloo with a timeout: threads wait for ever and are freed by close() or
// by aborting their buffers. Gloo writes to sockets without caring for SIGPIPE, so every thread
// blocks it while it calls Gloo (BlockedSigpipe). Peers are trusted: bytes that don't fit what was
// asked for end the process inside Gloo's own thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tpsync/base/bytes.h"
#include "tpsync/base/clock.h"
#include "tpsync/base/host.h"
#include "tpsync/collective/os_sigpipe.h"

namespace gloo::transport {
class Context;
class Device;
class UnboundBuffer;
}  // namespace gloo::transport

namespace tpsync::collective {

// As long as Gloo can wait; nobody means to wait so long.
inline constexpr std::chrono::milliseconds kGlooForEver = std::chrono::hours(24 * 365 * 100);

struct GlooAddress {
  std::string interface;           // network interface by name; if empty, `host` counts
  std::string host = "127.0.0.1";  // a name or number of this host, as the other ranks reach it
};

struct GlooMeshOptions {
  int rank = 0;
  int size = 1;
  GlooAddress address;
};

class GlooMesh {
 public:
  // Gives every rank's bytes to every rank, in rank order.
  using Exchange = std::function<std::vector<ByteBuffer>(ByteView, Deadline)>;

  // Connects to all peers; collective. Blocks until every rank has connected, at most until about
  // the deadline. Throws InvalidInput kInvalidConfig if the address is not this host's;
  // RuntimeBroken kPeerLost or kPeerFailed (with the rank) if a peer did not connect; what
  // `exchange` throws.
  GlooMesh(const GlooMeshOptions& options, Clock& clock, Random& random, const Exchange& exchange,
           Deadline deadline);
  ~GlooMesh();  // closes
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  // Safe from any thread. `bytes` may be written to although it is given as const, if it is
  // received into.
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer(const void* bytes, std::size_t size);

  // Closes every connection: peers see it at once, nothing is read or written afterwards, and
  // threads that wait in buffers go on waiting until these are aborted. Idempotent, not concurrent;
  // takes about 10 ms per peer.
  void close() noexcept;

 private:
  std::vector<ByteBuffer> addresses_for_peers();
  void confirm(std::uint64_t session, Clock& clock, Deadline deadline);

  GlooMeshOptions options_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  bool closed_ = false;
};

}  // namespace tpsync::collective
