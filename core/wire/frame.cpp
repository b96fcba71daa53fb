// One frame is one head and one body. Small frames leave in one write, so that a reader never wakes
// up for a head alone.
#include "tpsync/wire/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tpsync/base/errors.h"

namespace tpsync::wire {
namespace {

constexpr std::array<char, 4> kMagic = {'T', 'P', 'S', '1'};
constexpr std::uint64_t kFirstWriteBytesMax = 4 * kKiB;
constexpr std::uint64_t kFirstReadBytesMax = 64 * kKiB;

using Head = std::array<std::byte, kFrameHeadBytes>;

Head head_for(std::uint64_t body_bytes) {
  if (body_bytes > kFrameBodyBytesMax) {
    throw_invalid(
        ErrorKind::kProtocol, "frame",
        fmt::format("a body of {} bytes is above the limit of {}", body_bytes, kFrameBodyBytesMax));
  }
  Head head{};
  for (std::size_t i = 0; i < kMagic.size(); ++i) head[i] = static_cast<std::byte>(kMagic[i]);
  for (std::size_t i = 0; i < 4; ++i) {
    head[kMagic.size() + i] = static_cast<std::byte>((body_bytes >> (8 * i)) & 0xff);
  }
  return head;
}

std::uint64_t body_bytes_of(const Head& head) {
  for (std::size_t i = 0; i < kMagic.size(); ++i) {
    if (head[i] != static_cast<std::byte>(kMagic[i])) {
      throw_violation(ErrorKind::kProtocol, "frame.magic", "the frame does not begin with TPS1");
    }
  }
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    size |= static_cast<std::uint64_t>(head[kMagic.size() + i]) << (8 * i);
  }
  if (size > kFrameBodyBytesMax) {
    throw_violation(ErrorKind::kProtocol, "frame.length",
                    fmt::format("announces {} bytes, the limit is {}", size, kFrameBodyBytesMax));
  }
  return size;
}

void write_all(Channel& channel, ByteView bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const std::size_t written = channel.write_some(bytes, deadline);
    TPSYNC_ASSERT(written >= 1 && written <= bytes.size());
    bytes = bytes.subspan(written);
  }
}

// `missing_after` is what the frame needs beyond `into`.
void read_all(Channel& channel, MutableByteView into, std::string_view part,
              std::uint64_t missing_after, Deadline deadline) {
  const std::size_t size = into.size();
  while (!into.empty()) {
    const std::size_t count = channel.read_some(into, deadline);
    TPSYNC_ASSERT(count <= into.size());
    if (count == 0) {
      const bool before_frame = part == "head" && into.size() == size;
      throw_broken(ErrorKind::kEndOfFile, "frame",
                   before_frame ? std::string("the other end closed")
                                : fmt::format("the other end closed inside a frame's {}, {} bytes "
                                              "of it were missing",
                                              part, into.size() + missing_after));
    }
    into = into.subspan(count);
  }
}

}  // namespace

void append_frame_head(ByteBuffer& out, std::uint64_t body_bytes) {
  const Head head = head_for(body_bytes);
  out.insert(out.end(), head.begin(), head.end());
}

void send_frame(Channel& channel, ByteView body, Deadline deadline) {
  const Head head = head_for(body.size());
  std::array<std::byte, kFirstWriteBytesMax> first;
  std::copy(head.begin(), head.end(), first.begin());
  const std::size_t with_head = std::min(body.size(), first.size() - head.size());
  std::copy_n(body.begin(), with_head, first.begin() + head.size());
  write_all(channel, ByteView(first.data(), head.size() + with_head), deadline);
  write_all(channel, body.subspan(with_head), deadline);
}

void receive_frame(Channel& channel, ByteBuffer& body, Deadline deadline) {
  body.clear();
  Head head{};
  read_all(channel, head, "head", 0, deadline);
  const std::uint64_t size = body_bytes_of(head);
  // Doubling: what is reserved is at most twice what has arrived, or one small first step.
  while (body.size() < size) {
    const std::uint64_t have = body.size();
    const std::uint64_t want = std::min(size, std::max(kFirstReadBytesMax, 2 * have));
    body.resize(static_cast<std::size_t>(want));
    read_all(channel, MutableByteView(body).subspan(static_cast<std::size_t>(have)), "body",
             size - want, deadline);
  }
}

}  // namespace tpsync::wire
