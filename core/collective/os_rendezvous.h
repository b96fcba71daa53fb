// How ranks that know only a name find one another: each brings a blob (its addresses) and leaves
// with the blobs of all, in rank order. Two stores: files in a folder that all ranks see, or a TCP
// port at which rank 0 listens.
//
// Rules: whatever an earlier run left in the folder changes nothing, because what counts is only
// what repeats the random number of every rank of this run. Worlds with different names share a
// folder; they don't share a port. Every wait has the deadline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tpsync/base/bytes.h"
#include "tpsync/base/clock.h"
#include "tpsync/base/host.h"

namespace tpsync::collective {

enum class RendezvousStore : std::uint8_t { kFile, kTcp };

struct RendezvousOptions {
  int rank = 0;
  int size = 1;
  // Of this run of this group, the same on all ranks, and of no other group that runs at the same
  // time on this store. Letters, digits, '.', '_' and '-'.
  std::string group;
  RendezvousStore store = RendezvousStore::kFile;
  std::string folder;      // kFile: exists and is seen by all ranks
  std::string host;        // kTcp: where rank 0 listens, as the others reach it
  std::uint16_t port = 0;  // kTcp
};

// Whether a socket of this process can listen there: at a name or number of this host, and at an
// interface of it. Gloo itself forgets memory where it can't.
bool can_listen_at_host(const std::string& host);
bool can_listen_at_interface(const std::string& interface);

class Rendezvous {
 public:
  // Throws InvalidInput kInvalidConfig for options that no rendezvous can be made of.
  Rendezvous(RendezvousOptions options, Clock& clock, Random& random);
  // Removes the files that this rank wrote. By then every rank has come out of meet(), or the group
  // has failed.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // Collective, once. Throws RuntimeBroken kPeerLost at the deadline (rank: the lowest one that did
  // not come, where this rank can tell), kIo if folder or port can't be used.
  std::vector<ByteBuffer> meet(ByteView blob, Deadline deadline);

 private:
  std::vector<ByteBuffer> meet_in_folder(ByteView blob, Deadline deadline);
  std::vector<ByteBuffer> meet_at_port(ByteView blob, Deadline deadline);
  std::vector<ByteBuffer> serve(ByteView blob, Deadline deadline);
  std::vector<ByteBuffer> ask(ByteView blob, Deadline deadline);
  std::string path_of(const std::string& name) const;
  void write_file(const std::string& name, ByteView content);
  ByteBuffer read_file(const std::string& name) const;  // empty if there is none
  [[noreturn]] void give_up(int missing) const;

  RendezvousOptions options_;
  Clock& clock_;
  std::uint64_t nonce_ = 0;
  std::vector<std::string> written_;
};

}  // namespace tpsync::collective
