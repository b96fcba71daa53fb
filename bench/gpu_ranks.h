// What the benchmarks between processes with GPUs share: a folder to meet in, processes of the
// program itself as ranks, a control group on the lane, and medians.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_world.h"
#include "tpsync/base/testing/temporary_folder.h"
#include "tpsync/collective/gloo_control_group.h"
#include "tpsync/collective/lane_control_group.h"
#include "tpsync/collective/os_shared_words.h"

namespace tpsync::bench {

// A bound on hanging: a rank that died is found at once.
inline constexpr Duration kLongestWait = std::chrono::minutes(2);

class SilentLog final : public Log {
 public:
  bool wants(LogLevel) const noexcept override { return false; }
  void record(const LogRecord&) noexcept override {}
};

struct Membership {
  std::string folder;
  int rank = 0;
  int size = 1;
};

inline std::int64_t number_from(std::string_view text) {
  std::int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// The program once more, as `--rank <folder> <rank> <size>`.
inline std::unique_ptr<Process> spawn_rank(const World& world, const Membership& membership) {
  SpawnRequest request;
  request.program = "/proc/self/exe";
  request.arguments = {"--rank", membership.folder, std::to_string(membership.rank),
                       std::to_string(membership.size)};
  request.environment = world.host.environment();
  return world.processes.spawn(std::move(request));
}

using collective::ControlGroup;

// Ranks that agree on shared memory, and follow what rank 0 says.
class Lane {
 public:
  Lane(const Membership& membership, const World& world)
      : clock_(world.clock), words_(static_cast<std::size_t>(membership.size)) {
    collective::GlooControlOptions options;
    options.meeting.rank = membership.rank;
    options.meeting.size = membership.size;
    options.meeting.group = "bench";
    options.meeting.folder = membership.folder;
    collective::OpenedLane lane = collective::open_lane(
        std::make_unique<collective::GlooControlGroup>(options, world), world, factory, deadline());
    if (!lane.shared) throw_broken(ErrorKind::kIo, "lane", "it could not be opened");
    group = std::move(lane.group);
  }

  Deadline deadline() { return Deadline::after(clock_, kLongestWait); }
  // Rank 0 says it, and everyone hears it.
  std::uint64_t hear(std::uint64_t said) {
    group->all_gather_word(said, words_, deadline());
    return words_[0];
  }
  void meet() { hear(0); }
  std::int64_t longest(Duration own) {
    group->all_gather_word(static_cast<std::uint64_t>(own.count()), words_, deadline());
    return static_cast<std::int64_t>(*std::max_element(words_.begin(), words_.end()));
  }

  collective::OsSharedWordsFactory factory;
  std::unique_ptr<ControlGroup> group;

 private:
  Clock& clock_;
  std::vector<std::uint64_t> words_;
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace tpsync::bench
