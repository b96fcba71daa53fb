// How many fresh simulated publications one core makes in a second, and for TP4 what part of that
// is the simulator's own: beside BM_PublicationTP4 runs an empty world with as many processes,
// threads and traced points, and no core in it. Worlds are fresh each time; their seed is fixed, so
// that every run does the same, but for BM_PublicationTP4Seeds, whose worlds (schedules, latencies
// and weights) differ from one to the next.
//
// A result counts only if it was right: every world is checked (committed version 1, every
// invariant judged, the trace hash equal for equal seeds), and one that is not ends its benchmark
// as an error.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/support.h"
#include "conformance/world/sim_run.h"
#include "conformance/world/spec.h"
#include "sim/pools.h"
#include "sim/trace.h"
#include "sim/world.h"
#include "tpsync/model/config.h"

namespace tpsync::bench {
namespace {

constexpr const char* kReferenceModel = TPSYNC_SOURCE_DIR "/conformance/models/tiny-tp4.json";
constexpr std::int64_t kPublishedVersion = 1;
constexpr std::uint64_t kFirstSeed = 1;
constexpr std::uint64_t kSeeds = 16;  // of BM_PublicationTP4Seeds: its worlds take turns

conformance::WorldSpec reference_world(int tp, std::uint64_t seed) {
  conformance::WorldSpec spec =
      conformance::small_world(model::load_model_config(kReferenceModel), tp);
  spec.seed = seed;
  return spec;
}

// Fresh worlds of one TP size, each with start-up, one publication, judgement and teardown.
class Publications {
 public:
  Publications(int tp, std::uint64_t seeds) {
    for (std::uint64_t i = 0; i < seeds; ++i) specs_.push_back(reference_world(tp, kFirstSeed + i));
    hashes_.resize(specs_.size());
  }

  // Empty if the world did what it should, else what went wrong.
  std::string run(std::uint64_t number) {
    const std::size_t index = number % specs_.size();
    std::fill(committed_.begin(), committed_.end(), 0);
    committed_.resize(static_cast<std::size_t>(specs_[index].actors), 0);
    const conformance::Run run = runner_.run(specs_[index], {}, script_);
    if (run.end.kind != sim::RunResult::Kind::kFinished) return "the world: " + run.end.detail;
    if (!run.judgement.ok()) return run.judgement.text();
    for (const std::int64_t version : committed_) {
      if (version != kPublishedVersion) return "an actor did not commit version 1";
    }
    sim::TraceHash& first = hashes_[index];
    if (first == sim::TraceHash{}) first = run.hash;
    if (!(first == run.hash)) return "the same seed gave another trace";
    return {};
  }

  const sim::Trace& trace() const { return runner_.trace(); }

 private:
  void publish(conformance::Actor& actor) {
    if (actor.start_engine().ok() && actor.setup().ok()) {
      actor.step();
      const conformance::Outcome outcome = actor.publish();
      if (outcome.ok()) committed_[static_cast<std::size_t>(actor.rank())] = outcome.version;
    }
    actor.cleanup();
    actor.shutdown();
  }

  conformance::SimRunner runner_;
  std::vector<conformance::WorldSpec> specs_;
  std::vector<sim::TraceHash> hashes_;
  std::vector<std::int64_t> committed_;
  conformance::Script script_ = [this](conformance::Actor& actor) { publish(actor); };
};

// What an empty world copies from a publication: who starts whom, with how many threads, and how
// many operations and other records each thread makes.
struct Load {
  struct Process {
    std::string role;
    int rank = 0;
    std::size_t device = 0;
    std::size_t parent = 0;                 // index + 1; 0: started by the world
    std::vector<std::uint64_t> operations;  // by thread
    std::uint64_t records = 0;              // events that are no operations
  };
  std::vector<Process> processes;
  std::size_t devices = 0;
  std::size_t events = 0;

  explicit Load(const sim::Trace& trace) : events(trace.events.size()) {
    for (const sim::Event& event : trace.events) {
      const auto kind = static_cast<sim::EventKind>(event.kind);
      if (kind == sim::EventKind::kProcessStart) {
        processes.push_back({.role = std::string(trace.texts.at(event.text)),
                             .rank = static_cast<int>(event.a),
                             .device = static_cast<std::size_t>(event.c),
                             .parent = static_cast<std::size_t>(event.b)});
        devices = std::max(devices, static_cast<std::size_t>(event.c) + 1);
      }
      if (event.process >= processes.size()) continue;
      Process& process = processes[event.process];
      if (kind != sim::EventKind::kOp) {
        ++process.records;
        continue;
      }
      if (process.operations.size() <= event.thread) process.operations.resize(event.thread + 1U);
      ++process.operations[event.thread];
    }
  }
};

// The load without core: operations are clock reads, everything else a plain record.
class EmptyWorlds {
 public:
  explicit EmptyWorlds(Load load) : load_(std::move(load)) {
    config_.seed = kFirstSeed;
    for (std::size_t i = 0; i < load_.devices; ++i) {
      config_.devices.push_back({conformance::device_uuid(static_cast<int>(i)), 1 << 20, 0});
    }
    // What processes, threads and the end of the world record by themselves is taken off the load,
    // so that both worlds have the same number of events.
    const std::size_t made = run();
    const std::size_t excess = made - std::min(made, load_.events);
    remove(excess);
  }

  std::size_t run() {
    {
      sim::SimWorld world(config_, pools_, {});
      for (std::size_t i = 0; i < load_.processes.size(); ++i) {
        sim::Program program;
        program.role = load_.processes[i].role;
        program.rank = [this, i](sim::Arguments) { return load_.processes[i].rank; };
        program.device = [this, i](sim::Arguments) { return load_.processes[i].device; };
        program.body = [this, i](sim::SimProcess& process) { return main(process, i); };
        world.register_program(name(i), std::move(program));
      }
      for (std::size_t i = 0; i < load_.processes.size(); ++i) {
        const Load::Process& root = load_.processes[i];
        if (root.parent != 0) continue;
        world.start_process(root.role, root.rank, root.device,
                            [this, i](sim::SimProcess& process) { return main(process, i); });
      }
      finished_ = world.run().kind == sim::RunResult::Kind::kFinished;
    }
    benchmark::DoNotOptimize(sim::hash_of(pools_.trace));
    return pools_.trace.events.size();
  }

  bool finished() const { return finished_; }
  const Load& load() const { return load_; }
  const sim::Trace& trace() const { return pools_.trace; }

 private:
  static std::string name(std::size_t process) { return "p" + std::to_string(process); }

  // Takes `excess` events off, from the processes in turn: records first, then operations.
  void remove(std::size_t excess) {
    for (bool progress = true; excess > 0 && progress;) {
      progress = false;
      for (Load::Process& process : load_.processes) {
        if (excess == 0) break;
        std::uint64_t& from = process.records > 0 ? process.records : process.operations.front();
        if (from == 0) continue;
        --from;
        --excess;
        progress = true;
      }
    }
  }

  int main(sim::SimProcess& process, std::size_t index) {
    const Load::Process& load = load_.processes[index];
    World& world = process.world();
    std::vector<std::unique_ptr<Process>> children;
    for (std::size_t i = 0; i < load_.processes.size(); ++i) {
      if (load_.processes[i].parent != index + 1) continue;
      SpawnRequest request;
      request.program = name(i);
      children.push_back(world.processes.spawn(std::move(request)));
    }
    std::vector<std::unique_ptr<Thread>> threads;
    for (std::size_t t = 1; t < load.operations.size(); ++t) {
      threads.push_back(
          world.threads.spawn("t", [&world, n = load.operations[t]] { operate(world, n); }));
    }
    for (std::uint64_t i = 0; i < load.records; ++i) {
      process.sim().record(static_cast<std::uint16_t>(sim::EventKind::kHarness), i);
    }
    operate(world, load.operations.empty() ? 0 : load.operations.front());
    for (const auto& thread : threads) thread->join();
    for (const auto& child : children) child->wait(Deadline::never());
    return 0;
  }

  static void operate(World& world, std::uint64_t times) {
    for (std::uint64_t i = 0; i < times; ++i) benchmark::DoNotOptimize(world.clock.now());
  }

  Load load_;
  sim::SimConfig config_;
  sim::Pools pools_;
  bool finished_ = false;
};

void count(benchmark::State& state, const sim::Trace& trace) {
  const auto iterations = static_cast<std::int64_t>(state.iterations());
  state.SetItemsProcessed(iterations);
  state.counters["events"] = static_cast<double>(trace.events.size());
  state.counters["choices"] = static_cast<double>(trace.choices.size());
}

void publish(benchmark::State& state, int tp, std::uint64_t seeds = 1) {
  Publications publications(tp, seeds);
  std::uint64_t number = 0;
  for (auto _ : state) {
    const std::string wrong = publications.run(number++);
    if (!wrong.empty()) {
      state.SkipWithError(wrong.c_str());
      break;
    }
  }
  count(state, publications.trace());
}

void empty_world(benchmark::State& state, int tp) {
  Publications publications(tp, 1);
  const std::string wrong = publications.run(0);
  if (!wrong.empty()) {
    state.SkipWithError(("the publication to compare with: " + wrong).c_str());
    return;
  }
  EmptyWorlds worlds{Load(publications.trace())};
  for (auto _ : state) {
    const std::size_t events = worlds.run();
    if (!worlds.finished() || events != worlds.load().events) {
      state.SkipWithError("the empty world is not as large as the publication");
      break;
    }
  }
  count(state, worlds.trace());
}

void BM_PublicationTP1(benchmark::State& state) { publish(state, 1); }
void BM_PublicationTP2(benchmark::State& state) { publish(state, 2); }
void BM_PublicationTP4(benchmark::State& state) { publish(state, 4); }
void BM_PublicationTP4Seeds(benchmark::State& state) { publish(state, 4, kSeeds); }
void BM_EmptyWorldTP4(benchmark::State& state) { empty_world(state, 4); }
BENCHMARK(BM_PublicationTP1)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_PublicationTP2)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_PublicationTP4)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_PublicationTP4Seeds)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_EmptyWorldTP4)->Unit(benchmark::kMicrosecond);

// The console's table; remembers CPU times, for the ratio that holds on any machine.
class RatioReporter final : public Reporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const bool counts = run.run_type == Run::RT_Iteration || run.aggregate_name == "median";
      if (!counts || run.error_occurred) continue;
      if (run.run_name.function_name == "BM_PublicationTP4")
        publication_ = run.GetAdjustedCPUTime();
      if (run.run_name.function_name == "BM_EmptyWorldTP4") empty_ = run.GetAdjustedCPUTime();
    }
    Reporter::ReportRuns(runs);
  }
  void Finalize() override {
    if (publication_ > 0 && empty_ > 0) {
      GetErrorStream() << fmt::format("BM_PublicationTP4 / BM_EmptyWorldTP4: {:.2f}\n",
                                      publication_ / empty_);
    }
  }

 private:
  double publication_ = 0;
  double empty_ = 0;
};

}  // namespace
}  // namespace tpsync::bench

int main(int argc, char** argv) {
  tpsync::bench::RatioReporter reporter;
  return tpsync::bench::run_benchmarks(argc, argv, reporter);
}
