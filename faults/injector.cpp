// Which faults are due, and which decorators a process needs. The decorators themselves stand
// beside this file, one per seam.
#include "faults/injector.h"

#include <algorithm>

#include "faults/late_streams.h"
#include "faults/rules.h"
#include "tpsync/base/errors.h"

namespace tpsync::faults {
namespace {

// 2 s in all, however many operations a narrow pipe takes: below every deadline.
constexpr Duration kSlowness = std::chrono::milliseconds(5);
constexpr int kSlowOperations = 400;

std::string_view argument(const Fault& fault, std::string_view name) {
  const auto found = fault.arguments.find(std::string(name));
  return found == fault.arguments.end() ? std::string_view() : std::string_view(found->second);
}

bool needs(const FaultKind& kind, const Fault& fault, Seam seam) {
  switch (kind.action) {
    case Action::kKill:
    case Action::kStop:
    case Action::kExit:
    case Action::kSlow:
    case Action::kStall:
      return seam != Seam::kWeightSource && seam != Seam::kInferenceEngine;
    case Action::kRefuseSpawn:
    case Action::kHideProcess:
    case Action::kIgnoreTerminate:
      return seam == Seam::kProcesses;
    case Action::kMisreportHost:
      return seam == Seam::kHost;
    case Action::kRefuseEntropy:
      return seam == Seam::kRandom;
    case Action::kCloseChannel:
    case Action::kMuteChannel:
    case Action::kDistortMessage:
      return seam == Seam::kChannel;
    case Action::kBreakGroup:
    case Action::kHangGroup:
      return seam ==
             (rules::is_shard_call(fault.moment.op) ? Seam::kShardGroup : Seam::kControlGroup);
    case Action::kDistortContribution:
      return seam == Seam::kControlGroup;
    case Action::kGarbleGather:
      return seam == Seam::kShardGroup;
    case Action::kRefuseMemory:
    case Action::kRefusePrepare:
    case Action::kMisreportMemory:
    case Action::kRefuseImport:
    case Action::kMisreportImport:
    case Action::kRefuseExport:
    case Action::kStaleExport:
    case Action::kFailCopy:
    case Action::kFailSync:
    case Action::kDistortCopies:
    case Action::kLoseContext:
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
    case Action::kDistortPass:
      return seam == (argument(fault, kWhere) == "wire" ? Seam::kChannel : Seam::kWeightSource);
    case Action::kMisbehave:
      return seam == Seam::kInferenceEngine;
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
  for (const Action action :
       {Action::kKill, Action::kStop, Action::kExit, Action::kSlow, Action::kStall}) {
    disturbs_processes_ = disturbs_processes_ || has(action);
  }
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

bool ProcessFaults::has_named(std::string_view name) const {
  return std::any_of(faults_.begin(), faults_.end(),
                     [&](std::size_t i) { return injector_.plan_.faults[i].name == name; });
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
  return moment.occurrence == (is_own_moment(op) ? count_of(op) : ports_.moments.occurrence(op));
}

std::uint64_t ProcessFaults::count_of(std::string_view own_moment) {
  if (own_moment != kSourceBegin &&
      (counted_phase_ != ports_.moments.phase() || counted_chunk_ != ports_.moments.chunk())) {
    counted_phase_ = ports_.moments.phase();
    counted_chunk_ = ports_.moments.chunk();
    std::erase_if(counts_, [](const auto& entry) { return entry.first != kSourceBegin; });
  }
  const auto found = counts_.find(own_moment);
  return found == counts_.end() ? 0 : found->second;
}

void ProcessFaults::count(std::string_view own_moment) {
  counts_[std::string(own_moment)] = count_of(own_moment) + 1;
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

void ProcessFaults::sleep(Duration duration) noexcept {
  if (ports_.clock != nullptr) ports_.clock->sleep_until(ports_.clock->now() + duration);
}

void ProcessFaults::sleep_until(TimePoint until) noexcept {
  if (ports_.clock != nullptr) ports_.clock->sleep_until(until);
}

void ProcessFaults::pass(std::string_view op) noexcept {
  if (disturbs_processes_) disturb(op);
}

void ProcessFaults::disturb(std::string_view op) noexcept {
  if (fire(Action::kStop, op) != nullptr) ports_.control.stop_self();
  if (fire(Action::kKill, op) != nullptr) ports_.control.kill_self();
  if (const Fault* exit = fire(Action::kExit, op)) {
    ports_.control.exit_self(argument(*exit, kStatus) == "0" ? 0 : 1);
  }
  if (fire(Action::kStall, op) != nullptr) sleep(kStall);
  if (fire(Action::kSlow, op) != nullptr) slow_operations_left_ = kSlowOperations;
  if (slow_operations_left_ > 0 && active()) {
    --slow_operations_left_;
    sleep(kSlowness);
  }
}

}  // namespace tpsync::faults
