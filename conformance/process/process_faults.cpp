#include "conformance/process/process_faults.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conformance/world/fault_places.h"
#include "faults/catalogue.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

namespace {

// Seams whose operations are neither recorded nor counted in real processes.
constexpr std::string_view kUncounted[] = {
    "clock.",     "host.",        "random.",      "mutex.",         "thread.",
    "condition.", "channel.pair", "process.wait", "process.signal", "process.group_alive"};

}  // namespace

SharedFaultState::SharedFaultState(const std::string& path, int flags) {
  const int file = ::open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0600);
  void* mapped = MAP_FAILED;
  if (file >= 0 && ftruncate(file, sizeof(faults::InjectorState)) == 0)
    mapped =
        mmap(nullptr, sizeof(faults::InjectorState), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) ::close(file);
  if (mapped == MAP_FAILED) throw_broken(ErrorKind::kIo, path, "can't be mapped");
  state_ = static_cast<faults::InjectorState*>(mapped);
}

SharedFaultState SharedFaultState::create(const std::string& path) {
  return {path, O_CREAT | O_EXCL};
}
SharedFaultState SharedFaultState::open(const std::string& path) { return {path, 0}; }

SharedFaultState::~SharedFaultState() {
  if (state_ != nullptr) munmap(state_, sizeof(faults::InjectorState));
}

std::uint64_t SharedFaultState::applied() const {
  std::uint64_t count = 0;
  for (const auto& applied : state_->applied) count += applied.load() ? 1 : 0;
  return count;
}

void check_plan(const faults::Plan& plan) {
  for (std::size_t i = 0; i < plan.faults.size(); ++i) {
    const faults::Fault& fault = plan.faults[i];
    const faults::FaultKind* kind = faults::find_kind(fault.name);
    if (kind != nullptr && kind->worlds.find("process") == std::string_view::npos)
      throw_invalid(ErrorKind::kUnsupported, fmt::format("faults[{}].name", i),
                    fmt::format("{} exists in these worlds: {}", fault.name, kind->worlds));
    for (const std::string_view seam : kUncounted) {
      if (!fault.moment.op.starts_with(seam)) continue;
      throw_invalid(ErrorKind::kUnsupported, fmt::format("faults[{}].moment.op", i),
                    fmt::format("real processes do not count {}; name a moment of a channel, a "
                                "group, a device, or a spawn",
                                fault.moment.op));
    }
  }
}

class ProcessFaultSeams::Moments final : public faults::MomentSource {
 public:
  explicit Moments(ProcessTracer& tracer) : tracer_(tracer) {}
  std::string_view phase() override { return tracer_.phase(); }
  std::int64_t chunk() override { return tracer_.chunk(); }
  std::uint64_t occurrence(std::string_view op) override {
    const auto found = sim::op_named(op);
    return found ? tracer_.occurrences(*found) : 0;
  }

 private:
  ProcessTracer& tracer_;
};

class ProcessFaultSeams::Control final : public faults::ProcessControl {
 public:
  Control(ProcessTracer& tracer, const faults::Plan& plan) : tracer_(tracer), plan_(plan) {}
  void kill_self() noexcept override { kill(getpid(), SIGKILL); }
  void stop_self() noexcept override {
    tracer_.record(sim::EventKind::kProcessStop);
    kill(getpid(), SIGSTOP);
  }
  void exit_self(int status) noexcept override {
    tracer_.record(sim::EventKind::kProcessExit, static_cast<std::uint64_t>(status));
    _exit(status);
  }
  void mark(std::size_t fault, faults::Visibility visibility) noexcept override {
    tracer_.record(static_cast<std::uint16_t>(judge::Record::kFault), fault,
                   visibility == faults::Visibility::kVisible ? 1 : 0, 0, plan_.faults[fault].name);
  }

 private:
  ProcessTracer& tracer_;
  const faults::Plan& plan_;
};

ProcessFaultSeams::ProcessFaultSeams(const std::string& state_path, const WorldSpec& spec,
                                     const faults::Plan& plan, const std::string& role, int rank,
                                     ProcessTracer& tracer)
    : state_(SharedFaultState::open(state_path)),
      injector_(plan, &*state_),
      tracer_(tracer),
      moments_(std::make_unique<Moments>(tracer)),
      control_(std::make_unique<Control>(tracer, injector_.plan())) {
  faults::FaultPorts ports{*moments_, *control_};
  ports.resident_places = [&spec, rank](std::string_view expert) {
    return resident_places(spec, rank, expert);
  };
  ports.clock = &clock_;
  faults_ = injector_.enter(role, rank, std::move(ports));
}

ProcessFaultSeams::~ProcessFaultSeams() = default;

void ProcessFaultSeams::heal() {
  if (injector_.plan().faults.empty() || (*state_).healed.exchange(true)) return;
  tracer_.record(static_cast<std::uint16_t>(judge::Record::kHealed));
}

}  // namespace tpsync::conformance
