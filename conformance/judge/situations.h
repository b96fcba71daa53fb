// Situations: states of a world that a run has been in, told from its trace alone. Exploration and
// scenarios count the runs that reach each, so that a situation which nobody reaches any more is
// noticed: what is never tried is never tested.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "conformance/judge/view.h"

namespace tpsync::judge {

enum class Situation : std::uint8_t {
  kCommitted,
  kSteady,
  kRecovered,
  kRebuilt,
  kFailedUntouched,
  kFailedTouched,
  kOutcomeSplit,
  kOutcomeUnknown,
  kPeerLost,
  kTwoFailAtOneGate,
  kOtherRankFails,
  kGenerateRefused,
  kBrokenTried,
  kLeakAnnounced,
  kActorKilledInSync,
  kRankZeroKilledTouched,
  kRuntimeKilledPending,
  kWorkerKilledInUpdate,
  kWorkerKilledInFinish,
  kKilledDuringPoison,
  kActorStopped,
  kRuntimeStopped,
  kWorkerStopped,
  kRuntimeOrphaned,
  kRuntimeLeftPending,
  kTerminateIgnored,
  kSpawnFailed,
  kEndBehindBytes,
  kParentSeesEnd,
  kRuntimeSeesParentEnd,
  kWorkerSeesEnd,
  kPipeFull,
  kTimeoutInFlight,
  kReplyAfterBreak,
  kCollectivePartial,
  kRankLostInside,
  kAlarm,
  kLeftInside,
  kGatherPartial,
  kGatherAborted,
  kCopyInPieces,
  kCopyVanished,
  kLoadBesideGather,
  kAddressReused,
  kAddressReusedWhileMapped,
  kFreedWhileMapped,
  kMemoryExhausted,
  kImportFailed,
  kDiedWithImport,
  kDiedWithExport,
  kDeviceLost,
  kSleptKeeping,
  kSleptDiscarding,
  kTwoFaults,
  kThreeFaults,
  kFaultAfterBreak,
  kFaultInRelease,
  kCount_,
};
inline constexpr std::size_t kSituationCount = static_cast<std::size_t>(Situation::kCount_);
static_assert(kSituationCount <= 64, "they are kept as bits of one word");

struct SituationRow {
  Situation situation;
  std::string_view id;    // "channel.end-behind-bytes"
  std::string_view what;  // one sentence
  bool rare = false;      // fixed seeds of a small search may miss it
};
// In the order of the enumerators.
std::span<const SituationRow> all_situations();

using SituationSet = std::uint64_t;
constexpr SituationSet bit_of(Situation situation) {
  return SituationSet{1} << static_cast<unsigned>(situation);
}

// Keeps buffers between traces.
class SituationReader {
 public:
  // `view` was made of the same trace.
  SituationSet read(const View& view);

 private:
  struct Collective {
    std::uint64_t group = 0;
    std::uint64_t sequence = 0;
    std::uint32_t entered = 0;
    std::uint32_t completed = 0;
    std::uint32_t failed = 0;
    std::uint32_t pieces = 0;
  };

  struct Memory {
    std::uint64_t key = 0;
    std::uint64_t address = 0;
    std::uint64_t imports = 0;  // open ones
    std::uint32_t owner = kNone;
  };

  void reach(Situation situation) { reached_ |= bit_of(situation); }
  void read_event(const View& view, const sim::Event& event);
  void read_operation(const View& view, const sim::Event& event);
  void read_failed(const sim::Event& event);
  void read_memory(const sim::Event& event);
  void freed(const Memory& memory);
  void read_calls(const View& view);
  void read_processes(const View& view);
  void read_groups(const View& view);
  Collective& collective(const sim::Event& event);
  std::uint64_t& moved(std::vector<std::uint64_t>& by_end, std::uint64_t end);

  SituationSet reached_ = 0;
  std::vector<std::uint64_t> written_;  // bytes by channel end
  std::vector<std::uint64_t> read_;
  std::vector<Memory> live_;
  std::vector<std::uint64_t> freed_;  // addresses
  std::vector<std::uint64_t> freed_mapped_;
  std::vector<std::uint64_t> landed_;       // by process: its last landing's serial number + 1
  std::vector<std::uint64_t> terminating_;  // by process: whose group it signalled last
  std::vector<Collective> collectives_;
  std::uint32_t breaker_ = kNone;  // declared its connection broken, and is still in that call
  std::int32_t gather_last_ = -1;  // the chunk that was gathered last
  bool group_failed_ = false;
};

}  // namespace tpsync::judge
