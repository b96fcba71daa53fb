// Writes MessagePack values straight into a byte buffer, each in its shortest form. Containers are
// announced with their size; the caller then writes exactly that many values (pairs for a map).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "tpsync/base/bytes.h"

namespace tpsync::wire {

class Writer {
 public:
  // Appends to `out`, which must outlive the writer.
  explicit Writer(ByteBuffer& out) : out_(out) {
    if (out.capacity() == 0) out.reserve(kUsualBytes);
  }

  void nil();
  void boolean(bool value);
  void integer(std::int64_t value);
  void natural(std::uint64_t value);
  void real(double value);
  void text(std::string_view value);
  void bytes(ByteView value);
  void array(std::size_t size);
  void map(std::size_t size);
  // Appends values that are encoded already.
  void raw(ByteView encoded);

 private:
  static constexpr std::size_t kUsualBytes = 256;  // most messages are smaller

  ByteBuffer& out_;
};

// Packed integers, inside a `bytes` value: LEB128, seven bits a byte, low bits first, the high bit
// set on all but the last byte; and fixed 64-bit words, low byte first. There are hundreds of
// thousands in a message, so they go through a block first.
class PackedWriter {
 public:
  explicit PackedWriter(std::size_t bytes_expected) { bytes_.reserve(bytes_expected); }

  void varint(std::uint64_t value) {
    if (used_ > kBlockBytes - kVarintBytesMax) flush();
    std::size_t used = used_;
    while (value >= 0x80) {
      block_[used++] = static_cast<std::byte>((value & 0x7f) | 0x80);
      value >>= 7;
    }
    block_[used++] = static_cast<std::byte>(value);
    used_ = used;
  }
  void word(std::uint64_t value) {
    if (used_ > kBlockBytes - 8) flush();
    std::array<std::byte, 8> bytes;
    for (std::size_t i = 0; i < 8; ++i) {
      bytes[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
    }
    std::memcpy(block_.data() + used_, bytes.data(), bytes.size());
    used_ += bytes.size();
  }
  // Of all that was written; good until something more is.
  ByteView bytes() {
    flush();
    return bytes_;
  }

 private:
  static constexpr std::size_t kBlockBytes = 1024;
  static constexpr std::size_t kVarintBytesMax = 10;

  void flush() {
    bytes_.insert(bytes_.end(), block_.begin(),
                  block_.begin() + static_cast<std::ptrdiff_t>(used_));
    used_ = 0;
  }

  ByteBuffer bytes_;
  std::array<std::byte, kBlockBytes> block_;
  std::size_t used_ = 0;
};

}  // namespace tpsync::wire
