// What a gather of weights costs among GPUs of this host, a process each: NCCL's all-gather and
// copies between peers, in turns in the same processes, so that whatever else the machine does
// meets both. From the call to the end of the wait, of the slowest rank, agreement included.
//
// Rates are what a rank receives, per second; every part is checked before it is timed. Started
// with --rank, the program is one of the ranks.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "bench/gpu_ranks.h"
#include "tpsync/collective/nccl_shard_group.h"
#include "tpsync/collective/peer_copy_shard_group.h"
#include "tpsync/device/cuda_device.h"

namespace tpsync::bench {
namespace {

using collective::GatherPart;
using collective::ShardGroup;

constexpr std::int64_t kRounds = 21;
constexpr std::uint64_t kLargest = 4096 * kMiB;
constexpr std::uint64_t kStop = ~std::uint64_t{0};

enum class Way : std::uint64_t { kNccl, kNcclUneven, kCopies, kCopiesUneven };
constexpr Way kWays[] = {Way::kNccl, Way::kNcclUneven, Way::kCopies, Way::kCopiesUneven};

// Equal parts; or the first rank has three quarters of its part, the last rank the rest too.
std::vector<GatherPart> parts_of(std::uint64_t bytes, std::size_t ranks, bool uneven) {
  std::vector<GatherPart> parts(ranks);
  const std::uint64_t each = bytes / ranks / 64 * 64;
  for (std::size_t r = 0; r < ranks; ++r) parts[r] = {each * r, each};
  if (uneven) {
    const std::uint64_t moved = each / 4 / 64 * 64;
    parts[0].bytes -= moved;
    for (std::size_t r = 1; r < ranks; ++r) parts[r].offset -= moved;
    parts[ranks - 1].bytes += moved;
  }
  return parts;
}

class Rank {
 public:
  Rank(const Membership& membership, const World& world)
      : clock_(world.clock),
        ranks_(static_cast<std::size_t>(membership.size)),
        mine_(static_cast<std::size_t>(membership.rank)),
        lane_(membership, world),
        device_(world.clock, {.ordinal = membership.rank}),
        nccl_(*lane_.group, device_, device_, world, lane_.deadline()),
        copies_(*lane_.group, device_, lane_.factory, world, lane_.deadline()),
        buffer_(device_.allocate({.bytes = kLargest, .kind = device::RegionKind::kExportable})),
        stream_(device_.create_stream()) {
    copies_.attach(buffer_, device_.export_region(buffer_));
  }
  ~Rank() {
    device_.destroy_stream(stream_);
    if (copies_.detach(buffer_, lane_.deadline())) device_.free(buffer_);
  }

  // All ranks make the same calls.
  std::uint64_t hear(std::uint64_t said) { return lane_.hear(said); }
  void check(std::uint64_t bytes) {
    for (const Way way : kWays) {
      const auto parts = parts_of(bytes, ranks_, is_uneven(way));
      std::vector<std::byte> expected(ranks_);
      ++checks_;
      for (std::size_t r = 0; r < ranks_; ++r)
        expected[r] = static_cast<std::byte>((checks_ * ranks_ + r) % 251 + 1);
      device_.fill(stream_, buffer_, 0, bytes, std::byte{0});
      device_.fill(stream_, buffer_, parts[mine_].offset, parts[mine_].bytes, expected[mine_]);
      device_.synchronize(stream_, lane_.deadline());
      gather(way, parts);
      for (std::size_t r = 0; r < ranks_; ++r) expect(parts[r], expected[r]);
      lane_.meet();
    }
  }
  // Nanoseconds of the slowest rank.
  double time(Way way, std::uint64_t bytes) {
    const auto parts = parts_of(bytes, ranks_, is_uneven(way));
    lane_.meet();
    const TimePoint start = clock_.now();
    gather(way, parts);
    return static_cast<double>(lane_.longest(clock_.now() - start));
  }

 private:
  static bool is_uneven(Way way) { return way == Way::kNcclUneven || way == Way::kCopiesUneven; }
  void gather(Way way, std::span<const GatherPart> parts) {
    const bool by_nccl = way == Way::kNccl || way == Way::kNcclUneven;
    ShardGroup& shards = by_nccl ? static_cast<ShardGroup&>(nccl_) : copies_;
    shards.all_gather(stream_, buffer_, parts);
    shards.wait(stream_, lane_.deadline(), *lane_.group);
  }
  // The first, middle and last bytes of a part.
  void expect(const GatherPart& part, std::byte value) {
    ByteBuffer found(std::min(part.bytes, kMiB));
    const std::uint64_t last = part.bytes - found.size();
    for (const std::uint64_t at : {std::uint64_t{0}, last / 2, last}) {
      device_.download(stream_, buffer_, part.offset + at, found);
      device_.synchronize(stream_, lane_.deadline());
      if (found != ByteBuffer(found.size(), value))
        throw_broken(ErrorKind::kMismatch, "gather", "a part has other bytes than its rank gave");
    }
  }

  Clock& clock_;
  std::size_t ranks_;
  std::size_t mine_;
  std::uint64_t checks_ = 0;
  Lane lane_;
  device::CudaDevice device_;
  collective::NcclShardGroup nccl_;
  collective::PeerCopyShardGroup copies_;
  device::RegionId buffer_;
  device::StreamId stream_;
};

// What every rank does once it has heard how much.
std::vector<double> round_of(Rank& rank, std::uint64_t bytes) {
  std::vector<double> times;
  for (const Way way : kWays) times.push_back(rank.time(way, bytes));
  return times;
}

void measure(benchmark::State& state) {
  const TemporaryFolder folder("tpsync-bench");
  SilentLog log;
  OsWorld os(log);
  const World world = os.world();
  const Membership membership{folder.path(), 0, device::find_cuda_devices().count};
  if (membership.size < 2) {
    state.SkipWithError("needs at least 2 GPUs");
    return;
  }
  const auto bytes = static_cast<std::uint64_t>(state.range(0)) * kMiB;
  std::vector<std::unique_ptr<Process>> others;
  for (int r = 1; r < membership.size; ++r)
    others.push_back(spawn_rank(world, {folder.path(), r, membership.size}));
  std::vector<std::vector<double>> times(std::size(kWays));
  {
    Rank rank(membership, world);
    rank.hear(bytes);
    rank.check(bytes);
    round_of(rank, bytes);  // what a first time costs is not counted
    for (auto _ : state) {
      rank.hear(bytes);
      const auto round = round_of(rank, bytes);
      for (std::size_t way = 0; way < round.size(); ++way) times[way].push_back(round[way]);
      state.SetIterationTime(round[static_cast<std::size_t>(Way::kCopies)] * 1e-9);
    }
    rank.hear(kStop);
  }
  for (const auto& other : others) {
    if (other->wait(Deadline::after(world.clock, kLongestWait)) != ExitStatus{false, 0})
      throw_broken(ErrorKind::kRemote, "gather", "a rank failed");
  }
  const auto ranks = static_cast<std::size_t>(membership.size);
  const auto rate = [&](Way way, bool uneven) {
    const auto parts = parts_of(bytes, ranks, uneven);
    std::uint64_t smallest = parts[0].bytes;
    std::uint64_t sum = 0;
    for (const GatherPart& part : parts) {
      smallest = std::min(smallest, part.bytes);
      sum += part.bytes;
    }
    return static_cast<double>(sum - smallest) / median(times[static_cast<std::size_t>(way)]);
  };
  const auto us = [&](Way way) { return median(times[static_cast<std::size_t>(way)]) / 1000; };
  state.counters["nccl_us"] = us(Way::kNccl);
  state.counters["copies_us"] = us(Way::kCopies);
  state.counters["nccl_GBps"] = rate(Way::kNccl, false);
  state.counters["copies_GBps"] = rate(Way::kCopies, false);
  state.counters["nccl_uneven_GBps"] = rate(Way::kNcclUneven, true);
  state.counters["copies_uneven_GBps"] = rate(Way::kCopiesUneven, true);
  state.counters["ratio"] = us(Way::kNccl) / us(Way::kCopies);
}

// A rank that is not the one that measures.
void follow(const Membership& membership) {
  SilentLog log;
  OsWorld os(log);
  Rank rank(membership, os.world());
  const std::uint64_t first = rank.hear(0);
  rank.check(first);
  round_of(rank, first);
  for (std::uint64_t bytes = rank.hear(0); bytes != kStop; bytes = rank.hear(0))
    round_of(rank, bytes);
}

void BM_Gather(benchmark::State& state) {
  try {
    measure(state);
  } catch (const Error& error) {
    state.SkipWithError(error.what());
  }
}
BENCHMARK(BM_Gather)
    ->ArgName("MiB")
    ->Arg(16)
    ->Arg(64)
    ->Arg(256)
    ->Arg(640)
    ->Arg(1024)
    ->Arg(4096)
    ->Iterations(kRounds)
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime();

}  // namespace
}  // namespace tpsync::bench

int main(int argc, char** argv) {
  using namespace tpsync::bench;
  if (argc == 5 && std::string_view(argv[1]) == "--rank") {
    try {
      follow({argv[2], static_cast<int>(number_from(argv[3])),
              static_cast<int>(number_from(argv[4]))});
    } catch (const tpsync::Error& error) {
      fmt::print(stderr, "rank {}: {}\n", argv[3], error.what());
      return 1;
    }
    return 0;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 64;
  if (tpsync::device::find_cuda_devices().count < 2) {
    fmt::print("needs at least 2 GPUs: nothing is measured\n");
    return 0;
  }
  benchmark::AddCustomContext("NCCL", tpsync::collective::nccl_version());
  benchmark::AddCustomContext("build type", TPSYNC_BUILD_TYPE);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
