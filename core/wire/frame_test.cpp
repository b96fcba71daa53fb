// Frames over a channel that gives and takes as few bytes as it likes.
#include "tpsync/wire/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>

#include "tpsync/base/errors.h"

namespace tpsync::wire {
namespace {

using testing::HasSubstr;

// One process at both ends: what is written can be read, at most `step` bytes at a time. Behind the
// last byte is the end of the file.
class LoopChannel final : public Channel {
 public:
  explicit LoopChannel(std::size_t step) : step_(step) {}

  std::size_t read_some(MutableByteView into, Deadline) override {
    largest_read_ = std::max(largest_read_, into.size());
    const std::size_t count = std::min({into.size(), step_, bytes_.size()});
    std::copy_n(bytes_.begin(), count, into.begin());
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  std::size_t write_some(ByteView from, Deadline) override {
    ++writes_;
    const std::size_t count = std::min(from.size(), step_);
    bytes_.insert(bytes_.end(), from.begin(), from.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  void send_descriptors(std::span<const int>, Deadline) override {}
  std::vector<int> receive_descriptors(std::size_t, Deadline) override { return {}; }
  void close() noexcept override {}

  void put(std::string_view text) {
    for (const std::byte byte : as_view(text)) bytes_.push_back(byte);
  }
  std::size_t pending() const { return bytes_.size(); }
  std::size_t largest_read() const { return largest_read_; }
  int writes() const { return writes_; }
  void truncate(std::size_t size) { bytes_.resize(size); }

 private:
  std::size_t step_;
  std::deque<std::byte> bytes_;
  std::size_t largest_read_ = 0;
  int writes_ = 0;
};

constexpr std::size_t kUnlimited = SIZE_MAX;

ByteBuffer pattern(std::size_t size) {
  ByteBuffer body(size);
  for (std::size_t i = 0; i < size; ++i) body[i] = static_cast<std::byte>(i * 7 + i / 251);
  return body;
}

ByteBuffer receive(Channel& channel) {
  ByteBuffer body = pattern(3);  // replaced
  receive_frame(channel, body, Deadline::never());
  return body;
}

template <typename Exception>
ErrorRecord refusal_of(LoopChannel& channel) {
  try {
    receive(channel);
  } catch (const Exception& error) {
    return error.record();
  }
  ADD_FAILURE() << "the frame was accepted";
  return {};
}

TEST(Frame, ABodyOfAnySizeArrivesInStepsOfAnySize) {
  for (const std::size_t step : {std::size_t{1}, std::size_t{7}, kUnlimited}) {
    for (const std::size_t size : {0, 1, 4087, 4088, 4089, 200000}) {
      LoopChannel channel(step);
      const ByteBuffer body = pattern(size);
      send_frame(channel, body, Deadline::never());
      EXPECT_EQ(receive(channel), body) << size << " in steps of " << step;
      EXPECT_EQ(channel.pending(), 0u);
    }
  }
}

TEST(Frame, ASmallFrameLeavesInOneWrite) {
  LoopChannel channel(kUnlimited);
  send_frame(channel, pattern(4088), Deadline::never());
  EXPECT_EQ(channel.writes(), 1);
}

TEST(Frame, TheHeadIsMagicAndLittleEndianLength) {
  ByteBuffer head;
  append_frame_head(head, 0x01020304);
  EXPECT_EQ(as_text(head), std::string_view("TPS1\x04\x03\x02\x01", 8));
}

TEST(Frame, FramesFollowOneAnother) {
  LoopChannel channel(5);
  send_frame(channel, pattern(10), Deadline::never());
  send_frame(channel, pattern(0), Deadline::never());
  send_frame(channel, pattern(20), Deadline::never());
  EXPECT_EQ(receive(channel).size(), 10u);
  EXPECT_EQ(receive(channel).size(), 0u);
  EXPECT_EQ(receive(channel).size(), 20u);
}

TEST(Frame, ABodyAboveTheLimitIsNotSent) {
  ByteBuffer head;
  try {
    append_frame_head(head, kFrameBodyBytesMax + 1);
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kProtocol);
    EXPECT_EQ(error.record().subject, "frame");
  }
  EXPECT_TRUE(head.empty());
}

TEST(Frame, EndOfFileBetweenFramesAndInsideOneDiffer) {
  LoopChannel between(kUnlimited);
  ErrorRecord record = refusal_of<RuntimeBroken>(between);
  EXPECT_EQ(record.kind, ErrorKind::kEndOfFile);
  EXPECT_EQ(record.detail, "the other end closed");

  LoopChannel in_head(kUnlimited);
  in_head.put("TPS1\x05");
  record = refusal_of<RuntimeBroken>(in_head);
  EXPECT_EQ(record.kind, ErrorKind::kEndOfFile);
  EXPECT_THAT(record.detail, HasSubstr("head, 3 bytes"));

  LoopChannel in_body(kUnlimited);
  send_frame(in_body, pattern(100000), Deadline::never());
  in_body.truncate(8 + 70000);
  record = refusal_of<RuntimeBroken>(in_body);
  EXPECT_EQ(record.kind, ErrorKind::kEndOfFile);
  EXPECT_THAT(record.detail, HasSubstr("body, 30000 bytes"));
}

TEST(Frame, AWrongMagicIsAViolation) {
  LoopChannel channel(kUnlimited);
  channel.put("TPS2");
  channel.put(std::string(4, '\0'));
  const ErrorRecord record = refusal_of<PeerViolation>(channel);
  EXPECT_EQ(record.kind, ErrorKind::kProtocol);
  EXPECT_EQ(record.subject, "frame.magic");
}

TEST(Frame, ALengthAboveTheLimitIsAViolationFoundAfterAWrongMagic) {
  LoopChannel channel(kUnlimited);
  channel.put("TPS1\xff\xff\xff\xff");
  const ErrorRecord record = refusal_of<PeerViolation>(channel);
  EXPECT_EQ(record.kind, ErrorKind::kProtocol);
  EXPECT_EQ(record.subject, "frame.length");
  LoopChannel both(kUnlimited);
  both.put("XXXX\xff\xff\xff\xff");
  EXPECT_EQ(refusal_of<PeerViolation>(both).subject, "frame.magic");
}

TEST(Frame, MemoryGrowsWithWhatArrivedNotWithWhatIsAnnounced) {
  LoopChannel channel(kUnlimited);
  ByteBuffer head;
  append_frame_head(head, kFrameBodyBytesMax);
  channel.put(as_text(head));
  channel.put("only this");
  EXPECT_EQ(refusal_of<RuntimeBroken>(channel).kind, ErrorKind::kEndOfFile);
  EXPECT_LE(channel.largest_read(), 64 * kKiB);
}

}  // namespace
}  // namespace tpsync::wire
