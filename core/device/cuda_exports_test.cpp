// Handles and the register of exports, which need no CUDA.
#include "tpsync/device/cuda_exports.h"

#include <gtest/gtest.h>

#include "tpsync/base/errors.h"

namespace tpsync::device::cuda {
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

Handle some_handle() {
  Handle handle;
  handle.kind = CudaExportKind::kVmmFd;
  handle.region = 7;
  handle.bytes = 100;
  handle.mapped_bytes = 2'097'152;
  handle.device_uuid.fill(std::byte{0xab});
  handle.driver[63] = std::byte{1};
  return handle;
}

ErrorRecord refusal_of(ByteView bytes) {
  return failure_of([&] { require_published(bytes, decode(bytes)); });
}

TEST(CudaHandle, IsReadBackAsItWasWritten) {
  ExportRegister exports;
  Handle handle = some_handle();
  const ByteBuffer bytes = exports.publish(handle);
  EXPECT_EQ(bytes.size(), kHandleBytes);
  EXPECT_EQ(decode(bytes), handle);
  EXPECT_EQ(encode(handle), bytes);
}

TEST(CudaHandle, OfAnotherLengthOrMarkIsAViolation) {
  ExportRegister exports;
  Handle handle = some_handle();
  ByteBuffer bytes = exports.publish(handle);
  EXPECT_EQ(failure_of([&] { decode(ByteView(bytes).first(kHandleBytes - 1)); }).kind,
            ErrorKind::kProtocol);
  bytes[0] ^= std::byte{1};
  EXPECT_EQ(failure_of([&] { decode(bytes); }).remedy, Remedy::kFixPeer);
}

TEST(CudaHandle, HasRoomForTheDescriptorsOfAllPieces) {
  static_assert(kPiecesMax * sizeof(std::uint32_t) == sizeof(Handle::driver));
  EXPECT_EQ(piece_count(0), 0u);
  EXPECT_EQ(piece_count(1), 1u);
  EXPECT_EQ(piece_count(kPieceUnit), 1u);
  EXPECT_EQ(piece_count(kPieceUnit + 1), 2u);
  for (const std::uint64_t units : {16ULL, 17ULL, 31ULL, 32ULL, 33ULL, 1000ULL, 1ULL << 30}) {
    for (const std::uint64_t bytes : {units * kPieceUnit - 1, units * kPieceUnit}) {
      const std::uint64_t piece = piece_bytes(bytes);
      EXPECT_LE(piece_count(bytes), kPiecesMax) << bytes;
      EXPECT_GE(piece_count(bytes) * piece, bytes) << bytes;
      EXPECT_LT((piece_count(bytes) - 1) * piece, bytes) << bytes;
      EXPECT_EQ(piece % kPieceUnit, 0u) << bytes;
    }
  }
  // Whatever a handle says.
  for (const std::uint64_t bytes : {UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - kPieceUnit}) {
    EXPECT_GE(piece_count(bytes), 1u);
    EXPECT_LE(piece_count(bytes), kPiecesMax);
  }
}

TEST(CudaHandle, UuidIsLowerCaseWithDashes) {
  std::array<std::byte, 16> uuid{};
  for (std::size_t i = 0; i < uuid.size(); ++i) uuid[i] = std::byte(0xf0 + i);
  EXPECT_EQ(uuid_text(uuid), "f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff");
}

TEST(ExportRegister, FindsWhatIsPublishedUntilItIsRevoked) {
  ExportRegister exports, others;
  Handle first = some_handle(), second = some_handle();
  const ByteBuffer one = exports.publish(first), other = exports.publish(second);
  EXPECT_TRUE(exports.is_own(first));
  EXPECT_FALSE(others.is_own(first));
  require_published(one, first);
  exports.revoke(first.serial);
  const ErrorRecord record = refusal_of(one);
  EXPECT_EQ(record.kind, ErrorKind::kIpc);
  EXPECT_EQ(record.detail, "the export is gone, or the handle was altered");
  require_published(other, second);
  Handle again = first;
  exports.publish(again);
  EXPECT_GT(again.serial, second.serial);
  EXPECT_EQ(refusal_of(one).kind, ErrorKind::kIpc);
}

TEST(ExportRegister, RefusesHandlesThatAreAlteredAnywhere) {
  ExportRegister exports;
  Handle handle = some_handle();
  const ByteBuffer bytes = exports.publish(handle);
  for (std::size_t i = 8; i < bytes.size(); ++i) {
    ByteBuffer altered = bytes;
    altered[i] ^= std::byte{1};
    EXPECT_EQ(refusal_of(altered).kind, ErrorKind::kIpc) << i;
  }
}

TEST(ExportRegister, EndsWithItsOwner) {
  Handle handle = some_handle();
  ByteBuffer bytes;
  {
    ExportRegister exports;
    bytes = exports.publish(handle);
  }
  EXPECT_EQ(refusal_of(bytes).kind, ErrorKind::kIpc);
}

TEST(ExportRegister, HasRoomFor1024ExportsAtATime) {
  ExportRegister exports;
  Handle handle = some_handle();
  for (int i = 0; i < 1024; ++i) exports.publish(handle);
  const ErrorRecord record = failure_of([&] { exports.publish(handle); });
  EXPECT_EQ(record.kind, ErrorKind::kIpc);
  EXPECT_EQ(record.subject, "export");
  exports.revoke(handle.serial);
  exports.publish(handle);
}

}  // namespace
}  // namespace tpsync::device::cuda
