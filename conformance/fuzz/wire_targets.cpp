// Messages: what decodes must encode to bytes that decode to the same; what does not is a
// PeerViolation kProtocol that names a field.
#include <algorithm>
#include <memory>
#include <string>

#include "conformance/fuzz/sampled.h"
#include "conformance/fuzz/targets.h"
#include "core/base/testing/fake_world.h"
#include "core/wire/testing/generators.h"
#include "tpsync/wire/frame.h"
#include "tpsync/wire/messages.h"

namespace tpsync::fuzz {

namespace {

using wire::Command;
using wire::Peer;

constexpr std::int64_t kId = 7;

// `again` decodes and encodes what it decoded.
template <typename Again>
void check_decoder(ByteView bytes, Again again) {
  ByteBuffer first;
  try {
    first = again(bytes);
  } catch (const PeerViolation& error) {
    if (error.kind() != ErrorKind::kProtocol || error.record().subject.empty()) {
      throw Finding(std::string("refused by the wrong error: ") + error.what());
    }
    return;
  }
  ByteBuffer second;
  try {
    second = again(first);
  } catch (const PeerViolation& error) {
    throw Finding(std::string("what was decoded encodes to what is refused: ") + error.what());
  }
  if (first != second) throw Finding("what was decoded encodes to what decodes to something else");
}

template <typename Encode>
ByteBuffer encoded_by(Encode encode) {
  ByteBuffer out;
  encode(out);
  return out;
}

using Report = ByteBuffer (*)(ByteView);
constexpr Report kReports[] = {
    [](ByteView b) {
      return encoded_by([&](ByteBuffer& out) { encode(wire::decode_schema_report(b), out); });
    },
    [](ByteView b) {
      return encoded_by([&](ByteBuffer& out) { encode(wire::decode_topology_report(b), out); });
    },
    [](ByteView b) {
      return encoded_by([&](ByteBuffer& out) { encode(wire::decode_preflight_report(b), out); });
    },
    [](ByteView b) {
      return encoded_by([&](ByteBuffer& out) { encode(wire::decode_commit_result(b), out); });
    },
    [](ByteView b) {
      return encoded_by([&](ByteBuffer& out) { encode(wire::decode_handle_map(b), out); });
    },
    [](ByteView b) {
      return encoded_by([&](ByteBuffer& out) { wire::encode_error(wire::decode_error(b), out); });
    },
    [](ByteView b) {
      return encoded_by([&](ByteBuffer& out) { wire::encode_sums(wire::decode_sums(b), out); });
    },
};

}  // namespace

void decode_request(ByteView bytes) {
  check_decoder(bytes, [](ByteView message) {
    const wire::RequestHead head = wire::decode_request_head(message);
    ByteBuffer out;
    const auto command = wire::command_from(head.command);
    if (command) {
      wire::encode_request(head.request_id, wire::decode_payload(*command, message), out);
    } else {
      out.assign(message.begin(), message.end());  // an unknown command has no payload
    }
    return out;
  });
}

std::vector<ByteBuffer> request_seeds() {
  return sampled(6, [](std::vector<ByteBuffer>& seeds) {
    for (const Command command : all_commands()) {
      ByteBuffer out;
      wire::encode_request(kId, wire::testing::payload(command), out);
      seeds.push_back(std::move(out));
    }
  });
}

// The first byte says which command was asked, and whom.
void decode_response(ByteView bytes) {
  Input input(bytes);
  const std::uint8_t choice = input.byte();
  const auto commands = all_commands();
  const std::string_view name = name_of(commands[choice / 2 % commands.size()]);
  const Peer peer = choice % 2 == 0 ? Peer::kRuntime : Peer::kWorker;
  check_decoder(input.rest(), [&](ByteView message) {
    ByteBuffer out;
    wire::encode_response(wire::decode_response(message, kId, name, peer), out);
    return out;
  });
}

std::vector<ByteBuffer> response_seeds() {
  return sampled(3, [](std::vector<ByteBuffer>& seeds) {
    const auto commands = all_commands();
    for (std::size_t i = 0; i < commands.size(); ++i) {
      for (const Peer peer : {Peer::kRuntime, Peer::kWorker}) {
        wire::Response response =
            wire::testing::response(commands[i], wire::testing::boolean(), peer);
        response.request_id = kId;
        Output out;
        out.byte(2 * i + (peer == Peer::kWorker ? 1 : 0));
        wire::encode_response(response, out.buffer);
        seeds.push_back(std::move(out.buffer));
      }
    }
  });
}

// The first byte says which report.
void decode_report(ByteView bytes) {
  Input input(bytes);
  const Report again = kReports[input.byte() % std::size(kReports)];
  check_decoder(input.rest(), again);
}

std::vector<ByteBuffer> report_seeds() {
  return sampled(8, [](std::vector<ByteBuffer>& seeds) {
    const auto add = [&](std::uint8_t which, auto encode) {
      Output out;
      out.byte(which);
      encode(out.buffer);
      seeds.push_back(std::move(out.buffer));
    };
    namespace testing = wire::testing;
    add(0, [](ByteBuffer& out) { encode(testing::schema_report(), out); });
    add(1, [](ByteBuffer& out) { encode(testing::topology_report(), out); });
    add(2, [](ByteBuffer& out) { encode(testing::preflight_report(), out); });
    add(3, [](ByteBuffer& out) { encode(testing::commit_result(), out); });
    add(4, [](ByteBuffer& out) { encode(testing::handles(), out); });
    add(5, [](ByteBuffer& out) { wire::encode_error(testing::error(), out); });
    add(6, [](ByteBuffer& out) { wire::encode_sums(testing::list_of(20, testing::natural), out); });
  });
}

// Every frame that is received must be received alike once it is sent again. The stream ends after
// the last byte; a peer that stops instead is what the first byte's lowest bit asks for.
void decode_frames(ByteView bytes) {
  Input input(bytes);
  const bool stops = (input.byte() & 1) != 0;
  fakes::VirtualClock clock;
  const auto from = std::make_shared<fakes::Peer>();
  const auto to = std::make_shared<fakes::Peer>();
  fakes::FakeChannel channel(from, clock);
  fakes::FakeChannel copy(to, clock);
  const ByteView stream = input.rest();
  from->send(stream);
  from->gone = !stops;
  std::size_t used = 0;
  ByteBuffer body;
  for (;;) {
    const Deadline deadline = Deadline::after(clock, std::chrono::seconds(1));
    try {
      wire::receive_frame(channel, body, deadline);
    } catch (const PeerViolation& error) {
      if (error.kind() != ErrorKind::kProtocol) throw Finding(error.what());
      return;
    } catch (const RuntimeBroken& error) {
      const ErrorKind expected = stops ? ErrorKind::kTimeout : ErrorKind::kEndOfFile;
      if (error.kind() != expected) throw Finding(error.what());
      if (clock.now() > deadline.time()) throw Finding("waited past its deadline");
      return;
    }
    used += wire::kFrameHeadBytes + body.size();
    wire::send_frame(copy, body, deadline);
    if (used > stream.size() || !std::equal(to->to_it.begin(), to->to_it.end(), stream.begin(),
                                            stream.begin() + static_cast<std::ptrdiff_t>(used))) {
      throw Finding("a frame that was received is sent as something else");
    }
  }
}

std::vector<ByteBuffer> frame_seeds() {
  std::vector<ByteBuffer> seeds;
  for (const std::size_t size : {0, 1, 5, 300}) {
    for (const std::uint8_t stops : {0, 1}) {
      Output out;
      out.byte(stops);
      for (const std::size_t more : {std::size_t{0}, std::size_t{1}, size}) {
        wire::append_frame_head(out.buffer, more);
        out.bytes(ByteBuffer(more, std::byte{0x81}));
      }
      seeds.push_back(out.buffer);
      out.buffer.pop_back();
      seeds.push_back(std::move(out.buffer));
    }
  }
  return seeds;
}

}  // namespace tpsync::fuzz
