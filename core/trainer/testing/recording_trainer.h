// A trainer's backend, rollout and weight sync that write down every call, and the fixture of the
// memory schedule's tests over them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/testing/fake_world.h"
#include "tpsync/trainer/memory_schedule.h"

namespace tpsync::trainer::fakes {

using tpsync::fakes::failure_of;
using tpsync::fakes::RecordingLog;
using Calls = std::vector<std::string>;

// Every call of the fakes, and what the test lets some of them throw.
class Script {
 public:
  void call(const std::string& name) {
    calls.push_back(name);
    if (const auto found = failing.find(name); found != failing.end()) {
      throw_broken(ErrorKind::kDevice, found->second, "injected by the test");
    }
  }
  Calls take() { return std::exchange(calls, {}); }

  Calls calls;
  std::map<std::string, std::string> failing;  // to the subject of its error
};

class FakeBackend final : public TrainBackend {
 public:
  explicit FakeBackend(Script& script) : script_(script) {}
  void offload(const Offload& what) override {
    std::string name = "offload";
    if (what.clear_gradients) name += " gradients";
    if (what.model) name += " model";
    if (what.optimizer) name += " optimizer";
    script_.call(name);
  }
  void onload() override { script_.call("onload"); }

 private:
  Script& script_;
};

class FakeRollout final : public Rollout {
 public:
  FakeRollout(Script& script, RolloutAbilities abilities)
      : script_(script), abilities_(abilities) {}
  ~FakeRollout() override { script_.calls.push_back("end of rollout"); }
  RolloutAbilities abilities() const override { return abilities_; }
  void sleep() override { script_.call("sleep"); }
  void wake_up(const std::vector<std::string>& tags) override {
    std::string name = "wake";
    for (const std::string& tag : tags) name += " " + tag;
    script_.call(name);
  }
  void preserve_weights_for_next_sleep() override { script_.call("preserve"); }
  std::optional<Generated> generate(const wire::GenerateRequest& request) override {
    script_.call("generate");
    Generated generated;
    generated.rows.resize(request.payloads.size());
    generated.version = 7;
    return generated;
  }
  void shutdown() override { script_.call("shutdown"); }

 private:
  Script& script_;
  RolloutAbilities abilities_;
};

class FakeSync final : public WeightSync {
 public:
  FakeSync(Script& script, bool streams) : script_(script), streams_(streams) {}
  ~FakeSync() override { script_.calls.push_back("end of sync"); }
  StrictBool uses_gpu_streaming() override {
    script_.call("streams?");
    return streams_;
  }
  void sync() override { script_.call("sync"); }

 private:
  Script& script_;
  bool streams_;
};

inline void generate_once(const MemorySchedule::Generate& generate) { generate({}); }

// A fixture: the test sets what differs, and the schedule is made by its first use.
class MemoryScheduleTest : public testing::Test {
 protected:
  enum class Sync { kNone, kPlain, kStreaming };

  Builders builders() {
    Builders made;
    made.rollout = [this] {
      script_.call("build rollout");
      return std::make_unique<FakeRollout>(script_, abilities_);
    };
    if (sync_ == Sync::kNone) return made;
    made.sync = [this](Rollout&) {
      script_.call("build sync");
      return std::make_unique<FakeSync>(script_, sync_ == Sync::kStreaming);
    };
    return made;
  }

  MemorySchedule& schedule() {
    if (!schedule_) schedule_.emplace(log_, backend_, builders(), options_, gates_);
    return *schedule_;
  }

  // What a schedule does in its next phase, without the bootstrap.
  Calls phase(const MemorySchedule::Work& work = generate_once) {
    schedule();
    script_.take();
    schedule().run_phase(work);
    return script_.take();
  }

  // Likewise for a phase that must fail, and with the error that it must end with.
  Calls failing_phase(const std::string& subject,
                      const MemorySchedule::Work& work = generate_once) {
    schedule();
    script_.take();
    const ErrorRecord record = failure_of([&] { schedule().run_phase(work); });
    EXPECT_EQ(record.subject, subject);
    EXPECT_EQ(record.kind, ErrorKind::kDevice);
    EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
    return script_.take();
  }

  // Goes on to a phase that publishes.
  void skip_first_rollout() {
    phase();
    ASSERT_TRUE(schedule().next_phase_syncs());
  }

  ErrorRecord construction_failure() {
    return failure_of([this] { schedule(); });
  }

  std::vector<std::string> logged_failures() const {
    std::vector<std::string> failures;
    for (const auto& entry : log_.entries) {
      if (entry.event == LogEvent::kPhaseFailed) failures.push_back(entry.subject);
    }
    return failures;
  }

  void expect_refused_because_stopped() {
    script_.take();
    const ErrorRecord record = failure_of([this] { schedule().run_phase(generate_once); });
    EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
    EXPECT_EQ(record.remedy, Remedy::kFixInput);
    EXPECT_EQ(record.subject, "run_phase");
    EXPECT_THAT(record.detail, testing::HasSubstr("stopped"));
    EXPECT_THAT(script_.take(), testing::IsEmpty());
  }

  Script script_;
  RecordingLog log_;
  FakeBackend backend_{script_};
  Sync sync_ = Sync::kStreaming;
  RolloutAbilities abilities_{.tagged_wake = true, .preserve = true};
  ScheduleOptions options_{.plan = {.rollouts = 6}, .rollout_anchor_device = {}};
  transfer::Gates* gates_ = nullptr;
  std::optional<MemorySchedule> schedule_;
};

}  // namespace tpsync::trainer::fakes
