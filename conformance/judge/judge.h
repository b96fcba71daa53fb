// Judges one run by its trace alone: one verdict per invariant, plus "world" for what the simulated
// world itself reported. Knows the trace's format, the harness's records and the weights' content,
// and nothing of the code that was run, so that both can't share a mistake. Evidence that a trace
// lacks makes that invariant's verdict inconclusive, never a pass.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/trace.h"

namespace tpsync::judge {

enum class Status : std::uint8_t { kPass, kViolation, kInconclusive, kNotApplicable };
std::string_view to_string(Status status);  // "pass", "violation", "inconclusive", "not applicable"

inline constexpr std::uint32_t kNoEvent = 0xffffffff;

struct Verdict {
  std::string id;  // "I1" to "I11", "I4b", "world"
  Status status = Status::kPass;
  std::string text;                // why; empty for a pass
  std::uint32_t event = kNoEvent;  // index of the event that shows a violation
};

struct Judgement {
  std::vector<Verdict> verdicts;  // in the order of the invariants
  std::uint64_t situations = 0;   // that the run was in (situations.h)

  // True if no verdict is a violation and none is inconclusive.
  bool ok() const;
  const Verdict* find(std::string_view id) const;  // nullptr if there is none
  Status worst() const;                            // kViolation before kInconclusive before kPass
  std::string text() const;  // one line per verdict that is neither pass nor not applicable
};

// Keeps expected weights and buffers between traces, so that judging many runs of one world costs
// little. One thread at a time.
class Judge {
 public:
  Judge();
  ~Judge();
  Judge(Judge&&) noexcept;
  Judge& operator=(Judge&&) noexcept;

  Judgement judge(const sim::Trace& trace);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The events of `verdict`'s causal past that matter, oldest first, at most 20, one line each; empty
// if the verdict names no event.
std::string explain(const sim::Trace& trace, const Verdict& verdict);

}  // namespace tpsync::judge
