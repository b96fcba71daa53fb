// The runtime's workers: processes and channels, one command to all of them at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tpsync/base/world.h"
#include "tpsync/wire/messages.h"

namespace tpsync::runtime {

enum class Collect : std::uint8_t { kEveryReply, kUntilFailure };

class WorkerPool {
 public:
  // `parent` is watched while replies are awaited. Spawns nothing yet.
  WorkerPool(World& world, Channel& parent, int tp_size);
  // Ends all workers: closes their channels, waits a little for them to leave, kills the rest.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Starts all workers, without waiting for them. Throws RuntimeBroken kIo.
  void spawn(const std::function<SpawnRequest(int)>& request);

  struct Reply {
    wire::Response response;           // meaningful if there is no error
    std::optional<ErrorRecord> error;  // ok=false, end of file, timeout, protocol; rank set
  };

  // Sends `body` to every worker and collects one reply from each, in rank order. Nothing is sent
  // if a worker has said something before, or has ended: that is the failure then. With
  // kUntilFailure returns as soon as one failed; replies that had not come by then have an error of
  // kind kPeerFailed. Throws RuntimeBroken kEndOfFile if the parent closed meanwhile;
  // PeerViolation kProtocol if it sent something.
  std::vector<Reply> call(wire::Command command, std::int64_t id, ByteView body, Duration timeout,
                          Collect collect);

 private:
  struct Worker {
    std::unique_ptr<Channel> channel;
    std::unique_ptr<Process> process;
  };
  // Of a worker that said something, or its end, before it was asked.
  struct EarlyWord {
    std::size_t rank;
    ErrorRecord record;
  };
  std::optional<EarlyWord> early_word(Deadline now);
  Reply receive(std::size_t rank, wire::Command command, std::int64_t id, Deadline deadline);
  std::string describe_exit(Worker& worker);

  World& world_;
  Channel& parent_;
  int tp_size_;
  std::vector<Worker> workers_;
  ByteBuffer in_;
};

// The first error in rank order that is a cause, if there is any error.
std::optional<ErrorRecord> first_error(const std::vector<WorkerPool::Reply>& replies);

}  // namespace tpsync::runtime
