// The connection against a model of it, over runtimes that answer, fail, lie, tear, repeat and stay
// silent in any order: what each request comes to, which state it leaves, that the runtime is gone
// where it must be, and that nothing takes longer than its timeout and the kill routine.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "core/base/testing/seeded_check.h"
#include "core/rollout/testing/scripted_runtime.h"
#include "tpsync/base/process.h"
#include "tpsync/rollout/connection.h"

namespace tpsync::rollout {
namespace {

using fakes::failed;
using fakes::FakeWorld;
using fakes::Peer;
using fakes::send_response;
using fakes::succeeded;
using std::chrono::seconds;

constexpr Duration kTimeout = seconds(10);

enum class Reply : std::uint8_t {
  kGood,
  kFailed,
  kFailedBroken,  // says that the runtime cannot go on
  kNone,          // and, as far as the parent can tell, later
  kEndOfFile,
  kTorn,     // half of it, then nothing
  kTornEnd,  // half of it, then end of file
  kNoise,    // no frame
  kOtherId,  // late, of the request before
  kOtherCommand,
  kTwice,  // the second is there when the next request is made
  kWrongResult,
  kCount_,
};
enum class Action : std::uint8_t {
  kRequest,
  kUnencodable,
  kSecondWhileInFlight,
  kPoison,
  kPoisonInFlight,
  kShutdown,
  kCount_,
};
constexpr std::array kCommands = {wire::Command::kGenerate, wire::Command::kHealth,
                                  wire::Command::kProbeIpc, wire::Command::kSleep,
                                  wire::Command::kInit,     wire::Command::kRelease};

wire::Payload payload_of(wire::Command command) {
  switch (command) {
    case wire::Command::kGenerate:
      return wire::GenerateRequest{};
    case wire::Command::kProbeIpc:
      return wire::ProbeIpcRequest{};
    case wire::Command::kSleep:
      return wire::SleepRequest{};
    case wire::Command::kInit:
      return wire::InitRequest{};
    case wire::Command::kRelease:
      return wire::ReleaseRequest{};
    default:
      return wire::HealthRequest{};
  }
}

struct Model {
  bool broken = false;
  bool ended = false;  // shut down, not broken
  bool stale = false;  // a reply that nobody asked for is there
  std::int64_t last_id = 0;
};

struct Expected {
  bool ok = false;
  Remedy remedy = Remedy::kTryLater;
  ErrorKind kind = ErrorKind::kInvalidState;
  Model next;
};

Expected refused(const Model& model) {
  return {false, Remedy::kRebuildRuntime, ErrorKind::kInvalidState, model};
}

Expected broken_by(Model model, ErrorKind kind, Remedy remedy = Remedy::kRebuildRuntime) {
  model.broken = true;
  return {false, remedy, kind, model};
}

// What a request that is sent comes to.
Expected after_reply(Model model, wire::Command command, Reply reply) {
  ++model.last_id;
  if (model.stale) return broken_by(model, ErrorKind::kProtocol, Remedy::kFixPeer);
  const bool breaks = command == wire::Command::kSleep || command == wire::Command::kInit ||
                      command == wire::Command::kRelease;
  switch (reply) {
    case Reply::kGood:
      return {true, {}, {}, model};
    case Reply::kTwice:
      model.stale = true;
      return {true, {}, {}, model};
    case Reply::kFailed:
      if (breaks) return broken_by(model, ErrorKind::kRemote);
      return {false, Remedy::kTryLater, ErrorKind::kRemote, model};
    case Reply::kFailedBroken:
      return broken_by(model, ErrorKind::kRemote);
    case Reply::kNone:
    case Reply::kTorn:
      return broken_by(model, ErrorKind::kTimeout);
    case Reply::kEndOfFile:
    case Reply::kTornEnd:
      return broken_by(model, ErrorKind::kEndOfFile);
    default:
      return broken_by(model, ErrorKind::kProtocol, Remedy::kFixPeer);
  }
}

Expected expected_of(const Model& model, Action action, wire::Command command, Reply reply) {
  Model next = model;
  switch (action) {
    case Action::kPoison:
      next.broken = true;
      return {true, {}, {}, next};
    case Action::kShutdown:
      // Whatever the runtime answers, it is gone, and that is no break unless asking it broke.
      if (!model.broken && !model.ended) {
        const Expected asked = after_reply(model, wire::Command::kShutdown, reply);
        next = asked.next;
      }
      next.ended = true;
      return {true, {}, {}, next};
    default:
      break;
  }
  if (model.broken || model.ended) return refused(model);
  switch (action) {
    case Action::kUnencodable:
      return {false, Remedy::kFixInput, ErrorKind::kProtocol, model};
    case Action::kPoisonInFlight:
      ++next.last_id;
      return broken_by(next, ErrorKind::kInvalidState);
    default:
      return after_reply(model, command, reply);
  }
}

struct Sut {
  FakeWorld world;
  std::optional<Connection> connection;
  Reply reply = Reply::kGood;
  std::function<void()> in_flight = [] {};
  std::vector<std::int64_t> ids;

  Sut() {
    world.channels.on_pair = [this](Peer& peer, std::size_t) {
      tpsync::fakes::on_frame(peer, [this, &peer](const ByteBuffer& body) { serve(peer, body); });
    };
    auto [ours, theirs] = world.channels.make_pair();
    SpawnRequest request;
    request.channel = std::move(theirs);
    auto process = world.processes.spawn(std::move(request));
    connection.emplace(world.world(), std::move(ours), std::move(process));
  }
  bool alive() const { return world.processes.processes[0]->alive; }

  void serve(Peer& peer, const ByteBuffer& body) {
    const wire::RequestHead head = wire::decode_request_head(body);
    ids.push_back(head.request_id);
    in_flight();
    wire::Result result;
    if (head.command == "generate") result = wire::GenerateResult{};
    if (head.command == "health") result = wire::HealthResult{};
    ByteBuffer frame;
    {
      ByteBuffer good;
      wire::encode_response(succeeded(head, result), good);
      frame = tpsync::fakes::framed(good);
    }
    const ByteView half = ByteView(frame).first(frame.size() / 2);
    switch (reply) {
      case Reply::kGood:
        peer.send(frame);
        break;
      case Reply::kTwice:
        peer.send(frame);
        peer.send(frame);
        break;
      case Reply::kFailed:
        send_response(peer, failed(head, "InvalidInput: no"));
        break;
      case Reply::kFailedBroken:
        send_response(peer, failed(head, "RuntimeBroken: a worker is gone"));
        break;
      case Reply::kNone:
        break;
      case Reply::kEndOfFile:
        peer.gone = true;
        break;
      case Reply::kTorn:
        peer.send(half);
        break;
      case Reply::kTornEnd:
        peer.send(half);
        peer.gone = true;
        break;
      case Reply::kNoise:
        peer.send(as_view("HTTP/1.1 400 Bad Request\r\n\r\n"));
        break;
      case Reply::kOtherId: {
        wire::RequestHead other = head;
        other.request_id += 1;
        send_response(peer, succeeded(other, result));
        break;
      }
      case Reply::kOtherCommand: {
        wire::RequestHead other = head;
        other.command = head.command == "health" ? "sleep" : "health";
        send_response(peer, succeeded(other, result));
        break;
      }
      case Reply::kWrongResult: {
        wire::Result wrong = wire::StartupResult{};
        send_response(peer, succeeded(head, wrong));
        break;
      }
      case Reply::kCount_:
        break;
    }
    if (head.command == "shutdown") world.processes.processes[0]->alive = false;
  }
};

class Step final : public rc::state::Command<Model, Sut> {
 public:
  Step()
      : action_(*rc::gen::weightedElement<Action>({{12, Action::kRequest},
                                                   {2, Action::kUnencodable},
                                                   {2, Action::kSecondWhileInFlight},
                                                   {1, Action::kPoison},
                                                   {1, Action::kPoisonInFlight},
                                                   {1, Action::kShutdown}})),
        command_(*rc::gen::elementOf(kCommands)),
        // Mostly good, or no sequence would be long.
        reply_(*rc::gen::weightedOneOf<Reply>(
            {{5, rc::gen::just(Reply::kGood)},
             {2, rc::gen::just(Reply::kFailed)},
             {2, rc::gen::map(tpsync::fakes::any_of(0, static_cast<int>(Reply::kCount_)),
                              [](int value) { return static_cast<Reply>(value); })}})) {}

  void apply(Model& model) const override {
    model = expected_of(model, action_, command_, reply_).next;
  }

  void run(const Model& model, Sut& sut) const override {
    const Expected expected = expected_of(model, action_, command_, reply_);
    const TimePoint begin = sut.world.clock.now();
    const std::size_t asked = sut.ids.size();
    std::optional<ErrorRecord> error;
    try {
      act(sut);
    } catch (const Error& thrown) {
      error = thrown.record();
    }
    RC_ASSERT(error.has_value() == !expected.ok);
    if (error) {
      RC_ASSERT(to_string(error->remedy) == to_string(expected.remedy));
      RC_ASSERT(to_string(error->kind) == to_string(expected.kind));
    }
    RC_ASSERT(sut.world.clock.now() - begin <= 2 * kTimeout + kKillAllowance);
    const Model& next = expected.next;
    RC_ASSERT((sut.connection->state() == ConnectionState::kBroken) == next.broken);
    RC_ASSERT(sut.connection->state() != ConnectionState::kInflight);
    RC_ASSERT(sut.connection->usable() == !(next.broken || next.ended));
    RC_ASSERT(sut.alive() == !(next.broken || next.ended));
    RC_ASSERT(sut.ids.size() - asked == (next.last_id > model.last_id ? 1u : 0u));
    if (!sut.ids.empty()) RC_ASSERT(sut.ids.back() == next.last_id);
  }

  void show(std::ostream& out) const override {
    out << "action " << static_cast<int>(action_) << " " << name_of(command_) << " reply "
        << static_cast<int>(reply_);
  }

 private:
  void act(Sut& sut) const {
    sut.reply = reply_;
    sut.in_flight = [] {};
    Connection& connection = *sut.connection;
    switch (action_) {
      case Action::kRequest:
        connection.request(payload_of(command_), kTimeout);
        return;
      case Action::kUnencodable:
        connection.request(command_, kTimeout, [](std::int64_t, ByteBuffer&) {
          throw_invalid(ErrorKind::kProtocol, "payload", "cannot be encoded");
        });
        return;
      case Action::kSecondWhileInFlight: {
        std::optional<ErrorRecord> second;
        sut.in_flight = [&] {
          try {
            connection.request(wire::HealthRequest{}, kTimeout);
          } catch (const Error& thrown) {
            second = thrown.record();
          }
        };
        try {
          connection.request(payload_of(command_), kTimeout);
        } catch (const Error&) {
          check_second(second, sut);
          throw;
        }
        check_second(second, sut);
        return;
      }
      case Action::kPoison:
        connection.poison("the model says so");
        return;
      case Action::kPoisonInFlight:
        sut.in_flight = [&] { connection.poison("the model says so"); };
        connection.request(payload_of(command_), kTimeout);
        return;
      case Action::kShutdown:
        connection.shutdown(kTimeout);
        return;
      case Action::kCount_:
        return;
    }
  }
  // Refused at once, if the first was sent at all.
  static void check_second(const std::optional<ErrorRecord>& second, const Sut&) {
    if (!second) return;
    RC_ASSERT(second->remedy == Remedy::kTryLater);
    RC_ASSERT(second->kind == ErrorKind::kInvalidState);
    RC_ASSERT(second->detail.find("INFLIGHT") != std::string::npos);
  }

  Action action_;
  wire::Command command_;
  Reply reply_;
};

TEST(ConnectionModel, DoesWhatItsStatesSayWhateverTheRuntimeDoes) {
  EXPECT_TRUE(
      tpsync::fakes::model_holds<Step>("connection", [] { return std::make_unique<Sut>(); }));
}

}  // namespace
}  // namespace tpsync::rollout
