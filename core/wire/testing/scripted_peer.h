// The far end of a control channel, frame by frame: what a test lets a runtime, a worker or a
// parent answer.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "core/base/testing/fake_world.h"
#include "tpsync/wire/frame.h"
#include "tpsync/wire/messages.h"

namespace tpsync::fakes {

inline ByteBuffer framed(ByteView body) {
  ByteBuffer bytes;
  wire::append_frame_head(bytes, body.size());
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

// Takes the next complete frame off `stream`; empty where there is none.
inline ByteBuffer take_frame(ByteBuffer& stream) {
  if (stream.size() < wire::kFrameHeadBytes) return {};
  std::uint64_t length = 0;
  for (int i = 3; i >= 0; --i) {
    length = length << 8 | std::to_integer<std::uint64_t>(stream[static_cast<std::size_t>(4 + i)]);
  }
  const std::uint64_t end = wire::kFrameHeadBytes + length;
  if (stream.size() < end) return {};
  ByteBuffer body(stream.begin() + static_cast<std::ptrdiff_t>(wire::kFrameHeadBytes),
                  stream.begin() + static_cast<std::ptrdiff_t>(end));
  stream.erase(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(end));
  return body;
}

// Calls `serve` for every complete frame that is written to `peer`. Both live as long as the
// channel.
inline void on_frame(Peer& peer, std::function<void(const ByteBuffer& body)> serve) {
  peer.on_write = [&peer, serve = std::move(serve)] {
    for (ByteBuffer body = take_frame(peer.to_it); !body.empty(); body = take_frame(peer.to_it)) {
      serve(body);
    }
  };
}

inline void send_response(Peer& peer, const wire::Response& response) {
  ByteBuffer body;
  wire::encode_response(response, body);
  peer.send(framed(body));
}

inline wire::Response succeeded(const wire::RequestHead& head, wire::Result result = {}) {
  wire::Response response;
  response.request_id = head.request_id;
  response.command = head.command;
  response.ok = true;
  response.result = std::move(result);
  return response;
}

inline wire::Response failed(const wire::RequestHead& head, const std::string& error) {
  wire::Response response = succeeded(head);
  response.ok = false;
  response.error = error;
  response.traceback = "there";
  const auto command = wire::command_from(head.command);
  if (command && wire::is_native(*command)) response.result = wire::AbortedResult{};
  return response;
}

}  // namespace tpsync::fakes
