// Publications without faults: what must work.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>

#include "conformance/scenarios/scripts.h"
#include "conformance/world/operations.h"

namespace tpsync::conformance {

namespace {

void bootstrap(ScenarioContext& context) {
  const auto script = [&](Actor& actor) {
    const auto rollout = [&](std::int64_t version) {
      const Outcome outcome = actor.generate();
      actor.check(outcome.ok(), "generate should have worked");
      actor.check(actor.rank() != 0 || outcome.version == version,
                  fmt::format("the rollout should carry version {}, it carries {}", version,
                              outcome.version));
    };
    actor.check(actor.start_engine().ok(), "the engine should have started");
    actor.check(actor.setup().ok(), "setup should have worked");
    actor.check(actor.sleep().ok(), "the bootstrap sleep should have worked");
    actor.check(actor.wake_all().ok(), "the first wake-up should have worked");
    rollout(0);  // level 1 kept the checkpoint
    for (int round = 0; round < 3; ++round) {
      actor.check(actor.sleep().ok(), "sleep should have worked");
      const Outcome refused = actor.generate();
      actor.check(
          actor.rank() != 0 || (!refused.ok() && refused.error->kind == ErrorKind::kInvalidState),
          "generate should be refused while asleep");
      actor.check(actor.wake_weights().ok(), "waking the weights should have worked");
      actor.step();
      actor.keep(actor.publish());
      actor.check(actor.wake_all().ok(), "the full wake-up should have worked");
      rollout(round + 1);
    }
    actor.cleanup();
    actor.shutdown();
  };
  context.run("bootstrap and three publications", {}, script);
  context.expect_committed(3);
}

void every_layout(ScenarioContext& context) {
  Batch batch(context);
  for (const Way& way : every_way()) {
    for (const Storage storage : {Storage::kFusedExperts, Storage::kSeparateExperts}) {
      for (const bool uneven : {false, true}) {
        for (const DType stored : {DType::kBFloat16, DType::kFloat32}) {
          WorldSpec spec = context.spec();
          if (spec.phantom && stored != spec.config.dtype) continue;
          way.set_in(spec);
          spec.storage = storage;
          spec.uneven_shards = uneven;
          spec.stored = stored;
          batch.add(fmt::format("{}, {} experts, {} shards, stored as {}", way.name,
                                storage == Storage::kFusedExperts ? "fused" : "separate",
                                uneven ? "uneven" : "even", bare_name(stored)),
                    spec, {}, publish_once(), [=, &context] { context.expect_committed(1); });
        }
      }
    }
  }
  for (const DType resident : {DType::kFloat16, DType::kFloat32}) {
    WorldSpec spec = context.spec();
    spec.config.dtype = resident;
    spec.stored = resident;
    spec.sync.bucket_bytes *= 2;  // an element may be twice as large
    batch.add(fmt::format("{} weights", bare_name(resident)), spec, {}, publish_once(),
              [=, &context] { context.expect_committed(1); });
  }
  batch.run();
}

void narrow_pipes(ScenarioContext& context) {
  for (const std::uint64_t capacity : {1, 7, 64, 4096}) {
    SimOptions options;
    options.pipe_capacity = capacity;
    context.run(fmt::format("pipes of {} bytes", capacity), options, publish_once());
    context.expect_committed(1);
  }
}

void every_policy(ScenarioContext& context) {
  for (const sim::Policy policy :
       {sim::Policy::kFirstReady, sim::Policy::kLastReady, sim::Policy::kSeeded}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      WorldSpec spec = context.spec();
      spec.seed = context.spec().seed + seed;
      SimOptions options;
      options.policy = policy;
      context.run(fmt::format("policy {}, seed {}", static_cast<int>(policy), spec.seed), spec,
                  options, publish_once());
      context.expect_committed(1);
    }
  }
}

void resumed_version(ScenarioContext& context) {
  WorldSpec spec = context.spec();
  spec.base_version = 41;
  context.run("the trainer resumes at version 41", spec, {}, publish_once());
  context.expect_committed(42);
}

void call_order(ScenarioContext& context) {
  const auto script = [&](Actor& actor) {
    actor.start_engine();
    actor.setup();
    actor.step();
    actor.keep(actor.publish());
    actor.cleanup();
    const Outcome late = actor.publish();
    actor.check(!late.ok() && late.error->kind == ErrorKind::kInvalidState &&
                    late.error->remedy == Remedy::kFixInput,
                "sync after cleanup should be refused as a wrong call");
    actor.shutdown();
  };
  context.run("sync after cleanup", {}, script);
  context.expect_committed(1);
}

// What a publication of this model in metadata comes to, without a scenario's variants.
void one_publication(ScenarioContext& context) {
  context.run("one publication", {}, publish_once());
  context.expect_committed(context.spec().base_version + 1);
  std::uint64_t updates = 0;
  const sim::Trace& trace = context.trace();
  for (const sim::Event& event : trace.events) {
    if (event.kind == static_cast<std::uint16_t>(sim::EventKind::kLog) &&
        event.c == static_cast<std::uint64_t>(LogEvent::kCommandSent) &&
        trace.texts.at(event.text) == "update_native_weights") {
      ++updates;
    }
  }
  const std::uint64_t chunks = chunk_count(context.spec());
  context.check(updates == chunks,
                fmt::format("{} updates were sent for {} chunks", updates, chunks));
}

// From the second to the last chunk a process allocates, exports and opens nothing, and launches
// little, however many tensors there are.
void steady_chunks(ScenarioContext& context) {
  constexpr std::uint64_t kLaunchesMax = 10;
  const auto is_any = [](const std::string& op, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), op) != names.end();
  };
  WorldSpec spec = context.spec();
  struct Moved {
    const char* label;
    Gather gather;
    wire::Route route;
  };
  for (const auto& [label_text, gather, route] :
       {Moved{"by a collective", Gather::kCollective, wire::Route::kGather},
        Moved{"by copies", Gather::kCopies, wire::Route::kGather},
        Moved{"by the reshard route", Gather::kCollective, wire::Route::kReshard}}) {
    spec.gather = gather;
    spec.sync.route = route;
    const std::string label = label_text;
    context.run(label, spec, {}, publish_once());
    context.expect_committed(spec.base_version + 1);
    std::map<std::string, std::uint64_t> launches;  // by process and chunk
    for (const faults::Operation& operation : publication_operations(context.trace(), spec)) {
      const bool of_chunk = operation.phase == "native-materialize" ||
                            operation.phase == "native-transfer" ||
                            operation.phase == "update_native_weights";
      if (!of_chunk || operation.chunk == 0) continue;
      const std::string where = fmt::format("{} {} in {}-{}", operation.role, operation.rank,
                                            operation.phase, operation.chunk);
      context.check(!is_any(operation.op, {"device.allocate", "device.free", "device.export",
                                           "device.import", "device.prepare"}),
                    label + ": " + where + ": " + operation.op);
      if (is_any(operation.op, {"device.launch", "device.launch_digests", "device.fill",
                                "device.copy", "device.upload", "device.download"})) {
        ++launches[where];
      }
    }
    context.check(!launches.empty(), label + ": no chunk is seen to be launched");
    for (const auto& [where, count] : launches) {
      context.check(count <= kLaunchesMax, fmt::format("{}: {}: {} launches", label, where, count));
    }
  }
}

}  // namespace

Scenario publication_only() {
  return {"publish.once",
          "One publication of this model commits",
          {"TPS-PUB-01"},
          needs_equal_worlds,
          one_publication};
}

std::vector<Scenario> publication_scenarios() {
  return {
      {"publish.bootstrap",
       "From checkpoint to version 3: bootstrap sleep keeps the weights, each publication replaces "
       "them",
       {"TPS-PUB-01", "TPS-SLEEP-01", "TPS-SLEEP-02"},
       needs_equal_worlds,
       bootstrap},
      {"publish.layouts",
       "Both chunk layouts and routes, both storage forms, even and uneven shards, all stored and "
       "resident dtypes publish",
       {"TPS-DATA-01", "TPS-DATA-02", "TPS-RESHARD-01"},
       needs_equal_worlds,
       every_layout},
      {"publish.steady",
       "From the second to the last chunk nothing is allocated, exported or opened, and launches "
       "do "
       "not grow with tensors",
       {"TPS-DATA-04"},
       needs_equal_worlds,
       steady_chunks},
      {"publish.pipes",
       "Pipes of any capacity carry the protocol",
       {"TPS-PIPE-01"},
       needs_equal_worlds,
       narrow_pipes,
       "a socket's capacity is the system's"},
      {"publish.schedules",
       "Any schedule of the same world publishes the same version",
       {"TPS-PUB-02"},
       needs_equal_worlds,
       every_policy,
       "the system schedules its processes as it likes"},
      {"publish.resumed",
       "After a restart the next version is above the last committed one",
       {"TPS-VER-01"},
       needs_equal_worlds,
       resumed_version},
      {"publish.call-order",
       "A sync outside of setup and cleanup is refused and calls nothing",
       {"TPS-PUB-03"},
       needs_equal_worlds,
       call_order},
  };
}

}  // namespace tpsync::conformance
