// The catalogue: one table of all faults. What users list and read, what the injector dispatches
// on, what the explorer enumerates and what a run's outcome is held against all come from it.
//
// A row's rules are functions of one operation of the fault-free run: where the fault applies, what
// the run must then come to, and which errors may explain it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "faults/plan.h"
#include "tpsync/base/errors.h"

namespace tpsync::faults {

// One operation of a fault-free run, as the world recorded it, in the order of the trace.
struct Operation {
  std::string role;
  int rank = 0;
  std::string phase;
  std::int64_t chunk = 0;
  std::string op;
  std::uint64_t occurrence = 0;
  // The process at the other end, for operations of a channel between processes.
  std::string peer_role;
  int peer_rank = 0;
  // Of copies, fills and host copies: every piece landed when its own stream was synchronized and
  // none before, or their process did nothing but the stream's own work until then.
  bool landed_at_sync = false;
  // An export of memory that lies where the process's first export lay: in simulated worlds a
  // handle of that one opens it, too.
  bool at_first_place = false;
  // Of the update's frames and of the worker's launch: tensors of default_expert() are in it.
  bool carries_expert = false;

  // The following four are derived by annotate() from the whole list.
  // The publication carries a content digest.
  bool digested = true;
  // Nothing that another process needs of this one comes at or after this operation: no byte
  // written, no contribution to an agreement.
  bool is_tail = false;
  // The first of its kind in its process, phase and chunk, with that peer.
  bool is_first_to_peer = false;
  // A wait on the weight group that its process enters with a gather under way.
  bool ends_gather = false;
  // How many workers there are, as far as operations tell.
  int workers = 0;
};

Moment moment_of(const Operation& operation);

// What an actor's publication comes to.
enum class Demand : std::uint8_t {
  kFail,     // no surviving actor returns success
  kSurvive,  // every actor commits
  kEither,   // both are right; if it fails, by an admissible kind
};
std::string_view to_string(Demand demand);

// A visible fault shows as an error, an end of file or an exit; a silent one can only be found by a
// deadline, or not at all.
enum class Visibility : std::uint8_t { kVisible, kSilent };
std::string_view to_string(Visibility visibility);

// What is at stake, ascending: a shrinker tries the milder of two faults first.
enum class Severity : std::uint8_t {
  kDelay,    // time alone
  kData,     // something said or moved is not what it should be
  kRefusal,  // an operation fails, and is over
  kLoss,     // a connection, a group or a process is gone for good
};
std::string_view to_string(Severity severity);

// What the injector does, by the seam at which it does it. Faults of one action are told apart by
// their names.
enum class Action : std::uint8_t {
  // processes: before any operation
  kKill,
  kStop,
  kExit,
  kSlow,
  kStall,
  // launcher, host and random numbers
  kRefuseSpawn,
  kHideProcess,
  kIgnoreTerminate,
  kMisreportHost,
  kRefuseEntropy,
  // channels
  kCloseChannel,
  kMuteChannel,
  kDistortMessage,
  kAlterResult,  // or the control group's broadcast
  // groups
  kBreakGroup,
  kHangGroup,
  kDistortContribution,
  kGarbleGather,
  // device
  kRefuseMemory,
  kRefusePrepare,
  kMisreportMemory,
  kRefuseImport,
  kMisreportImport,
  kRefuseExport,
  kStaleExport,
  kDelayCopies,
  kFailCopy,
  kFailSync,
  kDistortCopies,
  kLoseContext,
  // weight source; kLoseExpert also channel and device
  kLoseExpert,
  kExtendSource,
  kDistortPass,
  // inference engine
  kMisbehave,
};

// An argument that a plan may give.
struct Argument {
  std::string_view name;
  std::string_view values;  // "worker|runtime|broadcast"; empty: any text
  bool required = false;
  std::string_view text;
};

struct FaultKind {
  std::string_view name;
  std::string_view family;  // the part before the dot
  // What rows have in common that differ in the field that they alter alone; empty: nothing.
  std::string_view mechanism = {};
  Action action = Action::kKill;
  Visibility visibility = Visibility::kVisible;
  Severity severity = Severity::kData;
  std::string_view summary;      // one line for the list
  std::string_view effect;       // what happens, exactly
  std::string_view moment;       // which operations of which roles, in words
  std::string_view legal;        // what the system may do then
  std::string_view illegal;      // what it must not
  std::string_view proof;        // how a run shows that the effect was there
  std::string_view worlds;       // where it can be injected: "sim process gpu"
  std::string_view counterpart;  // what it stands for in reality
  std::span<const Argument> arguments;
  // The argument lists that the explorer tries; one empty list where there are none.
  std::vector<Arguments> (*variants)() = nullptr;
  bool (*applies)(const Operation&, const Arguments&) = nullptr;
  // Of the operations to which it applies, those at which enumeration tries it: ranks that are in
  // every way alike have representatives. A plan may name any.
  bool (*is_tried)(const Operation&) = nullptr;  // null: all
  Demand (*demand)(const Operation&) = nullptr;
  // What a failed publication may name as its cause, ascending. Empty if the run must survive.
  std::vector<ErrorKind> (*kinds)(const Operation&) = nullptr;
};

// In the order in which they are listed.
std::span<const FaultKind> catalogue();
// nullptr if there is none of that name.
const FaultKind* find_kind(std::string_view name);

// The row's mechanism: its name, unless it shares one.
std::string_view mechanism_of(const FaultKind& kind);

// True if the control group is broken after this fault, or an actor gone: another world has to
// recover.
bool needs_another_world(const Fault& fault);

// The page of a fault, as text.
std::string page_of(const FaultKind& kind);

// Name, arguments and the moment's operation are ones that the catalogue knows. Throws InvalidInput
// kInvalidConfig, subject "<path>.name" and so on.
void check_fault(const Fault& fault, const std::string& path);

// The expert that weights.missing_expert loses where its argument names none; the prefix of its
// tensors' names, without the last dot.
std::string_view default_expert();
std::string expert_of(const Fault& fault);

// Names of arguments, and the values of hop.
inline constexpr std::string_view kHop = "hop";
inline constexpr std::string_view kHopWorker = "worker";
inline constexpr std::string_view kHopRuntime = "runtime";
inline constexpr std::string_view kHopBroadcast = "broadcast";
inline constexpr std::string_view kWhere = "where";
inline constexpr std::string_view kField = "field";
inline constexpr std::string_view kStatus = "status";

}  // namespace tpsync::faults
