#include "conformance/world/sim_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "conformance/world/claimed_uuid.h"
#include "conformance/world/sim_content.h"
#include "conformance/world/sim_faults.h"
#include "conformance/world/test_engine.h"
#include "sim/sanitizers.h"
#include "sim/shard_group.h"
#include "sim/shared_words.h"
#include "tpsync/collective/lane_control_group.h"
#include "tpsync/collective/peer_copy_shard_group.h"
#include "tpsync/runtime/server.h"
#include "tpsync/runtime/worker.h"

namespace tpsync::conformance {

namespace {

constexpr std::uint64_t kAmpleDevice = 1ULL << 44;
constexpr std::uint64_t kGroupsByCopies = 1ULL << 32;  // above the numbers of simulated groups
constexpr const char* kRuntimeProgram = "tpsync-test-runtime";
constexpr const char* kWorkerProgram = "tpsync-test-worker";

sim::SimConfig sim_config(const WorldSpec& spec, const SimOptions& options) {
  sim::SimConfig config;
  config.seed = spec.seed;
  for (int i = 0; i < std::max(spec.tp, spec.actors); ++i) {
    config.devices.push_back(
        {device_uuid(i), spec.device_bytes != 0 ? spec.device_bytes : kAmpleDevice, 0});
  }
  config.phantom = spec.phantom;
  config.policy = options.policy;
  config.deviations = options.deviations;
  config.schedule = options.schedule;
  config.priority_changes = options.priority_changes;
  config.priority_choices = options.priority_choices;
  config.pipe_capacity = options.pipe_capacity;
  config.cruelty = spec.cruelty;
  for (sim::Range* range :
       {&config.channel_latency_ns, &config.group_latency_ns, &config.death_notice_ns,
        &config.parent_death_ns, &config.landing_delay_ns}) {
    range->low = range->low * options.latency_percent / 100;
    range->high = range->high * options.latency_percent / 100;
  }
  return config;
}

class SimRecorder final : public Recorder {
 public:
  explicit SimRecorder(sim::SimWorld& world) : world_(world) {}
  void record(judge::Record kind, std::uint64_t a, std::uint64_t b, std::uint64_t c,
              std::string_view text) override {
    // A script that was killed inside an operation that cannot throw goes no further than this.
    const sim::SimProcess* process = world_.current_process();
    if (process != nullptr && process->dead()) throw sim::Killed{};
    world_.record(static_cast<std::uint16_t>(kind), a, b, c, text);
  }

 private:
  sim::SimWorld& world_;
};

// Of an argument that this file wrote. Not std::stoll, which writes errno: one for all processes.
std::int64_t version_in(const std::string& argument) {
  std::int64_t version = 0;
  const char* const end = argument.data() + argument.size();
  const auto [stop, error] = std::from_chars(argument.data(), end, version);
  TPSYNC_ASSERT(error == std::errc() && stop == end);
  return version;
}

class Roster final : public EngineRoster {
 public:
  void enter(TestEngine& engine, int tp_rank) override {
    const sim::HarnessAccess harness;
    engines_.emplace_back(tp_rank, &engine);
    std::sort(engines_.begin(), engines_.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
  }
  void leave(TestEngine& engine) noexcept override {
    const sim::HarnessAccess harness;
    std::erase_if(engines_, [&](const auto& entry) { return entry.second == &engine; });
  }
  void record(Recorder& recorder, std::int64_t version) const {
    const sim::HarnessAccess harness;
    for (const auto& [rank, engine] : engines_) {
      const std::int64_t lane = engine->lane();
      recorder.record(judge::Record::kResident, static_cast<std::uint64_t>(rank),
                      static_cast<std::uint64_t>(lane), static_cast<std::uint64_t>(version));
      for (const std::string& text : engine->differences(version, lane)) {
        recorder.record(judge::Record::kFound, static_cast<std::uint64_t>(rank), 0, 0, text);
      }
    }
  }

 private:
  std::vector<std::pair<int, TestEngine*>> engines_;
};

// Hands each actor its member of the group that the first of them to ask brings into being.
template <typename Group>
class Rendezvous {
 public:
  using Make = std::function<std::vector<std::unique_ptr<Group>>()>;
  Rendezvous(int members, Make make)
      : make_(std::move(make)), joined_(static_cast<std::size_t>(members), 0) {}

  std::unique_ptr<Group> join(int rank) {
    const sim::HarnessAccess harness;
    const std::size_t round = joined_[static_cast<std::size_t>(rank)]++;
    if (round == rounds_.size()) rounds_.push_back(make_());
    return std::move(rounds_[round][static_cast<std::size_t>(rank)]);
  }

 private:
  Make make_;
  std::vector<std::size_t> joined_;
  std::vector<std::vector<std::unique_ptr<Group>>> rounds_;
};

class World {
 public:
  World(const WorldSpec& spec, const SimOptions& options, const Script& script, sim::Pools& pools)
      : spec_(spec),
        script_(script),
        wrap_source_(options.wrap_source),
        faults_(options.plan, spec),
        world_(sim_config(spec, options), pools, hooks()),
        recorder_(world_),
        control_(spec.actors, [this] { return world_.make_control_group(actors_); }),
        meetings_(spec.actors, [this] { return world_.make_control_group(actors_); }),
        copy_groups_(static_cast<std::size_t>(spec.actors), 0),
        shards_(spec.actors, [this] { return world_.make_shard_group(actors_); }) {
    faults_.attach(world_, recorder_);
    world_.trace().seed = spec.seed;
    world_.trace().parameters = trace_parameters(spec, options, "sim");
    register_runtime();
    register_worker();
    for (int rank = 0; rank < spec.actors; ++rank) {
      actors_.push_back(&world_.start_process(
          "actor", rank, static_cast<std::size_t>(rank),
          [this, rank](sim::SimProcess& process) { return run_actor(process, rank); }));
    }
  }

  sim::RunResult run() { return world_.run(); }
  std::uint64_t faults_applied() const { return faults_.applied(); }

 private:
  sim::Hooks hooks() {
    sim::Hooks hooks = faults_.hooks();
    if (spec_.actor_uuids.empty()) return hooks;
    auto inner = std::move(hooks.process_created);
    hooks.process_created = [this, inner](sim::SimProcess& process, sim::SeamSet& seams) {
      if (inner) inner(process, seams);
      if (process.role() != "actor") return;
      auto device = std::make_shared<ClaimedUuid>(
          *seams.device, spec_.actor_uuids[static_cast<std::size_t>(process.rank())]);
      seams.device = device.get();
      process.keep(std::move(device));
    };
    return hooks;
  }

  int run_actor(sim::SimProcess& process, int rank) {
    SimContent content(process, spec_);
    ActorPorts ports{.world = process.world(),
                     .device = process.device(),
                     .rank = rank,
                     .recorder = recorder_,
                     .content = content};
    sim::SimSharedWordsFactory words(process);
    ports.join_control = [this, rank, &process, &words] {
      std::unique_ptr<collective::ControlGroup> group = control_.join(rank);
      if (!spec_.simulated_lane) return group;
      const Deadline deadline = Deadline::after(process.world().clock, spec_.sync.control_timeout);
      return open_lane(std::move(group), process.world(), words, deadline).group;
    };
    ports.join_shards = [this, rank, &process] { return join_shards(process, rank); };
    ports.runtime = [](std::int64_t version) {
      SpawnRequest request;
      request.program = kRuntimeProgram;
      request.arguments = {"--version", std::to_string(version)};
      return request;
    };
    ports.wrap_source = faults_.source_wrapper(process);
    if (wrap_source_) {
      ports.wrap_source = [this, rank](transfer::WeightSource& source) {
        return wrap_source_(rank, source);
      };
    }
    ports.observe = [this](std::int64_t version) { roster_.record(recorder_, version); };
    ports.heal = [this] { faults_.heal(); };
    ports.die = [&process] { process.sim().kill(process); };
    Actor actor(spec_, std::move(ports));
    script_(actor);
    return 0;
  }

  std::unique_ptr<collective::ShardGroup> join_shards(sim::SimProcess& process, int rank) {
    if (spec_.gather == Gather::kCollective) return shards_.join(rank);
    const auto meeting = meetings_.join(rank);
    sim::SimSharedWordsFactory words(process);
    // Counted before the meeting, which may fail.
    const std::uint64_t id = kGroupsByCopies + copy_groups_[static_cast<std::size_t>(rank)]++;
    auto copies = std::make_unique<collective::PeerCopyShardGroup>(
        *meeting, process.device(), words, process.world(),
        Deadline::after(process.world().clock, spec_.sync.control_timeout));
    std::unique_ptr<collective::ShardGroup> group =
        std::make_unique<sim::RecordedShardGroup>(std::move(copies), process, id);
    const auto& wrap = world_.hooks().wrap_shard_group;
    return wrap ? wrap(process, std::move(group)) : std::move(group);
  }

  void register_runtime() {
    sim::Program program;
    program.role = "runtime";
    program.device = [](sim::Arguments) { return std::size_t{0}; };
    program.body = [this](sim::SimProcess& process) {
      runtime::RuntimeOptions options;
      options.tp_size = spec_.tp;
      options.version = kTestVersion;
      options.model_type = spec_.config.model_type;
      options.committed_version = version_in(process.arguments()[1]);
      options.control_timeout = spec_.sync.control_timeout;
      options.worker_timeout = rollout::longest(spec_.timeouts);
      options.combine = combine_lanes;
      options.routes = runtime_routes(spec_);
      const std::string version = process.arguments()[1];
      options.worker = [version](int rank) {
        SpawnRequest request;
        request.program = kWorkerProgram;
        request.arguments = {"--rank", std::to_string(rank), "--version", version};
        return request;
      };
      const auto channel = process.take_channel();
      runtime::run_runtime(process.world(), *channel, options);
      return 0;
    };
    world_.register_program(kRuntimeProgram, std::move(program));
  }

  void register_worker() {
    sim::Program program;
    program.role = "worker";
    program.body = [this](sim::SimProcess& process) {
      SimContent content(process, spec_);
      WorldSpec spec = spec_;
      spec.base_version = version_in(process.arguments()[3]);
      runtime::WorkerOptions options;
      options.tp_rank = process.rank();
      options.tp_size = spec_.tp;
      options.config = spec_.config;
      options.routes = runtime_routes(spec_);
      options.version = kTestVersion;
      options.kv_cache_bytes = spec_.kv_cache_bytes;
      options.committed_version = spec.base_version;
      options.command_timeout = spec_.timeouts.weight_update;
      const auto channel = process.take_channel();
      runtime::run_worker(
          process.world(), *channel, process.device(),
          [&](const runtime::ResidentModel& resident) {
            return faults_.engine(process, resident,
                                  std::make_unique<TestEngine>(resident, spec, content, &roster_));
          },
          options);
      return 0;
    };
    world_.register_program(kWorkerProgram, std::move(program));
  }

  const WorldSpec& spec_;
  const Script& script_;
  std::function<std::unique_ptr<transfer::WeightSource>(int, transfer::WeightSource&)> wrap_source_;
  SimFaults faults_;
  Roster roster_;  // before the world: engines of unwound fibers leave it
  sim::SimWorld world_;
  SimRecorder recorder_;
  std::vector<sim::SimProcess*> actors_;
  Rendezvous<collective::ControlGroup> control_;
  Rendezvous<collective::ControlGroup> meetings_;  // of shard groups that are core's
  std::vector<std::uint64_t> copy_groups_;         // that each rank has joined
  Rendezvous<collective::ShardGroup> shards_;
};

// The plan's faults as the judge reads them (judge/records.h).
std::string fault_parameters(const SimOptions& options) {
  std::string text;
  for (std::size_t i = 0; i < options.plan.faults.size(); ++i) {
    const faults::Fault& fault = options.plan.faults[i];
    const faults::FaultKind* kind = faults::find_kind(fault.name);
    if (kind == nullptr) continue;
    FaultFacts facts;
    if (i < options.facts.size()) {
      facts = options.facts[i];
    } else {
      faults::Operation operation;
      operation.role = fault.moment.role;
      operation.rank = fault.moment.rank;
      operation.phase = fault.moment.phase;
      operation.chunk = fault.moment.chunk;
      operation.op = fault.moment.op;
      operation.occurrence = fault.moment.occurrence;
      facts = {kind->demand(operation), kind->kinds(operation)};
    }
    std::string kinds;
    for (const ErrorKind error : facts.kinds) {
      kinds += (kinds.empty() ? "" : ",") + std::string(to_string(error));
    }
    text +=
        fmt::format("fault.{}={}|{}|{}|{}|{}|{}|{}|{}\n", i, fault.name,
                    to_string(kind->visibility), to_string(facts.demand), kinds, fault.moment.role,
                    fault.moment.rank, fault.moment.phase, fault.moment.chunk);
  }
  return text;
}

}  // namespace

void WorldRunner::run_all(const std::vector<WorldJob>& jobs,
                          const std::function<void(std::size_t job, const Run& run)>& done) {
  for (std::size_t i = 0; i < jobs.size(); ++i)
    done(i, run(jobs[i].spec, jobs[i].options, jobs[i].script));
}

SimRunner::SimRunner() = default;
SimRunner::~SimRunner() = default;

Run SimRunner::run(const WorldSpec& spec, const SimOptions& options, const Script& script) {
  Run run;
  {
    World world(spec, options, script, pools_);
    run.end = world.run();
    run.faults_applied = world.faults_applied();
  }
  run.hash = sim::hash_of(pools_.trace);
  run.log = read_actor_log(pools_.trace, spec.actors);
  if (options.judge) run.judgement = judge_.judge(pools_.trace);
  return run;
}

std::string trace_parameters(const WorldSpec& spec, const SimOptions& options,
                             std::string_view world) {
  const model::ModelConfig& c = spec.config;
  std::string text = fmt::format(
      "world={}\ntp={}\nactors={}\nphantom={}\ncontent_seed={}\nbase_version={}\n"
      "control_timeout_ns={}\nupdate_timeout_ns={}\ncommand_timeout_ns={}\n"
      "layers={}\nexperts={}\nhidden={}\nmoe={}\nvocab={}\nheads={}\nkv_heads={}\nhead_dim={}\n"
      "tied={}\ndtype={}\npolicy={}\noverlap={}\nlane_bytes={}\n",
      world, spec.tp, spec.actors, spec.phantom ? 1 : 0, spec.seed, spec.base_version,
      spec.sync.control_timeout.count(), spec.timeouts.weight_update.count(),
      rollout::longest(spec.timeouts).count(), c.num_hidden_layers, c.num_experts, c.hidden_size,
      c.moe_intermediate_size, c.vocab_size, c.num_attention_heads, c.num_key_value_heads,
      c.head_dim, c.tie_word_embeddings ? 1 : 0, bare_name(c.dtype),
      static_cast<int>(options.policy),
      spec.sync.overlap && spec.sync.layout != wire::Layout::kCompact ? 1 : 0, spec.lane_bytes);
  if (spec.sync.route == wire::Route::kReshard) text += "route=reshard\n";
  if (options.schedule != 0) text += fmt::format("schedule={}\n", options.schedule);
  if (options.policy == sim::Policy::kPriority) {
    text += fmt::format("priority_changes={}\npriority_choices={}\n", options.priority_changes,
                        options.priority_choices);
  }
  if (options.expect_failure) text += "expect=failure\n";
  if (!options.recovery.empty()) text += "recovery=" + options.recovery + "\n";
  text += fault_parameters(options);
  return text;
}

}  // namespace tpsync::conformance
