// The reshard route: workers pull their slices from all actors' buffers, and nothing is gathered.
#include <fmt/format.h>

#include "conformance/scenarios/scripts.h"
#include "sim/trace.h"

namespace tpsync::conformance {

namespace {

WorldSpec resharded(const WorldSpec& spec) {
  WorldSpec result = spec;
  result.sync.route = wire::Route::kReshard;
  return result;
}

// How many exports workers opened in updates of the last world.
std::uint64_t exports_opened(const sim::Trace& trace) {
  std::uint64_t count = 0;
  for (const sim::Event& event : trace.events) {
    if (event.kind == static_cast<std::uint16_t>(sim::EventKind::kOp) &&
        event.op == static_cast<std::uint16_t>(sim::Op::kDeviceImport) &&
        trace.texts.at(event.phase) == "update_native_weights") {
      ++count;
    }
  }
  return count;
}

// Two publications each, so that every export and import is made and given back twice.
void publishes(ScenarioContext& context) {
  Batch batch(context);
  const auto add = [&](const std::string& label, const WorldSpec& spec) {
    batch.add(label, spec, {}, publish_and_recover(), [&context, tp = spec.tp] {
      context.expect_committed(1);
      const std::uint64_t opened = exports_opened(context.trace());
      const auto expected = 2 * static_cast<std::uint64_t>(tp) * static_cast<std::uint64_t>(tp);
      context.check(opened == expected,
                    fmt::format("{} exports were opened in 2 publications, expected {}: each "
                                "worker every actor's, once",
                                opened, expected));
    });
  };
  for (const Storage storage : {Storage::kFusedExperts, Storage::kSeparateExperts}) {
    for (const bool uneven : {false, true}) {
      for (const bool overlap : {true, false}) {
        WorldSpec spec = resharded(context.spec());
        spec.storage = storage;
        spec.uneven_shards = uneven;
        spec.sync.overlap = overlap;
        add(fmt::format("{} experts, {} shards, {}",
                        storage == Storage::kFusedExperts ? "fused" : "separate",
                        uneven ? "uneven" : "even", overlap ? "overlapped" : "by turns"),
            spec);
      }
    }
  }
  if (!context.spec().phantom) {
    WorldSpec spec = resharded(context.spec());
    spec.stored = DType::kFloat32;
    add("stored as float32", spec);
  }
  batch.run();
}

void worker_killed(ScenarioContext& context) {
  Batch batch(context);
  const WorldSpec spec = resharded(context.spec());
  const int rank = spec.tp - 1;
  for (std::uint64_t c = 0; c < chunk_count(spec); ++c) {
    const auto chunk = static_cast<std::int64_t>(c);
    batch.add(fmt::format("worker {} is killed in the middle of chunk {}", rank, chunk), spec,
              with_fault("process.kill", {.role = "worker",
                                          .rank = rank,
                                          .phase = "update_native_weights",
                                          .chunk = chunk,
                                          .op = "device.synchronize"}),
              publish_and_recover(), [=, &context] {
                context.expect_failed({.kind = ErrorKind::kRemote,
                                       .phase = phase_text("native-transfer", chunk),
                                       .rank = 0,
                                       .detail = fmt::format("worker {}", rank)});
              });
  }
  batch.run();
}

// While chunk c is packed, the workers pull chunk c - 1 out of the same buffer.
void actor_killed(ScenarioContext& context) {
  Batch batch(context);
  const WorldSpec spec = resharded(context.spec());
  const int rank = context.last_rank();
  for (std::uint64_t c = 0; c < chunk_count(spec); ++c) {
    const auto chunk = static_cast<std::int64_t>(c);
    SimOptions options = with_fault(
        "process.kill",
        {.rank = rank, .phase = "native-materialize", .chunk = chunk, .op = "device.synchronize"});
    options.recovery = "other-world";
    batch.add(fmt::format("rank {} is killed while it packs chunk {}", rank, chunk), spec, options,
              publish_and_recover(),
              [=, &context] { context.expect_failed({.kind = ErrorKind::kPeerLost}, {rank}); });
  }
  batch.run();
}

// A worker that may open its own actor's export and not a peer's.
void probe_forbidden(ScenarioContext& context) {
  Batch batch(context);
  const WorldSpec spec = resharded(context.spec());
  const int worker = spec.tp - 1;
  const auto script = [](Actor& actor) {
    actor.start_engine();
    actor.setup();
    actor.step();
    const Outcome first = actor.keep(actor.publish());
    actor.check(!first.ok() && first.error->remedy != Remedy::kRebuildRuntime,
                "the first sync should leave the runtime as it was");
    actor.check(actor.generate().ok(), "generate should still work");
    const Outcome second = actor.publish();
    actor.check(second.ok() && second.version == 1, "the second sync should have succeeded");
    actor.cleanup();
    actor.shutdown();
  };
  for (int actor = 0; actor < spec.tp; ++actor) {
    for (const char* fault : {"ipc.open_fail", "ipc.wrong_device"}) {
      const bool refused = std::string_view(fault) == "ipc.open_fail";
      batch.add(fmt::format("{}: worker {} and actor {}'s probe", fault, worker, actor), spec,
                with_fault(fault, {.role = "worker",
                                   .rank = worker,
                                   .phase = "probe_ipc",
                                   .op = "device.import",
                                   .occurrence = static_cast<std::uint64_t>(actor)}),
                script, [=, &context] {
                  context.expect_failed({.kind = ErrorKind::kRemote,
                                         .phase = "topology-ipc-probe",
                                         .rank = 0,
                                         .detail = refused ? "[ipc]" : device_uuid(actor)});
                });
    }
  }
  batch.run();
}

// An export that opens, and is memory of another device than its entry says.
void wrong_memory(ScenarioContext& context) {
  Batch batch(context);
  const WorldSpec spec = resharded(context.spec());
  const auto add = [&](const std::string& label, const SimOptions& options) {
    batch.add(label, spec, options, publish_and_recover(), [=, &context] {
      context.expect_failed({.kind = ErrorKind::kRemote,
                             .phase = "native-transfer-0",
                             .rank = 0,
                             .detail = "mismatch"});
    });
  };
  for (int actor = 0; actor < spec.tp; ++actor) {
    for (const char* fault : {"ipc.wrong_device", "ipc.wrong_size"}) {
      add(fmt::format("{}: actor {}'s export", fault, actor),
          with_fault(fault, {.role = "worker",
                             .rank = spec.tp - 1,
                             .phase = "update_native_weights",
                             .op = "device.import",
                             .occurrence = static_cast<std::uint64_t>(actor)}));
    }
  }
  if (spec.tp > 1) {
    add("handles stand under one another's UUID",
        with_fault(context, "ipc.swapped_handles",
                   {.phase = "native-transfer", .op = "channel.write", .peer_role = "runtime"}));
  }
  batch.run();
}

void not_declared(ScenarioContext& context) {
  WorldSpec spec = resharded(context.spec());
  spec.runtime_reshards = false;
  SimOptions refused;
  refused.expect_failure = true;
  const auto script = [](Actor& actor) {
    actor.start_engine();
    actor.setup();
    actor.step();
    actor.keep(actor.publish());
    actor.check(actor.generate().ok(), "the runtime should be as usable as it was");
    actor.cleanup();
    actor.shutdown();
  };
  context.run("the runtime does not declare the route", spec, refused, script);
  context.expect_failed({.kind = ErrorKind::kUnsupported,
                         .phase = "topology-discovery",
                         .rank = 0,
                         .subject = "route"});
  for (const char* command : {"init_native_weight_transfer", "probe_ipc"}) {
    for (const sim::Event& event : context.trace().events) {
      const bool sent = event.kind == static_cast<std::uint16_t>(sim::EventKind::kLog) &&
                        event.c == static_cast<std::uint64_t>(LogEvent::kCommandSent) &&
                        context.trace().texts.at(event.text) == command;
      context.check(!sent, fmt::format("{} should not have been sent", command));
    }
  }
}

}  // namespace

std::vector<Scenario> reshard_scenarios() {
  return {
      {"reshard.publish",
       "Each worker opens every actor's export once and pulls its slices: byte for byte the "
       "version",
       {"TPS-RESHARD-01", "TPS-RESHARD-02"},
       needs_equal_worlds,
       publishes},
      {"reshard.worker-killed",
       "A worker that is killed while it pulls is named, and actors free only what nobody reads",
       {"TPS-RESHARD-03", "TPS-PROC-01"},
       needs_equal_worlds,
       worker_killed},
      {"reshard.actor-killed",
       "An actor that is killed while workers pull from it is reported as lost, and the runtime "
       "goes",
       {"TPS-RESHARD-04", "TPS-CONS-04", "TPS-PROC-03"},
       needs_two_equal_ranks,
       actor_killed},
      {"reshard.forbidden",
       "A worker that may not open a peer's export is found at preflight; a later sync succeeds",
       {"TPS-RESHARD-05", "TPS-IPC-01"},
       needs_equal_worlds,
       probe_forbidden},
      {"reshard.devices",
       "An export that opens as another device's memory than its entry says, or as less, poisons",
       {"TPS-RESHARD-06"},
       needs_equal_worlds,
       wrong_memory},
      {"reshard.unsupported",
       "A runtime that does not declare the route refuses it untouched; no other route is taken",
       {"TPS-RESHARD-07"},
       needs_equal_worlds,
       not_declared},
  };
}

}  // namespace tpsync::conformance
