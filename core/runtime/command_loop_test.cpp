// The serving end of the protocol, byte by byte: what is answered, what ends the loop without an
// answer, and what is said about a failure.
#include "tpsync/runtime/command_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>

#include "core/wire/testing/scripted_peer.h"

namespace tpsync::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Handler final : public CommandHandler {
 public:
  After handle(const Request& request, wire::Response&) override {
    handled.emplace_back(name_of(request.command));
    if (const auto action = instead.find(request.command); action != instead.end()) {
      action->second();
    }
    return request.command == wire::Command::kShutdown ? After::kStop : After::kContinue;
  }
  After after_failure(wire::Command command) override {
    failed.emplace_back(name_of(command));
    return wire::is_native(command) ? After::kStop : After::kContinue;
  }
  Deadline next_request_deadline() override { return deadline; }

  std::map<wire::Command, std::function<void()>> instead;
  std::vector<std::string> handled;
  std::vector<std::string> failed;
  Deadline deadline = Deadline::at({5'000'000'000});
};

class CommandLoop : public testing::Test {
 protected:
  CommandLoop() : channel_(peer_, world_.clock) {}

  void ask(std::int64_t id, const wire::Payload& payload) {
    ByteBuffer body;
    wire::encode_request(id, payload, body);
    peer_->send(fakes::framed(body));
  }
  // As ask, with one text of the encoded message replaced by another of the same length.
  void ask_edited(std::int64_t id, const wire::Payload& payload, const std::string& from,
                  const std::string& to) {
    ASSERT_EQ(from.size(), to.size());
    ByteBuffer body;
    wire::encode_request(id, payload, body);
    std::string text(as_text(body));
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
    peer_->send(fakes::framed(as_view(text)));
  }
  // Serves until the loop ends, the peer's end of file included; returns the replies as
  // "command:ok" or "command:error".
  std::vector<std::string> serve_all(bool consecutive_ids = true) {
    peer_->gone = false;
    peer_->before_read = [this] { hang_up_when_empty(); };
    World world = world_.world();
    serve(world, channel_, handler_,
          {.name = "runtime",
           .reply_timeout = std::chrono::seconds(1),
           .consecutive_ids = consecutive_ids});
    std::vector<std::string> replies;
    for (ByteBuffer body = fakes::take_frame(peer_->to_it); !body.empty();
         body = fakes::take_frame(peer_->to_it)) {
      responses_.push_back(body);
      const wire::RequestHead head = wire::decode_request_head(body);  // the same envelope
      const auto ok = as_text(body).find(std::string("\xa2ok\xc3")) != std::string_view::npos;
      replies.push_back(std::to_string(head.request_id) + " " + head.command +
                        (ok ? " ok" : " failed"));
    }
    return replies;
  }
  void hang_up_when_empty() {
    if (peer_->from_it.empty()) peer_->gone = true;
  }
  std::string note() const {
    const auto* entry = world_.log.find(LogEvent::kNote);
    return entry == nullptr ? "" : entry->text;
  }

  fakes::FakeWorld world_;
  std::shared_ptr<fakes::Peer> peer_ = std::make_shared<fakes::Peer>();
  fakes::FakeChannel channel_;
  Handler handler_;
  std::vector<ByteBuffer> responses_;
};

TEST_F(CommandLoop, RequestsAreAnsweredInOrderUntilEndOfFile) {
  ask(1, wire::StartupRequest{});
  ask(2, wire::HealthRequest{});
  ask(3, wire::SleepRequest{});
  EXPECT_THAT(serve_all(), ElementsAre("1 startup ok", "2 health ok", "3 sleep ok"));
  EXPECT_EQ(note(), "");  // a peer that leaves is nothing to report
}

TEST_F(CommandLoop, TheHandlerEndsTheLoopAfterItsReply) {
  ask(1, wire::StartupRequest{});
  ask(2, wire::ShutdownRequest{});
  ask(3, wire::HealthRequest{});
  EXPECT_THAT(serve_all(), ElementsAre("1 startup ok", "2 shutdown ok"));
}

TEST_F(CommandLoop, AnotherFirstCommandThanStartupIsRefusedAndEndsTheLoop) {
  ask(1, wire::HealthRequest{});
  ask(2, wire::StartupRequest{});
  EXPECT_THAT(serve_all(), ElementsAre("1 health failed"));
  EXPECT_THAT(std::string(as_text(responses_[0])), HasSubstr("the first command must be startup"));
  EXPECT_THAT(handler_.handled, IsEmpty());
}

TEST_F(CommandLoop, AFailedStartupEndsTheLoop) {
  handler_.instead[wire::Command::kStartup] = [] {
    throw_broken(ErrorKind::kOutOfMemory, "weights", "no room");
  };
  ask(1, wire::StartupRequest{});
  ask(2, wire::HealthRequest{});
  EXPECT_THAT(serve_all(), ElementsAre("1 startup failed"));
}

TEST_F(CommandLoop, ASecondStartupIsRefusedAndTheLoopGoesOn) {
  ask(1, wire::StartupRequest{});
  ask(2, wire::StartupRequest{});
  ask(3, wire::HealthRequest{});
  EXPECT_THAT(serve_all(), ElementsAre("1 startup ok", "2 startup failed", "3 health ok"));
}

TEST_F(CommandLoop, AnUnknownCommandIsRefusedAndTheLoopGoesOn) {
  ask(1, wire::StartupRequest{});
  ask_edited(2, wire::HealthRequest{}, "health", "hea1th");
  ask(3, wire::HealthRequest{});
  EXPECT_THAT(serve_all(), ElementsAre("1 startup ok", "2 hea1th failed", "3 health ok"));
  EXPECT_THAT(std::string(as_text(responses_[1])), HasSubstr("is not a known command"));
  EXPECT_THAT(handler_.handled, ElementsAre("startup", "health"));
}

TEST_F(CommandLoop, IdsOtherThanTheNextEndTheLoopWithoutAReply) {
  for (const std::int64_t wrong : {std::int64_t{1}, std::int64_t{3}, std::int64_t{100}}) {
    ask(1, wire::StartupRequest{});
    ask(wrong, wire::HealthRequest{});
    EXPECT_THAT(serve_all(), ElementsAre("1 startup ok")) << wrong;
    EXPECT_THAT(note(), HasSubstr("request_id"));
    peer_->from_it.clear();
  }
}

TEST_F(CommandLoop, AFirstIdOtherThanOneEndsTheLoopWithoutAReply) {
  ask(2, wire::StartupRequest{});
  EXPECT_THAT(serve_all(), IsEmpty());
  EXPECT_THAT(note(), HasSubstr("is 2 after 0"));
}

TEST_F(CommandLoop, RisingIdsAreEnoughForAWorkerButRepeatedOnesAreNot) {
  ask(1, wire::StartupRequest{});
  ask(5, wire::HealthRequest{});
  ask(5, wire::HealthRequest{});
  EXPECT_THAT(serve_all(/*consecutive_ids=*/false), ElementsAre("1 startup ok", "5 health ok"));
}

TEST_F(CommandLoop, AnotherProtocolVersionEndsTheLoopWithoutAReply) {
  ask_edited(1, wire::StartupRequest{}, "protocol_version\x01", "protocol_version\x02");
  EXPECT_THAT(serve_all(), IsEmpty());
  EXPECT_THAT(note(), HasSubstr("protocol_version"));
}

TEST_F(CommandLoop, BytesThatAreNoMapOrNoFrameEndTheLoopWithoutAReply) {
  peer_->send(fakes::framed(as_view("\x93")));
  EXPECT_THAT(serve_all(), IsEmpty());
  EXPECT_NE(note(), "");
  peer_->from_it.clear();
  peer_->send(as_view("GET / HTTP/1.1\r\n"));
  EXPECT_THAT(serve_all(), IsEmpty());
}

TEST_F(CommandLoop, TheLoopEndsWhenTheNextRequestDoesNotComeInTime) {
  handler_.deadline = Deadline::after(world_.clock, std::chrono::seconds(60));
  const TimePoint begin = world_.clock.now();
  World world = world_.world();
  serve(world, channel_, handler_, {.name = "runtime", .reply_timeout = std::chrono::seconds(1)});
  EXPECT_EQ(world_.clock.now() - begin, std::chrono::seconds(60));
  EXPECT_THAT(handler_.handled, IsEmpty());
}

TEST_F(CommandLoop, AFailureNamesItsClassItsTextAndTheChainOfPlaces) {
  handler_.instead[wire::Command::kGenerate] = [] {
    throw_invalid(ErrorKind::kInvalidConfig, "n", "must be 1");
  };
  handler_.instead[wire::Command::kUpdate] = [] {
    throw_violation(ErrorKind::kMismatch, "a.weight", "is due");
  };
  ask(1, wire::StartupRequest{});
  ask(2, wire::GenerateRequest{});
  ask(3, wire::UpdateRequest{});
  ask(4, wire::HealthRequest{});
  EXPECT_THAT(serve_all(),
              ElementsAre("1 startup ok", "2 generate failed", "3 update_native_weights failed"));
  EXPECT_THAT(handler_.failed, ElementsAre("generate", "update_native_weights"));
  const auto generate = wire::decode_response(responses_[1], 2, "generate", wire::Peer::kRuntime);
  EXPECT_EQ(generate.error, "InvalidInput: n: must be 1 [invalid configuration]");
  EXPECT_EQ(generate.traceback, "runtime > generate");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(generate.result));
  const auto update =
      wire::decode_response(responses_[2], 3, "update_native_weights", wire::Peer::kRuntime);
  EXPECT_EQ(update.error, "PeerViolation: a.weight: is due [mismatch]");
  EXPECT_TRUE(std::holds_alternative<wire::AbortedResult>(update.result));
}

TEST_F(CommandLoop, AnExceptionOfALibraryIsAFailureWithoutItsText) {
  handler_.instead[wire::Command::kGenerate] = [] { throw std::runtime_error("secret place"); };
  ask(1, wire::StartupRequest{});
  ask(2, wire::GenerateRequest{});
  ask(3, wire::HealthRequest{});
  EXPECT_THAT(serve_all(), ElementsAre("1 startup ok", "2 generate failed", "3 health ok"));
  EXPECT_EQ(as_text(responses_[1]).find("secret place"), std::string_view::npos);
}

TEST(SetFailure, ReceiptsThatWereCollectedStayInTheAbortedResult) {
  wire::Response response;
  response.command = "finish_native_weight_update";
  wire::AbortedResult collected;
  collected.worker_receipts.resize(1);
  response.result = collected;
  ErrorRecord record;
  record.remedy = Remedy::kRebuildRuntime;
  set_failure(response, "runtime", record);
  EXPECT_FALSE(response.ok);
  EXPECT_EQ(std::get<wire::AbortedResult>(response.result), collected);
}

}  // namespace
}  // namespace tpsync::runtime
