// One actor's publications against a model of their states: calls in any order, each step of a
// publication failing or not. What was published, whether the runtime was touched and is therefore
// gone, what a later call may do, and that nothing is left exported.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "core/base/testing/seeded_check.h"
#include "core/sync/testing/publication_actor.h"

namespace tpsync::sync {
namespace {

using fakes::Actor;
using fakes::Board;
using fakes::kDeviceBytes;
using fakes::ThreadGroup;

struct Model {
  bool set_up = false;
  bool cleaned_up = false;
  bool poisoned = false;
  std::int64_t published = 0;
};

// The steps of a publication in their order; those from init on touch the runtime.
constexpr std::array kSteps = {"",       "topology",   "probe",    "unsent probe", "unsent init",
                               "init",   "start",      "update 0", "loaded",       "update 2",
                               "finish", "bad result", "release"};
constexpr std::size_t kFirstTouching = 5;

enum class Action : std::uint8_t { kSetup, kSync, kCleanup };
enum class Result : std::uint8_t { kOk, kRefused, kUntouched, kBroken };

struct Expected {
  Result result = Result::kOk;
  Model next;
};

Expected expected_of(const Model& model, Action action, std::size_t step) {
  Expected expected{Result::kOk, model};
  Model& next = expected.next;
  switch (action) {
    case Action::kCleanup:
      next.cleaned_up = true;
      break;
    case Action::kSetup:
      if (model.set_up || model.cleaned_up) {
        expected.result = Result::kRefused;
      } else if (std::string(kSteps[step]) == "topology") {
        expected.result = Result::kBroken;  // what the target threw
      } else {
        next.set_up = true;
      }
      break;
    case Action::kSync:
      if (!model.set_up || model.cleaned_up || model.poisoned) {
        expected.result = Result::kRefused;
      } else if (step == 0) {
        ++next.published;
      } else if (step < kFirstTouching) {
        expected.result = Result::kUntouched;
      } else {
        expected.result = Result::kBroken;
        next.poisoned = true;
      }
      break;
  }
  return expected;
}

struct Sut {
  device::HostMemory memory;
  Board board{1};
  std::optional<Actor> actor;

  Sut() {
    memory.add_device("gpu-0", kDeviceBytes);
    actor.emplace(memory, std::make_unique<ThreadGroup>(board, 0, 1));
    actor->target.at_poison = [this] { actor->end_workers(); };
    actor->sync();
  }
  void arm(const std::string& step) {
    actor->target.failing = step == "bad result" ? "" : step;
    const bool bad = step == "bad result";
    actor->target.edit_result = [bad](wire::CommitResult& result) {
      if (bad) result.worker_receipts.front().ready = false;
    };
  }
};

class Step final : public rc::state::Command<Model, Sut> {
 public:
  Step()
      : action_(*rc::gen::weightedElement<Action>(
            {{2, Action::kSetup}, {12, Action::kSync}, {1, Action::kCleanup}})),
        step_(*rc::gen::weightedOneOf<std::size_t>(
            {{3, rc::gen::just<std::size_t>(0)},
             {2, tpsync::fakes::any_of<std::size_t>(1, kFirstTouching)},
             {1, tpsync::fakes::any_of<std::size_t>(0, kSteps.size())}})) {}

  void apply(Model& model) const override { model = expected_of(model, action_, step_).next; }

  void run(const Model& model, Sut& sut) const override {
    const Expected expected = expected_of(model, action_, step_);
    IpcWeightSync& sync = sut.actor->sync();
    fakes::ScriptedTarget& target = sut.actor->target;
    const std::string step = kSteps[step_];
    sut.arm(step);
    const std::size_t before = target.steps.size();
    std::optional<ErrorRecord> error;
    std::int64_t version = 0;
    try {
      if (action_ == Action::kSetup) sync.setup();
      if (action_ == Action::kCleanup) sync.cleanup();
      if (action_ == Action::kSync) version = sync.sync().model_version;
    } catch (const Error& thrown) {
      error = thrown.record();
    }
    const auto touched = [&] {
      return std::find(target.steps.begin() + static_cast<std::ptrdiff_t>(before),
                       target.steps.end(), "init") != target.steps.end();
    };
    RC_ASSERT(error.has_value() == (expected.result != Result::kOk));
    const Model& next = expected.next;
    switch (expected.result) {
      case Result::kOk:
        if (action_ == Action::kSync) RC_ASSERT(version == next.published);
        break;
      case Result::kRefused:
        RC_ASSERT(error->kind == ErrorKind::kInvalidState);
        RC_ASSERT(error->remedy == Remedy::kFixInput);
        RC_ASSERT(target.steps.size() == before);
        break;
      case Result::kUntouched:
        RC_ASSERT(!touched());
        break;
      case Result::kBroken:
        if (action_ == Action::kSync) {
          RC_ASSERT(touched());
          RC_ASSERT(target.steps.back() == "poison");
        }
        break;
    }
    RC_ASSERT((sync.state() == PublicationState::kPoisoned) == next.poisoned);
    if (!next.poisoned) RC_ASSERT(sync.state() == PublicationState::kIdle);
    if (next.set_up) RC_ASSERT(sync.next_version() == next.published + 1);
    RC_ASSERT(sut.memory.live_exports() == 0u);
  }

  void show(std::ostream& out) const override {
    out << (action_ == Action::kSetup  ? "setup"
            : action_ == Action::kSync ? "sync"
                                       : "cleanup")
        << ", failing: \"" << kSteps[step_] << "\"";
  }

 private:
  Action action_;
  std::size_t step_;
};

TEST(PublicationModel, AVersionIsPublishedWholeOrTheRuntimeIsUntouchedOrPoisoned) {
  EXPECT_TRUE(
      tpsync::fakes::model_holds<Step>("publications", [] { return std::make_unique<Sut>(); }));
}

}  // namespace
}  // namespace tpsync::sync
