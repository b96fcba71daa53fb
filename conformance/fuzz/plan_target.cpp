// Bytes as plan and schedule: which faults of which small world, under which policy and with which
// deviations one publication is made. An admissible failure is nothing; a broken invariant, a hang
// and a crash are findings, told with a replay file.
#include <array>
#include <memory>
#include <string>

#include "conformance/command/replay_file.h"
#include "conformance/explore/explorer.h"
#include "conformance/explore/symptoms.h"
#include "conformance/fuzz/targets.h"
#include "conformance/fuzz/worlds.h"
#include "conformance/scenarios/scripts.h"
#include "conformance/world/operations.h"
#include "faults/enumerate.h"

namespace tpsync::fuzz {

namespace {

constexpr std::array kSizes = {1, 2, 4};
constexpr std::uint64_t kPipeMax = 64 * 1024;
constexpr std::size_t kFaultsMax = 4;
constexpr std::size_t kDeviationsMax = 24;

struct Ground {
  conformance::WorldSpec spec;
  std::vector<faults::Pair> singles;
};

// What is the same for all inputs, made once.
class Grounds {
 public:
  const Ground& of(std::size_t index) {
    std::unique_ptr<Ground>& ground = grounds_[index];
    if (!ground) {
      ground = std::make_unique<Ground>();
      ground->spec = world_of(kSizes[index]);
      const conformance::Run run =
          runner_.run(ground->spec, {}, conformance::publish_and_recover());
      if (!run.passed()) throw Finding("the fault-free world fails: " + run.judgement.text());
      ground->singles =
          faults::enumerate(conformance::publication_operations(runner_.trace(), ground->spec));
    }
    return *ground;
  }
  conformance::SimRunner& runner() { return runner_; }

 private:
  conformance::SimRunner runner_;
  std::array<std::unique_ptr<Ground>, kSizes.size()> grounds_;
};

}  // namespace

void run_plan(ByteView bytes) {
  static Grounds grounds;
  Input input(bytes);
  const Ground& ground = grounds.of(input.byte() % kSizes.size());
  conformance::Replay replay;
  replay.spec = ground.spec;
  replay.spec.seed = 1 + input.byte() % 16;
  conformance::SimOptions& options = replay.options;
  options.policy = static_cast<sim::Policy>(input.byte() % 4);
  options.schedule = input.byte();
  options.priority_changes = input.byte() % 4;
  // Byte by byte a message takes seconds under the sanitizers; random plans go down to that.
  options.pipe_capacity = kPipeMax >> (input.byte() % 13);
  options.plan.seed = replay.spec.seed;
  const std::size_t count = input.byte() % (kFaultsMax + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const faults::Pair& single = ground.singles[input.word() % ground.singles.size()];
    options.plan.faults.push_back(single.fault);
    options.facts.push_back({single.demand, single.kinds});
    if (conformance::breaks_world(single.fault)) options.recovery = "other-world";
  }
  std::uint64_t choice = 0;
  while (!input.done() && options.deviations.size() < kDeviationsMax) {
    choice += input.byte();
    options.deviations.push_back({choice++, input.byte() % 8U});
  }
  const conformance::Run run =
      grounds.runner().run(replay.spec, options, conformance::publish_and_recover());
  const auto symptoms = conformance::symptoms_of(run);
  if (symptoms.empty()) return;
  replay.trace_hash = sim::to_text(run.hash);
  throw Finding(symptoms.front().id + ": " + symptoms.front().text + "\nA replay file of it:\n" +
                conformance::to_json(replay));
}

std::vector<ByteBuffer> plan_seeds() {
  std::vector<ByteBuffer> seeds;
  for (std::uint64_t size = 0; size < kSizes.size(); ++size) {
    for (std::uint64_t i = 0; i < 24; ++i) {
      Output out;
      out.byte(size).byte(i).byte(i).byte(i * 7).byte(i).byte(i * 5);
      out.byte(i % (kFaultsMax + 1));
      for (std::uint64_t f = 0; f < i % (kFaultsMax + 1); ++f) out.word(i * 997 + f * 4999);
      for (std::uint64_t d = 0; d < i % 5; ++d) out.byte(i * 13 + d * 29).byte(d);
      seeds.push_back(std::move(out.buffer));
    }
  }
  return seeds;
}

}  // namespace tpsync::fuzz
