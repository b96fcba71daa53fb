// What goes on beside what on one GPU that two processes share, as an actor and its worker do:
// kernel beside kernel, copies from another GPU beside kernels, and what it costs to hand the GPU
// from a kernel of one process to a kernel of the other.
//
// Rank 0 measures, rank 1 keeps the same GPU busy or idle as it is told; both are processes of this
// program. Every figure is printed beside the same one with rank 1 idle. Without a second GPU the
// copies are left out.
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <functional>

#include "bench/beside_kernels.h"
#include "bench/gpu_ranks.h"
#include "tpsync/device/cuda_device.h"

namespace tpsync::bench {
namespace {

int cuda_devices() { return device::find_cuda_devices().count; }

void require(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  throw_broken(ErrorKind::kDevice, call,
               fmt::format("failed with CUDA error {}", static_cast<int>(result)));
}

constexpr std::uint64_t kPulled = 320 * kMiB;   // a copy between GPUs
constexpr std::uint64_t kCopied = 1024 * kMiB;  // by a kernel, within one
constexpr int kBlocks = 132;
constexpr int kLong = 400'000;  // rounds of arithmetic
constexpr int kRepeats = 15;

// What rank 1 does between two meetings.
enum class Load : std::uint64_t { kIdle, kArithmetic, kFewBlocks, kMemory, kTiny, kStop };

class Rank {
 public:
  Rank(const Membership& membership, const World& world)
      : clock_(world.clock), lane_(membership, world) {
    require(cudaSetDevice(0), "cudaSetDevice");
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    require(cudaMalloc(&from_, kCopied), "cudaMalloc");
    require(cudaMalloc(&into_, kCopied), "cudaMalloc");
    if (membership.rank == 0 && cuda_devices() > 1) {
      const cudaError_t enabled = cudaDeviceEnablePeerAccess(1, 0);
      if (enabled != cudaErrorPeerAccessAlreadyEnabled)
        require(enabled, "cudaDeviceEnablePeerAccess");
      cudaGetLastError();
      require(cudaSetDevice(1), "cudaSetDevice");
      require(cudaMalloc(&remote_, kPulled), "cudaMalloc");
      require(cudaSetDevice(0), "cudaSetDevice");
    }
  }
  ~Rank() {
    cudaFree(remote_);
    cudaFree(into_);
    cudaFree(from_);
    cudaStreamDestroy(stream_);
  }

  void arithmetic(int blocks, int rounds) {
    launch_arithmetic(stream_, static_cast<float*>(from_), blocks, rounds);
  }
  void memory() { launch_copy(stream_, into_, from_, kCopied); }
  void pull() {
    require(cudaMemcpyAsync(into_, remote_, kPulled, cudaMemcpyDeviceToDevice, stream_),
            "cudaMemcpyAsync");
  }
  void finish() {
    require(cudaGetLastError(), "a kernel's launch");
    for (;;) {
      const cudaError_t state = cudaStreamQuery(stream_);
      if (state == cudaSuccess) return;
      if (state != cudaErrorNotReady) require(state, "cudaStreamQuery");
    }
  }
  // Nanoseconds of the work and its end.
  double time(const std::function<void()>& work) {
    const TimePoint start = clock_.now();
    work();
    finish();
    return static_cast<double>((clock_.now() - start).count());
  }

  Lane& lane() { return lane_; }
  Clock& clock() { return clock_; }

 private:
  Clock& clock_;
  Lane lane_;
  cudaStream_t stream_ = nullptr;
  void* from_ = nullptr;
  void* into_ = nullptr;
  void* remote_ = nullptr;
};

// A meeting word: what rank 1 does, and then whether rank 0 has measured.
void follow(const Membership& membership) {
  SilentLog log;
  OsWorld os(log);
  Rank rank(membership, os.world());
  for (;;) {
    const Load load{rank.lane().hear(0)};
    if (load == Load::kStop) return;
    if (load == Load::kTiny) {  // by turns with rank 0
      for (int i = 0; i < 100; ++i) {
        rank.lane().meet();
        rank.arithmetic(1, 10);
        rank.finish();
        rank.lane().meet();
      }
      continue;
    }
    // Two launches ahead, so that the GPU is never free of them; rank 0's word ends it.
    rank.lane().meet();
    const TimePoint end = rank.clock().now() + std::chrono::milliseconds(400);
    std::vector<double> times;
    while (load != Load::kIdle && rank.clock().now() < end) {
      times.push_back(rank.time([&] {
        if (load == Load::kArithmetic) rank.arithmetic(8 * kBlocks, kLong);
        if (load == Load::kFewBlocks) rank.arithmetic(kBlocks / 4, kLong);
        if (load == Load::kMemory)
          for (int i = 0; i < 10; ++i) rank.memory();
      }));
    }
    rank.finish();
    rank.lane().longest(Duration(static_cast<std::int64_t>(median(times))));
  }
}

class Pair {
 public:
  Pair()
      : world_(os_.world()),
        child_(spawn_rank(world_, {folder_.path(), 1, 2})),
        rank_({folder_.path(), 0, 2}, world_) {}

  // Median nanoseconds of `work` on rank 0 while rank 1 has its load; `others` is rank 1's own.
  double beside(Load load, const std::function<void()>& work, double& others) {
    rank_.lane().hear(static_cast<std::uint64_t>(load));
    rank_.lane().meet();
    rank_.clock().sleep_until(rank_.clock().now() + std::chrono::milliseconds(50));
    std::vector<double> times;
    const TimePoint end = rank_.clock().now() + std::chrono::milliseconds(250);
    for (int i = 0; i < kRepeats && rank_.clock().now() < end; ++i)
      times.push_back(rank_.time(work));
    others = static_cast<double>(rank_.lane().longest(Duration(0)));
    return median(times);
  }
  // Nanoseconds per hand-over, with and without kernels.
  double by_turns() {
    rank_.lane().hear(static_cast<std::uint64_t>(Load::kTiny));
    const TimePoint start = rank_.clock().now();
    for (int i = 0; i < 100; ++i) {
      rank_.arithmetic(1, 10);
      rank_.finish();
      rank_.lane().meet();
      rank_.lane().meet();
    }
    return static_cast<double>((rank_.clock().now() - start).count()) / 200;
  }
  Rank& rank() { return rank_; }
  void end() {
    rank_.lane().hear(static_cast<std::uint64_t>(Load::kStop));
    if (child_->wait(Deadline::after(world_.clock, kLongestWait)) != ExitStatus{false, 0})
      throw_broken(ErrorKind::kRemote, "beside", "rank 1 failed");
  }

 private:
  TemporaryFolder folder_{"tpsync-bench"};
  SilentLog log_;
  OsWorld os_{log_};
  World world_;
  std::unique_ptr<Process> child_;
  Rank rank_;
};

constexpr std::pair<Load, const char*> kLoads[] = {{Load::kIdle, "idle"},
                                                   {Load::kArithmetic, "arithmetic"},
                                                   {Load::kFewBlocks, "quarter"},
                                                   {Load::kMemory, "memory"}};

// Counters: this process's time with rank 1 idle or busy, and (after "_") rank 1's own launches.
void measure(benchmark::State& state, const std::function<void(Rank&)>& work) {
  try {
    Pair pair;
    Rank& rank = pair.rank();
    rank.time([&] { work(rank); });
    for (auto _ : state) {
      for (const auto& [load, name] : kLoads) {
        double others = 0;
        const double own = pair.beside(
            load, [&] { work(rank); }, others);
        state.counters[fmt::format("{}_us", name)] = own / 1000;
        if (load != Load::kIdle) state.counters[fmt::format("{}_its_us", name)] = others / 1000;
        state.SetIterationTime(own * 1e-9);
      }
    }
    pair.end();
  } catch (const Error& error) {
    state.SkipWithError(error.what());
  }
}

void BM_KernelBeside(benchmark::State& state) {
  measure(state, [](Rank& rank) { rank.arithmetic(kBlocks / 4, kLong); });
}
void BM_MemoryKernelBeside(benchmark::State& state) {
  measure(state, [](Rank& rank) { rank.memory(); });
}
void BM_PullBeside(benchmark::State& state) {
  if (cuda_devices() < 2) {
    state.SkipWithError("needs 2 GPUs");
    return;
  }
  measure(state, [](Rank& rank) { rank.pull(); });
}
void BM_NothingOfRankOne(benchmark::State& state) {  // what rank 1's loads take when rank 0 is idle
  measure(state, [](Rank&) {});
}

void BM_HandOver(benchmark::State& state) {
  try {
    Pair pair;
    Rank& rank = pair.rank();
    std::vector<double> alone;
    for (int i = 0; i < 100; ++i) alone.push_back(rank.time([&] { rank.arithmetic(1, 10); }));
    pair.by_turns();
    std::vector<double> turns;
    for (auto _ : state) {
      turns.push_back(pair.by_turns());
      state.SetIterationTime(turns.back() * 1e-9);
    }
    state.counters["alone_us"] = median(alone) / 1000;
    state.counters["by_turns_us"] = median(turns) / 1000;
    pair.end();
  } catch (const Error& error) {
    state.SkipWithError(error.what());
  }
}

BENCHMARK(BM_HandOver)->Iterations(10)->Unit(benchmark::kMicrosecond)->UseManualTime();
BENCHMARK(BM_NothingOfRankOne)->Iterations(1)->Unit(benchmark::kMicrosecond)->UseManualTime();
BENCHMARK(BM_KernelBeside)->Iterations(1)->Unit(benchmark::kMicrosecond)->UseManualTime();
BENCHMARK(BM_MemoryKernelBeside)->Iterations(1)->Unit(benchmark::kMicrosecond)->UseManualTime();
BENCHMARK(BM_PullBeside)->Iterations(1)->Unit(benchmark::kMicrosecond)->UseManualTime();

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
  if (cuda_devices() < 1) {
    fmt::print("needs a GPU: nothing is measured\n");
    return 0;
  }
  benchmark::AddCustomContext("build type", TPSYNC_BUILD_TYPE);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
