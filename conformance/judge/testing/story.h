// Hand-made traces for the judge's tests: a small vocabulary that writes the events which a run of
// two actors, a runtime and two workers leaves behind. Nothing is checked here; a story may be as
// wrong as a test wants it to be.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/judge/facts.h"
#include "conformance/judge/judge.h"
#include "conformance/judge/records.h"
#include "conformance/judge/slicer.h"
#include "conformance/judge/view.h"
#include "sim/trace.h"

namespace tpsync::judge::testing {

inline constexpr std::uint32_t kActor0 = 0;
inline constexpr std::uint32_t kActor1 = 1;
inline constexpr std::int64_t kMicrosecond = 1'000;
inline constexpr std::int64_t kSecond = 1'000'000'000;
inline constexpr std::uint16_t kPeerLost = 13;  // as core numbers its kinds of errors

inline std::string error_json(const std::string& kind, const std::string& phase, int rank,
                              const std::string& remedy = "build a new runtime",
                              const std::string& detail = "something failed") {
  return R"({"kind":")" + kind + R"(","remedy":")" + remedy + R"(","phase":")" + phase +
         R"(","rank":)" + std::to_string(rank) + R"(,"subject":"a command","detail":")" + detail +
         R"("})";
}

class Story {
 public:
  Story() {
    trace.seed = 7;
    trace.parameters =
        "world=sim\ntp=2\nactors=2\nphantom=0\ncontent_seed=7\nbase_version=0\n"
        "control_timeout_ns=60000000000\nupdate_timeout_ns=30000000000\n"
        "layers=1\nexperts=2\nhidden=4\nmoe=4\nvocab=70\nheads=2\nkv_heads=1\nhead_dim=2\ntied=0\n";
    start_process(kActor0, "actor", 0, sim::kNoProcess);
    start_process(kActor1, "actor", 1, sim::kNoProcess);
  }

  sim::Trace trace;
  std::int64_t now = 0;
  std::uint64_t group = 0;  // of the newest control group; the shard group is one less
  std::uint64_t sequence = 0;
  std::uint64_t shard_sequence = 0;
  std::uint32_t runtime = 0;  // the newest; its workers follow it
  std::uint64_t publications = 0;

  // ---- single events ----
  std::uint32_t add(std::uint16_t kind, std::uint32_t process, std::uint64_t a = 0,
                    std::uint64_t b = 0, std::uint64_t c = 0, std::string_view text = {}) {
    sim::Event event;
    event.time = now += kMicrosecond;
    event.end = event.time;
    event.process = process;
    event.kind = kind;
    event.a = a;
    event.b = b;
    event.c = c;
    event.text = trace.texts.intern(text);
    trace.events.push_back(event);
    return static_cast<std::uint32_t>(trace.events.size() - 1);
  }
  std::uint32_t add(sim::EventKind kind, std::uint32_t process, std::uint64_t a = 0,
                    std::uint64_t b = 0, std::uint64_t c = 0, std::string_view text = {}) {
    return add(static_cast<std::uint16_t>(kind), process, a, b, c, text);
  }
  std::uint32_t add(Record kind, std::uint32_t process, std::uint64_t a = 0, std::uint64_t b = 0,
                    std::uint64_t c = 0, std::string_view text = {}) {
    return add(static_cast<std::uint16_t>(kind), process, a, b, c, text);
  }
  void op(std::uint32_t process, sim::Op op, std::string_view phase, std::uint64_t a,
          std::uint64_t b, std::uint64_t c = 0) {
    sim::Event& event = trace.events[add(sim::EventKind::kOp, process, a, b, c)];
    event.op = static_cast<std::uint16_t>(op);
    event.phase = trace.texts.intern(phase);
  }
  void log(std::uint32_t process, LogNumber number, std::string_view subject) {
    add(sim::EventKind::kLog, process, 1, 0, static_cast<std::uint64_t>(number), subject);
  }
  void start_process(std::uint32_t index, std::string_view role, std::uint64_t rank,
                     std::uint32_t parent) {
    add(sim::EventKind::kProcessStart, index, rank,
        parent == sim::kNoProcess ? 0 : std::uint64_t{parent} + 1, 0, role);
  }
  void kill(std::uint32_t process, std::uint32_t killer, std::uint64_t signal = 15) {
    add(sim::EventKind::kProcessKill, process, signal,
        killer == sim::kNoProcess ? 0 : std::uint64_t{killer} + 1);
  }
  void exit(std::uint32_t process) { add(sim::EventKind::kProcessExit, process); }

  // ---- calls ----
  void begin(std::uint32_t actor, Call call) {
    add(Record::kCallBegin, actor, static_cast<std::uint64_t>(call));
  }
  void end(std::uint32_t actor, Call call, std::uint64_t value = 0) {
    add(Record::kCallEnd, actor, static_cast<std::uint64_t>(call), 1, value);
  }
  void fail(std::uint32_t actor, Call call, std::string_view error) {
    add(Record::kCallEnd, actor, static_cast<std::uint64_t>(call), 0, 0, error);
  }
  void succeed(std::uint32_t actor, Call call, std::uint64_t value = 0) {
    begin(actor, call);
    end(actor, call, value);
  }

  // ---- what a run consists of ----
  void start_engine(std::uint32_t first = 2) {
    begin(kActor0, Call::kStartEngine);
    runtime = first;
    start_process(runtime, "runtime", 0, kActor0);
    start_process(runtime + 1, "worker", 0, runtime);
    start_process(runtime + 2, "worker", 1, runtime);
    end(kActor0, Call::kStartEngine);
    succeed(kActor1, Call::kStartEngine);
  }
  void setup() {
    begin(kActor0, Call::kSetup);
    begin(kActor1, Call::kSetup);
    group += 2;
    sequence = shard_sequence = 0;
    for (const std::uint64_t made : {group - 1, group}) {
      add(sim::EventKind::kGroupMade, sim::kNoProcess, made, 2, made == group ? 1 : 2);
      add(sim::EventKind::kGroupMember, kActor0, made, 0);
      add(sim::EventKind::kGroupMember, kActor1, made, 1);
    }
    agree();
    end(kActor0, Call::kSetup);
    end(kActor1, Call::kSetup);
  }
  void enter(std::uint32_t actor, std::uint64_t at) {
    add(sim::EventKind::kGroupEnter, actor, group, at, std::uint64_t{1} << 56 | 8);
  }
  void complete(std::uint32_t actor, std::uint64_t at) {
    add(sim::EventKind::kGroupComplete, actor, group, at);
  }
  void lose(std::uint32_t actor, std::uint64_t at, std::uint64_t lost) {
    const auto i = add(sim::EventKind::kGroupFail, actor, group, at, lost + 1);
    trace.events[i].result = kPeerLost;
  }
  void agree() {
    enter(kActor0, sequence);
    enter(kActor1, sequence);
    complete(kActor1, sequence);
    complete(kActor0, sequence);
    ++sequence;
  }
  void enter_shard(std::uint32_t actor) {
    add(sim::EventKind::kGroupEnter, actor, group - 1, shard_sequence, std::uint64_t{4} << 56 | 64);
  }
  void complete_shard(std::uint32_t actor) {
    add(sim::EventKind::kGroupComplete, actor, group - 1, shard_sequence + 1);
  }
  void gather() {
    enter_shard(kActor0);
    enter_shard(kActor1);
    complete_shard(kActor0);
    complete_shard(kActor1);
    ++shard_sequence;
  }
  void begin_sync(std::uint64_t version) {
    add(Record::kPublished, kActor0, version);
    add(Record::kPublished, kActor1, version);
    begin(kActor0, Call::kSync);
    begin(kActor1, Call::kSync);
    agree();
    op(kActor0, sim::Op::kControlBroadcast, "publication-id", group, sequence,
       1000 + publications++);
  }
  void init() {
    log(kActor0, LogNumber::kCommandSent, "init_native_weight_transfer");
    op(kActor0, sim::Op::kChannelWrite, "native-init", 4, 20);
    log(runtime, LogNumber::kCommandReceived, "init_native_weight_transfer");
    agree();
  }
  void attest(std::uint32_t worker) {
    op(worker, sim::Op::kChannelWrite, "finish_native_weight_update", 6, 30);
  }
  void publish(std::uint64_t version) {
    begin_sync(version);
    init();
    gather();
    agree();
    attest(runtime + 1);
    attest(runtime + 2);
    agree();
    end(kActor0, Call::kSync, version);
    end(kActor1, Call::kSync, version);
  }
  std::uint64_t lane(std::uint64_t rank, std::uint64_t version) {
    lanes_.set_world(parse_facts(trace.parameters));
    return lanes_.lanes(version)[rank];
  }
  void observe(std::uint64_t version) {
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      add(Record::kResident, kActor0, rank, lane(rank, version), version);
    }
  }
  void generate(std::uint64_t version) {
    begin(kActor0, Call::kGenerate);
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      add(Record::kTokens, kActor0, version, rank, lane(rank, version));
    }
    end(kActor0, Call::kGenerate, version);
  }
  void fault(std::uint32_t process, std::string_view name, bool visible, std::uint64_t index = 0) {
    add(Record::kFault, process, index, visible ? 1 : 0, 0, name);
  }
  void kill_tree() {
    log(kActor0, LogNumber::kConnectionBroken, "");
    for (std::uint32_t p = runtime; p < runtime + 3; ++p) kill(p, kActor0);
  }
  void counters() {
    for (const char* name : {"processes.live", "processes.zombies", "channels.open_ends",
                             "descriptors", "device.exports", "device.imports"}) {
      add(sim::EventKind::kKernelCounter, sim::kNoProcess, 0, 0, 0, name);
    }
    add(sim::EventKind::kDevicePeak, sim::kNoProcess, 0, 4096, 0);
    add(sim::EventKind::kDevicePeak, sim::kNoProcess, 1, 4096, 0);
  }
  void close() {
    succeed(kActor0, Call::kShutdown);
    for (std::uint32_t p = runtime; p < runtime + 3; ++p) exit(p);
    exit(kActor0);
    exit(kActor1);
    counters();
  }
  // A sync that fails on both actors, after the runtime was touched.
  void failed_publication(std::uint64_t version, const std::string& error) {
    begin_sync(version);
    init();
    kill_tree();
    agree();
    fail(kActor0, Call::kSync, error);
    fail(kActor1, Call::kSync, error);
  }
  void recover(std::uint64_t version) {
    add(Record::kHealed, kActor0);
    start_engine(runtime + 3);
    setup();
    publish(version);
    generate(version);
  }
  void plan(std::string_view fault, std::uint64_t index = 0) {
    trace.parameters += "fault." + std::to_string(index) + "=" + std::string(fault) + "\n";
  }

  static Story clean() {
    Story story;
    story.start_engine();
    story.observe(0);
    story.setup();
    story.publish(1);
    story.observe(1);
    story.generate(1);
    story.close();
    return story;
  }
  // The runtime's channel breaks in the middle of version 1; version 1 is published again.
  static Story faulted() {
    Story story;
    story.plan("channel.eof|visible|fail|end of file|runtime|0|update_native_weights|0");
    story.start_engine();
    story.observe(0);
    story.setup();
    story.begin_sync(1);
    story.init();
    story.fault(story.runtime, "channel.eof", true);
    story.kill_tree();
    story.agree();
    const std::string error = error_json("end of file", "native-transfer-0", 0);
    story.fail(kActor0, Call::kSync, error);
    story.fail(kActor1, Call::kSync, error);
    story.begin(kActor0, Call::kGenerate);
    story.fail(kActor0, Call::kGenerate, error_json("invalid state", "", -1));
    story.recover(1);
    story.close();
    return story;
  }

 private:
  ExpectedLanes lanes_;
};

}  // namespace tpsync::judge::testing
