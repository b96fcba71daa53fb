// What an agreement costs among ranks that are processes of this host: a word of every rank given
// to every rank, over Gloo and on the shared-memory lane. Both run in turns of a batch each, in the
// same processes, so that whatever else the machine does meets both.
//
// Every word is checked; a wrong one, a lost rank or a lane that could not be opened ends the
// benchmark as an error. Started with --rank, the program is one of the ranks.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/support.h"
#include "tpsync/base/errors.h"
#include "tpsync/base/os_world.h"
#include "tpsync/base/testing/temporary_folder.h"
#include "tpsync/collective/gloo_control_group.h"
#include "tpsync/collective/lane_control_group.h"
#include "tpsync/collective/os_shared_words.h"

namespace tpsync::bench {
namespace {

using collective::ControlGroup;

constexpr std::uint64_t kBatch = 100;  // calls
constexpr std::int64_t kBatches = 60;  // of each group
constexpr std::uint64_t kGoOn = 1;
constexpr std::uint64_t kStop = 2;
// A bound on hanging: a rank that died is found at once.
constexpr Duration kLongest = std::chrono::minutes(2);

struct Membership {
  std::string folder;
  int rank = 0;
  int size = 1;
  std::int64_t spin_us = 0;
};

// One rank's two groups.
class Rank {
 public:
  Rank(const Membership& membership, const World& world)
      : clock_(world.clock),
        mine_(static_cast<std::uint64_t>(membership.rank)),
        words_(static_cast<std::size_t>(membership.size)),
        factory_({.spin = std::chrono::microseconds(membership.spin_us), .processors_to_spin = 1}),
        gloo_(meet(membership, world, "gloo")) {
    collective::OpenedLane lane =
        collective::open_lane(meet(membership, world, "lane"), world, factory_, deadline());
    if (!lane.shared) throw_broken(ErrorKind::kIo, "lane", "it could not be opened");
    lane_ = std::move(lane.group);
  }

  // All ranks make the same calls. Returns nanoseconds per call.
  double batch_over_gloo() { return batch(*gloo_); }
  double batch_on_lane() { return batch(*lane_); }
  // Rank 0 says it, and everyone hears it.
  std::uint64_t hear(std::uint64_t said) {
    gloo_->all_gather_word(said, words_, deadline());
    return words_[0];
  }

 private:
  static std::unique_ptr<ControlGroup> meet(const Membership& membership, const World& world,
                                            const std::string& name) {
    collective::GlooControlOptions options;
    options.meeting.rank = membership.rank;
    options.meeting.size = membership.size;
    options.meeting.group = name;
    options.meeting.folder = membership.folder;
    return std::make_unique<collective::GlooControlGroup>(options, world);
  }

  Deadline deadline() { return Deadline::after(clock_, kLongest); }

  double batch(ControlGroup& group) {
    const TimePoint start = clock_.now();
    for (std::uint64_t call = 0; call < kBatch; ++call) {
      const std::uint64_t number = ++calls_;
      group.all_gather_word(number << 8 | mine_, words_, deadline());
      for (std::uint64_t rank = 0; rank < words_.size(); ++rank)
        if (words_[rank] != (number << 8 | rank))
          throw_broken(ErrorKind::kMismatch, "agreement", "a rank got a wrong word");
    }
    return static_cast<double>((clock_.now() - start).count()) / static_cast<double>(kBatch);
  }

  Clock& clock_;
  std::uint64_t mine_;
  std::uint64_t calls_ = 0;
  std::vector<std::uint64_t> words_;
  collective::OsSharedWordsFactory factory_;
  std::unique_ptr<ControlGroup> gloo_;
  std::unique_ptr<ControlGroup> lane_;
};

void measure(benchmark::State& state) {
  const TemporaryFolder folder("tpsync-bench");
  SilentLog log;
  OsWorld os(log);
  const World world = os.world();
  const std::string path = folder.path();
  Membership membership{path, 0, static_cast<int>(state.range(0)), state.range(1)};
  std::vector<std::unique_ptr<Process>> others;
  for (int rank = 1; rank < membership.size; ++rank) {
    SpawnRequest request;
    request.program = "/proc/self/exe";
    request.arguments = {"--rank", path, std::to_string(rank), std::to_string(membership.size),
                         std::to_string(membership.spin_us)};
    others.push_back(world.processes.spawn(std::move(request)));
  }
  std::vector<double> gloo;
  std::vector<double> lane;
  {
    Rank rank(membership, world);
    rank.batch_over_gloo();  // what a first time costs is not counted
    rank.batch_on_lane();
    for (auto _ : state) {
      rank.hear(kGoOn);
      gloo.push_back(rank.batch_over_gloo());
      lane.push_back(rank.batch_on_lane());
      state.SetIterationTime(lane.back() * 1e-9);
    }
    rank.hear(kStop);
  }
  for (const auto& other : others) {
    if (other->wait(Deadline::after(world.clock, kLongest)) != ExitStatus{false, 0})
      throw_broken(ErrorKind::kRemote, "agreement", "a rank failed");
  }
  state.counters["gloo_us"] = median(gloo) / 1000;
  state.counters["lane_us"] = median(lane) / 1000;
  state.counters["ratio"] = median(gloo) / median(lane);
}

// A rank that is not the one that measures.
void follow(const Membership& membership) {
  SilentLog log;
  OsWorld os(log);
  Rank rank(membership, os.world());
  rank.batch_over_gloo();
  rank.batch_on_lane();
  while (rank.hear(0) == kGoOn) {
    rank.batch_over_gloo();
    rank.batch_on_lane();
  }
}

void BM_Agreement(benchmark::State& state) {
  try {
    measure(state);
  } catch (const Error& error) {
    state.SkipWithError(error.what());
  }
}
BENCHMARK(BM_Agreement)
    ->ArgNames({"ranks", "spin_us"})
    ->ArgsProduct({{2, 4}, {0, 20}})
    ->Iterations(kBatches)
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime();

std::int64_t number_from(std::string_view text) {
  std::int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace
}  // namespace tpsync::bench

int main(int argc, char** argv) {
  using namespace tpsync::bench;
  if (argc == 6 && std::string_view(argv[1]) == "--rank") {
    try {
      follow({argv[2], static_cast<int>(number_from(argv[3])),
              static_cast<int>(number_from(argv[4])), number_from(argv[5])});
    } catch (const tpsync::Error& error) {
      fmt::print(stderr, "rank {}: {}\n", argv[3], error.what());
      return 1;
    }
    return 0;
  }
  Reporter reporter;
  return run_benchmarks(argc, argv, reporter);
}
