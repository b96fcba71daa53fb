#include "tpsync/runtime/worker_pool.h"

#include <string>

#include "tpsync/base/errors.h"
#include "tpsync/wire/frame.h"

namespace tpsync::runtime {

namespace {

// For a worker that leaves by itself once its channel is closed, and for one that is killed.
constexpr Duration kLeaveAllowance = std::chrono::seconds(2);
constexpr Duration kWorkerKillAllowance = std::chrono::seconds(2);
static_assert(kLeaveAllowance + kWorkerKillAllowance < KillBudget{}.terminate,
              "a runtime that is told to end must be done before its parent kills it");
// Between end of file on a worker's channel and its exit status.
constexpr Duration kStatusAllowance = std::chrono::milliseconds(500);
constexpr std::size_t kLogTailBytes = 400;

// One line of printable text, without the line that `tail` begins in the middle of.
std::string last_lines(std::string tail) {
  if (tail.size() == kLogTailBytes) tail.erase(0, tail.find('\n') + 1);
  while (!tail.empty() && tail.back() == '\n') tail.pop_back();
  std::string text;
  for (const char c : tail) {
    if (c == '\n') {
      text += " | ";
    } else {
      text += c >= ' ' && c <= '~' ? c : '?';
    }
  }
  return text;
}

}  // namespace

WorkerPool::WorkerPool(World& world, Channel& parent, int tp_size)
    : world_(world), parent_(parent), tp_size_(tp_size) {}

WorkerPool::~WorkerPool() {
  for (Worker& worker : workers_) {
    if (worker.channel) worker.channel->close();
  }
  const Deadline leave = Deadline::after(world_.clock, kLeaveAllowance);
  for (Worker& worker : workers_) {
    if (worker.process->wait(leave)) continue;
    worker.process->signal(Signal::kKill);
  }
  // What can still not be waited for is left to the parent's kill of the whole group.
  const Deadline killed = Deadline::after(world_.clock, kWorkerKillAllowance);
  for (Worker& worker : workers_) worker.process->wait(killed);
}

void WorkerPool::spawn(const std::function<SpawnRequest(int)>& request) {
  for (int rank = 0; rank < tp_size_; ++rank) {
    auto [ours, theirs] = world_.channels.make_pair();
    SpawnRequest spawn = request(rank);
    spawn.channel = std::move(theirs);
    spawn.own_group = false;  // dies with the runtime's group
    auto process = world_.processes.spawn(std::move(spawn));
    workers_.push_back({std::move(ours), std::move(process)});
  }
}

std::string WorkerPool::describe_exit(Worker& worker) {
  const auto status = worker.process->wait(Deadline::after(world_.clock, kStatusAllowance));
  if (!status) return "it closed its channel but did not exit";
  std::string text = (status->signaled ? "it was killed by signal " : "it exited with status ") +
                     std::to_string(status->code);
  const std::string last = last_lines(worker.process->log_tail(kLogTailBytes));
  if (!last.empty()) text += "; the end of its log: " + last;
  return text;
}

WorkerPool::Reply WorkerPool::receive(std::size_t rank, wire::Command command, std::int64_t id,
                                      Deadline deadline) {
  Reply reply;
  const std::string name = "worker " + std::to_string(rank);
  try {
    wire::receive_frame(*workers_[rank].channel, in_, deadline);
    reply.response = wire::decode_response(in_, id, name_of(command), wire::Peer::kWorker);
    if (reply.response.ok) return reply;
    ErrorRecord record;
    record.kind = ErrorKind::kRemote;
    record.remedy = Remedy::kRebuildRuntime;
    record.subject = name;
    record.detail = reply.response.error;
    reply.error = record;
  } catch (const Error& e) {
    ErrorRecord record = e.record();
    record.subject = name + (record.subject.empty() ? "" : ": " + record.subject);
    if (e.kind() == ErrorKind::kEndOfFile) record.detail = describe_exit(workers_[rank]);
    reply.error = record;
  }
  reply.error->rank = static_cast<int>(rank);
  return reply;
}

std::optional<WorkerPool::EarlyWord> WorkerPool::early_word(Deadline now) {
  std::vector<Channel*> channels;
  channels.reserve(workers_.size());
  for (const Worker& worker : workers_) channels.push_back(worker.channel.get());
  const std::size_t rank = world_.channels.wait_readable(channels, now);
  if (rank == workers_.size()) return std::nullopt;
  EarlyWord word{rank, {}};
  std::byte byte{};
  if (workers_[rank].channel->read_some(std::span(&byte, 1), now) == 0) {
    word.record.kind = ErrorKind::kEndOfFile;
    word.record.remedy = Remedy::kRebuildRuntime;
    word.record.detail = describe_exit(workers_[rank]);
  } else {
    word.record.kind = ErrorKind::kProtocol;
    word.record.remedy = Remedy::kFixPeer;
    word.record.detail = "sent something that it was not asked for";
  }
  return word;
}

std::vector<WorkerPool::Reply> WorkerPool::call(wire::Command command, std::int64_t id,
                                                ByteView body, Duration timeout, Collect collect) {
  const TimePoint now = world_.clock.now();
  const Deadline deadline = Deadline::at(now + timeout);
  std::vector<Reply> replies(workers_.size());
  std::vector<bool> open(workers_.size(), true);
  const auto fail = [&](std::size_t rank, ErrorRecord record) {
    record.rank = static_cast<int>(rank);
    replies[rank].error = std::move(record);
    open[rank] = false;
  };
  bool failed = false;
  // Not after sending: a worker that is stuck saying what nobody reads does not read either, and
  // would be found by the deadline alone.
  const std::optional<EarlyWord> early = early_word(Deadline::at(now));
  if (early) {
    ErrorRecord record = early->record;
    record.subject = "worker " + std::to_string(early->rank);
    fail(early->rank, record);
    failed = true;
    collect = Collect::kUntilFailure;
  }
  for (std::size_t rank = 0; !early && rank < workers_.size(); ++rank) {
    try {
      wire::send_frame(*workers_[rank].channel, body, deadline);
    } catch (const Error& e) {
      ErrorRecord record = e.record();
      record.subject = "worker " + std::to_string(rank);
      if (e.kind() == ErrorKind::kEndOfFile) record.detail = describe_exit(workers_[rank]);
      fail(rank, record);
      failed = true;
    }
  }
  std::vector<Channel*> waiting;
  std::vector<std::size_t> ranks;
  waiting.reserve(workers_.size() + 1);
  ranks.reserve(workers_.size());
  while (!(failed && collect == Collect::kUntilFailure)) {
    waiting.clear();
    ranks.clear();
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      if (!open[rank]) continue;
      waiting.push_back(workers_[rank].channel.get());
      ranks.push_back(rank);
    }
    if (waiting.empty()) return replies;
    waiting.push_back(&parent_);
    const std::size_t ready = world_.channels.wait_readable(waiting, deadline);
    if (ready == ranks.size()) {
      std::byte byte{};
      if (parent_.read_some(std::span(&byte, 1), deadline) == 0) {
        throw_broken(ErrorKind::kEndOfFile, name_of(command), "the parent closed the connection");
      }
      // Broken whatever the command was: workers are still at it, and what was read is lost.
      throw_broken(ErrorKind::kProtocol, name_of(command),
                   "the parent sent more while this command was in flight");
    }
    if (ready > ranks.size()) {
      for (const std::size_t rank : ranks) {
        ErrorRecord record;
        record.kind = ErrorKind::kTimeout;
        record.remedy = Remedy::kRebuildRuntime;
        record.subject = "worker " + std::to_string(rank);
        record.detail = "did not reply in time";
        fail(rank, record);
      }
      return replies;
    }
    const std::size_t rank = ranks[ready];
    replies[rank] = receive(rank, command, id, deadline);
    open[rank] = false;
    failed |= replies[rank].error.has_value();
  }
  for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
    if (!open[rank]) continue;
    ErrorRecord record;
    record.kind = ErrorKind::kPeerFailed;
    record.remedy = Remedy::kRebuildRuntime;
    record.subject = "worker " + std::to_string(rank);
    record.detail = "had not replied when another worker failed";
    fail(rank, record);
  }
  return replies;
}

std::optional<ErrorRecord> first_error(const std::vector<WorkerPool::Reply>& replies) {
  std::optional<ErrorRecord> first;
  for (const WorkerPool::Reply& reply : replies) {
    if (!reply.error) continue;
    if (reply.error->kind != ErrorKind::kPeerFailed) return reply.error;
    if (!first) first = reply.error;
  }
  return first;
}

}  // namespace tpsync::runtime
