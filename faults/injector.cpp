// Which faults are due, and which decorators a process needs. The decorators themselves stand
// beside this file, one per seam.
#include "faults/injector.h"

#include "faults/late_streams.h"
#include "faults/rules.h"
#include "tpsync/base/errors.h"

namespace tpsync::faults {
namespace {

std::string_view argument(const Fault& fault, std::string_view name) {
  const auto found = fault.arguments.find(std::string(name));
  return found == fault.arguments.end() ? std::string_view() : std::string_view(found->second);
}

bool needs(const FaultKind& kind, const Fault& fault, Seam seam) {
  switch (kind.action) {
    case Action::kKill:
    case Action::kStop:
      return seam != Seam::kWeightSource;
    case Action::kCloseChannel:
    case Action::kMuteChannel:
      return seam == Seam::kChannel;
    case Action::kBreakGroup:
      return seam ==
             (rules::is_shard_call(fault.moment.op) ? Seam::kShardGroup : Seam::kControlGroup);
    case Action::kRefuseMemory:
    case Action::kRefuseImport:
      return seam == Seam::kDevice;
    case Action::kDelayCopies:
      return seam == Seam::kDevice || seam == Seam::kShardGroup;
    case Action::kAlterResult:
      return seam ==
             (argument(fault, kHop) == kHopBroadcast ? Seam::kControlGroup : Seam::kChannel);
    case Action::kLoseExpert:
      if (argument(fault, kWhere) == "exporter") return seam == Seam::kWeightSource;
      return seam == (argument(fault, kWhere) == "wire" ? Seam::kChannel : Seam::kDevice);
    case Action::kExtendSource:
      return seam == Seam::kWeightSource;
  }
  return false;
}

}  // namespace

Injector::Injector(Plan plan, InjectorState* shared)
    : plan_(std::move(plan)),
      own_(shared != nullptr ? nullptr : std::make_unique<InjectorState>()),
      state_(shared != nullptr ? shared : own_.get()) {
  if (plan_.faults.size() > kFaultsMax)
    throw_invalid(ErrorKind::kInvalidConfig, "faults",
                  "a plan has at most " + std::to_string(kFaultsMax) + " faults");
  for (std::size_t i = 0; i < plan_.faults.size(); ++i) {
    const Fault& fault = plan_.faults[i];
    const std::string path = "faults[" + std::to_string(i) + "]";
    check_fault(fault, path);
    if (argument(fault, kWhere) == "trainer") {
      throw_invalid(ErrorKind::kInvalidConfig, path + ".arguments.where",
                    "trainer is a property of the world, not of a moment; make the world with a "
                    "lost tensor instead");
    }
    kinds_.push_back(find_kind(fault.name));
  }
}

std::unique_ptr<ProcessFaults> Injector::enter(std::string_view role, int rank, FaultPorts ports) {
  std::vector<std::size_t> faults;
  for (std::size_t i = 0; i < plan_.faults.size(); ++i) {
    const Moment& moment = plan_.faults[i].moment;
    if (moment.role == role && moment.rank == rank) faults.push_back(i);
  }
  if (faults.empty()) return nullptr;
  return std::make_unique<ProcessFaults>(*this, std::move(faults), std::move(ports));
}

std::size_t Injector::applied() const {
  std::size_t count = 0;
  for (std::size_t i = 0; i < plan_.faults.size(); ++i) count += state_->applied[i].load() ? 1 : 0;
  return count;
}

ProcessFaults::ProcessFaults(Injector& injector, std::vector<std::size_t> faults, FaultPorts ports)
    : injector_(injector),
      faults_(std::move(faults)),
      ports_(std::move(ports)),
      late_(std::make_unique<LateStreams>()) {
  ends_processes_ = has(Action::kKill) || has(Action::kStop);
}

ProcessFaults::~ProcessFaults() = default;

bool ProcessFaults::wants(Seam seam) const {
  for (const std::size_t i : faults_) {
    if (needs(*injector_.kinds_[i], injector_.plan_.faults[i], seam)) return true;
  }
  return false;
}

bool ProcessFaults::has(Action action, std::string_view where) const {
  for (const std::size_t i : faults_) {
    if (injector_.kinds_[i]->action != action) continue;
    if (where.empty() || argument(injector_.plan_.faults[i], kWhere) == where) return true;
  }
  return false;
}

std::string_view ProcessFaults::role() const {
  return injector_.plan_.faults[faults_.front()].moment.role;
}

bool ProcessFaults::active() const noexcept { return !injector_.healed(); }

bool ProcessFaults::is_now(const Moment& moment, std::string_view op) {
  if (moment.op != op || moment.chunk != ports_.moments.chunk() ||
      moment.phase != ports_.moments.phase()) {
    return false;
  }
  return moment.occurrence == (op == kSourceBegin ? passes_ : ports_.moments.occurrence(op));
}

const Fault* ProcessFaults::due(Action action, std::string_view op) {
  if (!active()) return nullptr;
  for (const std::size_t i : faults_) {
    if (injector_.kinds_[i]->action != action || injector_.state_->applied[i].load()) continue;
    if (is_now(injector_.plan_.faults[i].moment, op)) return &injector_.plan_.faults[i];
  }
  return nullptr;
}

void ProcessFaults::apply(const Fault& fault) noexcept {
  const auto index = static_cast<std::size_t>(&fault - injector_.plan_.faults.data());
  injector_.state_->applied[index].store(true);
  ports_.control.mark(index, injector_.kinds_[index]->visibility);
}

const Fault* ProcessFaults::fire(Action action, std::string_view op) {
  const Fault* fault = due(action, op);
  if (fault != nullptr) apply(*fault);
  return fault;
}

void ProcessFaults::pass(std::string_view op) noexcept {
  if (!ends_processes_) return;
  if (fire(Action::kStop, op) != nullptr) ports_.control.stop_self();
  if (fire(Action::kKill, op) != nullptr) ports_.control.kill_self();
}

}  // namespace tpsync::faults
