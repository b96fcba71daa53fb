// An expert goes missing, at four places, and each time it is caught where it went missing.
#include <fmt/format.h>

#include "conformance/scenarios/scripts.h"

namespace tpsync::conformance {

namespace {

constexpr const char* kExpert = "model.layers.0.mlp.experts.1";
constexpr const char* kGate = "model.layers.0.mlp.experts.1.gate_proj.weight";

void in_the_trainer(ScenarioContext& context) {
  for (const Storage storage : {Storage::kFusedExperts, Storage::kSeparateExperts}) {
    WorldSpec spec = context.spec();
    spec.storage = storage;
    spec.lost_tensor =
        storage == Storage::kFusedExperts ? "model.layers.0.mlp.experts.down_proj" : kGate;
    const auto script = [&](Actor& actor) {
      actor.start_engine();
      actor.setup();
      actor.step();
      actor.keep(actor.publish());
      const Outcome generation = actor.generate();
      actor.check(generation.ok(), "the untouched runtime should still generate");
      actor.check(actor.rank() != 0 || generation.version == spec.base_version,
                  "the untouched runtime should generate from its checkpoint");
      actor.cleanup();
      actor.shutdown();
    };
    SimOptions options;
    options.expect_failure = true;
    context.run(fmt::format("every rank lost {}", *spec.lost_tensor), spec, options, script);
    context.expect_failed({.kind = ErrorKind::kMismatch,
                           .phase = "expected-schema",
                           .rank = 0,
                           .subject = storage == Storage::kFusedExperts
                                          ? "model.layers.0.mlp.experts.0.down_proj.weight"
                                          : kGate,
                           .detail = "is expected"});
  }
}

void in_the_exporter(ScenarioContext& context) {
  const int rank = context.last_rank();
  const std::int64_t chunk = chunk_of(context.spec(), kGate);
  context.run(fmt::format("the pass of rank {} emits without {}", rank, kExpert),
              with_fault("weights.missing_expert",
                         {.rank = rank, .phase = "native-buffer-allocation", .op = "source.begin"},
                         {{"where", "exporter"}, {"expert", kExpert}}),
              publish_and_recover());
  context.expect_failed({.kind = ErrorKind::kMismatch,
                         .phase = phase_text("native-materialize", chunk),
                         .rank = rank,
                         .subject = kGate});
}

void on_the_wire(ScenarioContext& context) {
  const std::int64_t chunk = chunk_of(context.spec(), kGate);
  const auto run = [&](const std::string& hop, const At& at, const std::string& detail) {
    context.run(
        fmt::format("chunk {} loses {} {}", chunk, kExpert, hop),
        with_fault(context, "weights.missing_expert", at, {{"where", "wire"}, {"expert", kExpert}}),
        publish_and_recover());
    context.expect_failed({.kind = ErrorKind::kRemote,
                           .phase = phase_text("native-transfer", chunk),
                           .rank = 0,
                           .detail = detail});
  };
  run("on its way to the runtime",
      {.phase = "native-transfer", .chunk = chunk, .op = "channel.write", .peer_role = "runtime"},
      kGate);
  run("on its way to a worker",
      {.role = "runtime",
       .phase = "update_native_weights",
       .chunk = chunk,
       .op = "channel.write",
       .peer_role = "worker"},
      kGate);
}

void in_the_loader(ScenarioContext& context) {
  const std::int64_t chunk = chunk_of(context.spec(), kGate);
  for (int rank = 0; rank < context.spec().tp; ++rank) {
    context.run(fmt::format("worker {} drops the copies of {}", rank, kExpert),
                with_fault("weights.missing_expert",
                           {.role = "worker",
                            .rank = rank,
                            .phase = "update_native_weights",
                            .chunk = chunk,
                            .op = "device.launch"},
                           {{"where", "loader"}, {"expert", kExpert}}),
                publish_and_recover());
    context.expect_failed(
        {.kind = ErrorKind::kRemote, .phase = "native-finish", .rank = 0, .detail = "digest"});
  }
}

void extra_tensor(ScenarioContext& context) {
  const int rank = context.last_rank();
  context.run(fmt::format("the source of rank {} has one tensor more", rank),
              with_fault("weights.extra_tensor",
                         {.rank = rank, .phase = "native-buffer-allocation", .op = "source.begin"}),
              publish_and_recover());
  context.expect_failed({.kind = ErrorKind::kMismatch,
                         .phase = "native-source-verify",
                         .rank = rank,
                         .subject = "source"});
}

std::string needs_digest(const WorldSpec& spec) {
  if (!spec.sync.content_digest) return "needs the content digest";
  return needs_equal_worlds(spec);
}

}  // namespace

std::vector<Scenario> expert_scenarios() {
  return {
      {"expert.trainer",
       "An expert missing from every rank's state is found before the runtime is touched",
       {"TPS-EXP-01", "TPS-BND-01"},
       needs_equal_worlds,
       in_the_trainer},
      {"expert.exporter",
       "An expert that one rank's exporter leaves out is found at that rank's gate",
       {"TPS-EXP-02", "TPS-BND-02"},
       needs_equal_worlds,
       in_the_exporter},
      {"expert.wire",
       "An expert that an update loses is found by the workers, by name",
       {"TPS-EXP-03", "TPS-BND-04"},
       needs_equal_worlds,
       on_the_wire},
      {"expert.loader",
       "An expert whose bytes a worker never copied is found by the content digest",
       {"TPS-EXP-04", "TPS-BND-05"},
       needs_digest,
       in_the_loader},
      {"source.extra-tensor",
       "A source with more tensors than planned is refused when it is verified",
       {"TPS-SRC-01", "TPS-BND-03"},
       needs_equal_worlds,
       extra_tensor},
  };
}

}  // namespace tpsync::conformance
