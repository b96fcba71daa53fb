// Writes MessagePack values straight into a byte buffer, each in its shortest form. Containers are
// announced with their size; the caller then writes exactly that many values (pairs for a map).
#pragma once

#include <cstddef>
#include <cstdint>
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
// set on all but the last byte; and fixed 64-bit words, low byte first.
void append_varint(ByteBuffer& out, std::uint64_t value);
void append_word(ByteBuffer& out, std::uint64_t value);

}  // namespace tpsync::wire
