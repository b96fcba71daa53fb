// The protocol's spelling, defaults, strictness and the order of its checks, on messages that are
// written by hand.
#include "tpsync/wire/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tpsync/base/errors.h"
#include "tpsync/wire/writer.h"

namespace tpsync::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Value = std::function<void(Writer&)>;
using Pairs = std::vector<std::pair<std::string, Value>>;

Value text(std::string value) {
  return [value](Writer& out) { out.text(value); };
}
Value integer(std::int64_t value) {
  return [value](Writer& out) { out.integer(value); };
}
Value boolean(bool value) {
  return [value](Writer& out) { out.boolean(value); };
}
Value real(double value) {
  return [value](Writer& out) { out.real(value); };
}
Value nil() {
  return [](Writer& out) { out.nil(); };
}
Value bytes(std::string value) {
  return [value](Writer& out) { out.bytes(as_view(value)); };
}
Value list(std::vector<Value> values) {
  return [values](Writer& out) {
    out.array(values.size());
    for (const Value& value : values) value(out);
  };
}
Value map(Pairs pairs) {
  return [pairs](Writer& out) {
    out.map(pairs.size());
    for (const auto& [key, value] : pairs) {
      out.text(key);
      value(out);
    }
  };
}

ByteBuffer message(const Value& value) {
  ByteBuffer out;
  Writer writer(out);
  value(writer);
  return out;
}

Pairs with(Pairs pairs, const Pairs& more) {
  for (const auto& [key, value] : more) {
    bool replaced = false;
    for (auto& [old_key, old_value] : pairs) {
      if (old_key != key) continue;
      old_value = value;
      replaced = true;
    }
    if (!replaced) pairs.emplace_back(key, value);
  }
  return pairs;
}

Pairs without(Pairs pairs, const std::string& key) {
  std::erase_if(pairs, [&key](const auto& pair) { return pair.first == key; });
  return pairs;
}

ByteBuffer request(Command command, const Pairs& payload) {
  Pairs pairs = {{"protocol_version", integer(1)},
                 {"request_id", integer(3)},
                 {"command", text(std::string(name_of(command)))}};
  return message(map(with(pairs, payload)));
}

template <typename Request>
Request decoded(Command command, const Pairs& payload) {
  return std::get<Request>(decode_payload(command, request(command, payload)));
}

void expect_protocol_error(const std::string& subject, const std::function<void()>& decode) {
  try {
    decode();
    ADD_FAILURE() << "decoded, expected a refusal of " << subject;
  } catch (const PeerViolation& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kProtocol) << error.what();
    EXPECT_EQ(error.record().subject, subject) << error.what();
  }
}

void expect_refused(Command command, const Pairs& payload, const std::string& subject) {
  expect_protocol_error(subject, [&] { decode_payload(command, request(command, payload)); });
}

const Pairs kManifest = {{"fingerprint", text(std::string(64, 'a'))},
                         {"tensor_count", integer(2)},
                         {"byte_count", integer(16)}};
const Pairs kHeader = {
    {"protocol_version", integer(1)},       {"transport", text("vllm_native_ipc")},
    {"publication_id", text("id")},         {"model_version", integer(4)},
    {"tp_world_size", integer(1)},          {"expected_manifest", map(kManifest)},
    {"device_uuids", list({text("GPU-a")})}};

// ---- names

TEST(Commands, HaveOneNameEach) {
  const std::pair<Command, std::string_view> names[] = {
      {Command::kStartup, "startup"},
      {Command::kGenerate, "generate"},
      {Command::kSleep, "sleep"},
      {Command::kWakeUp, "wake_up"},
      {Command::kHealth, "health"},
      {Command::kProbeIpc, "probe_ipc"},
      {Command::kInit, "init_native_weight_transfer"},
      {Command::kStart, "start_native_weight_update"},
      {Command::kUpdate, "update_native_weights"},
      {Command::kFinish, "finish_native_weight_update"},
      {Command::kRelease, "release_native_ipc"},
      {Command::kShutdown, "shutdown"}};
  for (const auto& [command, name] : names) {
    EXPECT_EQ(name_of(command), name);
    EXPECT_EQ(command_from(name), command);
    const bool native = command >= Command::kInit && command <= Command::kRelease;
    EXPECT_EQ(is_native(command), native) << name;
  }
  EXPECT_EQ(command_from("reload"), std::nullopt);
  EXPECT_EQ(command_from(""), std::nullopt);
}

TEST(Layouts, HaveOneNameEach) {
  EXPECT_EQ(layout_from(name_of(Layout::kCompact)), Layout::kCompact);
  EXPECT_EQ(layout_from("rank_major"), Layout::kRankMajor);
  EXPECT_EQ(layout_from("column_major"), std::nullopt);
}

TEST(HandleMaps, FindByUuid) {
  const HandleMap handles{{{"GPU-a", ByteBuffer(1)}, {"GPU-c", ByteBuffer(3)}}};
  ASSERT_NE(handles.find("GPU-c"), nullptr);
  EXPECT_EQ(handles.find("GPU-c")->size(), 3u);
  EXPECT_EQ(handles.find("GPU-b"), nullptr);
  EXPECT_EQ(handles.find("GPU-d"), nullptr);
}

// ---- the request's envelope

TEST(RequestHead, FaultsAreFoundInOrder) {
  Pairs pairs = {
      {"command", text("")}, {"request_id", integer(0)}, {"protocol_version", integer(2)}};
  const auto expect = [&pairs](const std::string& subject) {
    expect_protocol_error(subject, [&] { decode_request_head(message(map(pairs))); });
  };
  expect("protocol_version");
  pairs = with(pairs, {{"protocol_version", real(1.0)}});
  expect("protocol_version");
  pairs = with(pairs, {{"protocol_version", boolean(true)}});
  expect("protocol_version");
  pairs = with(pairs, {{"protocol_version", integer(1)}});
  expect("request_id");
  pairs = with(pairs, {{"request_id", boolean(true)}});
  expect("request_id");
  pairs = with(pairs, {{"request_id", real(3.0)}});
  expect("request_id");
  pairs = with(pairs, {{"request_id", integer(3)}});
  expect("command");
  pairs = with(pairs, {{"command", integer(1)}});
  expect("command");
  pairs = with(pairs, {{"command", text("no such command")}});
  const RequestHead head = decode_request_head(message(map(pairs)));
  EXPECT_EQ(head.request_id, 3);
  EXPECT_EQ(head.command, "no such command");
}

TEST(RequestHead, WhatIsNoMapIsRefusedFirst) {
  for (const Value& value : {nil(), integer(1), text("x"), list({}), bytes("x")}) {
    expect_protocol_error("message", [&] { decode_request_head(message(value)); });
  }
  expect_protocol_error("message", [] { decode_request_head({}); });
}

TEST(RequestHead, EveryFieldMustBeThere) {
  const Pairs all = {
      {"protocol_version", integer(1)}, {"request_id", integer(3)}, {"command", text("health")}};
  for (const std::string key : {"protocol_version", "request_id", "command"}) {
    expect_protocol_error(key, [&] { decode_request_head(message(map(without(all, key)))); });
  }
}

TEST(RequestHead, ADuplicateKeyAnywhereOnTheTopIsRefused) {
  Pairs pairs = {{"protocol_version", integer(1)},
                 {"request_id", integer(3)},
                 {"command", text("health")},
                 {"command", text("sleep")}};
  expect_protocol_error("command", [&] { decode_request_head(message(map(pairs))); });
  pairs.back() = {"x", nil()};
  pairs.emplace_back("x", nil());
  expect_protocol_error("message", [&] { decode_request_head(message(map(pairs))); });
}

// ---- payloads

TEST(Payloads, AbsentFieldsTakeTheirDefaults) {
  EXPECT_EQ(decoded<SleepRequest>(Command::kSleep, {}).level, 1);
  EXPECT_THAT(decoded<WakeUpRequest>(Command::kWakeUp, {}).tags, IsEmpty());
  EXPECT_THAT(decoded<WakeUpRequest>(Command::kWakeUp, {{"tags", nil()}}).tags, IsEmpty());
  EXPECT_TRUE(decoded<InitRequest>(Command::kInit, {{"init_info", map({})}}).packed);
  const auto finish = decoded<FinishRequest>(
      Command::kFinish, {{"header", map(kHeader)}, {"weight_version", text("4")}});
  EXPECT_TRUE(finish.flush_cache);
  EXPECT_THAT(finish.digest.tensors, IsEmpty());
  const auto start = decoded<StartRequest>(
      Command::kStart,
      {{"header", map(kHeader)}, {"chunk_tensor_counts", list({})}, {"buffer_bytes", integer(64)}});
  EXPECT_EQ(start.layout, Layout::kCompact);
  EXPECT_FALSE(start.content_digest);
  EXPECT_FALSE(start.source_layout.has_value());
  const Pairs prompt = {{"sampling_params", map({})}, {"input_ids", list({integer(5)})}};
  const auto generate =
      decoded<GenerateRequest>(Command::kGenerate, {{"payloads", list({map(prompt)})}});
  EXPECT_EQ(generate.record_id, "batch");
  ASSERT_EQ(generate.payloads.size(), 1u);
  EXPECT_TRUE(generate.payloads[0].return_logprob);
  EXPECT_EQ(generate.payloads[0].sampling_params, SamplingParams{});
}

TEST(Payloads, AreSpelledAsTheProtocolSpellsThem) {
  const auto init =
      decoded<InitRequest>(Command::kInit, {{"init_info", map({{"packed", boolean(false)}})}});
  EXPECT_FALSE(init.packed);
  const auto update = decoded<UpdateRequest>(
      Command::kUpdate,
      {{"update_info", map({{"names", list({text("a"), text("b")})},
                            {"dtype_names", list({text("bfloat16"), text("float32")})},
                            {"shapes", list({list({integer(2), integer(3)}), list({})})},
                            {"tensor_sizes", list({integer(12), integer(4)})},
                            {"ipc_handles", map({{"GPU-b", bytes("2")}, {"GPU-a", bytes("1")}})},
                            {"chunk_index", integer(9)}})}});
  EXPECT_THAT(update.names, ElementsAre("a", "b"));
  EXPECT_THAT(update.shapes, ElementsAre(ElementsAre(2, 3), IsEmpty()));
  EXPECT_THAT(update.tensor_sizes, ElementsAre(12, 4));
  EXPECT_EQ(update.chunk_index, 9u);
  // Handles are sorted, whatever the order of the wire.
  ASSERT_EQ(update.handles.entries.size(), 2u);
  EXPECT_EQ(update.handles.entries[0].first, "GPU-a");
  EXPECT_EQ(as_text(update.handles.entries[1].second), "2");
  EXPECT_EQ(decoded<WakeUpRequest>(Command::kWakeUp, {{"tags", list({text("weights")})}}).tags,
            std::vector<std::string>{"weights"});
}

TEST(Payloads, MissingFieldsAreNamed) {
  expect_refused(Command::kGenerate, {}, "payloads");
  expect_refused(Command::kGenerate, {{"payloads", list({map({{"sampling_params", map({})}})})}},
                 "payloads[0].input_ids");
  expect_refused(Command::kProbeIpc, {{"words", list({})}}, "ipc_handles");
  expect_refused(Command::kProbeIpc,
                 {{"ipc_handles", map({})}, {"words", list({})}, {"sources", nil()}}, "sources");
  expect_refused(Command::kInit, {}, "init_info");
  expect_refused(Command::kStart, {}, "header");
  expect_refused(Command::kUpdate, {}, "update_info");
  expect_refused(Command::kUpdate, {{"update_info", map({})}}, "update_info.names");
  expect_refused(Command::kFinish, {{"header", map(kHeader)}}, "weight_version");
  for (const auto& [key, value] : kHeader) {
    expect_refused(Command::kFinish,
                   {{"header", map(without(kHeader, key))}, {"weight_version", text("4")}},
                   "header." + key);
  }
  for (const auto& [key, value] : kManifest) {
    const Pairs header = with(kHeader, {{"expected_manifest", map(without(kManifest, key))}});
    expect_refused(Command::kFinish, {{"header", map(header)}, {"weight_version", text("4")}},
                   "header.expected_manifest." + key);
  }
}

TEST(Payloads, TypesAreStrict) {
  expect_refused(Command::kSleep, {{"level", boolean(true)}}, "level");
  expect_refused(Command::kSleep, {{"level", real(1.0)}}, "level");
  expect_refused(Command::kWakeUp, {{"tags", text("weights")}}, "tags");
  expect_refused(Command::kWakeUp, {{"tags", list({text("a"), integer(1)})}}, "tags[1]");
  expect_refused(Command::kInit, {{"init_info", map({{"packed", integer(1)}})}},
                 "init_info.packed");
  const auto finish_with = [](const Pairs& header) {
    return Pairs{{"header", map(with(kHeader, header))}, {"weight_version", text("4")}};
  };
  expect_refused(Command::kFinish, finish_with({{"model_version", boolean(true)}}),
                 "header.model_version");
  expect_refused(Command::kFinish, finish_with({{"tp_world_size", real(1.0)}}),
                 "header.tp_world_size");
  expect_refused(Command::kFinish, finish_with({{"device_uuids", list({bytes("GPU-a")})}}),
                 "header.device_uuids[0]");
  expect_refused(
      Command::kFinish,
      finish_with({{"expected_manifest", map(with(kManifest, {{"byte_count", integer(-1)}}))}}),
      "header.expected_manifest.byte_count");
  expect_refused(Command::kFinish, with(finish_with({}), {{"flush_cache", nil()}}), "flush_cache");
}

TEST(Payloads, ExtraFieldsAreIgnoredAndDuplicatesRefusedAtEveryLevel) {
  const Pairs extra = with(kHeader, {{"note", list({map({{"deep", nil()}})})}});
  const auto finish = decoded<FinishRequest>(
      Command::kFinish, {{"header", map(extra)}, {"weight_version", text("4")}, {"note", map({})}});
  EXPECT_EQ(finish.header.model_version, 4);
  Pairs twice = kHeader;
  twice.emplace_back("transport", text("x"));
  expect_refused(Command::kFinish, {{"header", map(twice)}, {"weight_version", text("4")}},
                 "header.transport");
  expect_refused(
      Command::kProbeIpc,
      {{"ipc_handles", map({{"GPU-a", bytes("1")}, {"GPU-a", bytes("1")}})}, {"words", list({})}},
      "ipc_handles");
}

TEST(Payloads, AnUpdatesListsMustBeEquallyLong) {
  const Pairs good = {{"names", list({text("a")})}, {"dtype_names", list({text("x")})},
                      {"shapes", list({list({})})}, {"tensor_sizes", list({integer(1)})},
                      {"ipc_handles", map({})},     {"chunk_index", integer(0)}};
  for (const std::string key : {"dtype_names", "shapes", "tensor_sizes"}) {
    expect_refused(Command::kUpdate, {{"update_info", map(with(good, {{key, list({})}}))}},
                   "update_info." + key);
  }
  EXPECT_EQ(decoded<UpdateRequest>(Command::kUpdate, {{"update_info", map(good)}}).names.size(),
            1u);
}

TEST(Payloads, RankMajorNeedsASourceLayoutOfWholeTensors) {
  const Pairs start = {{"header", map(kHeader)},
                       {"chunk_tensor_counts", list({integer(2)})},
                       {"buffer_bytes", integer(64)},
                       {"layout", text("rank_major")}};
  expect_refused(Command::kStart, start, "source_layout");
  expect_refused(Command::kStart, with(start, {{"layout", text("zigzag")}}), "layout");
  const auto source = [&start](std::int64_t world, const std::string& packed) {
    return with(start, {{"source_layout",
                         map({{"world", integer(world)}, {"row_bounds", bytes(packed)}})}});
  };
  expect_refused(Command::kStart, source(0, ""), "source_layout.world");
  expect_refused(Command::kStart, source(2, std::string(4, '\2')), "source_layout.row_bounds");
  expect_refused(Command::kStart, source(2, "\x80"), "source_layout.row_bounds");
  // Zigzag: 0, +8, +8, then back by 16 and on by 1 and 0.
  const auto layout =
      decoded<StartRequest>(Command::kStart, source(2, std::string("\x00\x10\x10\x1f\x02\x00", 6)));
  ASSERT_TRUE(layout.source_layout.has_value());
  EXPECT_THAT(layout.source_layout->row_bounds, ElementsAre(0, 8, 16, 0, 1, 1));
}

TEST(Payloads, ASizeThatTheMessageCannotHoldIsRefused) {
  ByteBuffer body = request(Command::kWakeUp, {{"tags", nil()}});
  body.back() = std::byte{0xdd};
  for (int i = 0; i < 4; ++i) body.push_back(std::byte{0xff});
  expect_protocol_error("tags", [&] { decode_payload(Command::kWakeUp, body); });
}

// ---- responses

const Pairs kResponse = {{"protocol_version", integer(1)},
                         {"request_id", integer(3)},
                         {"command", text("sleep")},
                         {"ok", boolean(true)},
                         {"result", nil()}};

TEST(Responses, FaultsAreFoundInOrder) {
  Pairs pairs = {{"result", integer(1)},
                 {"ok", integer(1)},
                 {"command", text("")},
                 {"request_id", integer(0)},
                 {"protocol_version", nil()}};
  const auto expect = [&pairs](const std::string& subject) {
    expect_protocol_error(
        subject, [&] { decode_response(message(map(pairs)), 3, "sleep", Peer::kRuntime); });
  };
  expect("protocol_version");
  pairs = with(pairs, {{"protocol_version", integer(1)}});
  expect("request_id");
  pairs = with(pairs, {{"request_id", integer(2)}});
  expect("command");
  pairs = with(pairs, {{"command", text("generate")}});
  expect("request_id");  // both differ: the id is compared first
  pairs = with(pairs, {{"request_id", integer(3)}});
  expect("command");
  pairs = with(pairs, {{"command", text("sleep")}});
  expect("ok");
  pairs = with(without(pairs, "result"), {{"ok", boolean(true)}});
  expect("result");
  pairs = with(pairs, {{"result", integer(1)}});
  expect("result");
  pairs = with(pairs, {{"result", nil()}});
  EXPECT_TRUE(decode_response(message(map(pairs)), 3, "sleep", Peer::kRuntime).ok);
}

TEST(Responses, WhatIsNoMapIsRefusedFirst) {
  expect_protocol_error("message",
                        [] { decode_response(message(list({})), 3, "sleep", Peer::kRuntime); });
}

TEST(Responses, AFailureCarriesItsTexts) {
  const ByteBuffer body = message(map(with(kResponse, {{"ok", boolean(false)},
                                                       {"error", text("ValueError: level 3")},
                                                       {"traceback", text("sleep")}})));
  const Response response = decode_response(body, 3, "sleep", Peer::kRuntime);
  EXPECT_FALSE(response.ok);
  EXPECT_EQ(response.error, "ValueError: level 3");
  EXPECT_EQ(response.traceback, "sleep");
  expect_protocol_error("error", [] {
    const Pairs pairs = with(kResponse, {{"ok", boolean(false)}, {"error", integer(1)}});
    decode_response(message(map(pairs)), 3, "sleep", Peer::kRuntime);
  });
}

TEST(Responses, AnUnknownCommandMayOnlyFail) {
  const Pairs pairs = with(kResponse, {{"command", text("dance")}});
  expect_protocol_error("ok",
                        [&] { decode_response(message(map(pairs)), 3, "dance", Peer::kRuntime); });
  const Pairs failed = with(pairs, {{"ok", boolean(false)}, {"error", text("unknown")}});
  EXPECT_EQ(decode_response(message(map(failed)), 3, "dance", Peer::kRuntime).error, "unknown");
}

TEST(Responses, HealthIsStrictlyTrue) {
  const Pairs pairs = with(kResponse, {{"command", text("health")}});
  for (const Value& value : {boolean(false), integer(1), nil(), map({})}) {
    const ByteBuffer body = message(map(with(pairs, {{"result", value}})));
    expect_protocol_error("result", [&] { decode_response(body, 3, "health", Peer::kRuntime); });
  }
}

TEST(Responses, AnAbortedResultSaysSo) {
  const Pairs pairs =
      with(kResponse, {{"command", text("init_native_weight_transfer")}, {"ok", boolean(false)}});
  const auto decode = [&pairs](const Value& result, Peer peer) {
    const ByteBuffer body = message(map(with(pairs, {{"result", result}})));
    return decode_response(body, 3, "init_native_weight_transfer", peer);
  };
  const Value aborted = map({{"status", text("aborted")}, {"worker_receipts", list({})}});
  EXPECT_TRUE(std::holds_alternative<AbortedResult>(decode(aborted, Peer::kRuntime).result));
  EXPECT_TRUE(std::holds_alternative<AbortedResult>(decode(aborted, Peer::kWorker).result));
  EXPECT_TRUE(std::holds_alternative<std::monostate>(decode(nil(), Peer::kWorker).result));
  expect_protocol_error("result", [&] { decode(nil(), Peer::kRuntime); });
  expect_protocol_error("result.status", [&] {
    decode(map({{"status", text("committed")}, {"worker_receipts", list({})}}), Peer::kRuntime);
  });
  expect_protocol_error("result.worker_receipts[0].tp_rank", [&] {
    decode(map({{"status", text("aborted")}, {"worker_receipts", list({map({})})}}),
           Peer::kRuntime);
  });
}

// Every alternative of Result against every (command, ok, peer): only the table's cells decode.
TEST(Responses, ResultsOfTheWrongTypeAreRefused) {
  const std::vector<Result> results = {std::monostate{},   StartupResult{}, GenerateResult{},
                                       HealthResult{},     CommitResult{},  AbortedResult{},
                                       WorkerCapability{}, WorkerReceipt{}};
  const auto allowed = [](Command command, bool ok, Peer peer, const Result& result) {
    const bool worker = peer == Peer::kWorker;
    if (!ok) {
      const bool aborted = std::holds_alternative<AbortedResult>(result);
      const bool none = std::holds_alternative<std::monostate>(result);
      return is_native(command) ? aborted || (worker && none) : none;
    }
    switch (command) {
      case Command::kStartup:
        return worker ? std::holds_alternative<WorkerCapability>(result)
                      : std::holds_alternative<StartupResult>(result);
      case Command::kGenerate:
        return std::holds_alternative<GenerateResult>(result);
      case Command::kHealth:
        return std::holds_alternative<HealthResult>(result);
      case Command::kFinish:
        return worker ? std::holds_alternative<WorkerReceipt>(result)
                      : std::holds_alternative<CommitResult>(result);
      default:
        return std::holds_alternative<std::monostate>(result);
    }
  };
  int decoded_count = 0;
  for (int number = 1; number <= static_cast<int>(Command::kShutdown); ++number) {
    const auto command = static_cast<Command>(number);
    for (const bool ok : {true, false}) {
      for (const Peer peer : {Peer::kRuntime, Peer::kWorker}) {
        for (const Result& result : results) {
          Response response;
          response.request_id = 3;
          response.command = name_of(command);
          response.ok = ok;
          response.result = result;
          ByteBuffer body;
          encode_response(response, body);
          const auto decode = [&] { return decode_response(body, 3, name_of(command), peer); };
          if (allowed(command, ok, peer, result)) {
            EXPECT_EQ(decode(), response);
            ++decoded_count;
            continue;
          }
          try {
            decode();
            ADD_FAILURE() << name_of(command) << " ok " << ok << " result " << result.index();
          } catch (const PeerViolation& error) {
            EXPECT_EQ(error.kind(), ErrorKind::kProtocol);
            EXPECT_THAT(error.record().subject, HasSubstr("result"));
          }
        }
      }
    }
  }
  // One form each, and a second one for the five native commands that fail at a worker.
  EXPECT_EQ(decoded_count, 12 * 2 * 2 + 5);
}

// ---- what actors say to one another

TEST(Reports, WrongShapesAndNumbersAreRefused) {
  expect_protocol_error("message", [] { decode_topology_report(message(list({nil()}))); });
  expect_protocol_error("message", [] { decode_preflight_report(message(map({}))); });
  expect_protocol_error("message", [] { decode_sums(message(bytes("1234567"))); });
  const auto error_with = [](std::int64_t kind, std::int64_t remedy, std::int64_t rank) {
    return message(list({integer(kind), integer(remedy), text("phase"), integer(rank),
                         text("subject"), text("detail")}));
  };
  EXPECT_TRUE(decode_error(error_with(15, 4, -1)).has_value());
  expect_protocol_error("kind", [&] { decode_error(error_with(99, 9, -2)); });
  expect_protocol_error("kind", [&] { decode_error(error_with(0, 1, 0)); });
  expect_protocol_error("remedy", [&] { decode_error(error_with(1, 5, -2)); });
  expect_protocol_error("rank", [&] { decode_error(error_with(1, 1, -2)); });
  expect_protocol_error("rank", [&] { decode_error(error_with(1, 1, std::int64_t{1} << 31)); });
}

TEST(Writer, AListOfMoreElementsThanMessagePackCanCountIsRefused) {
  ByteBuffer out;
  Writer writer(out);
  try {
    writer.array(std::size_t{1} << 32);
    ADD_FAILURE() << "was written";
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kProtocol);
  }
  EXPECT_TRUE(out.empty());
}

}  // namespace
}  // namespace tpsync::wire
