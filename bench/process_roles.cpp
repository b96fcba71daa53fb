#include "bench/process_roles.h"

#include <fmt/format.h>

#include <utility>

#include "bench/support.h"
#include "conformance/judge/facts.h"
#include "conformance/process/test_runtime.h"
#include "conformance/world/sim_run.h"
#include "tpsync/base/errors.h"
#include "tpsync/wire/frame.h"

namespace tpsync::bench {

namespace {

using conformance::number_in;
using conformance::WorldFolder;
using conformance::WorldSpec;

constexpr std::uint64_t kDeviceBytes = 1ULL << 40;
// Of a leaf's frame: about what a worker's reply to an update takes.
constexpr std::size_t kReplyBytes = 96;

class NullRecorder final : public conformance::Recorder {
 public:
  void record(judge::Record, std::uint64_t, std::uint64_t, std::uint64_t,
              std::string_view) override {}
};

void expect(const conformance::Outcome& outcome) {
  if (!outcome.ok()) throw_record(*outcome.error);
}

int rank_in(const std::string& argument) { return static_cast<int>(number_in(argument)); }

// What every role begins with.
struct Seams {
  SilentLog log;
  OsWorld os{log};
  World world = os.world();

  std::unique_ptr<Channel> inherited() { return os.channels().adopt(kInheritedChannelDescriptor); }
};

int run_runtime_role(const WorldFolder& folder, std::int64_t version) {
  Seams seams;
  const auto channel = seams.inherited();
  const conformance::WrittenWorld written = conformance::read_world(folder);
  runtime::run_runtime(seams.world, *channel,
                       conformance::runtime_options(written.spec, folder, version, kThisProgram));
  return 0;
}

int run_worker_role(const WorldFolder& folder, std::int64_t version, int rank) {
  Seams seams;
  const auto channel = seams.inherited();
  conformance::WrittenWorld written = conformance::read_world(folder);
  written.spec.base_version = version;
  const auto hardware = conformance::open_hardware(written, rank);
  runtime::run_worker(seams.world, *channel, hardware->device(),
                      conformance::engine_factory(folder, written.spec, rank, *hardware),
                      conformance::worker_options(written.spec, rank));
  return 0;
}

int run_actor_role(const WorldFolder& folder, int rank) {
  Seams seams;
  const conformance::WrittenWorld written = conformance::read_world(folder);
  BenchActor actor(folder, written, rank, seams.world);
  while (actor.hear(0) == BenchActor::kGoOn) actor.publish();
  return 0;
}

// Passes each frame on to every leaf, as a runtime does, and answers when all have.
int run_relay_role(int leaves) {
  Seams seams;
  const auto parent = seams.inherited();
  std::vector<std::unique_ptr<Channel>> channels;
  std::vector<std::unique_ptr<Process>> processes;
  for (int leaf = 0; leaf < leaves; ++leaf) {
    auto [ours, theirs] = seams.world.channels.make_pair();
    SpawnRequest request;
    request.program = kThisProgram;
    request.arguments = {"leaf"};
    request.channel = std::move(theirs);
    request.own_group = false;
    processes.push_back(seams.world.processes.spawn(std::move(request)));
    channels.push_back(std::move(ours));
  }
  ByteBuffer body;
  for (;;) {
    wire::receive_frame(*parent, body, Deadline::never());
    const Deadline deadline = Deadline::after(seams.world.clock, kLongest);
    for (const auto& channel : channels) wire::send_frame(*channel, body, deadline);
    for (const auto& channel : channels) wire::receive_frame(*channel, body, deadline);
    wire::send_frame(*parent, body, deadline);
  }
}

int run_leaf_role() {
  Seams seams;
  const auto parent = seams.inherited();
  const ByteBuffer reply(kReplyBytes);
  ByteBuffer body;
  for (;;) {
    wire::receive_frame(*parent, body, Deadline::never());
    wire::send_frame(*parent, reply, Deadline::after(seams.world.clock, kLongest));
  }
}

std::optional<int> run_named(const std::vector<std::string>& arguments) {
  const std::size_t count = arguments.size();
  const std::string role = count > 0 ? arguments[0] : "";
  const WorldFolder folder{count > 1 ? arguments[1] : ""};
  if (role == "runtime" && count == 3) return run_runtime_role(folder, number_in(arguments[2]));
  if (role == "worker" && count == 4)
    return run_worker_role(folder, number_in(arguments[2]), rank_in(arguments[3]));
  if (role == "actor" && count == 3) return run_actor_role(folder, rank_in(arguments[2]));
  if (role == "relay" && count == 2)
    return run_relay_role(static_cast<int>(number_in(arguments[1])));
  if (role == "leaf" && count == 1) return run_leaf_role();
  return std::nullopt;
}

}  // namespace

std::optional<int> run_role(const std::vector<std::string>& arguments) {
  try {
    return run_named(arguments);
  } catch (const Error& error) {
    // That is how whoever started it says goodbye.
    if (error.kind() == ErrorKind::kEndOfFile) return 0;
    fmt::print(stderr, "{}: {}\n", arguments.front(), to_text(error.record()));
    return 1;
  }
}

BenchWorld::BenchWorld(const WorldSpec& spec) : spec_(spec), memory_(device::HostMemory::create()) {
  for (int index = 0; index < spec_.tp; ++index)
    memory_->add_device(conformance::device_uuid(index), kDeviceBytes);
  written_ = {spec_, {}, memory_->path(), {}};
  conformance::write_world(folder_, written_);
  lanes_.set_world(judge::parse_facts(conformance::trace_parameters(spec_, {}, "process")));
}

void BenchWorld::check_resident(std::int64_t version) {
  const auto& expected = lanes_.lanes(static_cast<std::uint64_t>(version));
  TPSYNC_ASSERT(expected.size() == static_cast<std::size_t>(spec_.tp));
  for (int rank = 0; rank < spec_.tp; ++rank) {
    const auto lane = conformance::host_lane(folder_, spec_, rank);
    if (!lane || static_cast<std::uint64_t>(*lane) != expected[static_cast<std::size_t>(rank)])
      throw_violation(ErrorKind::kMismatch, fmt::format("worker {}", rank),
                      fmt::format("does not hold version {}, byte for byte", version));
  }
}

SpawnRequest runtime_request(const WorldFolder& folder, std::int64_t version) {
  SpawnRequest request;
  request.program = kThisProgram;
  request.arguments = conformance::runtime_arguments(folder, std::to_string(version));
  request.log_path = folder.log("runtime");
  return request;
}

BenchActor::BenchActor(const WorldFolder& folder, const conformance::WrittenWorld& written,
                       int rank, const World& world)
    : world_(world),
      hardware_(conformance::open_hardware(written, rank)),
      groups_(folder, written.spec, rank, world_, *hardware_),
      turns_(groups_.control()),
      words_(static_cast<std::size_t>(written.spec.actors)),
      recorder_(std::make_unique<NullRecorder>()),
      version_(written.spec.base_version) {
  conformance::ActorPorts ports{.world = world_,
                                .device = hardware_->device(),
                                .rank = rank,
                                .recorder = *recorder_,
                                .content = hardware_->content()};
  ports.join_control = [this] { return groups_.control(); };
  ports.join_shards = [this] { return groups_.shards(hardware_->device()); };
  ports.runtime = [&folder](std::int64_t version) { return runtime_request(folder, version); };
  actor_ = std::make_unique<conformance::Actor>(written.spec, std::move(ports));
  expect(actor_->start_engine());
  expect(actor_->setup());
}

BenchActor::~BenchActor() {
  actor_->cleanup();
  actor_->shutdown();
}

std::uint64_t BenchActor::hear(std::uint64_t said) {
  turns_->all_gather_word(said, words_, Deadline::after(world_.clock, kLongest));
  return words_[0];
}

Duration BenchActor::publish(const std::function<void()>& before) {
  actor_->step();
  hear(kGoOn);
  if (before) before();
  const TimePoint start = world_.clock.now();
  const conformance::Outcome outcome = actor_->publish();
  const Duration took = world_.clock.now() - start;
  expect(outcome);
  if (outcome.version != ++version_)
    throw_violation(ErrorKind::kMismatch, "publication",
                    fmt::format("gave version {}, {} was due", outcome.version, version_));
  return took;
}

std::unique_ptr<Process> start_actor(const World& world, const WorldFolder& folder, int rank) {
  SpawnRequest request;
  request.program = kThisProgram;
  request.arguments = {"actor", folder.path, std::to_string(rank)};
  return world.processes.spawn(std::move(request));
}

Relay::Relay(const World& world, int leaves) : world_(world) {
  auto [ours, theirs] = world_.channels.make_pair();
  SpawnRequest request;
  request.program = kThisProgram;
  request.arguments = {"relay", std::to_string(leaves)};
  request.channel = std::move(theirs);
  process_ = world_.processes.spawn(std::move(request));
  channel_ = std::move(ours);
}

Relay::~Relay() {
  channel_->close();
  kill_tree(*process_, world_.clock);
}

Duration Relay::round_trip(ByteView body) {
  const Deadline deadline = Deadline::after(world_.clock, kLongest);
  const TimePoint start = world_.clock.now();
  wire::send_frame(*channel_, body, deadline);
  wire::receive_frame(*channel_, reply_, deadline);
  return world_.clock.now() - start;
}

}  // namespace tpsync::bench
