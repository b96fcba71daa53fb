// The kill routine step by step, against a scripted process in virtual time.
#include "tpsync/base/process.h"

#include <gtest/gtest.h>

#include <string>

namespace tpsync {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class VirtualClock final : public Clock {
 public:
  TimePoint now() noexcept override { return now_; }
  void sleep_until(TimePoint until) noexcept override { now_ = std::max(now_, until); }

 private:
  TimePoint now_{1'000'000};
};

constexpr Duration kNever = Duration::max();

// Ends a fixed time after the signal that reaches it; the leader and the rest of its group apart.
struct Script {
  bool leader_alive = true;
  bool leader_in_group = true;
  bool others_alive = false;
  Duration leader_needs_after_term = kNever;
  Duration leader_needs_after_kill = milliseconds(0);
  Duration others_need_after_term = kNever;
  Duration others_need_after_kill = milliseconds(0);
};

class ScriptedProcess final : public Process {
 public:
  ScriptedProcess(Clock& clock, const Script& script) : clock_(clock), script_(script) {
    if (!script.leader_alive) leader_end_ = clock.now();
    if (!script.others_alive) others_end_ = clock.now();
  }

  std::int64_t pid() const override { return 1; }
  std::optional<ExitStatus> wait(Deadline deadline) noexcept override {
    if (leader_end_ <= deadline.time()) {
      clock_.sleep_until(leader_end_);
      return ExitStatus{};
    }
    clock_.sleep_until(deadline.time());
    return std::nullopt;
  }
  bool signal_group(Signal signal) noexcept override {
    if (!group_alive()) return false;
    note("group", signal);
    if (script_.leader_in_group) reach_leader(signal);
    reach(others_end_, signal, script_.others_need_after_term, script_.others_need_after_kill);
    return true;
  }
  bool signal(Signal signal) noexcept override {
    if (leader_end_ <= clock_.now()) return false;
    note("leader", signal);
    reach_leader(signal);
    return true;
  }
  bool group_alive() noexcept override {
    return (script_.leader_in_group && leader_end_ > clock_.now()) || others_end_ > clock_.now();
  }

  const std::string& signals() const { return signals_; }

 private:
  void note(const char* whom, Signal signal) {
    signals_ += std::string(whom) + (signal == Signal::kKill ? " KILL " : " TERM ");
  }
  void reach_leader(Signal signal) {
    reach(leader_end_, signal, script_.leader_needs_after_term, script_.leader_needs_after_kill);
  }
  void reach(TimePoint& end, Signal signal, Duration after_term, Duration after_kill) {
    const Duration needs = signal == Signal::kKill ? after_kill : after_term;
    if (needs == kNever) return;
    end = std::min(end, clock_.now() + needs);
  }

  Clock& clock_;
  Script script_;
  TimePoint leader_end_{INT64_MAX};
  TimePoint others_end_{INT64_MAX};
  std::string signals_;
};

struct Outcome {
  bool gone = false;
  std::string signals;
  Duration took{0};
};

Outcome run(const Script& script) {
  VirtualClock clock;
  ScriptedProcess process(clock, script);
  const TimePoint start = clock.now();
  Outcome outcome;
  outcome.gone = kill_tree(process, clock);
  outcome.signals = process.signals();
  outcome.took = clock.now() - start;
  return outcome;
}

TEST(KillTree, ObedientLeaderGetsNothingButSigterm) {
  Script script;
  script.leader_needs_after_term = milliseconds(300);
  const Outcome outcome = run(script);
  EXPECT_TRUE(outcome.gone);
  EXPECT_EQ(outcome.signals, "group TERM ");
  EXPECT_EQ(outcome.took, milliseconds(300));
}

TEST(KillTree, LeaderThatIgnoresSigtermIsKilledAfterFiveSeconds) {
  const Outcome outcome = run({});
  EXPECT_TRUE(outcome.gone);
  EXPECT_EQ(outcome.signals, "group TERM group KILL ");
  EXPECT_EQ(outcome.took, seconds(5));
}

TEST(KillTree, GroupOfALeaderThatIsGoneIsEndedWithinHalfASecond) {
  Script script;
  script.leader_alive = false;
  script.others_alive = true;
  const Outcome outcome = run(script);
  EXPECT_TRUE(outcome.gone);
  EXPECT_EQ(outcome.signals, "group TERM group KILL ");
  EXPECT_EQ(outcome.took, milliseconds(500));
}

TEST(KillTree, OthersThatOutliveAnObedientLeaderAreEndedToo) {
  Script script;
  script.others_alive = true;
  script.leader_needs_after_term = milliseconds(100);
  const Outcome outcome = run(script);
  EXPECT_TRUE(outcome.gone);
  EXPECT_EQ(outcome.signals, "group TERM group TERM group KILL ");
  EXPECT_EQ(outcome.took, milliseconds(600));
}

TEST(KillTree, LeaderWithoutAGroupOfItsOwnIsReachedAlone) {
  Script script;
  script.leader_in_group = false;
  script.leader_needs_after_term = milliseconds(1);
  const Outcome outcome = run(script);
  EXPECT_TRUE(outcome.gone);
  EXPECT_EQ(outcome.signals, "leader TERM ");
}

TEST(KillTree, NothingIsSignalledWhereNothingIsLeft) {
  Script script;
  script.leader_alive = false;
  const Outcome outcome = run(script);
  EXPECT_TRUE(outcome.gone);
  EXPECT_EQ(outcome.signals, "");
  EXPECT_EQ(outcome.took, Duration(0));
}

TEST(KillTree, TreeThatCannotBeKilledIsReportedWithinTheBudget) {
  Script script;
  script.others_alive = true;
  script.leader_needs_after_kill = kNever;
  script.others_need_after_kill = kNever;
  const Outcome outcome = run(script);
  EXPECT_FALSE(outcome.gone);
  EXPECT_EQ(outcome.signals, "group TERM group KILL group TERM group KILL ");
  EXPECT_EQ(outcome.took, milliseconds(10'500));
}

}  // namespace
}  // namespace tpsync
