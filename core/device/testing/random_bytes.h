// Bytes and numbers for tests, drawn by key: equal keys give equal draws.
#pragma once

#include <cstdint>

#include "tpsync/base/bytes.h"
#include "tpsync/device/digest_weights.h"

namespace tpsync::device {

class Draws {
 public:
  explicit Draws(std::uint64_t key) : key_(mix64(key)) {}
  std::uint64_t next() { return mix64(key_ + ++count_); }
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }

 private:
  std::uint64_t key_;
  std::uint64_t count_ = 0;
};

inline ByteBuffer random_bytes(std::uint64_t count, std::uint64_t key) {
  Draws draws(key);
  ByteBuffer bytes(count);
  for (std::byte& one : bytes) one = std::byte(draws.next() & 0xff);
  return bytes;
}

}  // namespace tpsync::device
