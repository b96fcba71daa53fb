// Both ends of real socket pairs in one process: order, ends, deadlines, descriptors, closing.
#include "tpsync/base/os_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_clock.h"

namespace tpsync {
namespace {

template <typename Function>
ErrorRecord failure_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.record();
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

class OsChannel : public testing::Test {
 protected:
  OsChannel() { std::tie(left_, right_) = factory_.make_pair(); }

  Deadline soon() { return Deadline::after(clock_, std::chrono::seconds(60)); }
  Deadline short_wait() { return Deadline::after(clock_, std::chrono::milliseconds(2)); }

  std::string read_up_to(Channel& channel, std::size_t count) {
    std::string text(count, '\0');
    text.resize(channel.read_some(std::as_writable_bytes(std::span(text)), soon()));
    return text;
  }
  // Writes until nothing more is accepted; returns how many bytes were.
  std::size_t fill(Channel& channel) {
    const ByteBuffer block(65536, std::byte{1});
    std::size_t accepted = 0;
    try {
      for (;;) accepted += channel.write_some(block, Deadline::at(TimePoint{0}));
    } catch (const RuntimeBroken& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    }
    return accepted;
  }

  OsClock clock_;
  OsChannelFactory factory_;
  std::unique_ptr<Channel> left_;
  std::unique_ptr<Channel> right_;
};

TEST_F(OsChannel, BytesArriveInOrderInBothDirections) {
  EXPECT_EQ(left_->write_some(as_view("abc"), soon()), 3u);
  EXPECT_EQ(left_->write_some(as_view("def"), soon()), 3u);
  EXPECT_EQ(right_->write_some(as_view("back"), soon()), 4u);
  EXPECT_EQ(read_up_to(*right_, 2), "ab");
  EXPECT_EQ(read_up_to(*right_, 100), "cdef");
  EXPECT_EQ(read_up_to(*left_, 100), "back");
}

TEST_F(OsChannel, AcceptedBytesAreReadableAfterTheOtherEndIsGoneAndThenEndOfFile) {
  left_->write_some(as_view("last words"), soon());
  right_->write_some(as_view("never read"), soon());  // the reset that this causes comes later
  left_.reset();
  EXPECT_EQ(read_up_to(*right_, 4), "last");
  EXPECT_EQ(read_up_to(*right_, 100), " words");
  EXPECT_EQ(read_up_to(*right_, 1), "");
  EXPECT_EQ(read_up_to(*right_, 1), "");
}

TEST_F(OsChannel, WritingToAnEndThatIsGoneIsEndOfFileAndNoSignal) {
  right_.reset();
  const ErrorRecord record = failure_of([&] { left_->write_some(as_view("x"), soon()); });
  EXPECT_EQ(record.kind, ErrorKind::kEndOfFile);
  EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
}

TEST_F(OsChannel, ReadTimesOutAtTheDeadlineAndConsumesNothing) {
  std::byte byte{};
  const ErrorRecord record = failure_of([&] { right_->read_some({&byte, 1}, short_wait()); });
  EXPECT_EQ(record.kind, ErrorKind::kTimeout);
  left_->write_some(as_view("x"), soon());
  EXPECT_EQ(read_up_to(*right_, 1), "x");
}

TEST_F(OsChannel, ReadWithAPassedDeadlineStillReturnsWhatIsThere) {
  left_->write_some(as_view("x"), soon());
  std::byte byte{};
  EXPECT_EQ(right_->read_some({&byte, 1}, Deadline::at(TimePoint{0})), 1u);
}

TEST_F(OsChannel, WriteToAFullChannelTimesOutAndGoesOnWhenItIsRead) {
  const std::size_t accepted = fill(*left_);
  EXPECT_GT(accepted, 0u);
  std::thread writer([&] { EXPECT_EQ(left_->write_some(as_view("more"), soon()), 4u); });
  std::size_t left = accepted + 4;
  ByteBuffer into(65536);
  while (left > 0) left -= right_->read_some(into, soon());
  writer.join();
}

TEST_F(OsChannel, ClosedEndRefusesEverythingAndTheOtherSeesEndOfFile) {
  left_->write_some(as_view("x"), soon());
  left_->close();
  left_->close();
  std::byte byte{};
  const int descriptor = 0;
  EXPECT_EQ(failure_of([&] { left_->read_some({&byte, 1}, soon()); }).kind, ErrorKind::kIo);
  EXPECT_EQ(failure_of([&] { left_->write_some({&byte, 1}, soon()); }).kind, ErrorKind::kIo);
  EXPECT_EQ(failure_of([&] {
              left_->send_descriptors({&descriptor, 1}, soon());
            }).kind,
            ErrorKind::kIo);
  EXPECT_EQ(failure_of([&] { left_->receive_descriptors(1, soon()); }).kind, ErrorKind::kIo);
  EXPECT_EQ(read_up_to(*right_, 9), "x");
  EXPECT_EQ(read_up_to(*right_, 9), "");
}

TEST_F(OsChannel, CloseByAnotherThreadEndsABlockedRead) {
  std::thread closer;
  const ErrorRecord record = failure_of([&] {
    std::byte byte{};
    closer = std::thread([&] { left_->close(); });
    left_->read_some({&byte, 1}, soon());
  });
  closer.join();
  EXPECT_EQ(record.kind, ErrorKind::kIo);
}

TEST_F(OsChannel, DescriptorsArriveInOrderAsTheSameOpenFiles) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  left_->send_descriptors(ends, soon());
  const std::vector<int> got = right_->receive_descriptors(2, soon());
  ASSERT_EQ(got.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    struct stat sent {};
    struct stat received {};
    ASSERT_EQ(fstat(ends[i], &sent), 0);
    ASSERT_EQ(fstat(got[i], &received), 0);
    EXPECT_EQ(sent.st_ino, received.st_ino);
    EXPECT_EQ(fcntl(got[i], F_GETFL) & O_ACCMODE, i == 0 ? O_RDONLY : O_WRONLY);
    EXPECT_NE(fcntl(got[i], F_GETFD) & FD_CLOEXEC, 0);
    ::close(ends[i]);
    ::close(got[i]);
  }
}

TEST_F(OsChannel, DescriptorsKeepTheirPlaceAmongBytesEvenForAGreedyReader) {
  const std::array<int, 1> one{0};
  left_->write_some(as_view("before"), soon());
  left_->send_descriptors(one, soon());
  left_->write_some(as_view("after"), soon());
  EXPECT_EQ(read_up_to(*right_, 100), "before");
  EXPECT_EQ(failure_of([&] { read_up_to(*right_, 100); }).kind, ErrorKind::kProtocol);
  const std::vector<int> got = right_->receive_descriptors(1, soon());
  EXPECT_EQ(got.size(), 1u);
  for (const int descriptor : got) ::close(descriptor);
  EXPECT_EQ(read_up_to(*right_, 100), "after");
}

TEST_F(OsChannel, BytesWhereDescriptorsAreDueAreAViolationOfThePeer) {
  left_->write_some(as_view("x"), soon());
  const ErrorRecord record = failure_of([&] { right_->receive_descriptors(1, soon()); });
  EXPECT_EQ(record.kind, ErrorKind::kProtocol);
  EXPECT_EQ(record.remedy, Remedy::kFixPeer);
}

TEST_F(OsChannel, WrongNumberOfDescriptorsIsAViolationAndLeavesNoneOpen) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  left_->send_descriptors({&ends[1], 1}, soon());
  const ErrorRecord record = failure_of([&] { right_->receive_descriptors(2, soon()); });
  EXPECT_EQ(record.kind, ErrorKind::kProtocol);
  EXPECT_EQ(record.detail, "1 descriptors came where 2 were expected");
  right_.reset();
  ::close(ends[1]);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "a copy of the write end is still open";
  ::close(ends[0]);
}

TEST_F(OsChannel, EndOfFileAndDeadlineEndAWaitForDescriptors) {
  EXPECT_EQ(failure_of([&] { right_->receive_descriptors(1, short_wait()); }).kind,
            ErrorKind::kTimeout);
  left_.reset();
  EXPECT_EQ(failure_of([&] { right_->receive_descriptors(1, soon()); }).kind,
            ErrorKind::kEndOfFile);
}

TEST_F(OsChannel, WaitReadableNamesTheLowestReadyChannel) {
  auto [third, fourth] = factory_.make_pair();
  const std::array<Channel*, 2> channels{right_.get(), fourth.get()};
  EXPECT_EQ(factory_.wait_readable(channels, short_wait()), 2u);
  third->write_some(as_view("x"), soon());
  EXPECT_EQ(factory_.wait_readable(channels, soon()), 1u);
  left_.reset();  // end of file is readable too
  EXPECT_EQ(factory_.wait_readable(channels, soon()), 0u);
}

TEST_F(OsChannel, AdoptRefusesWhatIsNoStreamSocket) {
  const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  const ErrorRecord record = failure_of([&] { factory_.adopt(file); });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidState);
  EXPECT_EQ(record.remedy, Remedy::kFixInput);
  EXPECT_EQ(::close(file), 0) << "the descriptor was not left alone";
}

}  // namespace
}  // namespace tpsync
