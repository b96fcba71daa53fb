// Rank-synchronous failure: every rank reports success or failure at each gate, and all of them
// leave it the same way.
//
// A gate costs one fixed word per rank (gate, status); texts travel in a second round, only if
// somebody failed. What ranks exchange stands before a gate, so that what each made of it is agreed
// on. The error that all ranks throw is the first one in rank order; a rank that only
// gave up because of a peer (kPeerFailed) is not a cause and comes last. Ranks that stand at
// different gates are a broken lockstep: PeerViolation kProtocol everywhere; so is a rank that says
// that it failed, and not how.
#pragma once

#include <string>
#include <string_view>

#include "tpsync/base/clock.h"
#include "tpsync/base/log.h"
#include "tpsync/collective/control_group.h"
#include "tpsync/transfer/sender.h"

namespace tpsync::sync {

// A rank that gave up a wait on the weight group (its own timeout, or a peer's alarm) waits for its
// peers until that wait's deadline and this much longer: they leave the same wait by then, and the
// whole failure stays within one control timeout plus the kill routine.
inline constexpr Duration kTimeoutGrace = std::chrono::milliseconds(250);

// The subjects of errors that are about the agreement itself, so that no rank knows what became of
// the others: ranks at different gates, and a rank that failed and whose report of it is none.
inline constexpr std::string_view kLockstep = "lockstep";
inline constexpr std::string_view kReport = "report";

class Consensus final : public transfer::Gates {
 public:
  // Everything outlives the consensus.
  Consensus(collective::ControlGroup& group, Clock& clock, Log& log, Duration control_timeout);

  void enter(std::string_view phase, std::int64_t index) override;
  void agree(const std::optional<ErrorRecord>& local) override;
  std::vector<ByteBuffer> exchange(ByteView own, std::optional<ErrorRecord>& error) override;
  Deadline begin_wait() override;
  collective::ControlGroup& group() override { return group_; }

  // Collective, with an agreement to follow as after an exchange. On rank 0 `bytes` is the input,
  // not empty unless there is an `error`, elsewhere the output; where rank 0 gave nothing, `error`
  // becomes kPeerFailed.
  void broadcast(ByteBuffer& bytes, std::optional<ErrorRecord>& error);

  // Not collective. As begin_wait, for a wait of this rank alone in a phase whose peers wait for it
  // at an exchange: returns half the control timeout from now, so that a rank whose wait failed
  // still meets them there.
  Deadline begin_own_wait();

  // "native-transfer-3" for the chunk phases, "native-init" for the others.
  std::string phase_name() const;

 private:
  template <typename Call>
  void with_phase(Call&& call);
  Deadline deadline_for(const std::optional<ErrorRecord>& error);
  void log_failure(const std::optional<ErrorRecord>& error);

  collective::ControlGroup& group_;
  Clock& clock_;
  Log& log_;
  Duration timeout_;
  Deadline wait_deadline_ = Deadline::at(TimePoint{0});  // of the wait begun last
  std::string_view phase_;
  std::int64_t index_ = 0;
  bool failure_logged_ = false;  // this rank's, in the present phase
  std::vector<std::uint64_t> words_;
};

}  // namespace tpsync::sync
