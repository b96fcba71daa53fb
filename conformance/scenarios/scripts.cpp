#include "conformance/scenarios/scripts.h"

#include "tpsync/transfer/chunk_plan.h"

namespace tpsync::conformance {

namespace {

// The publication's outcome, or that of the step before it that failed.
Outcome start_and_publish(Actor& actor) {
  for (auto call : {&Actor::start_engine, &Actor::setup}) {
    Outcome outcome = (actor.*call)();
    if (!outcome.ok()) return actor.keep(std::move(outcome));
  }
  actor.step();
  return actor.keep(actor.publish());
}

bool group_broke(const Outcome& outcome) {
  return outcome.error && (outcome.error->kind == ErrorKind::kPeerLost ||
                           outcome.error->kind == ErrorKind::kOutcomeUnknown);
}

}  // namespace

Script publish_once() {
  return [](Actor& actor) {
    const Outcome outcome = start_and_publish(actor);
    if (outcome.ok()) {
      actor.generate();
    } else if (outcome.error->remedy == Remedy::kRebuildRuntime) {
      actor.poke_broken();
    }
    actor.cleanup();
    actor.shutdown();
  };
}

Script publish_and_recover() {
  return [](Actor& actor) {
    Outcome last = start_and_publish(actor);
    if (last.ok()) {
      // What fails here on rank 0 alone shows to all ranks in the second publication.
      actor.generate();
      actor.sleep();
      actor.wake_weights();
      actor.step();
      last = actor.publish();
      actor.wake_all();
      if (last.ok()) actor.generate();
    }
    if (!last.ok()) {
      if (last.error->remedy == Remedy::kRebuildRuntime) actor.poke_broken();
      if (!group_broke(last) && actor.sync() != nullptr && actor.rebuild().ok()) {
        actor.step();
        if (actor.publish().ok()) actor.generate();
      }
    }
    actor.cleanup();
    actor.shutdown();
  };
}

SimOptions with_fault(const std::string& name, const At& at, const faults::Arguments& arguments) {
  SimOptions options;
  faults::Fault fault;
  fault.name = name;
  fault.moment = {at.role, at.rank, at.phase, at.chunk, at.op, at.occurrence};
  fault.arguments = arguments;
  options.plan.faults.push_back(std::move(fault));
  return options;
}

SimOptions with_fault(ScenarioContext& context, const std::string& name, const At& at,
                      const faults::Arguments& arguments) {
  At resolved = at;
  if (!at.peer_role.empty()) {
    for (const faults::Operation& operation : context.operations()) {
      if (operation.role == at.role && operation.rank == at.rank && operation.phase == at.phase &&
          operation.chunk == at.chunk && operation.op == at.op &&
          operation.peer_role == at.peer_role) {
        resolved.occurrence = operation.occurrence;
        return with_fault(name, resolved, arguments);
      }
    }
    context.check(false, name + ": the fault-free world has no such operation");
  }
  return with_fault(name, resolved, arguments);
}

void Way::set_in(WorldSpec& spec) const {
  spec.sync.layout = layout;
  spec.sync.route = route;
}

const std::vector<Way>& every_way() {
  static const std::vector<Way> ways = {
      {"compact", wire::Layout::kCompact, wire::Route::kGather},
      {"rank_major", wire::Layout::kRankMajor, wire::Route::kGather},
      {"reshard", wire::Layout::kRankMajor, wire::Route::kReshard}};
  return ways;
}

std::uint64_t chunk_count(const WorldSpec& spec) {
  const model::CanonicalPlan plan = model::plan_canonical(spec.config);
  return transfer::plan_chunks(plan.tensors, spec.sync.bucket_bytes).size();
}

std::int64_t chunk_of(const WorldSpec& spec, const std::string& tensor) {
  const model::CanonicalPlan plan = model::plan_canonical(spec.config);
  const auto chunks = transfer::plan_chunks(plan.tensors, spec.sync.bucket_bytes);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    for (std::uint64_t t = chunks[c].first; t < chunks[c].first + chunks[c].count; ++t) {
      if (plan.tensors[t].name == tensor) return static_cast<std::int64_t>(c);
    }
  }
  throw_invalid(ErrorKind::kInvalidConfig, tensor, "is no tensor of this model");
}

std::vector<Wait> runtime_waits(const WorldSpec& spec) {
  std::vector<Wait> waits = {{"topology-ipc-probe", 0, false}, {"native-init"}, {"native-start"}};
  for (std::uint64_t c = 0; c < chunk_count(spec); ++c) {
    waits.push_back({"native-transfer", static_cast<std::int64_t>(c)});
  }
  waits.push_back({"native-finish"});
  waits.push_back({"native-ipc-release"});
  return waits;
}

std::string phase_text(const std::string& phase, std::int64_t chunk) {
  const bool indexed = phase == "native-transfer" || phase == "native-materialize";
  return indexed ? phase + "-" + std::to_string(chunk) : phase;
}

}  // namespace tpsync::conformance
