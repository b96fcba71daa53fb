// A control group over threads of one process: contributions meet round by round, a rank that left
// is lost to every rank that still needs something from it. Deadlines are written down, never
// waited for: a round ends because all came, or because one left.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_threads.h"
#include "tpsync/collective/control_group.h"

namespace tpsync::sync::fakes {

// Where the ranks meet.
class Board {
 public:
  explicit Board(int size)
      : size_(static_cast<std::size_t>(size)),
        mutex_(threads_.make_mutex()),
        changed_(threads_.make_condition()),
        left_(size_, false) {}

  std::vector<ByteBuffer> meet(std::size_t rank, std::size_t round, ByteView bytes) {
    const MutexLock lock(*mutex_);
    rounds_[round].resize(size_);
    rounds_[round][rank].emplace(bytes.begin(), bytes.end());
    changed_->notify_all();
    while (true) {
      const auto& words = rounds_[round];
      std::vector<ByteBuffer> all;
      for (std::size_t r = 0; r < size_ && words[r]; ++r) all.push_back(*words[r]);
      if (all.size() == size_) return all;
      for (std::size_t r = 0; r < size_; ++r) {
        if (words[r] || !left_[r]) continue;
        ErrorRecord record;
        record.kind = ErrorKind::kPeerLost;
        record.rank = static_cast<int>(r);
        record.detail = "left the group";
        throw RuntimeBroken(record);
      }
      changed_->wait(*mutex_, Deadline::never());
    }
  }
  void leave(std::size_t rank) {
    const MutexLock lock(*mutex_);
    left_[rank] = true;
    changed_->notify_all();
  }

 private:
  std::size_t size_;
  OsThreads threads_;
  std::unique_ptr<Mutex> mutex_;
  std::unique_ptr<Condition> changed_;
  std::vector<bool> left_;
  std::map<std::size_t, std::vector<std::optional<ByteBuffer>>> rounds_;
};

class ThreadGroup final : public collective::ControlGroup {
 public:
  ThreadGroup(Board& board, int rank, int size) : board_(board), rank_(rank), size_(size) {}
  ~ThreadGroup() override { leave(); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                       Deadline deadline) override {
    const auto all = meet(std::as_bytes(std::span(&word, 1)), deadline);
    for (std::size_t r = 0; r < all.size(); ++r) {
      std::copy(all[r].begin(), all[r].end(), std::as_writable_bytes(words.subspan(r, 1)).begin());
    }
  }
  std::vector<ByteBuffer> all_gather(ByteView bytes, Deadline deadline) override {
    return meet(bytes, deadline);
  }
  void broadcast(ByteBuffer& bytes, int root, Deadline deadline) override {
    bytes = meet(rank_ == root ? ByteView(bytes) : ByteView(),
                 deadline)[static_cast<std::size_t>(root)];
  }
  std::optional<int> lost_peer() override { return std::nullopt; }
  void raise_alarm() noexcept override {}
  std::optional<int> alarm() override { return std::nullopt; }
  void leave() noexcept override {
    left_ = true;
    board_.leave(static_cast<std::size_t>(rank_));
  }

  std::vector<Deadline> deadlines;  // of every collective call

 private:
  std::vector<ByteBuffer> meet(ByteView bytes, Deadline deadline) {
    if (left_) throw_broken(ErrorKind::kInvalidState, "group", "was left");
    deadlines.push_back(deadline);
    return board_.meet(static_cast<std::size_t>(rank_), round_++, bytes);
  }

  Board& board_;
  int rank_;
  int size_;
  std::size_t round_ = 0;
  bool left_ = false;
};

// Runs `body` once per rank, each on a thread of its own, and returns what each threw. A rank that
// returns or throws leaves the group.
inline std::vector<std::optional<ErrorRecord>> run_ranks(
    int size, const std::function<void(std::unique_ptr<ThreadGroup>)>& body) {
  Board board(size);
  OsThreads threads;
  std::vector<std::optional<ErrorRecord>> outcomes(static_cast<std::size_t>(size));
  std::vector<std::unique_ptr<Thread>> running;
  for (int rank = 0; rank < size; ++rank) {
    running.push_back(threads.spawn("rank " + std::to_string(rank), [&, rank] {
      try {
        body(std::make_unique<ThreadGroup>(board, rank, size));
      } catch (const Error& error) {
        outcomes[static_cast<std::size_t>(rank)] = error.record();
      }
      board.leave(static_cast<std::size_t>(rank));
    }));
  }
  for (auto& thread : running) thread->join();
  return outcomes;
}

}  // namespace tpsync::sync::fakes
