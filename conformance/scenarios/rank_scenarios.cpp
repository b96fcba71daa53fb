// One rank fails, at every gate, while its peers do not; and devices that are not what they should
// be.
#include <fmt/format.h>

#include "conformance/scenarios/scripts.h"

namespace tpsync::conformance {

namespace {

enum class Where { kMetadata, kBegin, kPrepare, kGather, kExhausted };

struct FailAt {
  Where where = Where::kMetadata;
  std::uint64_t chunk = 0;
};

[[noreturn]] void fail_here() {
  throw_broken(ErrorKind::kDevice, "injected", "the trainer's device failed");
}

// A source that fails once, at one place.
class FailingPass final : public transfer::WeightPass {
 public:
  FailingPass(std::unique_ptr<transfer::WeightPass> inner, FailAt at)
      : inner_(std::move(inner)), at_(at) {}
  std::uint64_t group_count(std::uint64_t chunk) override { return inner_->group_count(chunk); }
  void prepare(std::uint64_t chunk, std::uint64_t group) override {
    if (at_.where == Where::kPrepare && at_.chunk == chunk) fail_here();
    inner_->prepare(chunk, group);
  }
  void gather(std::uint64_t chunk, std::uint64_t group, Deadline deadline,
              collective::ControlGroup& watch) override {
    if (at_.where == Where::kGather && at_.chunk == chunk) fail_here();
    inner_->gather(chunk, group, deadline, watch);
  }
  std::span<const wire::TensorRecord> emitted() const override { return inner_->emitted(); }
  bool exhausted() override {
    if (at_.where == Where::kExhausted) fail_here();
    return inner_->exhausted();
  }
  bool quiesce(Deadline deadline) override { return inner_->quiesce(deadline); }
  std::span<const std::uint64_t> digest_sums() const override { return inner_->digest_sums(); }

 private:
  std::unique_ptr<transfer::WeightPass> inner_;
  FailAt at_;
};

class FailingSource final : public transfer::WeightSource {
 public:
  FailingSource(transfer::WeightSource& inner, FailAt at) : inner_(inner), at_(at) {}
  std::span<const wire::TensorRecord> metadata() override {
    if (at_.where == Where::kMetadata && !std::exchange(failed_, true)) fail_here();
    return inner_.metadata();
  }
  const wire::SourceLayout& layout() override { return inner_.layout(); }
  std::unique_ptr<transfer::WeightPass> begin(const transfer::PassTarget& target) override {
    if (at_.where == Where::kBegin) fail_here();
    return std::make_unique<FailingPass>(inner_.begin(target), at_);
  }
  bool usable(wire::Route route) const noexcept override { return inner_.usable(route); }

 private:
  transfer::WeightSource& inner_;
  FailAt at_;
  bool failed_ = false;
};

// Fails once.
SimOptions failing(int rank, FailAt at) {
  SimOptions options;
  options.wrap_source =
      [rank, at, armed = std::make_shared<bool>(true)](
          int actor, transfer::WeightSource& source) -> std::unique_ptr<transfer::WeightSource> {
    if (actor != rank || !std::exchange(*armed, false)) return nullptr;
    return std::make_unique<FailingSource>(source, at);
  };
  return options;
}

void every_gate(ScenarioContext& context) {
  Batch batch(context);
  struct Gate {
    FailAt at;
    std::string phase;
  };
  std::vector<Gate> gates = {{{Where::kMetadata, 0}, "expected-schema"},
                             {{Where::kBegin, 0}, "native-buffer-allocation"}};
  for (std::uint64_t c = 0; c < chunk_count(context.spec()); ++c) {
    const auto chunk = static_cast<std::int64_t>(c);
    gates.push_back({{Where::kPrepare, c}, phase_text("native-materialize", chunk)});
    gates.push_back({{Where::kGather, c}, phase_text("native-materialize", chunk)});
  }
  gates.push_back({{Where::kExhausted, 0}, "native-source-verify"});
  for (int rank = 0; rank < context.spec().actors; ++rank) {
    for (const Gate& gate : gates) {
      batch.add(fmt::format("rank {} fails in {}", rank, gate.phase), failing(rank, gate.at),
                publish_and_recover(), [=, &context] {
                  context.expect_failed({.kind = ErrorKind::kDevice,
                                         .phase = gate.phase,
                                         .rank = rank,
                                         .subject = "injected"});
                });
    }
  }
  batch.run();
}

void inside_the_gather(ScenarioContext& context) {
  Batch batch(context);
  for (int rank = 0; rank < context.spec().actors; ++rank) {
    for (const char* op : {"shard.gather", "shard.wait"}) {
      for (std::uint64_t c = 0; c < chunk_count(context.spec()); ++c) {
        const auto chunk = static_cast<std::int64_t>(c);
        batch.add(
            fmt::format("{} fails on rank {} in chunk {}", op, rank, chunk),
            with_fault("collective.rank_error",
                       {.rank = rank, .phase = "native-materialize", .chunk = chunk, .op = op}),
            publish_and_recover(), [=, &context] {
              context.expect_failed({.kind = ErrorKind::kDevice,
                                     .phase = phase_text("native-materialize", chunk),
                                     .rank = rank});
            });
      }
    }
  }
  batch.run();
}

void killed_actor(ScenarioContext& context) {
  Batch batch(context);
  const int rank = context.last_rank();
  for (std::uint64_t c = 0; c < chunk_count(context.spec()); ++c) {
    const auto chunk = static_cast<std::int64_t>(c);
    SimOptions options = with_fault(
        "process.kill",
        {.rank = rank, .phase = "native-materialize", .chunk = chunk, .op = "shard.gather"});
    options.recovery = "other-world";
    batch.add(fmt::format("rank {} is killed before the gather of chunk {}", rank, chunk), options,
              publish_and_recover(),
              [=, &context] { context.expect_failed({.kind = ErrorKind::kPeerLost}, {rank}); });
  }
  batch.run();
}

std::string needs_gathering_ranks(const WorldSpec& spec) {
  const std::string gather = needs_a_gather(spec);
  return gather.empty() ? needs_two_equal_ranks(spec) : gather;
}

void wrong_devices(ScenarioContext& context) {
  Batch batch(context);
  std::vector<std::string> own;
  for (int r = 0; r < context.spec().actors; ++r) own.push_back(device_uuid(r));
  const auto last = static_cast<std::size_t>(context.last_rank());
  struct Variant {
    std::string name;
    std::vector<std::string> uuids;
    int rank;
  };
  std::vector<Variant> variants;
  variants.push_back({"a foreign UUID", own, context.last_rank()});
  variants.back().uuids[last] = "ffffffff-0000-4000-8000-000000000000";
  variants.push_back({"no UUID", own, context.last_rank()});
  variants.back().uuids[last] = "";
  if (context.spec().actors > 1) {
    variants.push_back({"a duplicate UUID", own, context.last_rank()});
    variants.back().uuids[last] = own[0];
    variants.push_back({"UUIDs in another order", own, 0});
    std::swap(variants.back().uuids[0], variants.back().uuids[last]);
  }
  for (const Variant& variant : variants) {
    WorldSpec spec = context.spec();
    spec.actor_uuids = variant.uuids;
    SimOptions options;
    options.expect_failure = true;
    batch.add(variant.name, spec, options, publish_once(), [=, &context] {
      context.expect_failed({.kind = ErrorKind::kMismatch,
                             .phase = "topology-memory-preflight",
                             .rank = variant.rank,
                             .subject = "device uuid"});
    });
  }
  batch.run();
}

}  // namespace

std::vector<Scenario> rank_scenarios() {
  return {
      {"rank.every-gate",
       "A rank that fails at any gate fails all of them there, with its own error",
       {"TPS-CONS-01", "TPS-CONS-02"},
       needs_equal_worlds,
       every_gate},
      {"rank.gather",
       "A rank that fails inside a gather frees its peers at once",
       {"TPS-CONS-03"},
       needs_a_gather,
       inside_the_gather},
      {"rank.killed",
       "A killed actor is reported as lost by every survivor, and the runtime goes",
       {"TPS-CONS-04", "TPS-PROC-03"},
       needs_gathering_ranks,
       killed_actor},
      {"rank.devices",
       "Foreign, missing, duplicate and swapped device UUIDs are refused before the runtime is "
       "touched",
       {"TPS-TOPO-01"},
       needs_equal_worlds,
       wrong_devices},
  };
}

}  // namespace tpsync::conformance
