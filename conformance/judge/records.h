// What the harness adds to a trace beyond the world's own events. Includes nothing of core.
#pragma once

#include <cstdint>
#include <string_view>

namespace tpsync::judge {

// Event kinds from sim::EventKind::kHarness (200) upwards.
enum class Record : std::uint16_t {
  kCallBegin = 200,  // a: Call, b: argument (sleep level, first wake tag given or not)
  kCallEnd = 201,    // a: Call, b: 1 ok, 0 failed; c: value (version); text: error record as JSON
  kTokens = 202,     // one per lane: a: version stamped, b: worker rank, c: token
  kResident = 203,  // a: worker rank, b: lane as generate would give it now, c: version it would be
                    // stamped with
  kFault = 204,   // a fault was applied here: text: fault name; a: index in the plan, b: 1 visible,
                  // 0 silent
  kHealed = 205,  // no fault applies from here on
  kPublished = 206,  // the trainer holds version a now (an optimizer step)
  kScript = 207,     // text: a mark of the scenario's script
  kKept = 209,  // an actor's script kept an outcome: b: 1 ok, 0 failed; c: version; text: error
                // record as JSON
  kCheckFailed = 210,  // text: what a script had expected and did not find
  kFound = 208,  // phantom worlds: what differs in a worker's weights; a: worker, text: tensor and
                 // ranges
};

enum class Call : std::uint64_t {
  kStartEngine = 1,
  kSetup = 2,
  kSync = 3,
  kSleep = 4,
  kWakeWeights = 5,
  kWakeAll = 6,
  kGenerate = 7,
  kHealth = 8,
  kSetVersion = 9,
  kInit = 10,
  kStart = 11,
  kUpdate = 12,
  kFinish = 13,
  kRelease = 14,
  kPoison = 15,
  kShutdown = 16,
  kCleanup = 17,
};

constexpr std::string_view to_string(Call call) {
  switch (call) {
    case Call::kStartEngine:
      return "start-engine";
    case Call::kSetup:
      return "setup";
    case Call::kSync:
      return "sync";
    case Call::kSleep:
      return "sleep";
    case Call::kWakeWeights:
      return "wake-weights";
    case Call::kWakeAll:
      return "wake-all";
    case Call::kGenerate:
      return "generate";
    case Call::kHealth:
      return "health";
    case Call::kSetVersion:
      return "set-version";
    case Call::kInit:
      return "init";
    case Call::kStart:
      return "start";
    case Call::kUpdate:
      return "update";
    case Call::kFinish:
      return "finish";
    case Call::kRelease:
      return "release";
    case Call::kPoison:
      return "poison";
    case Call::kShutdown:
      return "shutdown";
    case Call::kCleanup:
      return "cleanup";
  }
  return "unknown";
}

// Keys of Trace::parameters, one "key=value" per line. Sizes in bytes, times in nanoseconds.
//   world=sim  tp  actors  phantom=0|1  content_seed  control_timeout_ns  update_timeout_ns
//   command_timeout_ns   the longest timeout of any command
//   kill_ns           the kill routine at its longest; 10.5 s if absent
//   notice_ns         in which a visible fault is noticed; 1 s if absent
//   slack_ns          that bounds on whole calls and trees have in a world of real time; 0 if
//   absent layers experts hidden moe vocab heads kv_heads head_dim tied=0|1   (the model's shape)
//   dtype             of the resident weights: bfloat16 (if absent), float16, float32
//   lane_bytes        of each parameter that a lane covers, from its first; all of them if absent
//   overlap=1         the next chunk is gathered while one is transferred
//   base_version      of the checkpoint
//   device_baseline   bytes in use on each device before the run; 0 if absent
//   expect=failure    the world is made so that a publication must fail without a fault
//   recovery=other-world   this world need not recover by itself
//   fault.N=name|visible or silent|fail, survive or either|kinds,...|role|rank|phase|chunk
//                     the plan's Nth fault, what it demands of the publication that it strikes, the
//                     error kinds that explain it, and its moment; role empty if it has none
// A failure whose subject or detail contains "injected" counts as the scenario's own fault.

}  // namespace tpsync::judge
