// The trace of one simulated run: everything that happened, as fixed binary records in the order of
// their effects, and all that a judge needs.
//
// Includes nothing of core, so that whoever judges a trace shares no code with what is judged. The
// hash covers every field of every record, the choices, the texts and the parameters; records have
// no padding. Texts are interned in the order of their first use and hashed by content.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tpsync::sim {

// One value per operation of a seam. Names are in to_string(); values are part of the file format.
enum class Op : std::uint16_t {
  kNone = 0,
  kClockNow,
  kClockSleep,
  kHostQuery,
  kRandomFill,
  kThreadSpawn,
  kThreadJoin,
  kMutexLock,
  kMutexUnlock,
  kConditionWait,
  kConditionNotify,
  kChannelPair,
  kChannelRead,
  kChannelWrite,
  kChannelSendDescriptors,
  kChannelReceiveDescriptors,
  kChannelClose,
  kChannelWaitReadable,
  kProcessSpawn,
  kProcessAttach,
  kProcessWait,
  kProcessSignal,
  kProcessSignalGroup,
  kProcessGroupAlive,
  kControlWord,
  kControlGather,
  kControlBroadcast,
  kControlLostPeer,
  kControlRaiseAlarm,
  kControlAlarm,
  kControlLeave,
  kShardGather,
  kShardWait,
  kShardAbort,
  kDeviceMemory,
  kDeviceAllocate,
  kDeviceFree,
  kDeviceExport,
  kDeviceRevoke,
  kDeviceImport,
  kDeviceCloseImport,
  kDeviceSleep,
  kDeviceWake,
  kDeviceCreateStream,
  kDeviceDestroyStream,
  kDevicePrepare,
  kDeviceLaunch,
  kDeviceLaunchDigests,
  kDeviceFill,
  kDeviceUpload,
  kDeviceDownload,
  kDeviceSynchronize,
  kWordsMake,
  kWordsOpen,
  kWordsLoad,
  kWordsStore,
  kWordsAdd,
  kWordsWait,
  kWordsWake,
  kCount_,
};
inline constexpr std::size_t kOpCount = static_cast<std::size_t>(Op::kCount_);

// What a record tells. Unless said otherwise, `process` is the process that did it, and a, b, c are
// zero. "key" of a device memory is its serial number in the world, from 1.
enum class EventKind : std::uint16_t {
  kNone = 0,

  // A seam operation: entered at `time`, over at `end` (-1: never, its process died inside).
  // `result` is kOk, kPending or the number of the error's kind. Per operation:
  //   channel.read/write    a: channel end, b: bytes moved, c: hash of these bytes
  //   channel.pair          a, b: the two ends
  //   channel.close, wait   a: channel end (wait: index found, b: how many were asked)
  //   descriptors           a: channel end, b: count, c: hash of the objects
  //   process.*             a: pid, b: signal / exit code, c: 1 where signaled (wait) or true
  //   control.*             a: group, b: sequence number, c: hash of the contribution given
  //   control.lost/alarm    a: group, b: 1 if there is one, c: its rank
  //   shard.*               a: group, b: sequence number, c: bytes of all parts
  //   device regions        a: key of the memory, b: bytes, c: kind, 1 for keep, or region number
  //   device.memory         a: free bytes, b: total bytes
  //   device.launch, fill   a: stream, b: operation serial, c: items or bytes
  //   synchronize           a: stream, b: operations completed by it
  //   words.make, open      a: array, b: how many words
  //   words.*               a: array, b: index, c: value read, stored or waited to change, or sum
  kOp = 1,

  kProcessStart = 10,  // text: role, a: rank, b: parent's index + 1 (0: none), c: device
  kProcessExit = 11,   // a: exit code; the body returned
  kProcessKill = 12,   // a: signal number, b: process that did it + 1 (0: the world)
  kProcessCrash = 13,  // text: the error that left the body
  kProcessStop = 14,
  kProcessResume = 15,
  kProcessReaped = 16,    // by process a
  kProcessLeft = 17,      // at its end: a: exports, b: imports, c: regions that it still had
  kProcessOrphaned = 18,  // its parent ended; it is told to die

  kChannelEnd = 20,     // a: channel end, b: 1 closed by its process, 2 by the process's death
  kDescriptorGot = 21,  // a: descriptor number, b: object
  kDescriptorClosed = 22,

  kGroupMade = 30,       // a: group, b: size, c: 1 control, 2 shard
  kGroupMember = 31,     // a: group, b: rank, c: of a real group, its kind as above
  kGroupEnter = 32,      // a: group, b: sequence, c: kind<<56 | root<<48 | bytes
  kGroupDelivered = 33,  // a: group, b: sequence, c: mask of ranks whose contribution has arrived
  kGroupComplete = 34,   // a: group, b: sequence, c: hash of what this rank received
  kGroupFail = 35,       // a: group, b: sequence, c: lost rank + 1, result: error kind
  kGroupLost = 36,       // a: group, b: rank that is known lost now
  kGroupLeave = 37,      // a: group, b: rank
  kGroupAlarm = 38,      // a: group, b: rank
  kGroupPiece = 39,      // shard group: a: group, b: sequence, c: from rank<<32 | bytes landed

  kDeviceAllocated = 50,  // a: key, b: simulated address, c: bytes
  kDeviceFreed = 51,      // a: key, b: imports still open
  kDeviceExported = 52,   // a: key, b: address
  kDeviceRevoked = 53,
  kDeviceImported = 54,      // a: key, b: imports now open, c: device
  kDeviceImportClosed = 55,  // a: key, b: imports left
  kDeviceSlept = 56,         // a: key, b: 1 if kept
  kDeviceWoken = 57,
  kDeviceLanding = 58,   // a: key of destination, b: operation serial, c: hash of what landed
  kDeviceVanished = 59,  // a: operation serial, b: pieces that never landed
  kDeviceGone = 60,      // memory given back to the device: a: key, b: bytes
  kDevicePeak = 61,      // at the end: a: device, b: peak bytes, c: bytes now

  kLog = 80,  // a, b: the record's; c: LogEvent; text: subject; result: 0; next event kLogText
  kLogText = 81,

  kViolation = 90,  // text: name ("race.copy"), a, b, c as the violation says

  kKernelCounter = 100,  // at the end: text: name, a: value

  kHarness = 200,  // and above: records of whoever runs the world
};

inline constexpr std::uint16_t kOk = 0;
inline constexpr std::uint16_t kPending = 0xffff;
inline constexpr std::uint16_t kOtherError = 0xfffe;
inline constexpr std::uint32_t kNoProcess = 0xffffffff;

struct Event {
  std::int64_t time = 0;  // virtual nanoseconds
  std::int64_t end = 0;   // of operations
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint64_t c = 0;
  std::uint32_t process = kNoProcess;  // index into processes
  std::uint32_t phase = 0;             // text
  std::int32_t chunk = 0;
  std::uint32_t occurrence = 0;  // of op within (process, phase, chunk), from 0
  std::uint32_t text = 0;
  std::uint16_t kind = 0;
  std::uint16_t op = 0;
  std::uint16_t result = kOk;
  std::uint16_t thread = 0;  // of the process, from 0
  std::uint32_t reserved = 0;

  friend bool operator==(const Event&, const Event&) = default;
};
static_assert(sizeof(Event) == 72 && std::has_unique_object_representations_v<Event>);

// One choice of the scheduler among several runnable threads.
struct Choice {
  std::uint32_t at_event = 0;    // events recorded before it
  std::uint32_t candidates = 0;  // hash of (process, thread) of all candidates in order
  std::uint16_t count = 0;       // at least 2
  std::uint16_t chosen = 0;      // index into the candidates

  friend bool operator==(const Choice&, const Choice&) = default;
};
static_assert(sizeof(Choice) == 12 && std::has_unique_object_representations_v<Choice>);

// Interned texts; number 0 is the empty text.
class TextTable {
 public:
  TextTable() { clear(); }
  void clear();
  std::uint32_t intern(std::string_view text);
  std::string_view at(std::uint32_t id) const {
    return std::string_view(bytes_).substr(starts_[id], starts_[id + 1] - starts_[id]);
  }
  std::uint32_t size() const { return static_cast<std::uint32_t>(starts_.size() - 1); }
  std::string_view bytes() const { return bytes_; }
  const std::vector<std::uint32_t>& starts() const { return starts_; }

 private:
  void grow();
  std::string bytes_;
  std::vector<std::uint32_t> starts_;
  std::vector<std::uint32_t> slots_;  // open addressing; id + 1
};

struct Trace {
  std::uint64_t seed = 0;
  std::string parameters;  // of the world, as text; free form
  std::vector<Event> events;
  std::vector<Choice> choices;
  TextTable texts;

  void clear() {
    seed = 0;
    parameters.clear();
    events.clear();
    choices.clear();
    texts.clear();
  }
};

std::string_view to_string(Op op);           // "channel.read"
std::optional<Op> op_named(std::string_view name);
std::string_view to_string(EventKind kind);  // "process.start"

// 128 bits over everything in the trace.
struct TraceHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const TraceHash&, const TraceHash&) = default;
};
TraceHash hash_of(const Trace& trace);
std::string to_text(const TraceHash& hash);  // 32 lower-case hex digits

}  // namespace tpsync::sim
