#include "conformance/world/sim_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "conformance/world/fault_places.h"
#include "faults/injector.h"
#include "sim/sanitizers.h"

namespace tpsync::conformance {

namespace {

class SimMoments final : public faults::MomentSource {
 public:
  explicit SimMoments(sim::SimProcess& process) : process_(process) {}
  std::string_view phase() override { return process_.phase(); }
  std::int64_t chunk() override { return process_.chunk(); }
  std::uint64_t occurrence(std::string_view op) override {
    if (op != last_name_) {
      last_name_ = std::string(op);
      last_op_ = sim::op_named(op);
    }
    return last_op_ ? process_.occurrences(*last_op_) : 0;
  }

 private:
  sim::SimProcess& process_;
  std::string last_name_;
  std::optional<sim::Op> last_op_;
};

class SimControl final : public faults::ProcessControl {
 public:
  SimControl(sim::SimProcess& process, const faults::Plan& plan) : process_(process), plan_(plan) {}
  void kill_self() noexcept override { process_.sim().kill(process_); }
  void stop_self() noexcept override { process_.sim().stop(process_); }
  void exit_self(int status) noexcept override { process_.sim().exit(process_, status); }
  void mark(std::size_t fault, faults::Visibility visibility) noexcept override {
    process_.sim().record(static_cast<std::uint16_t>(judge::Record::kFault), fault,
                          visibility == faults::Visibility::kVisible ? 1 : 0, 0,
                          plan_.faults[fault].name);
  }

 private:
  sim::SimProcess& process_;
  const faults::Plan& plan_;
};

// A decorated channel as the simulator's wait_readable asks for it.
class SimFaultChannel final : public ForwardingChannel, public sim::ReadinessOverride {
 public:
  SimFaultChannel(std::unique_ptr<faults::FaultChannel> channel, faults::HasReadiness& readiness)
      : ForwardingChannel(std::move(channel)), readiness_(readiness) {}
  Readiness readiness() override {
    switch (readiness_.readiness()) {
      case faults::HasReadiness::Readiness::kAsInner:
        return Readiness::kAsInner;
      case faults::HasReadiness::Readiness::kReadable:
        return Readiness::kReadable;
      case faults::HasReadiness::Readiness::kOnlyEndOfFile:
        return Readiness::kOnlyEndOfFile;
    }
    return Readiness::kAsInner;
  }

 private:
  faults::HasReadiness& readiness_;
};

// Everything that one process's decorators hang on; kept by the process.
struct Entry {
  std::unique_ptr<SimMoments> moments;
  std::unique_ptr<SimControl> control;
  std::unique_ptr<faults::ProcessFaults> faults;
  std::vector<std::shared_ptr<void>> seams;
};

template <typename Seam, typename Make>
void replace(Seam*& seam, Entry& entry, Make&& make) {
  auto wrapper = make(*seam);
  if (!wrapper) return;
  seam = wrapper.get();
  entry.seams.push_back(std::shared_ptr<void>(std::move(wrapper)));
}

}  // namespace

struct SimFaults::State {
  State(const faults::Plan& plan, const WorldSpec& world_spec) : injector(plan), spec(world_spec) {}

  void create(sim::SimProcess& process, sim::SeamSet& seams) {
    auto entry = std::make_shared<Entry>();
    entry->moments = std::make_unique<SimMoments>(process);
    entry->control = std::make_unique<SimControl>(process, injector.plan());
    faults::FaultPorts ports{*entry->moments, *entry->control};
    const int rank = process.rank();
    ports.resident_places = [this, rank](std::string_view prefix) {
      return resident_places(spec, rank, prefix);
    };
    ports.clock = seams.clock;
    entry->faults = injector.enter(process.role(), rank, std::move(ports));
    if (!entry->faults) return;
    faults::ProcessFaults& f = *entry->faults;
    replace(seams.clock, *entry, [&](Clock& inner) { return f.clock(inner); });
    replace(seams.channels, *entry,
            [&](ChannelFactory& inner) { return f.channel_factory(inner); });
    replace(seams.processes, *entry, [&](ProcessLauncher& inner) { return f.processes(inner); });
    replace(seams.host, *entry, [&](Host& inner) { return f.host(inner); });
    replace(seams.random, *entry, [&](Random& inner) { return f.random(inner); });
    replace(seams.threads, *entry, [&](Threads& inner) { return f.threads(inner); });
    replace(seams.device, *entry, [&](device::Device& inner) { return f.device(inner); });
    process.keep(entry);
    entries[process.index()] = entry.get();
  }

  faults::ProcessFaults* find(const sim::SimProcess& process) const {
    const auto at = entries.find(process.index());
    return at == entries.end() ? nullptr : at->second->faults.get();
  }

  faults::Injector injector;
  const WorldSpec& spec;
  Recorder* recorder = nullptr;
  std::map<std::uint32_t, Entry*> entries;
};

SimFaults::SimFaults(const faults::Plan& plan, const WorldSpec& spec) {
  if (!plan.faults.empty()) state_ = std::make_unique<State>(plan, spec);
}

SimFaults::~SimFaults() = default;

sim::Hooks SimFaults::hooks() {
  sim::Hooks hooks;
  if (!state_) return hooks;
  State* state = state_.get();
  hooks.process_created = [state](sim::SimProcess& process, sim::SeamSet& seams) {
    state->create(process, seams);
  };
  hooks.wrap_channel = [state](sim::SimProcess& process, sim::PeerName peer,
                               std::unique_ptr<Channel> inner) -> std::unique_ptr<Channel> {
    faults::ProcessFaults* faults = state->find(process);
    if (faults == nullptr) return inner;
    auto wrapped = faults->channel({std::string(peer.role), peer.rank}, inner);
    if (!wrapped) return inner;
    faults::HasReadiness& readiness = *wrapped;
    return std::make_unique<SimFaultChannel>(std::move(wrapped), readiness);
  };
  hooks.wrap_control_group = [state](sim::SimProcess& process,
                                     std::unique_ptr<collective::ControlGroup> inner)
      -> std::unique_ptr<collective::ControlGroup> {
    faults::ProcessFaults* faults = state->find(process);
    if (faults == nullptr) return inner;
    auto wrapped = faults->control_group(inner);
    return wrapped ? std::move(wrapped) : std::move(inner);
  };
  hooks.wrap_shard_group = [state](sim::SimProcess& process,
                                   std::unique_ptr<collective::ShardGroup> inner)
      -> std::unique_ptr<collective::ShardGroup> {
    faults::ProcessFaults* faults = state->find(process);
    if (faults == nullptr) return inner;
    auto wrapped = faults->shard_group(inner);
    return wrapped ? std::move(wrapped) : std::move(inner);
  };
  return hooks;
}

void SimFaults::attach(sim::SimWorld&, Recorder& recorder) {
  if (state_) state_->recorder = &recorder;
}

std::function<std::unique_ptr<transfer::WeightSource>(transfer::WeightSource&)>
SimFaults::source_wrapper(sim::SimProcess& process) {
  const sim::HarnessAccess harness;
  faults::ProcessFaults* faults = state_ ? state_->find(process) : nullptr;
  if (faults == nullptr) return {};
  return [faults](transfer::WeightSource& source) { return faults->weight_source(source); };
}

std::unique_ptr<runtime::InferenceEngine> SimFaults::engine(
    sim::SimProcess& process, const runtime::ResidentModel& resident,
    std::unique_ptr<runtime::InferenceEngine> engine) {
  faults::ProcessFaults* faults = nullptr;
  {
    const sim::HarnessAccess harness;
    if (state_) faults = state_->find(process);
  }
  if (faults == nullptr) return engine;
  auto wrapped = faults->engine(resident, engine);
  return wrapped ? std::move(wrapped) : std::move(engine);
}

void SimFaults::heal() {
  const sim::HarnessAccess harness;
  if (!state_ || state_->injector.healed()) return;
  state_->injector.heal();
  state_->recorder->record(judge::Record::kHealed);
}

std::uint64_t SimFaults::applied() const { return state_ ? state_->injector.applied() : 0; }

}  // namespace tpsync::conformance
