// Frames over a Channel: an 8-byte head (magic "TPS1" and the body's length as a little-endian
// u32), then the body, one MessagePack value. A frame is complete or an error; a deadline covers
// the whole operation, head and body.
#pragma once

#include <cstdint>

#include "tpsync/base/bytes.h"
#include "tpsync/base/channel.h"
#include "tpsync/base/clock.h"

namespace tpsync::wire {

inline constexpr std::uint64_t kFrameHeadBytes = 8;
inline constexpr std::uint64_t kFrameBodyBytesMax = 256 * kMiB;

// Appends the head for a body of `body_bytes`; throws InvalidInput kProtocol above the limit.
void append_frame_head(ByteBuffer& out, std::uint64_t body_bytes);

// Sends one frame. `body` is sent as it is. Throws RuntimeBroken kTimeout (part of the frame may be
// sent: the stream is unusable), kEndOfFile, kIo; InvalidInput kProtocol above the limit (nothing
// sent).
void send_frame(Channel& channel, ByteView body, Deadline deadline);

// Receives one frame into `body`, replacing its content; memory grows with what has really arrived,
// never by the announced length alone. Throws RuntimeBroken kEndOfFile (also inside a frame; detail
// says how much was missing), kTimeout, kIo; PeerViolation kProtocol for a wrong magic, or a length
// above the limit.
void receive_frame(Channel& channel, ByteBuffer& body, Deadline deadline);

}  // namespace tpsync::wire
