// Files and handles. What is read must be written so that it is read alike; what is not read is
// refused by the error that the reader's contract names.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "conformance/command/replay_file.h"
#include "conformance/command/result_file.h"
#include "conformance/explore/random_plans.h"
#include "conformance/fuzz/targets.h"
#include "conformance/fuzz/worlds.h"
#include "conformance/judge/judge.h"
#include "conformance/scenarios/scripts.h"
#include "faults/plan.h"
#include "sim/trace_file.h"
#include "tpsync/device/host_device.h"
#include "tpsync/model/config.h"
#include "tpsync/rollout/config_file.h"
#include "tpsync/transfer/importer.h"
#include "tpsync/wire/manifest.h"

namespace tpsync::fuzz {

namespace {

// Runs `read`; true if it read something. Allowed is InvalidInput of one of these kinds, with a
// subject.
template <typename Read>
bool reads(std::initializer_list<ErrorKind> kinds, Read read) {
  try {
    read();
    return true;
  } catch (const InvalidInput& error) {
    const bool known = std::find(kinds.begin(), kinds.end(), error.kind()) != kinds.end();
    if (!known || error.record().subject.empty()) {
      throw Finding(std::string("refused by the wrong error: ") + error.what());
    }
    return false;
  }
}

// `again` reads a text and writes what it read.
template <typename Again>
void check_reader(ByteView bytes, Again again) {
  std::string first;
  if (!reads({ErrorKind::kInvalidConfig, ErrorKind::kUnsupported},
             [&] { first = again(std::string(as_text(bytes))); })) {
    return;
  }
  std::string second;
  if (!reads({ErrorKind::kInvalidConfig, ErrorKind::kUnsupported},
             [&] { second = again(first); })) {
    throw Finding("what was read is written as what is refused:\n" + first);
  }
  if (first != second) throw Finding("what was read is written as something else:\n" + first);
}

std::vector<ByteBuffer> files_of(const std::string& folder) {
  std::set<std::string> paths;
  const std::string root = std::string(TPSYNC_SOURCE_DIR) + "/conformance/";
  for (const auto& entry : std::filesystem::directory_iterator(root + folder)) {
    paths.insert(entry.path().string());
  }
  std::vector<ByteBuffer> contents;
  for (const std::string& path : paths) {
    std::ifstream stream(path, std::ios::binary);
    contents.push_back(buffer_of(std::string(std::istreambuf_iterator<char>(stream), {})));
  }
  return contents;
}

conformance::ExploreResult explored() {
  conformance::SimRunner runner;
  conformance::ExploreResult result;
  result.version = "0";
  result.parameters = "--faults random";
  result.tp = 1;
  const conformance::WorldSpec spec = world_of(1);
  conformance::ExploreOptions options;
  result.reports.push_back(conformance::explore_random(runner, spec, {.count = 3}, options));
  conformance::ExploreReport& report = result.reports.front();
  report.coverage = {};
  report.coverage.cell({"rank 0", "setup"}, "channel.eof") = {3, 2};
  report.findings.resize(std::min<std::size_t>(report.findings.size(), 1));
  report.findings.push_back(report.fault_free);
  report.findings.back().id = "I1";
  report.findings_by_id["I1"] = 1;
  return result;
}

}  // namespace

void read_model_config(ByteView bytes) {
  reads({ErrorKind::kInvalidConfig, ErrorKind::kUnsupported}, [&] {
    const model::ModelConfig config = model::parse_model_config(as_text(bytes), "file");
    if (config.num_hidden_layers == 0 || config.num_attention_heads % config.num_key_value_heads) {
      throw Finding("an impossible model was read");
    }
  });
}

std::vector<ByteBuffer> model_config_seeds() { return files_of("models"); }

void read_config_file(ByteView bytes) {
  reads({ErrorKind::kInvalidConfig}, [&] {
    const rollout::ConfigFile config = rollout::parse_config(as_text(bytes), "file");
    reads({ErrorKind::kInvalidConfig}, [&] { rollout::check_budgets(config); });
  });
}

std::vector<ByteBuffer> config_file_seeds() {
  std::vector<ByteBuffer> seeds = files_of("configs");
  for (const char* text :
       {"{\"rollout\": {\"tp_size\": 4, \"top_p\": 0.5}, \"sync\": {\"overlap\": true}}",
        "rollout:\n  engine_kwargs: {a: 1, b: [x, 2.5, null], c: {d: \"1\"}}\n  dtype: float16\n",
        "rollout:\n  request_timeout_s: 0.5\n  shutdown_timeout_s: ~\ntrainer:\n"
        "  weight_sync_interval: 3\n",
        "--- &a [*a, !x y]\n", "? a\n: b\n"}) {
    seeds.push_back(buffer_of(text));
  }
  return seeds;
}

void read_fault_plan(ByteView bytes) {
  check_reader(
      bytes, [](const std::string& text) { return faults::to_json(faults::plan_from_json(text)); });
}

std::vector<ByteBuffer> fault_plan_seeds() {
  std::vector<ByteBuffer> seeds;
  conformance::SimRunner runner;
  conformance::RandomPlans plans(runner, world_of(2));
  for (std::uint64_t number = 0; number < 40; ++number) {
    seeds.push_back(buffer_of(faults::to_json(plans.draw(number).options.plan)));
  }
  return seeds;
}

void read_replay(ByteView bytes) {
  check_reader(bytes, [](const std::string& text) {
    return conformance::to_json(conformance::replay_from_json(text));
  });
}

std::vector<ByteBuffer> replay_seeds() {
  std::vector<ByteBuffer> seeds = files_of("explore/found");
  conformance::Replay replay;
  replay.spec = world_of(4);
  replay.scenario = "publish.once";
  replay.world = 1;
  seeds.push_back(buffer_of(conformance::to_json(replay)));
  return seeds;
}

void read_result(ByteView bytes) {
  check_reader(bytes, [](const std::string& text) {
    const conformance::ExploreResult result = conformance::result_from_json(text);
    reads({ErrorKind::kInvalidConfig}, [&] { conformance::merged({{"file", result}}); });
    return conformance::to_json(result).dump(-1, ' ', false,
                                             nlohmann::json::error_handler_t::replace);
  });
}

std::vector<ByteBuffer> result_seeds() {
  std::vector<ByteBuffer> seeds;
  conformance::ExploreResult result = explored();
  seeds.push_back(buffer_of(conformance::to_json(result).dump()));
  result.reports.front().findings.clear();
  result.shard = {1, 3};
  seeds.push_back(buffer_of(conformance::to_json(result).dump()));
  return seeds;
}

void read_and_judge_trace(ByteView bytes) {
  sim::Trace trace;
  try {
    sim::read_trace(as_text(bytes), trace);
  } catch (const sim::TraceFormatError&) {
    return;
  }
  const std::string text = sim::write_trace(trace);
  sim::Trace again;
  try {
    sim::read_trace(text, again);
  } catch (const sim::TraceFormatError& error) {
    throw Finding(std::string("a trace is written as none: ") + error.what());
  }
  if (sim::hash_of(again) != sim::hash_of(trace)) {
    throw Finding("a trace is written as another one");
  }
  judge::Judge judge;
  const judge::Judgement judgement = judge.judge(trace);
  for (const judge::Verdict& verdict : judgement.verdicts) judge::explain(trace, verdict);
}

std::vector<ByteBuffer> trace_seeds() {
  std::vector<ByteBuffer> seeds;
  conformance::SimRunner runner;
  conformance::RandomPlans plans(runner, world_of(1));
  // Short ones: an engine that starts and is shut down, a script that only fails, and a publication
  // that ends early.
  const auto add = [&](const conformance::SimOptions& options, const conformance::Script& script) {
    runner.run(world_of(1), options, script);
    seeds.push_back(buffer_of(sim::write_trace(runner.trace())));
  };
  add({}, [](conformance::Actor& actor) { actor.mark("nothing"); });
  add({}, [](conformance::Actor& actor) {
    actor.start_engine();
    actor.generate();
    actor.shutdown();
  });
  for (std::uint64_t number = 0; seeds.size() < 4 && number < 200; ++number) {
    const conformance::RandomPlan plan = plans.draw(number);
    runner.run(plan.spec, plan.options, conformance::publish_once());
    if (runner.trace().events.size() > 700) continue;
    seeds.push_back(buffer_of(sim::write_trace(runner.trace())));
  }
  return seeds;
}

// Records, each a piece of name, dtype and up to four dimensions. Whoever hashes them one by one
// must come to what hashing all at once comes to.
void build_manifest_of(ByteView bytes) {
  Input input(bytes);
  std::vector<wire::TensorRecord> records;
  while (!input.done() && records.size() < 64) {
    wire::TensorRecord record;
    record.name = as_text(input.take(input.byte() % 32));
    record.dtype = as_text(input.take(input.byte() % 32));
    record.numel = 1;
    const int dimensions = input.byte() % 5;
    for (int i = 0; i < dimensions; ++i) {
      record.shape.push_back(static_cast<std::int16_t>(input.word()));
      record.numel *= static_cast<std::uint64_t>(record.shape.back());
    }
    record.nbytes = record.numel * (input.byte() % 8);
    records.push_back(std::move(record));
  }
  try {
    const wire::Manifest whole = wire::build_manifest(records);
    wire::ManifestBuilder builder;
    for (const wire::TensorRecord& record : records) builder.add(record);
    if (!(builder.finish() == whole)) throw Finding("two ways give two manifests");
    if (!wire::is_fingerprint(whole.fingerprint)) throw Finding("the fingerprint is none");
    if (whole.tensor_count != records.size()) throw Finding("tensors are miscounted");
  } catch (const InvalidInput& error) {
    if (error.kind() != ErrorKind::kProtocol) throw Finding(error.what());
  }
}

std::vector<ByteBuffer> manifest_seeds() {
  std::vector<ByteBuffer> seeds;
  for (const std::string name :
       {"a.weight", "model.layers.0.\xc3\xa9", "\xf0\x9f\x8c\x8d\x01\"\\"}) {
    Output out;
    for (const std::uint64_t rows : {0, 3, 700}) {
      const std::string own = name + std::to_string(rows);
      out.byte(own.size()).bytes(as_view(own)).byte(14).bytes(as_view("torch.bfloat16"));
      out.byte(2).word(rows).word(5).byte(2);
    }
    seeds.push_back(std::move(out.buffer));
  }
  return seeds;
}

// The first two bytes say how many bytes are asked for, the rest is a handle: one that is really
// exported, changed by the bytes that follow its position.
void open_handle(ByteView bytes) {
  Input input(bytes);
  const std::uint64_t asked = input.word();
  device::HostMemory memory;
  memory.add_device("gpu-0", 8192);
  memory.add_device("gpu-1", 8192);
  std::uint64_t open = 0;
  {
    device::HostDevice actor(memory, {"gpu-0", device::Landing::kAtLaunch});
    device::HostDevice worker(memory, {"gpu-0", device::Landing::kAtLaunch});
    const ByteBuffer real = actor.export_region(
        actor.allocate({.bytes = 4096, .kind = device::RegionKind::kExportable, .tag = {}}));
    ByteBuffer handle = real;
    const bool whole = (input.byte() & 1) != 0;
    if (whole) handle.clear();
    while (!whole && !input.done()) {
      const std::size_t at = input.byte() % handle.size();
      handle[at] ^= static_cast<std::byte>(input.byte());
    }
    const ByteView rest = input.rest();
    handle.insert(handle.end(), rest.begin(), rest.end());
    wire::HandleMap handles;
    handles.entries.emplace_back("gpu-0", handle);
    transfer::Importer importer(worker);
    try {
      importer.open_all(handles, std::vector{worker.uuid()}, asked);
      if (handle != real) throw Finding("an altered handle was opened");
      if (asked > 4096) throw Finding("more was opened than there is");
    } catch (const PeerViolation&) {
    } catch (const RuntimeBroken& error) {
      if (error.kind() != ErrorKind::kIpc) throw Finding(error.what());
    }
    importer.release();
    open = memory.open_imports();
  }
  if (open != 0) throw Finding("an import was left open");
}

std::vector<ByteBuffer> handle_seeds() {
  std::vector<ByteBuffer> seeds;
  seeds.push_back(Output().word(4096).byte(0).buffer);
  seeds.push_back(Output().word(4097).byte(0).buffer);
  seeds.push_back(Output().word(1).byte(1).bytes(ByteBuffer(40, std::byte{1})).buffer);
  for (std::uint64_t at = 0; at < 48; at += 3) {
    seeds.push_back(Output().word(64).byte(0).byte(at).byte(1).buffer);
  }
  return seeds;
}

}  // namespace tpsync::fuzz
