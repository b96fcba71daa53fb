// Whole messages that are cut, repeated, delayed or distorted on their way: what arrives, and that
// it is the one message of the moment alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faults/catalogue.h"
#include "faults/testing/fakes.h"
#include "tpsync/wire/frame.h"

namespace tpsync::faults {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeChannel;
using testing::fault_at;
using testing::Victim;
using testing::Wire;

constexpr const char* kPhase = "update_native_weights";
const Deadline kSoon = Deadline::at(TimePoint{1'000'000'000});

class SteppedClock final : public Clock {
 public:
  TimePoint now() noexcept override { return now_; }
  void sleep_until(TimePoint until) noexcept override { now_ = std::max(now_, until); }

 private:
  TimePoint now_;
};

wire::Response reply(std::int64_t id) {
  wire::Response response;
  response.request_id = id;
  response.command = kPhase;
  response.ok = true;
  return response;
}

ByteBuffer body_of(const wire::Response& response) {
  ByteBuffer body;
  wire::encode_response(response, body);
  return body;
}
ByteBuffer body_of(std::int64_t id, const wire::Payload& payload) {
  ByteBuffer body;
  wire::encode_request(id, payload, body);
  return body;
}

ByteBuffer framed(const ByteBuffer& body) {
  ByteBuffer frame;
  wire::append_frame_head(frame, body.size());
  frame.insert(frame.end(), body.begin(), body.end());
  return frame;
}

// A worker, or rank 0, with one fault at its first write; `bodies` are sent in order.
struct Sender {
  explicit Sender(const std::string& name, const Arguments& arguments = {},
                  const std::string& role = "worker", const std::string& phase = kPhase,
                  std::uint64_t occurrence = 0)
      : victim(fault_at(name, role, 0, phase, "channel.write", occurrence, arguments), &clock) {
    std::unique_ptr<Channel> inner = std::make_unique<FakeChannel>(victim.process, wire);
    channel = victim.faults->channel({role == "runtime" ? "worker" : "runtime", 0}, inner);
  }
  void send(const ByteBuffer& body) { wire::send_frame(*channel, body, kSoon); }

  SteppedClock clock;
  Wire wire;
  Victim victim;
  std::unique_ptr<FaultChannel> channel;
};

// The one request that arrives when `payload` is sent.
wire::Payload arrived(Sender& sender, wire::Command command, const wire::Payload& payload) {
  sender.send(body_of(3, payload));
  EXPECT_TRUE(sender.victim.took_effect());
  Wire reread;
  reread.incoming = sender.wire.written;
  FakeChannel channel(sender.victim.process, reread);
  ByteBuffer body;
  wire::receive_frame(channel, body, kSoon);
  EXPECT_TRUE(reread.incoming.empty());
  EXPECT_EQ(wire::decode_request_head(body).request_id, 3);
  return wire::decode_payload(command, body);
}

TEST(ChannelFaults, ATruncatedFrameIsHalfOfItAndThenTheEnd) {
  Sender sender("channel.truncated_frame");
  const ByteBuffer frame = framed(body_of(reply(1)));
  sender.send(body_of(reply(1)));
  EXPECT_EQ(sender.wire.written, ByteBuffer(frame.begin(), frame.begin() + frame.size() / 2));
  EXPECT_TRUE(sender.wire.is_closed);
  EXPECT_TRUE(sender.victim.took_effect());
  EXPECT_EQ(error_of([&] { sender.send(body_of(reply(2))); }).kind, ErrorKind::kEndOfFile);
}

TEST(ChannelFaults, AnOversizedFrameIsRefusedByItsLength) {
  Sender sender("channel.oversized_frame");
  sender.send(body_of(reply(1)));
  Wire reread;
  reread.incoming = sender.wire.written;
  FakeChannel channel(sender.victim.process, reread);
  ByteBuffer body;
  const ErrorRecord record = error_of([&] { wire::receive_frame(channel, body, kSoon); });
  EXPECT_EQ(record.kind, ErrorKind::kProtocol);
  EXPECT_EQ(record.subject, "frame.length");
  EXPECT_TRUE(sender.victim.took_effect());
}

TEST(ChannelFaults, StrayTextComesBeforeTheFrame) {
  Sender sender("channel.stray_text");
  sender.send(body_of(reply(1)));
  const ByteBuffer frame = framed(body_of(reply(1)));
  ASSERT_GT(sender.wire.written.size(), frame.size());
  EXPECT_EQ(sender.wire.written.front(), std::byte{'L'});
  EXPECT_EQ(ByteBuffer(sender.wire.written.end() - static_cast<std::ptrdiff_t>(frame.size()),
                       sender.wire.written.end()),
            frame);
  EXPECT_TRUE(sender.victim.took_effect());
}

TEST(ChannelFaults, ADuplicatedMessageArrivesTwiceAndTheNextOnce) {
  Sender sender("channel.duplicated");
  sender.send(body_of(reply(1)));
  sender.send(body_of(reply(2)));
  ByteBuffer expected = framed(body_of(reply(1)));
  for (const std::int64_t id : {1, 2}) {
    const ByteBuffer more = framed(body_of(reply(id)));
    expected.insert(expected.end(), more.begin(), more.end());
  }
  EXPECT_EQ(sender.wire.written, expected);
  EXPECT_TRUE(sender.victim.took_effect());
}

TEST(ChannelFaults, AStaleReplyIsTheOneBeforeAlsoIfThatWentInPieces) {
  Sender sender("channel.stale_reply", {}, "worker", kPhase, 9);
  sender.wire.write_limit = 3;
  const ByteBuffer frame = framed(body_of(reply(1)));
  sender.send(body_of(reply(1)));
  const std::uint64_t writes = (frame.size() + 2) / 3;
  ASSERT_NE(writes, 9u) << "the moment is none of this frame's writes";
  Sender other("channel.stale_reply", {}, "worker", kPhase, writes);
  other.wire.write_limit = 3;
  other.send(body_of(reply(1)));
  other.send(body_of(reply(2)));
  ByteBuffer expected = frame;
  expected.insert(expected.end(), frame.begin(), frame.end());
  EXPECT_EQ(other.wire.written, expected);
  EXPECT_TRUE(other.victim.took_effect());
}

TEST(ChannelFaults, AFirstReplyHasNoneBeforeItAndPassesUnmarked) {
  Sender sender("channel.stale_reply");
  sender.send(body_of(reply(1)));
  EXPECT_EQ(sender.wire.written, framed(body_of(reply(1))));
  EXPECT_EQ(sender.victim.injector.applied(), 0u);
}

TEST(ChannelFaults, ASlowMessageArrivesWholeInMoreWrites) {
  Sender sender("channel.slow");
  sender.send(body_of(reply(1)));
  EXPECT_EQ(sender.wire.written, framed(body_of(reply(1))));
  EXPECT_GE(std::count(sender.victim.process.log.begin(), sender.victim.process.log.end(),
                       "channel.write"),
            40);
  EXPECT_TRUE(sender.victim.took_effect());
}

TEST(ChannelFaults, ALateReplyIsWrittenAfterItsDeadline) {
  Sender sender("channel.late_reply");
  sender.send(body_of(reply(1)));
  EXPECT_EQ(sender.wire.written, framed(body_of(reply(1))));
  EXPECT_GT(sender.clock.now(), kSoon.time());
  EXPECT_EQ(sender.victim.process.marks.front().second, Visibility::kSilent);
}

TEST(ChannelFaults, ARefusedWriteLeavesTheChannelOpen) {
  Sender sender("channel.write_error");
  const ErrorRecord record = error_of([&] { sender.send(body_of(reply(1))); });
  EXPECT_EQ(record.kind, ErrorKind::kIo);
  EXPECT_TRUE(sender.wire.written.empty());
  EXPECT_FALSE(sender.wire.is_closed);
  EXPECT_TRUE(sender.victim.took_effect());
}

ErrorRecord refusal_of(Sender& sender) {
  sender.send(body_of(reply(1)));
  EXPECT_TRUE(sender.victim.took_effect());
  const ByteView body = ByteView(sender.wire.written).subspan(wire::kFrameHeadBytes);
  return error_of([&] { wire::decode_response(body, 1, kPhase, wire::Peer::kWorker); });
}

TEST(ChannelFaults, AReplyThatIsNoMapOrOfAnotherProtocolOrAnotherRequestIsRefused) {
  Sender malformed("channel.malformed_body");
  EXPECT_EQ(refusal_of(malformed).kind, ErrorKind::kProtocol);
  Sender version("channel.wrong_version");
  EXPECT_EQ(refusal_of(version).subject, "protocol_version");
  Sender id("channel.wrong_reply", {{"field", "request_id"}});
  EXPECT_EQ(refusal_of(id).subject, "request_id");
  Sender command("channel.wrong_reply", {{"field", "command"}});
  EXPECT_EQ(refusal_of(command).subject, "command");
}

TEST(ChannelFaults, AFieldThatNobodyKnowsIsIgnoredByTheReader) {
  Sender sender("channel.extra_field");
  EXPECT_EQ(refusal_of(sender).subject, "");
  EXPECT_GT(sender.wire.written.size(), framed(body_of(reply(1))).size());
}

TEST(ChannelFaults, TwoFieldsThatNobodyKnowsHaveTwoNames) {
  Sender first("channel.extra_field");
  first.send(body_of(reply(1)));
  const ByteView once = ByteView(first.wire.written).subspan(wire::kFrameHeadBytes);
  Sender second("channel.extra_field");
  second.send(ByteBuffer(once.begin(), once.end()));
  EXPECT_TRUE(second.victim.took_effect());
  const ByteView twice = ByteView(second.wire.written).subspan(wire::kFrameHeadBytes);
  EXPECT_GT(twice.size(), once.size());
  EXPECT_TRUE(wire::decode_response(twice, 1, kPhase, wire::Peer::kWorker).ok);
}

TEST(ChannelFaults, AnErrorReplySaysThatTheWorkFailed) {
  Sender sender("channel.error_reply");
  sender.send(body_of(reply(1)));
  EXPECT_TRUE(sender.victim.took_effect());
  const ByteView body = ByteView(sender.wire.written).subspan(wire::kFrameHeadBytes);
  const wire::Response found = wire::decode_response(body, 1, kPhase, wire::Peer::kWorker);
  EXPECT_FALSE(found.ok);
  EXPECT_FALSE(wire::says_broken(found));
  EXPECT_NE(found.error, "");
}

wire::StartRequest start_request() {
  wire::StartRequest start;
  start.header.publication_id = std::string(32, 'a');
  start.header.model_version = 5;
  start.header.tp_world_size = 2;
  start.header.expected_manifest.tensor_count = 3;
  start.header.expected_manifest.fingerprint = std::string(64, '0');
  start.header.device_uuids = {"one", "two"};
  start.chunk_tensor_counts = {2, 1};
  start.buffer_bytes = 4096;
  return start;
}

TEST(ChannelFaults, AStartDiffersInTheNamedFieldAlone) {
  const std::pair<const char*, std::function<void(wire::StartRequest&)>> fields[] = {
      {"tp_world_size", [](wire::StartRequest& s) { s.header.tp_world_size = 3; }},
      {"fingerprint",
       [](wire::StartRequest& s) { s.header.expected_manifest.fingerprint[0] = '1'; }},
      {"device_uuids",
       [](wire::StartRequest& s) {
         s.header.device_uuids = {"two", "one"};
       }},
      {"chunk_tensor_counts", [](wire::StartRequest& s) { s.chunk_tensor_counts[0] = 3; }},
      {"buffer_bytes", [](wire::StartRequest& s) { s.buffer_bytes = 1; }},
  };
  for (const auto& [field, change] : fields) {
    Sender sender("channel.corrupted_field", {{"field", field}}, "actor", "native-start");
    wire::StartRequest expected = start_request();
    change(expected);
    EXPECT_EQ(std::get<wire::StartRequest>(
                  arrived(sender, wire::Command::kStart, wire::Payload(start_request()))),
              expected)
        << field;
  }
  for (const auto& [name, version] : {std::pair{"version.stale", 4}, {"version.ahead", 8}}) {
    Sender sender(name, {}, "runtime", "start_native_weight_update");
    wire::StartRequest expected = start_request();
    expected.header.model_version = version;
    EXPECT_EQ(std::get<wire::StartRequest>(
                  arrived(sender, wire::Command::kStart, wire::Payload(start_request()))),
              expected)
        << name;
  }
}

TEST(ChannelFaults, AFinishIsOfAnotherPublicationOrVersion) {
  wire::FinishRequest finish;
  finish.header = start_request().header;
  finish.weight_version = "5";
  for (const char* field : {"publication_id", "finished_version"}) {
    Sender sender("channel.corrupted_field", {{"field", field}}, "actor", "native-finish");
    const auto found = std::get<wire::FinishRequest>(
        arrived(sender, wire::Command::kFinish, wire::Payload(finish)));
    EXPECT_NE(found.header, finish.header) << field;
  }
}

wire::UpdateRequest update_request() {
  wire::UpdateRequest update;
  update.chunk_index = 1;
  update.handles.entries = {{"one", ByteBuffer(4, std::byte{1})},
                            {"two", ByteBuffer(4, std::byte{2})}};
  update.names = {"model.norm.weight"};
  update.dtype_names = {"bfloat16"};
  update.shapes = {{4}};
  update.tensor_sizes = {8};
  return update;
}

wire::UpdateRequest update_under(const std::string& fault, const Arguments& arguments = {},
                                 const std::string& role = "actor") {
  Sender sender(fault, arguments, role, role == "actor" ? "native-transfer" : kPhase);
  return std::get<wire::UpdateRequest>(
      arrived(sender, wire::Command::kUpdate, wire::Payload(update_request())));
}

TEST(ChannelFaults, HandlesAreMissingOrStandUnderAnotherDevice) {
  EXPECT_EQ(update_under("ipc.missing_handle").handles.find("one"), nullptr);
  EXPECT_NE(update_under("ipc.missing_handle").handles.find("two"), nullptr);
  EXPECT_TRUE(update_under("ipc.missing_handle", {}, "runtime").handles.entries.empty());
  const wire::HandleMap swapped = update_under("ipc.swapped_handles").handles;
  ASSERT_NE(swapped.find("one"), nullptr);
  EXPECT_EQ(*swapped.find("one"), ByteBuffer(4, std::byte{2}));
  EXPECT_EQ(*swapped.find("two"), ByteBuffer(4, std::byte{1}));
}

TEST(ChannelFaults, AnUpdateIsOfAnotherChunkOrAnnouncesAnotherTensor) {
  EXPECT_EQ(update_under("weights.chunk_skipped").chunk_index, 2u);
  const auto field = [](const char* name) {
    return update_under("weights.record", {{"where", "wire"}, {"field", name}});
  };
  EXPECT_THAT(field("name").names, ElementsAre("module.model.norm.weight"));
  EXPECT_THAT(field("shape").shapes.front(), ElementsAre(1, 4));
  EXPECT_THAT(field("dtype").dtype_names, ElementsAre("float64"));
}

}  // namespace
}  // namespace tpsync::faults
