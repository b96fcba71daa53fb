// What the kernels and the sleeping memory of a CUDA device reach, each beside the copy rate of the
// same run: slice-and-fuse over Qwen3-30B-A3B in both chunk layouts, down_proj alone at TP8, the
// pack with its cast, the digest, and sleep and wake of one large region.
//
// Device times are those of CUDA events. Each copy plan is checked by the digests of what every
// copy read and wrote; a wrong one ends its benchmark as an error. The last lines are the ratios.
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_clock.h"
#include "tpsync/device/cuda_device.h"
#include "tpsync/device/digest_weights.h"
#include "tpsync/device/handles.h"
#include "tpsync/model/plan.h"
#include "tpsync/model/tp_layout.h"
#include "tpsync/transfer/copy_plan.h"

namespace tpsync::bench {
namespace {

using device::RegionId;
using device::RegionKind;

constexpr std::uint64_t kBucketBytes = kGiB;
// A bound on hanging.
constexpr Duration kLongest = std::chrono::minutes(2);

void require(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw_broken(ErrorKind::kDevice, call, cudaGetErrorName(status));
  }
}

device::AllocationRequest request(std::uint64_t bytes, RegionKind kind = RegionKind::kPlain) {
  device::AllocationRequest result;
  result.bytes = bytes;
  result.kind = kind;
  if (kind == RegionKind::kSleepable) result.tag = "weights";
  return result;
}

// Seconds that the work between start() and stop() takes on a stream.
class Stopwatch {
 public:
  explicit Stopwatch(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {
    require(cudaEventCreate(&begin_), "cudaEventCreate");
    require(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void start() { require(cudaEventRecord(begin_, stream_), "cudaEventRecord"); }
  void stop() { require(cudaEventRecord(end_, stream_), "cudaEventRecord"); }
  double seconds() {  // once the stream was synchronized
    float ms = 0;
    require(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(ms) / 1e3;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_{}, end_{};
};

// The best rate of each benchmark, in bytes of payload per second.
using Rates = std::map<std::string, double>;

class Bench {
 public:
  explicit Bench(std::uint64_t sleep_bytes)
      : sleep_bytes_(sleep_bytes), device_(clock_, {}), stream_(device::create_stream(device_)) {}

  void run_all();
  const Rates& rates() const { return rates_; }

 private:
  using Body = std::function<void(benchmark::State&, const std::string&)>;
  void add(const std::string& name, Body body, int iterations = 10);
  void synchronize() { device_.synchronize(stream_.id(), Deadline::after(clock_, kLongest)); }
  device::Region random_region(std::uint64_t bytes);
  // Measures `work` on the stream, which moves `bytes` of payload.
  void measure(benchmark::State& state, const std::string& name, std::uint64_t bytes,
               const std::function<void()>& work);
  void record(const std::string& name, double bytes_per_second) {
    rates_[name] = std::max(rates_[name], bytes_per_second);
  }

  void device_copy(benchmark::State& state, const std::string& name);
  void slice_and_fuse(benchmark::State& state, const std::string& name, int tp_size,
                      wire::Layout layout, std::string_view only);
  void pack(benchmark::State& state, const std::string& name, DType dst, DType src);
  void digest(benchmark::State& state, const std::string& name);
  void launch_cost(benchmark::State& state, const std::string& name);
  void pinned_copy(benchmark::State& state, const std::string& name, cudaMemcpyKind kind);
  // `rest`: between sleep and wake. The driver clears freed memory before it gives it out again, so
  // that a wake which follows at once waits for that as well.
  void sleep_and_wake(benchmark::State& state, const std::string& name, bool keep, Duration rest);

  const std::uint64_t sleep_bytes_;
  OsClock clock_;
  device::CudaDevice device_;
  device::Stream stream_;
  Rates rates_;
};

void Bench::add(const std::string& name, Body body, int iterations) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [name, body](benchmark::State& state) {
                                 try {
                                   body(state, name);
                                 } catch (const Error& error) {
                                   state.SkipWithError(error.what());
                                 }
                               })
      ->Iterations(iterations)
      ->Unit(benchmark::kMillisecond)
      ->UseManualTime();
}

device::Region Bench::random_region(std::uint64_t bytes) {
  // A length that no tensor or row divides, so that a slice from a wrong place differs.
  constexpr std::uint64_t kPeriod = 8'000'009;
  ByteBuffer block(kPeriod);
  for (std::uint64_t i = 0; i < kPeriod; ++i) block[i] = std::byte(device::mix64(i) & 0xff);
  device::Region region = device::allocate(device_, request(bytes));
  for (std::uint64_t done = 0; done < std::min(bytes, kPeriod); done += kPeriod) {
    const std::uint64_t part = std::min(kPeriod, bytes - done);
    device_.upload(stream_.id(), region.id(), done, ByteView(block).first(part));
  }
  synchronize();
  auto* base = static_cast<char*>(device_.address_of(region.id()));
  for (std::uint64_t done = kPeriod; done < bytes; done *= 2) {
    require(
        cudaMemcpyAsync(base + done, base, std::min(done, bytes - done), cudaMemcpyDeviceToDevice,
                        static_cast<cudaStream_t>(device_.stream_of(stream_.id()))),
        "cudaMemcpyAsync");
  }
  synchronize();
  return region;
}

void Bench::measure(benchmark::State& state, const std::string& name, std::uint64_t bytes,
                    const std::function<void()>& work) {
  Stopwatch watch(device_.stream_of(stream_.id()));
  work();  // untimed
  synchronize();
  for ([[maybe_unused]] auto unused : state) {
    watch.start();
    work();
    watch.stop();
    synchronize();
    const double seconds = watch.seconds();
    state.SetIterationTime(seconds);
    record(name, static_cast<double>(bytes) / seconds);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

void Bench::device_copy(benchmark::State& state, const std::string& name) {
  constexpr std::uint64_t kBytes = 8 * kGiB;
  const device::Region from = random_region(kBytes);
  const device::Region into = device::allocate(device_, request(kBytes));
  measure(state, name, kBytes, [&] {
    require(cudaMemcpyAsync(device_.address_of(into.id()), device_.address_of(from.id()), kBytes,
                            cudaMemcpyDeviceToDevice,
                            static_cast<cudaStream_t>(device_.stream_of(stream_.id()))),
            "cudaMemcpyAsync");
  });
}

wire::SourceLayout even_shards(std::span<const wire::TensorRecord> tensors, std::uint64_t world) {
  wire::SourceLayout source;
  source.world = world;
  for (const wire::TensorRecord& tensor : tensors) {
    const std::uint64_t rows = model::rows_cols(tensor).rows;
    const std::uint64_t part = ceil_div(rows, world);
    for (std::uint64_t r = 0; r <= world; ++r) {
      source.row_bounds.push_back(std::min(rows, r * part));
    }
  }
  return source;
}

// What a copy reads or writes, as a digest item.
device::DigestItem side_of(const device::TileCopy& copy, bool source, std::uint64_t key) {
  device::DigestItem item;
  item.region = source ? copy.src : copy.dst;
  item.offset = source ? copy.src_offset : copy.dst_offset;
  item.pitch = source ? copy.src_pitch : copy.dst_pitch;
  item.rows = copy.rows;
  item.cols = copy.row_bytes / item.item_bytes;
  item.key = key;
  return item;
}

void Bench::slice_and_fuse(benchmark::State& state, const std::string& name, int tp_size,
                           wire::Layout chunk_layout, std::string_view only) {
  const model::ModelConfig config =
      model::load_model_config(TPSYNC_SOURCE_DIR "/conformance/models/qwen3-30b-a3b.json");
  const model::CanonicalPlan plan = model::plan_canonical(config);
  model::TpLayout layout = model::plan_tp_layout(config, plan, tp_size, tp_size - 1);
  std::erase_if(layout.placements, [&](const model::Placement& placement) {
    return plan.tensors[placement.tensor].name.find(only) == std::string::npos;
  });
  const std::vector<transfer::Chunk> chunks = transfer::plan_chunks(plan.tensors, kBucketBytes);
  const wire::SourceLayout source = even_shards(plan.tensors, static_cast<std::uint64_t>(tp_size));
  const transfer::CopyPlan copies =
      transfer::plan_copies(layout, plan.tensors, chunks, chunk_layout, &source);

  const device::Region buffer = random_region(copies.buffer_bytes);
  const device::Region resident = device::allocate(device_, request(layout.resident_bytes));
  const std::array<RegionId, 2> bindings{resident.id(), buffer.id()};
  std::uint64_t bytes = 0, count = 0;
  std::vector<std::unique_ptr<device::Prepared>> batches, digests;
  std::vector<std::vector<std::uint64_t>> sums;
  for (const auto& chunk : copies.chunks) {
    std::vector<device::DigestItem> items;
    for (const device::TileCopy& copy : chunk) {
      bytes += copy.row_bytes * copy.rows;
      items.push_back(side_of(copy, true, ++count));
      items.push_back(side_of(copy, false, count));
    }
    batches.push_back(device_.prepare_copies(chunk));
    digests.push_back(device_.prepare_digests(items));
    sums.emplace_back(items.size());
  }
  measure(state, name, bytes, [&] {
    for (const auto& batch : batches) device_.launch(stream_.id(), *batch, bindings);
  });
  for (std::size_t i = 0; i < digests.size(); ++i) {
    device_.launch_digests(stream_.id(), *digests[i], bindings, sums[i]);
    synchronize();
    for (std::size_t j = 0; j < sums[i].size(); j += 2) {
      if (sums[i][j] != sums[i][j + 1]) state.SkipWithError("a copy wrote other bytes");
    }
  }
  state.counters["copies"] = static_cast<double>(count);
  state.counters["launches"] = static_cast<double>(batches.size());
}

void Bench::pack(benchmark::State& state, const std::string& name, DType dst, DType src) {
  constexpr std::uint64_t kPieces = 340, kCount = 2048 * 768;
  const device::Region from = random_region(kPieces * kCount * item_size(src));
  const device::Region into = device::allocate(device_, request(kPieces * kCount * item_size(dst)));
  std::vector<device::PackPiece> pieces(kPieces);
  for (std::uint64_t i = 0; i < kPieces; ++i) {
    pieces[i].dst = 1;
    pieces[i].dst_dtype = dst;
    pieces[i].src_dtype = src;
    pieces[i].count = kCount;
    pieces[i].dst_offset = i * kCount * item_size(dst);
    pieces[i].src_offset = i * kCount * item_size(src);
  }
  const auto batch = device_.prepare_packs(pieces);
  // Half of what is read and written, which for a copy is what it copies.
  const std::uint64_t bytes = kPieces * kCount * (item_size(dst) + item_size(src)) / 2;
  measure(state, name, bytes, [&] {
    device_.launch(stream_.id(), *batch, std::array{from.id(), into.id()});
  });
}

void Bench::digest(benchmark::State& state, const std::string& name) {
  constexpr std::uint64_t kItems = 1000, kRows = 2048, kCols = 768;
  const device::Region region = random_region(kItems * kRows * kCols * 2);
  std::vector<device::DigestItem> items(kItems);
  for (std::uint64_t i = 0; i < kItems; ++i) {
    items[i].offset = i * kRows * kCols * 2;
    items[i].pitch = kCols * 2;
    items[i].rows = kRows;
    items[i].cols = kCols;
    items[i].key = i;
  }
  const auto batch = device_.prepare_digests(items);
  std::vector<std::uint64_t> sums(kItems);
  measure(state, name, kItems * kRows * kCols * 2 / 2,
          [&] { device_.launch_digests(stream_.id(), *batch, std::array{region.id()}, sums); });
}

// The host's time for one launch of 1000 copies.
void Bench::launch_cost(benchmark::State& state, const std::string& name) {
  const device::Region region = random_region(kMiB);
  std::vector<device::TileCopy> copies(1000);
  for (std::uint64_t i = 0; i < copies.size(); ++i) copies[i] = {0, 0, i * 64, 0, i * 64, 0, 64, 1};
  const auto batch = device_.prepare_copies(copies);
  for ([[maybe_unused]] auto unused : state) {
    const TimePoint begin = clock_.now();
    for (int i = 0; i < 100; ++i) device_.launch(stream_.id(), *batch, std::array{region.id()});
    const Duration taken = clock_.now() - begin;
    synchronize();
    state.SetIterationTime(static_cast<double>(taken.count()) / 1e11);
  }
  static_cast<void>(name);
}

void Bench::pinned_copy(benchmark::State& state, const std::string& name, cudaMemcpyKind kind) {
  constexpr std::uint64_t kBytes = 4 * kGiB;
  const device::Region region = device::allocate(device_, request(kBytes));
  void* pinned = nullptr;
  require(cudaHostAlloc(&pinned, kBytes, cudaHostAllocDefault), "cudaHostAlloc");
  void* on_device = device_.address_of(region.id());
  measure(state, name, kBytes, [&] {
    const bool save = kind == cudaMemcpyDeviceToHost;
    require(cudaMemcpyAsync(save ? pinned : on_device, save ? on_device : pinned, kBytes, kind,
                            static_cast<cudaStream_t>(device_.stream_of(stream_.id()))),
            "cudaMemcpyAsync");
  });
  cudaFreeHost(pinned);
}

void Bench::sleep_and_wake(benchmark::State& state, const std::string& name, bool keep,
                           Duration rest) {
  const device::Region region =
      device::allocate(device_, request(sleep_bytes_, RegionKind::kSleepable));
  const auto seconds = [](Duration taken) { return static_cast<double>(taken.count()) / 1e9; };
  device_.fill(stream_.id(), region.id(), sleep_bytes_ - 1, 1, std::byte{7});
  synchronize();
  device_.sleep("weights", keep);  // allocates the pinned memory, untimed
  device_.wake("weights");
  double longest_sleep = 0, longest_wake = 0;
  for ([[maybe_unused]] auto unused : state) {
    const TimePoint begin = clock_.now();
    device_.sleep("weights", keep);
    const TimePoint asleep = clock_.now();
    clock_.sleep_until(asleep + rest);
    const TimePoint waking = clock_.now();
    device_.wake("weights");
    const TimePoint awake = clock_.now();
    longest_wake = std::max(longest_wake, seconds(awake - waking));
    longest_sleep = std::max(longest_sleep, seconds(asleep - begin));
    state.SetIterationTime(seconds(awake - waking));
    record(name + " sleep", static_cast<double>(sleep_bytes_) / seconds(asleep - begin));
    record(name + " wake", static_cast<double>(sleep_bytes_) / seconds(awake - waking));
  }
  std::byte last{};
  device_.download(stream_.id(), region.id(), sleep_bytes_ - 1, {&last, 1});
  synchronize();
  if (keep && last != std::byte{7}) state.SkipWithError("the content was not kept");
  state.counters["sleep_ms_max"] = longest_sleep * 1e3;
  state.counters["wake_ms_max"] = longest_wake * 1e3;
}

void Bench::run_all() {
  using wire::Layout;
  add("DeviceCopy", [this](auto& s, auto& n) { device_copy(s, n); });
  add("SliceAndFuse/TP2/compact",
      [this](auto& s, auto& n) { slice_and_fuse(s, n, 2, Layout::kCompact, ""); });
  add("SliceAndFuse/TP2/rank_major",
      [this](auto& s, auto& n) { slice_and_fuse(s, n, 2, Layout::kRankMajor, ""); });
  add("SliceAndFuse/TP8/compact",
      [this](auto& s, auto& n) { slice_and_fuse(s, n, 8, Layout::kCompact, ""); });
  add("DownProj/TP2",
      [this](auto& s, auto& n) { slice_and_fuse(s, n, 2, Layout::kCompact, "down_proj"); });
  add("DownProj/TP8",
      [this](auto& s, auto& n) { slice_and_fuse(s, n, 8, Layout::kCompact, "down_proj"); });
  add("Pack/float32_to_bfloat16",
      [this](auto& s, auto& n) { pack(s, n, DType::kBFloat16, DType::kFloat32); });
  add("Pack/bfloat16",
      [this](auto& s, auto& n) { pack(s, n, DType::kBFloat16, DType::kBFloat16); });
  add("Digest/bfloat16", [this](auto& s, auto& n) { digest(s, n); });
  add("LaunchOnTheHost", [this](auto& s, auto& n) { launch_cost(s, n); });
  const Duration none{}, second = std::chrono::seconds(1);
  add(
      "SleepLevel2/at_once", [=, this](auto& s, auto& n) { sleep_and_wake(s, n, false, none); }, 5);
  add(
      "SleepLevel2/after_1s", [=, this](auto& s, auto& n) { sleep_and_wake(s, n, false, second); },
      5);
  add("PinnedCopy/to_host",
      [this](auto& s, auto& n) { pinned_copy(s, n, cudaMemcpyDeviceToHost); });
  add("PinnedCopy/to_device",
      [this](auto& s, auto& n) { pinned_copy(s, n, cudaMemcpyHostToDevice); });
  add(
      "SleepLevel1", [=, this](auto& s, auto& n) { sleep_and_wake(s, n, true, second); }, 3);
}

class Reporter final : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) failed_ = failed_ || run.error_occurred;
    ConsoleReporter::ReportRuns(runs);
  }
  bool failed() const { return failed_; }

 private:
  bool failed_ = false;
};

void print_ratios(const Rates& rates) {
  const auto ratio = [&](std::string_view name, std::string_view to, int goal) {
    const auto one = rates.find(std::string(name)), base = rates.find(std::string(to));
    if (one == rates.end() || base == rates.end()) return;
    const std::string note = goal == 0 ? "" : fmt::format(" (goal {} %)", goal);
    fmt::print("{:32} {:8.1f} GB/s, {:5.1f} % of {}{}\n", name, one->second / 1e9,
               100 * one->second / base->second, to, note);
  };
  ratio("SliceAndFuse/TP2/compact", "DeviceCopy", 80);
  ratio("SliceAndFuse/TP2/rank_major", "DeviceCopy", 80);
  ratio("SliceAndFuse/TP8/compact", "DeviceCopy", 0);
  ratio("DownProj/TP2", "DeviceCopy", 0);
  ratio("DownProj/TP8", "DeviceCopy", 70);
  ratio("Pack/float32_to_bfloat16", "DeviceCopy", 0);
  ratio("Pack/bfloat16", "DeviceCopy", 0);
  ratio("Digest/bfloat16", "DeviceCopy", 0);
  ratio("SleepLevel1 sleep", "PinnedCopy/to_host", 80);
  ratio("SleepLevel1 wake", "PinnedCopy/to_device", 80);
}

int run(std::uint64_t sleep_bytes) {
  const device::CudaDevices found = device::find_cuda_devices();
  if (found.count == 0) {
    fmt::print("skipped: {}\n", found.reason);
    return 0;
  }
  cudaDeviceProp properties{};
  require(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  int driver = 0;
  require(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  benchmark::AddCustomContext("device", properties.name);
  benchmark::AddCustomContext("driver for CUDA", std::to_string(driver));
  benchmark::AddCustomContext("build type", TPSYNC_BUILD_TYPE);
  benchmark::AddCustomContext("sleeping region", fmt::format("{} bytes", sleep_bytes));
  Bench bench(sleep_bytes);
  bench.run_all();
  Reporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  benchmark::Shutdown();
  print_ratios(bench.rates());
  return reporter.failed() ? 1 : 0;
}

}  // namespace
}  // namespace tpsync::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::uint64_t sleep_gigabytes = 60;
  if (argc == 3 && std::string_view(argv[1]) == "--sleep_gigabytes") {
    const std::string_view number = argv[2];
    std::from_chars(number.data(), number.data() + number.size(), sleep_gigabytes);
    argc = 1;
  }
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 64;
  try {
    return tpsync::bench::run(sleep_gigabytes * 1'000'000'000);
  } catch (const tpsync::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
