// Ranks for the tests of the groups over Gloo: threads of this process that share a folder of their
// own, and processes of a test's program that join them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_world.h"
#include "tpsync/base/testing/temporary_folder.h"
#include "tpsync/collective/gloo_control_group.h"

namespace tpsync::collective::fakes {

class SilentLog final : public Log {
 public:
  bool wants(LogLevel) const noexcept override { return false; }
  void record(const LogRecord&) noexcept override {}
};

// What a rank threw, if it did.
using Outcomes = std::vector<std::optional<ErrorRecord>>;

// How many entries a folder of the process file system has.
inline std::size_t entries(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// What a rank's part of a test's data holds at an offset.
inline std::byte pattern(std::size_t rank, std::size_t offset) {
  return static_cast<std::byte>(rank * 131 + offset * 7 + (offset >> 8));
}
inline ByteBuffer patterned(std::size_t rank, std::size_t size) {
  ByteBuffer bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = pattern(rank, i);
  return bytes;
}

class GlooRanks : public testing::Test {
 protected:
  using Body = std::function<void(GlooControlGroup&)>;

  // A bound on hanging, not an expectation.
  Deadline in_an_hour() { return Deadline::after(clock_, std::chrono::hours(1)); }

  GlooControlOptions options(int rank, int size) const {
    GlooControlOptions options;
    options.meeting.rank = rank;
    options.meeting.size = size;
    options.meeting.group = group_;
    options.meeting.folder = folder_;
    return options;
  }

  // Runs `body` for the ranks [0, threads) of a group of `size`, each on a thread of its own.
  Outcomes run(int size, const Body& body, std::optional<int> threads = std::nullopt) {
    return run_ranks(threads.value_or(size), [&](int rank) {
      GlooControlGroup group(options(rank, size), world_.world());
      body(group);
    });
  }

  // Runs `rank_body` for the ranks [0, count), each on a thread of its own.
  Outcomes run_ranks(int count, const std::function<void(int)>& rank_body) {
    Outcomes outcomes(static_cast<std::size_t>(count));
    std::vector<std::unique_ptr<Thread>> running;
    for (int rank = 0; rank < count; ++rank) {
      running.push_back(threads_.spawn("rank", [&, rank] {
        attempt(outcomes[static_cast<std::size_t>(rank)], [&] { rank_body(rank); });
      }));
    }
    for (const auto& thread : running) thread->join();
    return outcomes;
  }

  static void expect_all_succeed(const Outcomes& outcomes) {
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
      EXPECT_FALSE(outcomes[rank]) << "rank " << rank << ": " << to_text(*outcomes[rank]);
  }

  template <typename Call>
  static ErrorRecord failure_of(Call&& call) {
    std::optional<ErrorRecord> error;
    attempt(error, std::forward<Call>(call));
    EXPECT_TRUE(error) << "nothing was thrown";
    return error.value_or(ErrorRecord{});
  }

  static void expect_lost(const ErrorRecord& error, int rank) {
    EXPECT_EQ(error.kind, ErrorKind::kPeerLost) << to_text(error);
    EXPECT_EQ(error.remedy, Remedy::kRebuildRuntime);
    EXPECT_EQ(error.rank, rank) << to_text(error);
  }

  // A rank in a process of its own; `channel_` is the test's end.
  std::unique_ptr<Process> spawn_rank(const std::string& program, int rank, int size,
                                      const std::string& behaviour) {
    auto [mine, its] = world_.channels().make_pair();
    channel_ = std::move(mine);
    SpawnRequest request;
    request.program = program;
    request.arguments = {behaviour, folder_, group_, std::to_string(rank), std::to_string(size)};
    request.channel = std::move(its);
    request.environment = world_.world().host.environment();
    return world_.world().processes.spawn(std::move(request));
  }

  // The child says one byte when it is where its behaviour says.
  void wait_for_child() {
    std::byte said{};
    EXPECT_EQ(channel_->read_some({&said, 1}, Deadline::after(clock_, std::chrono::minutes(1))),
              1U);
  }

  SilentLog log_;
  OsWorld world_{log_};
  OsClock clock_;
  OsThreads threads_;
  TemporaryFolder temporary_;
  std::string folder_ = temporary_.path();
  std::string group_ = "test";
  std::unique_ptr<Channel> channel_;
};

}  // namespace tpsync::collective::fakes
